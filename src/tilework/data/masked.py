"""Data with class masks: images with mask files beside them, and stores that keep masks as a column.

N images | B batch | H, W pixels of the canvas
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from tilework.core.batch import Batch
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.location import Location, Url, is_store
from tilework.data.class_mask import VOID, ClassMask
from tilework.data.columns import ColumnKind, column_kinds
from tilework.data.image_files import Broken, Frame, decode_image
from tilework.data.images import ImageSource, decode_all
from tilework.data.pairs import PairFolder, image_sides, open_pairs
from tilework.data.placement import canvas_affine
from tilework.data.source import KEEP_BYTES, Around, Source, innermost
from tilework.data.tokens import TokenSource
from tilework.store import Store
from tilework.store.columns import RecordColumn
from tilework.store.masks import decode_mask

COLUMN = "mask"


@dataclass
class PairSource(ImageSource):
    """Images at one size, whose masks are read where an objective asks for them."""

    void: int = 0  # images whose masks have no class at all
    _masks: list[np.ndarray] | None = field(default=None, repr=False)  # of all images, where they are few

    @staticmethod
    def scan(
        folder: PairFolder,
        size: tuple[int, int],
        frame: Frame = "cover",
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> PairSource:
        """Decode every image and mask once; those that cannot be used are set aside with the reason."""
        number = {path: i for i, path in enumerate(folder.paths)}

        def decode(path: Path) -> tuple[np.ndarray, np.ndarray]:
            index = number[path]
            mask = folder.read_mask(index, image_sides(folder.paths[index]))
            return decode_image(folder.paths[index], size, frame), mask

        keep = len(folder) * size[0] * size[1] * 3 <= KEEP_BYTES
        pixels = np.empty((len(folder) if keep else 0, 3, *size), np.uint8)
        masks: list[np.ndarray] | None = []
        broken: list[Broken] = []
        good: list[int] = []
        held, void = 0, 0
        for i, (image, mask) in decode_all(folder, decode, broken, max_broken, progress):
            if keep:
                pixels[len(good)] = image
            good.append(i)
            void += bool((mask == VOID).all())
            held += mask.nbytes
            if held > KEEP_BYTES:
                masks = None
            elif masks is not None:
                masks.append(mask)
        if void == len(good):
            raise InputError(f"no mask of {folder.root} has a labelled pixel", "check 'void' and 'shift'")
        kept = pixels[: len(good)] if keep else None
        chosen = folder.take(np.array(good))
        return PairSource(chosen, size, tuple(broken), frame=frame, _kept=kept, void=void, _masks=masks)

    def masks(self, index: np.ndarray) -> list[np.ndarray]:
        """Masks of some images, (h, w) uint8 each. index: (B,)."""
        if self._masks is not None:
            return [self._masks[i] for i in index.tolist()]
        folder = self.folder
        assert isinstance(folder, PairFolder)
        return list(self.each(folder.read_mask, index))


class Masked(Around):
    """A data set whose batches carry the masks of their images, with where the input lies on them."""

    def __init__(self, source: Source, read: Callable[[np.ndarray], list[np.ndarray]], frame: str) -> None:
        self.source, self.read, self.frame = source, read, frame

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, index: np.ndarray) -> Batch:
        """Samples with their masks in column 'mask'. index: (B,) int64."""
        batch, masks = self.source.batch(index), self.read(index)
        sides = torch.tensor([mask.shape for mask in masks], dtype=torch.float32).view(-1, 2)
        column = ClassMask.of(masks, canvas_affine(sides, self.source.grid, self.frame))
        return batch.changed(columns={**batch.columns, COLUMN: column})


class StoredMasks:
    """The masks of a store, decoded as they are asked for; those of small stores stay in memory."""

    def __init__(self, store: Store) -> None:
        if COLUMN not in (column.name for column in store.manifest.columns):
            raise InputError(f"{store.path} has no masks", "tokenize the images with --masks")
        records = store.column(COLUMN)
        if not isinstance(records, RecordColumn):
            raise DamageError(f"the masks of {store.path} are no records", "restore it")
        self.records, self.classes, self.path = records, len(store.classes), store.path
        self._known: dict[int, np.ndarray] = {}
        self._held = 0

    def read(self, index: np.ndarray) -> list[np.ndarray]:
        """Masks of some images, (h, w) uint8 each. index: (B,)."""
        missing = [i for i in dict.fromkeys(index.tolist()) if i not in self._known]
        new = {
            i: self._checked(decode_mask(record))
            for i, record in zip(missing, self.records.take(np.array(missing, np.int64)), strict=True)
        }
        if self._held < KEEP_BYTES:
            self._known |= new
            self._held += sum(mask.nbytes for mask in new.values())
        return [new[i] if i in new else self._known[i] for i in index.tolist()]

    def _checked(self, mask: np.ndarray) -> np.ndarray:
        if ((mask >= self.classes) & (mask != VOID)).any():
            raise DamageError(f"a mask of {self.path} names a class beyond its list", "restore it")
        return mask


@dataclass(frozen=True)
class MaskValues:
    """Masks of the data at hand, wherever they lie."""

    stored: StoredMasks | None = None
    frame: str = ""  # how the images of a store were fitted

    def attach(self, source: Source, name: str) -> Masked:
        """The data with their masks."""
        if self.stored is not None:
            inner = getattr(source, "store", None)
            if inner is not None and inner.views > 1:
                raise ConfigError("masks of several views of an image are not known", "use a store of one view")
            if source.grid[0] == 1:
                raise ConfigError(f"the codes of {name} are sequences, without positions", "use a grid of codes")
            return Masked(source, self.stored.read, self.frame)
        images = source if isinstance(source, PairSource) else getattr(source, "images", None)
        if not isinstance(images, PairSource):
            raise ConfigError(f"masks cannot follow the samples of {name}", "give a token store or a folder")
        return Masked(source, images.masks, images.frame)


def find_masks(data: Location, directory: str) -> MaskValues:
    """Masks of a store or beside images."""
    if isinstance(data, Url) or is_store(data):
        store = Store(data)
        return MaskValues(StoredMasks(store), store.manifest.frame)
    if open_pairs(data) is None:
        hint = "put images and masks of equal names into 'images' and 'masks', or give a CSV file of pairs"
        raise ConfigError(f"the objective needs masks, and {data} has none", hint)
    return MaskValues()


def has_masks(source: Source) -> bool:
    """Whether the only labels of a data set are masks: images or a store of them."""
    inner = innermost(source)
    if isinstance(inner, TokenSource):
        columns = [column.name for column in inner.store.manifest.columns]
        return COLUMN in columns and len(inner.classes) > 1 and not inner.labels.any()
    return isinstance(inner, ImageSource) and isinstance(inner.folder, PairFolder)


def images_without_class(source: Source | None) -> int:
    """Images of a folder whose masks are void everywhere."""
    inner = None if source is None else innermost(source)
    return inner.void if isinstance(inner, PairSource) else 0


def broken_files(source: Source) -> tuple[Broken, ...]:
    """Files of a folder that were set aside."""
    inner = innermost(source)
    return inner.broken if isinstance(inner, ImageSource) else ()


column_kinds.add(COLUMN)(ColumnKind("masks", find_masks))
