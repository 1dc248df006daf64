"""The runs of a converged table, of those rates that it chose."""

from __future__ import annotations

import json
from pathlib import Path

from tilework.core.errors import DamageError, InputError
from tilework.experiments.runner import directory_of
from tilework.experiments.table import RESULTS
from tilework.runs.directory import SETTINGS, RunDirectory


def runs_in(path: Path) -> tuple[Path, ...]:
    """Runs of a table (OUT of 'tilework table --protocol') or of a row of it (OUT/runs/ROW); else the path itself."""
    table = path if (path / "runs").is_dir() else path.parent.parent
    file = table / RESULTS
    if (path / SETTINGS).is_file() or not file.is_file() or (table != path and path.parent.name != "runs"):
        return (path,)
    try:
        rows = [row for row in json.loads(file.read_bytes())["rows"] if row.get("rate")]
        found = [
            table / directory_of(row["row"]) / f"seed-{seed}-rate-{row['rate']:g}" / "run"
            for row in rows
            if table == path or directory_of(row["row"]).name == path.name
            for seed in row["seeds"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamageError(f"{file} is malformed", f"restore it ({error})") from error
    if not found:
        raise InputError(f"{path} has no row whose rate is chosen", "finish the table, or give single runs")
    if missing := [run for run in found if not RunDirectory(run).finished]:
        what = f"{missing[0]} is gone or unfinished, of the runs that {file} names"
        raise InputError(what, "repeat the table with --restore, or give others")
    return tuple(found)
