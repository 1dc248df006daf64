"""`tilework compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from tilework.cli.arguments import Device, DryRun, Images, Json, OptionalPath, Settings
from tilework.cli.output import show

ROWS = ("pixels", "uniform:0.2", "score:0.2", "resolution:0.25", "jpeg:5", "jpeg:10")
TOKEN_ROWS = ("plain@3", "tokens@3", "views:2", "chain")


def compare(
    images: Images,
    settings: Settings = (),
    /,
    *,
    val: Path,
    tokenizer: Annotated[tuple[Path, ...], arg(metavar="PATH ...", help_behavior_hint="(optional)")] = (),
    out: Path,
    rows: Annotated[
        tuple[str, ...], arg(metavar="ROW ...", help_behavior_hint="(default: those of SeiT's table B.5)")
    ] = (),
    pixel_recipe: str = "plain_pixel_cpu",
    token_recipe: tuple[str, ...] = ("seit_cpu", "seit_f16_cpu"),
    plain_recipe: tuple[str, ...] = ("seit_plain_cpu",),
    adapter: OptionalPath = None,
    maps: OptionalPath = None,
    deviation: float = 0.01,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Compare storage and accuracy: all images, subsets, downscaled, JPEG, tokens.

    Every row is written to disk and its bytes are counted; the same model is trained on it for the same number of steps
    and evaluated on the same images. Repeat the command to resume. A row is KIND[:VALUE][@SEEDS]:
      pixels             all image files
      uniform:SHARE      a random share of each class
      score:SHARE        the share of each class that row 'pixels' learns earliest
      resolution:FACTOR  images downscaled by a factor
      jpeg:QUALITY       images re-encoded at a JPEG quality
      tokens[:I]         tokens of the I-th tokenizer, with SeiT's augmentation
      plain[:I]          the same with random crops only
      views:COUNT        tokens of several random crops of each image
      chain              pre-training on tokens, then fine-tuning on pixels

    Try:
      tilework compare photos/train --val photos/val --tokenizer tokenizer --out comparison
      tilework compare photos/train fit.steps=300 --val photos/val --tokenizer a b --rows pixels jpeg:10 tokens@3
        tokens:2 --out comparison

    Args:
        val: Folder of validation images.
        tokenizer: Directories of tokenizers; rows without a number use the first.
        out: Directory for data, runs, results.json, table.md, plot and scores.
        rows: Rows of the table; differences are taken from the first.
        pixel_recipe: Recipe for rows of images.
        token_recipe: Recipes for rows of tokens; the first that fits the token grid is used.
        plain_recipe: The same for rows 'plain'.
        adapter: Directory of a trained TokenAdapt, for token recipes that augment with it.
        maps: Directory of label maps, for pixel recipes that learn from them.
        deviation: Assumed standard deviation of accuracy between seeds (0.01: one point), for the noise estimate.
    """
    from tilework.experiments.compare import RESULTS, Compare, markdown

    names = rows or (*ROWS, *(TOKEN_ROWS if tokenizer else ()), *(f"tokens:{i + 2}" for i in range(len(tokenizer) - 1)))
    job = Compare(
        images,
        val,
        out,
        names,
        tokenizer,
        settings,
        pixel_recipe,
        token_recipe,
        plain_recipe,
        deviation,
        device,
        json,
        adapter,
        maps,
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
