"""`tilework frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from tilework.cli.arguments import Device, Images, Json
from tilework.cli.output import show


def frontier(
    images: Images,
    /,
    *,
    val: Path,
    out: Path,
    rows: Annotated[tuple[str, ...], arg(metavar="ROW ...", help_behavior_hint="(optional)")] = (),
    teacher: Path = Path("box"),
    seeds: int = 1,
    settings: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE ...", help_behavior_hint="(optional)")] = (),
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure accuracy against bytes per image on your images: the Pareto front.

    Codes of a teacher's map (codes:K, codes:KxG for G codes a position, kmeans:K without error diffusion, vit:K with a
    small ViT), its pooled features (float16, int8, pq:BYTES, rounded:STEP to so many deviations of a channel), small
    files (jpeg:SIDE:QUALITY, webp, avif), pixels (pixels:RECIPE), codes of a tokenizer of your own with SeiT's recipe
    (tokens:TOKENIZER), and what 'tilework start' keeps (box:pooled, box:corners).
    Writes table.md, results.json and frontier.png after every row. Repeat the command to resume, or to add rows.

    Try:
      tilework frontier photos/train --val photos/val --out frontier
      tilework frontier photos/train --val photos/val --rows codes:512 pq:64 jpeg:32:30 --seeds 3 --out frontier

    Args:
        val: Folder of validation images.
        out: Directory for maps, stores, runs, table.md, plot and results.json.
        rows: What to measure; by default features, codes and files from about 30 bytes to 1 kB.
        teacher: Directory of 'tilework tokenizer teacher', or box.
        seeds: Number of seeds of every trained classifier; linear ones have none.
        settings: Overrides for every trained classifier, such as fit.steps=2000.
    """
    from tilework.experiments.frontier import ROWS, Frontier

    results = Frontier(images, val, out, rows or ROWS, teacher, seeds, settings, device, quiet=json).run()
    if not json:
        print((out / "table.md").read_text())
    show({"out": str(out), **(results if json else {})}, json)
