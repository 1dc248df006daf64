"""Pictures of samples: the photographs where they are at hand, else what their codes decode to.

N samples | H, W pixels
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tilework.core.location import Location, is_store, location
from tilework.data import ImageFolder, decode_image
from tilework.report import code_pictures
from tilework.runs.trained import Trained
from tilework.store import Store
from tilework.tokenizers.box import open_tokenizer
from tilework.tokenizers.find import find_tokenizer

SIDE = 160  # pixels


def pictures_of(
    trained: Trained, data: Sequence[Location | str | object], index: Sequence[int], tokenizer: Path | None = None
) -> list[np.ndarray]:
    """Some samples as (H, W, 3) uint8. data: a store, or photographs and folders as `predict` takes them."""
    places = [location(str(path)) for path in data]
    if is_store(places[0]):
        return stored_pictures(Store(places[0]), np.asarray(index, np.int64), tokenizer or trained.tokenizer)
    folder = ImageFolder.loose([path for path in places if isinstance(path, Path)])
    return [decode_image(folder.paths[i], (SIDE, SIDE)).transpose(1, 2, 0) for i in index]


def stored_pictures(store: Store, index: np.ndarray, tokenizer: Path | None = None) -> list[np.ndarray]:
    """Images of a store, decoded where its tokenizer is at hand or given, else codes as colours."""
    if tokenizer is None and isinstance(store.path, Path):
        tokenizer = find_tokenizer(store.manifest.tokenizer, store.path.parent)
    image, view = np.divmod(index, store.views)
    ids = store.batch(image, view)
    if tokenizer is not None:
        made_by = store.manifest.tokenizer
        model, card = open_tokenizer(tokenizer, str(store.path), made_by, store.codebook.vectors)
        if model.decodes and card.sha256 == made_by.get("sha256"):
            pixels = model.decode(torch.from_numpy(store.used[ids]))
            return [(x * 255).round().byte().permute(1, 2, 0).numpy() for x in pixels]
    if ids.ndim == 4:  # several codes at a position: the first of them
        values = store.codebook.vectors[ids[..., 0], 0]
        grey = (values - values.min()) / max(values.max() - values.min(), 1e-6)
        return [np.repeat((255 * x[..., None]).astype(np.uint8), 3, -1) for x in grey]
    colours = code_pictures(ids.reshape(len(ids), -1, store.grid[-1]), store.codebook.vectors)
    return [(255 * x).astype(np.uint8) for x in colours]
