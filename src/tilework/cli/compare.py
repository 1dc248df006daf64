"""`tilework compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from tilework.cli.arguments import Device, DryRun, Images, Json, Settings
from tilework.cli.output import show

ROWS = ("pixels", "uniform:0.2", "score:0.2", "resolution:0.25", "jpeg:5", "jpeg:10")
TOKEN_ROWS = ("plain@3", "tokens@3", "views:2", "chain")


def compare(
    images: Images,
    settings: Settings = (),
    /,
    *,
    val: Path,
    tokenizer: Annotated[tuple[Path, ...], arg(metavar="PATH ...")] = (),
    out: Path,
    rows: Annotated[tuple[str, ...], arg(metavar="ROW ...", help_behavior_hint="(default: those of the paper)")] = (),
    pixel_recipe: str = "plain_pixel_cpu",
    token_recipe: tuple[str, ...] = ("seit_cpu", "seit_f16_cpu"),
    plain_recipe: tuple[str, ...] = ("seit_plain_cpu",),
    deviation: float = 0.01,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Storage against accuracy on your own images: pixels, samples of them, small ones, bad ones, and tokens.

    Each row is stored, measured in bytes, trained with the same model and number of steps, and evaluated on the same
    images; stopped, the same command goes on. Rows are KIND[:VALUE][@SEEDS]:
    pixels, uniform:SHARE, score:SHARE, resolution:FACTOR, jpeg:QUALITY, tokens[:NUMBER], plain[:NUMBER],
    views:COUNT, chain (tokens, then pixels). NUMBER is that of a tokenizer.

    Try:
      tilework compare photos/train --val photos/val --tokenizer tokenizer --out comparison
      tilework compare photos/train fit.steps=300 --val photos/val --tokenizer a b --rows pixels jpeg:10 tokens@3
        tokens:2 --out comparison

    Args:
        val: Folder of images to evaluate on.
        tokenizer: Directories of tokenizers; the first is the one that most token rows use.
        out: Where everything goes: data of the rows, runs, results.json, table.md, a plot, scores.
        rows: Rows of the table, the first is what the others are compared with.
        pixel_recipe: Recipe of the rows with images.
        token_recipe: Recipes of the token rows; the first that is made for the codes is taken.
        plain_recipe: The same for tokens without SeiT's augmentation.
        deviation: Between seeds, assumed until rows with several seeds show it.
    """
    from tilework.experiments.compare import RESULTS, Compare, markdown

    names = rows or (*ROWS, *(TOKEN_ROWS if tokenizer else ()), *(f"tokens:{i + 2}" for i in range(len(tokenizer) - 1)))
    job = Compare(
        images, val, out, names, tokenizer, settings, pixel_recipe, token_recipe, plain_recipe, deviation, device, json
    )
    if dry_run:
        show(job.plan(), json)
        return
    results = job.run()
    if json:
        show(results, True)
        return
    print(markdown(results))
    print(f"All numbers are in {out / RESULTS}.")
