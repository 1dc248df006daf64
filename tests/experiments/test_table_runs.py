"""Runs of a converged table, as other commands are given them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilework.cli.inputs import check_inputs
from tilework.core.errors import DamageError, InputError
from tilework.experiments.table_runs import runs_in


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [
        {"row": "weak (CutMix)", "rate": 1e-3, "seeds": [0, 1]},
        {"row": "DeiT", "rate": 5e-4, "seeds": [0]},
        {"row": "later", "rate": None, "seeds": []},
    ]
    (tmp_path / "results.json").write_text(json.dumps({"rows": rows}))
    for name in ("weak-CutMix/seed-0-rate-0.001", "weak-CutMix/seed-1-rate-0.001", "DeiT/seed-0-rate-0.0005",
                 "DeiT/seed-0-rate-0.002"):  # fmt: skip
        (tmp_path / "runs" / name / "run").mkdir(parents=True)
        (tmp_path / "runs" / name / "run/results.json").write_text("{}")
    return tmp_path


def test_a_table_stands_for_its_runs_at_the_chosen_rates(table: Path) -> None:
    weak = tuple(table / f"runs/weak-CutMix/seed-{seed}-rate-0.001/run" for seed in (0, 1))
    assert runs_in(table / "runs/weak-CutMix") == weak
    assert runs_in(table) == (*weak, table / "runs/DeiT/seed-0-rate-0.0005/run")


def test_a_run_stands_for_itself(table: Path, tmp_path: Path) -> None:
    run = table / "runs/DeiT/seed-0-rate-0.002/run"
    assert runs_in(run) == (run,)
    (run / "run.yaml").write_text("")
    assert runs_in(run) == (run,)
    assert runs_in(tmp_path / "elsewhere") == (tmp_path / "elsewhere",)  # refused where runs are opened


def test_tables_without_such_runs_are_refused(table: Path) -> None:
    with pytest.raises(InputError, match="no row whose rate is chosen"):
        runs_in(table / "runs/later")
    (table / "runs/DeiT/seed-0-rate-0.0005/run/results.json").unlink()
    with pytest.raises(InputError, match="is gone or unfinished"):
        runs_in(table)
    (table / "results.json").write_text("{}")
    with pytest.raises(DamageError, match="malformed"):
        runs_in(table)


def test_robustness_takes_a_table_and_its_rows(table: Path) -> None:
    (table / "settings.json").write_text("{}")
    check_inputs("robustness", [str(table), str(table / "runs/weak-CutMix")])
    for path, said in ((table / "runs", "no run or exported model"), (table / "runs/none", "no run or exported model")):
        with pytest.raises(InputError, match=said):
            check_inputs("robustness", [str(path)])
    with pytest.raises(InputError, match="is a table or comparison of runs, not a run"):
        check_inputs("eval", [str(table)])
