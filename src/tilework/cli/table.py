"""`tilework table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from tilework.cli.arguments import NONE, Data, Device, DryRun, Given, Json
from tilework.cli.output import show

OPTIONAL = arg(metavar="INT", help_behavior_hint="(optional)")


def table(
    rows: Annotated[Positional[tuple[str, ...]], arg(metavar="ROW ...", help_behavior_hint="(required)")],
    /,
    *,
    data: Data,
    val: Data,
    out: Path,
    settings: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE ...", help_behavior_hint="(optional)")] = (),
    artefacts: Given = NONE,
    deviation: float = 0.01,
    protocol: bool = False,
    samples: Annotated[int | None, OPTIONAL] = None,
    passes: Annotated[int | None, OPTIONAL] = None,
    rates: Annotated[tuple[float, ...], arg(metavar="FLOAT ...", help_behavior_hint="(optional)")] = (),
    held: Annotated[int | None, OPTIONAL] = None,
    seeds: Annotated[int | None, OPTIONAL] = None,
    restore: Annotated[bool, arg(help_behavior_hint="")] = False,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train several recipes, settings or seeds on the same data: ablations, sweeps.

    A row is "NAME: RECIPE KEY=VALUE ... @SEEDS"; only RECIPE is required. RECIPE_cpu is its small form for two cores.
    start=RUN initialises from the weights of a run; data=PATH val=PATH are data of its own, such as the tokens of the
    images that other rows see. Differences are taken from the first row. Repeat the command to resume; rows that a
    later command does not name stay in the table, and several processes started with the same command share the runs.
    "{seed}" in start=RUN and maps=MAPS is the number of the seed.

    --protocol makes a table of converged runs: few images, many passes, the same images, order and first weights in
    every row of a seed, and for every row the learning rate that does best on held-out training images; one at which
    training diverges counts as the worst. Images with masks are drawn at random, others by class.

    Try:
      tilework table seit_patch_cpu@2 color_adapt_cpu@2 --data train.tok --val val.tok --out ablation
      tilework table "slow: seit_cpu fit.optim.lr=0.0003" "fast: seit_cpu fit.optim.lr=0.003" --data train.tok
        --val val.tok --out rates
      tilework table seit_plain_cpu seit_cpu --protocol --samples 1000 --passes 100 --data train.tok --val val.tok
        --out converged

    Args:
        rows: Rows of the table.
        data: Token store or image folder to train on.
        val: Token store or image folder to evaluate on.
        out: Directory for runs, results.json and table.md.
        settings: Overrides for every run; for a chain they apply to its last run.
        deviation: Assumed standard deviation of accuracy between seeds (0.01: one point), for the noise estimate.
        protocol: Train every row to convergence; --samples, --passes, --rates and --held belong to it.
        samples: Training images (1000); as many of each class where every image has one.
        passes: Passes over them (100).
        rates: Learning rates to choose from, for every row (0.0005 0.001 0.002).
        held: Other training images, held out to choose the learning rate (2000).
        seeds: Seeds of every row that names none with @ (1; 3 with --protocol).
        restore: Train again, at the chosen rates, runs that results.json has figures of but that were removed: for
            commands that need the models. Belongs to --protocol.
    """
    from tilework.core.errors import ConfigError
    from tilework.experiments.table import RESULTS, Table, markdown

    given = {"samples": samples, "passes": passes, "rates": rates or None, "held": held, "seeds": seeds}
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if alone := [name for name in asked if not protocol and name != "seeds"]:
        raise ConfigError(f"--{alone[0]} belongs to --protocol", "add that, or set fit.steps and samples by --settings")
    if restore and not protocol:
        raise ConfigError("--restore belongs to --protocol", "add that; other tables train removed runs again anyway")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"{seeds} seeds", "give 1 or more to --seeds")
    job = Table(rows, data, val, out, settings, artefacts.found(), deviation, device, json, seeds or 1)
    if protocol:
        from tilework.experiments import converged
        from tilework.experiments.protocol import Protocol

        chosen = Protocol(**asked)
        same = (rows, data, val, out, settings, artefacts.found(), deviation, device, json)
        job, markdown = converged.ConvergedTable(*same, protocol=chosen, restore=restore), converged.markdown
    if dry_run:
        show(job.plan(), json)
        return
    results = job.run()
    if json:
        show(results, True)
        return
    print(markdown(results))
    print(f"All numbers are in {out / RESULTS}.")
