"""`tilework train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Device, DryRun, Json, OptionalPath, Settings
from tilework.cli.output import show


def train(
    recipe: Annotated[Positional[str], arg(metavar="RECIPE")],
    settings: Settings = (),
    /,
    *,
    data: Path,
    val: OptionalPath = None,
    out: Path,
    config: OptionalPath = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a model by a recipe; the same command again goes on where it stopped.

    Try:
      tilework train demo_token --data train.tok --val val.tok --out runs/token
      tilework train demo_token fit.steps=2000 model.width=192 --data train.tok --val val.tok --out runs/wide
      torchrun --nproc-per-node 2 -m tilework train demo_token --data train.tok --val val.tok --out runs/two

    Args:
        recipe: Name of a recipe; see 'tilework recipes'.
        data: Token store or image folder to train on.
        val: Token store or image folder to evaluate on.
        out: Directory of the run: settings, log, checkpoints, results.
        config: YAML file over the recipe.
    """
    from tilework.core.config import resolve
    from tilework.recipes import plan, recipes
    from tilework.recipes import train as run_recipe

    run = resolve(recipes[recipe](), config, settings)
    if dry_run:
        show(plan(run, data, val, device), json)
        return
    result = run_recipe(run, data, val, out, device, recipe, quiet=json)
    if result.leads:
        show({"run": str(out), "steps": result.steps, "seconds": result.seconds, **result.metrics}, json)
