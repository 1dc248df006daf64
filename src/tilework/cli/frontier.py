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

    A teacher is a frozen network whose features are kept, by default that of the tokenizer in the package.
    Writes table.md, results.json and frontier.png after every row. Repeat the command to resume, or to add rows. A row
    is:
      box:pooled, box:corners  what 'tilework start' keeps, of one view of each image or of five
      float16, int8            the teacher's pooled features as numbers
      rounded:STEP             each channel rounded to steps of so many deviations
      pq:BYTES                 product quantisation to so many bytes
      codes:K, codes:KxG       grid of K codes, or of G codes at each position, and a linear classifier
      kmeans:K                 the same without error diffusion
      vit:K                    a small ViT on the grid of K codes
      tokens:TOKENIZER         codes of a tokenizer of your own, with SeiT's recipe
      jpeg:SIDE:QUALITY        small image files, and a small ViT on their pixels; also webp, avif
      pixels:RECIPE            the images as they are

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
