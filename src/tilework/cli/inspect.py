"""`tilework inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilework.cli.arguments import Json, OptionalPath, StorePath
from tilework.cli.output import show

if TYPE_CHECKING:
    import numpy as np

    from tilework.core.location import Location
    from tilework.store import Store


def inspect(
    store: StorePath,
    /,
    tokenizer: OptionalPath = None,
    picture: OptionalPath = None,
    json: Json = False,
) -> None:
    """Show size, classes, code statistics and origin of a token store; draw samples.

    Code statistics are left out for a URL, since they need every shard; --picture fetches only the shards it draws.

    Try:
      tilework inspect train.tok
      tilework inspect https://host/train.tok
      tilework inspect train.tok --tokenizer tokenizer --picture samples.png

    Args:
        tokenizer: Directory of the tokenizer, to decode the samples of --picture; else codes are drawn as colours.
        picture: PNG file to write with samples of the store.
    """
    import numpy as np

    from tilework.core.location import Url
    from tilework.store import Store

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
    if "mask" in values["columns"] and balance[0] == len(tokens):
        values.pop("images_per_class")  # its classes are those of pixels
    elif not json and len(tokens.classes) > 20:
        values["images_per_class"] = {"smallest": int(balance.min()), "largest": int(balance.max())}
    if picture is not None:
        _draw(store, tokenizer, picture)
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


def _draw(store: Location, tokenizer: Path | None, picture: Path) -> None:
    import numpy as np

    from tilework.core.errors import InputError
    from tilework.core.files import write
    from tilework.report import code_pictures, rows_of_pictures
    from tilework.store import Store

    tokens = Store(store)
    shown = np.linspace(0, len(tokens) - 1, min(10, len(tokens))).astype(np.int64)
    ids = tokens.batch(shown)
    if ids.ndim == 4:  # several codes at a position: the first of them
        values = tokens.codebook.vectors[ids[..., 0], 0]
        low, high = values.min(), values.max()
        rows = {"first codes": np.repeat(((values - low) / max(high - low, 1e-6))[..., None], 3, -1)}
    else:
        rows = {"codes": code_pictures(ids.reshape(len(ids), -1, tokens.grid[-1]), tokens.codebook.vectors)}
    if tokenizer is not None:
        import torch

        from tilework.tokenizers import load_tokenizer

        model, card = load_tokenizer(tokenizer)
        if card.sha256 != tokens.manifest.tokenizer.get("sha256"):
            raise InputError(f"{store} was made with another tokenizer than {tokenizer}", "give that one")
        rows["decoded"] = model.decode(torch.from_numpy(tokens.used[ids])).permute(0, 2, 3, 1).numpy()
    if "mask" in (column.name for column in tokens.manifest.columns):
        rows |= _masks(tokens, shown, rows.get("decoded"))
    write(picture, rows_of_pictures(rows))


def _masks(tokens: Store, shown: np.ndarray, decoded: np.ndarray | None) -> dict[str, np.ndarray]:
    """Rows of masks in colours, as the codes see them, and over the decoded images where there are any."""
    import numpy as np
    import torch

    from tilework.data.class_mask import ClassMask, canvas_affine
    from tilework.data.masked import find_masks
    from tilework.data.pairs import coloured

    values = find_masks(tokens.path, "")
    assert values.stored is not None
    masks = values.stored.read(shown)
    size = tuple(decoded.shape[1:3]) if decoded is not None else (8 * tokens.grid[0], 8 * tokens.grid[1])
    sides = torch.tensor([mask.shape for mask in masks], dtype=torch.float32)
    seen = ClassMask.of(masks, canvas_affine(sides, size, values.frame)).at(*size).numpy()
    colours = np.stack([coloured(mask, len(tokens.classes)) for mask in seen])  # (N, h, w, 3)
    return {"masks": colours} if decoded is None else {"masks": colours, "overlay": 0.5 * decoded + colours / 510}
