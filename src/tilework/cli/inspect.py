"""`tilework inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from tilework.cli.arguments import Json, OptionalLocal, OptionalPath, StorePath
from tilework.cli.output import check_png, show

if TYPE_CHECKING:
    import numpy as np

    from tilework.store import Store


def inspect(
    store: StorePath,
    /,
    tokenizer: OptionalLocal = None,
    picture: OptionalPath = None,
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

    Args:
        tokenizer: Directory of the tokenizer, to decode the samples of --picture, if it does not lie near the store;
            without it codes are drawn as colours.
        picture: PNG file to write with samples of the store.
        name: Class whose images --picture shows; by default images of many classes.
        count: Number of images in --picture.
    """
    import numpy as np

    from tilework.core.location import Url
    from tilework.store import Store

    if picture is not None:
        check_png(picture, "--picture")
    tokens = Store(store)
    counted = {} if isinstance(store, Url) else _count(tokens)
    sizes, balance = tokens.sizes, np.bincount(tokens.column("label"), minlength=len(tokens.classes))
    manifest = tokens.manifest
    values = {
        "store": str(store),
        "images": len(tokens),
        "grid": list(tokens.grid),
        "codes": tokens.vocabulary,
        "tokenizer_codes": manifest.tokenizer_codes,
        "views": tokens.views,
        "columns": {column.name: column.kind for column in manifest.columns},
        "codec": manifest.codec,
        "bytes": sum(sizes.values()),
        "bytes_per_image": sum(sizes.values()) / len(tokens),
        "parts": sizes,
        "column_bytes_per_image": {
            column.name: tokens.column_bytes(column.name) / len(tokens) for column in manifest.columns
        },
        **counted,
        "classes": len(tokens.classes),
        "images_per_class": {n: int(c) for n, c in zip(tokens.classes, balance, strict=True)},
        "tokenizer": manifest.tokenizer,
        "preprocessing": manifest.preprocessing,
        "licence": manifest.licence or "not stated",
        "software": manifest.software,
    }
    if "mask" in (column.name for column in manifest.columns) and balance[0] == len(tokens):
        values.pop("images_per_class")  # its classes are those of pixels
    elif not json and len(tokens.classes) > 20:
        values["images_per_class"] = {"smallest": int(balance.min()), "largest": int(balance.max())}
    if picture is not None:
        _draw(tokens, tokenizer, picture, name, count)
        values["picture"] = str(picture)
    show(values, json)


def _count(tokens: Store) -> dict[str, float]:
    """Code statistics, which need all shards."""
    import numpy as np

    counts = tokens.histogram()
    p = counts[counts > 0] / counts.sum()
    bits = float(-(p * np.log2(p)).sum())
    return {
        "codes_used": int((counts > 0).sum()),
        "entropy_bits_per_token": bits,
        "entropy_bytes_per_image": bits * tokens.manifest.length / 8,
    }


def _draw(tokens: Store, tokenizer: Path | None, picture: Path, name: str, count: int) -> None:
    import numpy as np

    from tilework.core.errors import ConfigError, InputError
    from tilework.core.files import write
    from tilework.core.registry import nearest
    from tilework.report import captioned_pictures, rows_of_pictures
    from tilework.runs.pictures import stored_pictures
    from tilework.tokenizers import load_tokenizer

    if count < 1:
        raise ConfigError(f"--count is {count}", "give 1 or more")
    if name and name not in tokens.classes:
        raise InputError(f"{tokens.path} has no class '{name}'", nearest(name, tokens.classes))
    if tokenizer is not None and load_tokenizer(tokenizer)[1].sha256 != tokens.manifest.tokenizer.get("sha256"):
        raise InputError(f"{tokens.path} was made with another tokenizer than {tokenizer}", "give that one")
    labels = tokens.column("label")
    wanted = np.flatnonzero(labels == tokens.classes.index(name)) if name else np.arange(len(tokens))
    if not len(wanted):
        raise InputError(f"{tokens.path} has no image of class '{name}'", "choose another --class")
    shown = wanted[np.linspace(0, len(wanted) - 1, min(count, len(wanted))).astype(np.int64)]
    pictures = stored_pictures(tokens, shown * tokens.views, tokenizer)
    if "mask" in (column.name for column in tokens.manifest.columns):
        write(picture, rows_of_pictures(_masks(tokens, shown, pictures)))
        return
    keys, names = tokens.column("key"), [[tokens.classes[label]] for label in labels[shown].tolist()]
    write(picture, captioned_pictures(pictures, [keys[i] for i in shown.tolist()], names, [None] * len(shown)))


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
