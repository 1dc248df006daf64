"""`tilework tokenizer train`."""

from __future__ import annotations

from pathlib import Path

from tilework.cli.arguments import Device, DryRun, Images, Json, OptionalPath, Settings
from tilework.cli.output import show


def train_tokenizer(
    images: Images,
    settings: Settings = (),
    /,
    out: Path = Path("tokenizer"),
    val: OptionalPath = None,
    recipe: str = "demo_tokenizer",
    config: OptionalPath = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a tokenizer on a folder of images.

    Try:
      tilework tokenizer train photos/train --val photos/val --out tokenizer
      tilework tokenizer train photos/train size=[192,192] fit.steps=2000 --out tokenizer

    Args:
        out: Directory of the tokenizer; its run (log, checkpoints) is kept in OUT.run.
        val: Folder to measure reconstruction on.
        recipe: Where the settings start from; see 'tilework recipes'.
        config: YAML file over the recipe.
    """
    from tilework.core.config import resolve
    from tilework.core.errors import ConfigError, OutputError
    from tilework.objectives import ReconstructConfig
    from tilework.recipes import plan, recipes, train
    from tilework.tokenizers import Tokenizer, save_tokenizer

    run = resolve(recipes[recipe](), config, settings)
    if not isinstance(run.objective, ReconstructConfig):
        raise ConfigError(f"recipe '{recipe}' does not train a tokenizer", "choose a tokenizer's recipe")
    if out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    if dry_run:
        show(plan(run, images, val, device), json)
        return
    work = out.with_name(f"{out.name}.run")
    result = train(run, images, val, work, device, "tokenizer", quiet=json)
    assert isinstance(result.model, Tokenizer)
    save_tokenizer(out, result.model, run.model, run.size)
    show({"tokenizer": str(out), "run": str(work), **result.metrics}, json)
