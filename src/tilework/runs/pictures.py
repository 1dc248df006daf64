"""Pictures of samples: the photographs where they are at hand, else what their codes decode to.

N samples | H, W pixels
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tilework.core.errors import InputError
from tilework.core.location import Location, is_store, location
from tilework.data import ImageFolder, ImageSource, Source, TokenSource, decode_image
from tilework.data.image_files import SUFFIXES, File, attempt
from tilework.data.masked import innermost
from tilework.report import code_pictures
from tilework.runs.trained import Trained
from tilework.store import Store
from tilework.tokenizers.box import open_tokenizer
from tilework.tokenizers.find import find_tokenizer
from tilework.tokenizers.images_as_codes import ImagesAsCodes
from tilework.tokenizers.receipts import images_of

SIDE = 160  # pixels
LARGEST = 1 << 16  # bytes of the note where images lie


@dataclass(frozen=True)
class Sample:
    """A sample of data as people see it."""

    key: str
    photograph: np.ndarray | None  # (H, W, 3) uint8, where it is at hand
    codes: np.ndarray | None = None  # what its codes decode to, or the codes as colours, (H, W, 3) uint8

    @property
    def pictures(self) -> list[np.ndarray]:
        """Those that there are, the photograph first."""
        return [picture for picture in (self.photograph, self.codes) if picture is not None]


def samples_of(
    source: Source, index: Sequence[int], tokenizer: Path | None = None, images: Path | None = None
) -> list[Sample]:
    """Some samples of data that a run was opened on. images: the folder that a store was made from."""
    inner = innermost(source)
    if isinstance(inner, TokenSource):
        return stored_samples(inner.store, np.asarray(index, np.int64), tokenizer, images)
    images_of = inner.images if isinstance(inner, ImagesAsCodes) else inner
    assert isinstance(images_of, ImageSource)
    return [Sample(images_of.folder.key(i), photograph(images_of.file(i))) for i in index]


def stored_samples(
    store: Store, index: np.ndarray, tokenizer: Path | None = None, images: Path | None = None
) -> list[Sample]:
    """Some samples of a store, numbered over images and views."""
    found = stored_photographs(store, index, images)
    return [replace(one, codes=p) for one, p in zip(found, stored_pictures(store, index, tokenizer), strict=True)]


def stored_photographs(store: Store, index: np.ndarray, images: Path | None) -> list[Sample]:
    """The photographs of some samples of a store, where there are any; nothing is decoded.

    images: their folder; by default the one that 'tilework tokenize' has noted beside the store, if it is still there.
    """
    images = images or folder_of(store)
    keys = store.column("key")
    names = [str(keys[i]) for i in (index // store.views).tolist()]
    return [Sample(name, None if images is None else _below(images, name)) for name in names]


def folder_of(store: Store) -> Path | None:
    """The folder of the images that a store was made from, where it is noted beside it and still there."""
    file = images_of(store.path) if isinstance(store.path, Path) else None
    try:
        told = json.loads(file.read_bytes()) if file is not None and file.stat().st_size < LARGEST else {}
        folder = file.parent / told["folder"] if file is not None else None
    except (OSError, ValueError, KeyError, TypeError):  # none, or not ours
        return None
    return folder if folder is not None and folder.is_dir() else None


def beside(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures side by side, each as tall as the tallest, (H, W, 3) uint8."""
    tall = max(picture.shape[0] for picture in pictures)
    sizes = [(max(1, round(p.shape[1] * tall / p.shape[0])), tall) for p in pictures]
    scaled = [Image.fromarray(p).resize(s, Image.Resampling.NEAREST) for p, s in zip(pictures, sizes, strict=True)]
    return np.hstack([np.asarray(one) for one in scaled])


def check_images(store: Store, images: Path) -> None:
    """Refuse a folder that has none of the photographs of a store."""
    keys = [str(key) for key in store.column("key")]
    if not images.is_dir() or not any(_file(images, key) for key in keys[:1000]):
        raise InputError(
            f"{images} has no photograph of {store.path} ('{keys[0]}', ...)", "give the folder it was made from"
        )


def photograph(path: File) -> np.ndarray | None:
    """The middle of a photograph, (H, W, 3) uint8; None if it cannot be read."""
    found = attempt(path, lambda: decode_image(path, (SIDE, SIDE)))
    return None if isinstance(found, str) else np.ascontiguousarray(found.transpose(1, 2, 0))


def _below(folder: Path, key: str) -> np.ndarray | None:
    file = _file(folder, key)
    return None if file is None else photograph(file)


def _file(folder: Path, key: str) -> Path | None:
    """The file of a key that a store claims, never outside the folder."""
    inside = Path(key)
    if inside.is_absolute() or ".." in inside.parts or inside.suffix.lower() not in SUFFIXES:
        return None
    return folder / inside if (folder / inside).is_file() else None


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
