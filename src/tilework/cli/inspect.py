"""`tilework inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from tilework.cli.arguments import Json, Names, OptionalLocal, OptionalPath, Photographs, StorePath
from tilework.cli.output import check_png, show

if TYPE_CHECKING:
    import numpy as np

    from tilework.store import Store


def inspect(
    store: StorePath,
    /,
    tokenizer: OptionalLocal = None,
    picture: OptionalPath = None,
    images: Photographs = None,
    names: Names = None,
    name: Annotated[str, arg(name="class", metavar="NAME", help_behavior_hint="(optional)")] = "",
    count: int = 10,
    json: Json = False,
) -> None:
    """Show size, classes, code statistics and origin of a token store; draw samples.

    Code statistics are left out for a URL, since they need every shard; --picture fetches only the shards it draws.

    Try:
      tilework inspect train.tok
      tilework inspect https://host/train.tok
      tilework inspect train.tok --tokenizer tokenizer --picture samples.png
      tilework inspect train.tok --picture samples.png --images photos/train --names words.txt

    Args:
        tokenizer: Directory of the tokenizer, to decode the samples of --picture, if it does not lie near the store;
            without it codes are drawn as colours.
        picture: PNG file to write with samples of the store.
        name: Class whose images --picture shows; by default images of many classes.
        count: Number of images in --picture.
    """
    from tilework.core.errors import ConfigError
    from tilework.store import Store
    from tilework.store.describe import Description

    if picture is not None:
        check_png(picture, "--picture")
    tokens = Store(store)
    if (images or names) and picture is None:
        raise ConfigError("--images and --names are about the pictures", "add --picture FILE.png")
    about = Description(tokens)
    values = about.values()
    if about.has_masks and about.balance[0] == len(tokens):
        values.pop("images_per_class")  # its classes are those of pixels
    elif not json and len(tokens.classes) > 20:
        values["images_per_class"] = {"smallest": int(about.balance.min()), "largest": int(about.balance.max())}
    if picture is not None:
        _draw(tokens, tokenizer, picture, name, count, images, names)
        values["picture"] = str(picture)
    show(values, json)


def _draw(
    tokens: Store,
    tokenizer: Path | None,
    picture: Path,
    name: str,
    count: int,
    images: Path | None,
    names: Path | None,
) -> None:
    import numpy as np

    from tilework.core.console import notice
    from tilework.core.errors import ConfigError, InputError
    from tilework.core.files import write
    from tilework.core.registry import nearest
    from tilework.data.class_names import shown_names
    from tilework.report import captioned_pictures, rows_of_pictures
    from tilework.runs.pictures import beside, check_images, stored_samples
    from tilework.tokenizers.box import open_tokenizer

    if count < 1:
        raise ConfigError(f"--count is {count}", "give 1 or more")
    if name and name not in tokens.classes:
        raise InputError(f"{tokens.path} has no class '{name}'", nearest(name, tokens.classes))
    made_by, vectors = tokens.manifest.tokenizer, tokens.codebook.vectors
    if tokenizer is not None:
        model, card = open_tokenizer(tokenizer, str(tokens.path), made_by, vectors)
        if card.sha256 != made_by.get("sha256"):
            raise InputError(f"{tokens.path} was made with another tokenizer than {tokenizer}", "give that one")
        if not model.decodes:
            notice(f"the tokenizer {tokenizer} has no decoder: codes are drawn as colours")
    labels = tokens.column("label")
    wanted = np.flatnonzero(labels == tokens.classes.index(name)) if name else np.arange(len(tokens))
    if not len(wanted):
        raise InputError(f"{tokens.path} has no image of class '{name}'", "choose another --class")
    shown = wanted[np.linspace(0, len(wanted) - 1, min(count, len(wanted))).astype(np.int64)]
    shown_as = shown_names(tokens.classes, names)
    if images is not None:
        check_images(tokens, images)
    samples = stored_samples(tokens, shown * tokens.views, tokenizer, images)
    if "mask" in (column.name for column in tokens.manifest.columns):
        write(picture, rows_of_pictures(_masks(tokens, shown, [one.codes for one in samples if one.codes is not None])))
        return
    lines = [[shown_as[label]] for label in labels[shown].tolist()]
    both = any(one.photograph is not None for one in samples)
    title = "left: photograph, right: from its codes" if both else "from codes"
    pictures = [beside(one.pictures) for one in samples]
    write(picture, captioned_pictures(pictures, [one.key for one in samples], lines, [None] * len(shown), title))


def _masks(tokens: Store, shown: np.ndarray, pictures: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of pictures, masks in colours as the codes see them, and one over the other. pictures: (h, w, 3) bytes."""
    import numpy as np
    import torch

    from tilework.data.class_mask import ClassMask
    from tilework.data.masked import find_masks
    from tilework.data.pairs import coloured
    from tilework.data.placement import canvas_affine

    values = find_masks(tokens.path, "")
    assert values.stored is not None
    masks, images = values.stored.read(shown), np.stack(pictures) / 255
    size = (images.shape[1], images.shape[2])
    sides = torch.tensor([mask.shape for mask in masks], dtype=torch.float32)
    seen = ClassMask.of(masks, canvas_affine(sides, size, values.frame)).at(*size).numpy()
    colours = np.stack([coloured(mask, len(tokens.classes)) for mask in seen]) / 255  # (N, h, w, 3)
    return {"images": images, "masks": colours, "overlay": 0.5 * images + 0.5 * colours}
