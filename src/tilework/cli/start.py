"""`tilework start`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from tilework.cli.arguments import Classes, Device, DryRun, Images, Json, OptionalPath
from tilework.cli.output import show


def start(
    images: Images,
    /,
    *,
    val: OptionalPath = None,
    out: OptionalPath = None,
    classes: Classes = None,
    max_broken: float = 0.2,
    pixel_vit: Annotated[bool, arg(help_behavior_hint="")] = False,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Train a classifier on a folder of images: the one command to begin with.

    Looks at the images, says what it will do and how long it takes, splits off a validation part where there is none,
    tokenizes, trains the recipe recommended for so many images, compares it with simpler things on the same images,
    and writes a page. Repeat the command to resume. 'tilework train FOLDER' does the same.

    Try:
      tilework start photos
      tilework start photos --val other-photos --out runs/photos
      tilework start labels.csv --dry-run
      tilework start photos --pixel-vit

    Args:
        val: Images to validate on; by default val/ beside train/ in the folder, or a fifth of each class.
        out: Directory for label files, stores, run, results.json and report.html; by default start-NAME.
        max_broken: Largest share of unreadable images that is accepted.
        pixel_vit: Also train a small ViT on the pixels for the processor time of all the rest, and show it beside.
    """
    from tilework.core.errors import ConfigError

    if not 0 <= max_broken < 1:
        raise ConfigError(f"--max-broken {max_broken:g} is out of range", "give a share from 0 to below 1")
    from tilework.core.console import notice
    from tilework.experiments.start import FolderStart
    from tilework.experiments.start_page import PAGE, bytes_line, comparison, doubts, next_commands, verdict

    place = out or Path(f"start-{images.resolve().stem}")
    job = FolderStart(images, place, val, classes or "leaf", max_broken, device, json, pixel_vit)
    if dry_run:
        for note in job.parts.folder.notes:
            notice(note, json)
        show(job.plan(), json)
        return
    results = job.run()
    if json:
        show(results, True)
        return
    head, rows = comparison(results)
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for first, *middle, last in (head, *rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(middle, widths[1:-1], strict=True)]
        print("  ".join([f"{first:<{widths[0]}}", *cells, last]).rstrip())
    print()
    for line in (*doubts(results), bytes_line(results), verdict(results), "\nNext:"):
        print(line)
    for command in next_commands(place):
        print(f"  {command}")
    print(f"\nPage: {place / PAGE}; all numbers: {place / 'results.json'}")
