"""`tilework annotate`."""

from __future__ import annotations

from tilework.cli.arguments import Device, Images, Json, OptionalData, OptionalPath
from tilework.cli.output import show


def annotate(
    images: Images,
    /,
    *,
    model: str,
    weights: OptionalPath = None,
    classes: OptionalPath = None,
    size: int = 576,
    top: int = 5,
    out: OptionalPath = None,
    store: OptionalData = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Let a classifier label every place of every image: label maps for token labelling.

    Images are cut as tokenizers and training see them (the middle square), so that a map covers what was stored. One
    that cannot be read ends it; nothing is kept until all are done.

    Try:
      tilework annotate photos/train --model runs/pixels --out train.maps
      tilework annotate photos/train --model efficientnet_lite0 --classes numbers.csv --store train.tok

    Args:
        model: Run on pixels, 'efficientnet_lite0' (its weights come with a package), or 'timm:NAME'.
        weights: Checkpoint file for 'timm:NAME'.
        classes: CSV file with lines NAME,NUMBER: the annotator's number of each class folder, where names differ.
        size: Pixels of the square that the annotator sees; runs of ours take the size they were trained on.
        top: Classes kept for each position.
        out: Directory for the maps, beside the images.
        store: Token store of the same images, which gets them as a column.
    """
    from tilework.core.distributed import pick_device
    from tilework.core.errors import ConfigError
    from tilework.runs.annotate import annotate_images

    if out is None and store is None:
        raise ConfigError("label maps go into a directory or a store", "give --out, --store or both")
    found = annotate_images(images, model, weights, classes, size, top, out, store, pick_device(device), quiet=json)
    show(found, json)
