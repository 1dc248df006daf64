"""`tilework explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Device, Json, Names, OptionalLocal, Photographs
from tilework.cli.output import show


def explain(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN ...", help_behavior_hint="(required)")],
    /,
    *,
    data: tuple[Data, ...],
    out: Path,
    method: Literal["relevance", "gradient_attention", "rollout", "gradient"] = "relevance",
    tokenizer: OptionalLocal = None,
    images: Photographs = None,
    names: Names = None,
    count: int = 6,
    classes: int = 2,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Draw attribution maps: relevance of each patch for the top predicted classes.

    Try:
      tilework explain runs/deit runs/lv --data photos/val --out where.png
      tilework explain runs/token --data val.tok --images photos/val --out where.png

    Args:
        runs: Runs of classifiers, one below another in the figure.
        data: Token store or image folder, one for all runs or one for each, with the same images.
        out: PNG file to write.
        method: Layer-wise relevance propagation (ViT), gradient times attention (any transformer), attention rollout
            (independent of the class), or integrated gradients (captum).
        tokenizer: Directory of the tokenizer, to draw codes as images, if no run holds it.
        count: Number of images.
        classes: Number of top predicted classes, one row each.
    """
    from tilework.analysis.explain import explain as draw

    said = draw(runs, data, out, method, tokenizer, count, classes, device, images, names)
    show({"picture": str(out), **said}, json)
