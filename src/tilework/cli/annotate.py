"""`tilework annotate`."""

from __future__ import annotations

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
    out: OptionalPath = None,
    store: OptionalData = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Write label maps for token labelling: a classifier's top classes per position.

    Images are centre-cropped to a square as for tokenizing and training, so that a map covers the same area. An
    unreadable image is an error, and nothing is written then.

    Try:
      tilework annotate photos/train --model runs/pixels --out train.maps
      tilework annotate photos/train --model efficientnet_lite0 --classes numbers.csv --store train.tok

    Args:
        model: Run or exported model on pixels (or hf://OWNER/NAME), 'efficientnet_lite0' (its weights come with a
            package), 'timm:NAME' with --weights, or 'timm:NAME.WEIGHTS' as on the hub.
        weights: Checkpoint file for 'timm:NAME', or hf://OWNER/NAME/FILE.
        classes: CSV file with lines NAME,NUMBER: the model's class number of each class folder, where names differ.
        size: Input size in pixels; ignored for a Tilework run, which uses its training size.
        top: Number of classes to keep at each position.
        out: Directory to write the label maps to.
        store: Token store of the same images to add the label maps to, as a column.
    """
    from tilework.core.distributed import pick_device
    from tilework.core.errors import ConfigError
    from tilework.runs.annotate import annotate_images

    if out is None and store is None:
        raise ConfigError("no output for the label maps", "give --out DIRECTORY, --store STORE or both")
    found = annotate_images(images, model, weights, classes, size, top, out, store, pick_device(device), quiet=json)
    show(found, json)
