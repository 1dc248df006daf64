"""`tilework table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import NONE, Data, Device, DryRun, Given, Json
from tilework.cli.output import show


def table(
    rows: Annotated[Positional[tuple[str, ...]], arg(metavar="ROW ...")],
    /,
    *,
    data: Data,
    val: Data,
    out: Path,
    settings: Annotated[tuple[str, ...], arg(metavar="SETTING ...")] = (),
    artefacts: Given = NONE,
    deviation: float = 0.01,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Several recipes, settings or seeds on the same data, as one table: ablations and sweeps.

    A row is "NAME: RECIPE SETTING ... @SEEDS"; of these only the recipe, or chain, is needed. RECIPE_cpu is the small
    form of a recipe. A setting start=RUN begins with the weights of a run. Stopped, the same command goes on; several
    processes with the same command share the work. The first row is what others are compared with.

    Try:
      tilework table seit_patch_cpu@2 color_adapt_cpu@2 --data train.tok --val val.tok --out ablation
      tilework table "slow: seit_cpu fit.optim.lr=0.0003" "fast: seit_cpu fit.optim.lr=0.003" --data train.tok
        --val val.tok --out rates

    Args:
        rows: Rows of the table.
        data: Token store or image folder that every run is trained on.
        val: Token store or image folder to evaluate on.
        out: Where everything goes: runs, results.json, table.md.
        settings: Settings for every run; of a chain for its last link.
        deviation: Between seeds, assumed until rows with several seeds show it.
    """
    from tilework.experiments.table import RESULTS, Table, markdown

    job = Table(rows, data, val, out, settings, artefacts.found(), deviation, device, json)
    if dry_run:
        show(job.plan(), json)
        return
    results = job.run()
    if json:
        show(results, True)
        return
    print(markdown(results))
    print(f"All numbers are in {out / RESULTS}.")
