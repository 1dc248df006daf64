"""`tilework annotate`."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import arg

from tilework.cli.arguments import Device, Images, Json, OptionalData, OptionalHub, OptionalPath
from tilework.cli.output import show


def annotate(
    images: Images,
    /,
    *,
    model: str,
    weights: OptionalHub = None,
    classes: OptionalPath = None,
    size: int = 576,
    top: int = 5,
    among: Literal["all", "data"] = "all",
    out: OptionalPath = None,
    store: OptionalData = None,
    replace: Annotated[bool, arg(help_behavior_hint="")] = False,
    max_broken: float = 0.05,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Write label maps for token labelling: a classifier's top classes per position.

    Images are centre-cropped to a square as for tokenizing and training, so that a map covers the same area. Images
    that cannot be read are left out and listed in OUT.quarantine.json. Repeat the command to resume.

    Try:
      tilework annotate photos/train --model runs/pixels --out train.maps
      tilework annotate photos/train --model efficientnet_lite0 --classes numbers.csv --store train.tok
      tilework annotate photos/train --model efficientnet_lite0 --classes numbers.csv --among data --out sharp.maps

    Args:
        model: Run or exported model on pixels (or hf://OWNER/NAME), 'efficientnet_lite0' (its weights come with a
            package), 'timm:NAME' with --weights, or 'timm:NAME.WEIGHTS' as on the hub.
        weights: Checkpoint file for 'timm:NAME', or hf://OWNER/NAME/FILE.
        classes: CSV file with lines NAME,NUMBER: the model's class number of each class folder, where names differ.
        size: Input size in pixels; ignored for a Tilework run, which uses its training size.
        top: Number of classes to keep at each position.
        among: Classes that share the probability of a position: all that the model knows, so that a position that
            shows none of the data's gets an even label (LV-ViT), or the data's alone, which gives sharper labels.
        out: Directory to write the label maps to.
        store: Token store of the same images to add the label maps to, as a column.
        replace: Replace the label maps that the store has.
        max_broken: Largest share of unreadable images that is accepted.
    """
    from tilework.core.distributed import pick_device
    from tilework.core.errors import ConfigError
    from tilework.runs.annotate import Annotation

    if out is None and store is None:
        raise ConfigError("no output for the label maps", "give --out DIRECTORY, --store STORE or both")
    if replace and store is None:
        raise ConfigError("--replace is about the label maps of a store", "give --store STORE")
    chosen = pick_device(device)
    job = Annotation(
        images, model, weights, classes, size, top, out, store, chosen, max_broken, replace, quiet=json, among=among
    )
    show(job.run(), json)
