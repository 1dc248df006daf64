"""Photographs of a folder as pixel batches.

A file that cannot be decoded is quarantined with its reason; nothing is skipped silently.
B batch | H, W pixels
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from tilework.core.batch import Batch, Stage, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import BrokenImagesError
from tilework.data.image_files import Broken, File, Frame, attempt, decode_image
from tilework.data.image_folder import ImageFolder, Images
from tilework.data.source import KEEP_BYTES

T = TypeVar("T")


@dataclass
class ImageSource:
    """Pixels of a folder at one size, small folders decoded once and kept in memory."""

    folder: Images
    grid: tuple[int, int]  # H, W
    broken: tuple[Broken, ...] = ()
    stage: Stage = "pixels"
    together: int = 1
    codebook: Codebook | None = None
    frame: Frame = "cover"
    _kept: np.ndarray | None = field(default=None, repr=False)
    _pool: ThreadPoolExecutor | None = field(default=None, repr=False)

    @staticmethod
    def load(
        root: Path,
        size: tuple[int, int],
        classes: Sequence[str] | None = None,
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> ImageSource:
        """`read` of a class folder."""
        return ImageSource.read(ImageFolder.open(root, classes), size, max_broken, progress)

    @staticmethod
    def read(
        folder: ImageFolder,
        size: tuple[int, int],
        max_broken: float = 0.05,
        progress: Callable[[int, int], None] = lambda done, total: None,
        frame: Frame = "cover",
    ) -> ImageSource:
        """Decode every file once, so that the number of good ones is known before training.

        max_broken: share of unreadable files above which the folder is refused.
        """
        keep = fits_memory(len(folder), size)
        pixels = np.empty((len(folder) if keep else 0, 3, *size), np.uint8)
        broken: list[Broken] = []
        good: list[int] = []
        for i, image in decode_all(folder, lambda path: decode_image(path, size, frame), broken, max_broken, progress):
            if keep:
                pixels[len(good)] = image
            good.append(i)
        return ImageSource(
            folder.take(np.array(good)), size, tuple(broken), frame=frame, _kept=pixels[: len(good)] if keep else None
        )

    @staticmethod
    def blank(folder: Images, size: tuple[int, int]) -> ImageSource:
        """The images of a folder without a look at them: all of them black."""
        return ImageSource(folder, size, _kept=np.broadcast_to(np.uint8(0), (len(folder), 3, *size)))

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""
        return self.folder.classes

    @property
    def labels(self) -> np.ndarray:
        """Class numbers, (N,)."""
        return self.folder.labels

    def __len__(self) -> int:
        return len(self.folder)

    def file(self, number: int) -> File:
        """Of one image."""
        return next(iter(self.folder.files([number])))

    def batch(self, index: np.ndarray) -> Batch:
        """x: (B, 3, H, W) uint8."""
        x = self._kept[index] if self._kept is not None else np.stack(self.each(self._decode, index))
        return Batch(
            torch.from_numpy(x),
            Target.hard(torch.from_numpy(self.folder.labels[index])),
            torch.from_numpy(np.asarray(index, np.int64)),
        )

    def each(self, do: Callable[[int], T], index: np.ndarray) -> list[T]:
        """Something done for each image by the decoding threads; each takes the next one until none is left."""
        self._pool, found = self._pool or ThreadPoolExecutor(_threads()), dict[int, T]()
        turns = iter(range(len(index)))  # shared: waiting once for a thread, not for an image, costs far less

        def work() -> None:
            for turn in turns:
                found[turn] = do(int(index[turn]))

        for thread in [self._pool.submit(work) for _ in range(_threads())]:
            thread.result()
        return [found[turn] for turn in range(len(index))]

    def _decode(self, number: int) -> np.ndarray:
        return decode_image(self.file(number), self.grid, self.frame)


def fits_memory(images: int, size: tuple[int, int]) -> bool:
    """Whether so many decoded images of a size stay in memory."""
    return images * size[0] * size[1] * 3 <= KEEP_BYTES


def decode_all(
    folder: ImageFolder,
    decode: Callable[[Path], T],
    broken: list[Broken],
    max_broken: float,
    progress: Callable[[int, int], None],
) -> Iterator[tuple[int, T]]:
    """The number of each good image and what is made of it; the others join `broken`, and too many are refused."""
    with ThreadPoolExecutor(_threads()) as pool:
        for i, image in enumerate(pool.map(lambda path: attempt(path, lambda: decode(path)), folder.paths)):
            if isinstance(image, str):
                broken.append(Broken(folder.key(i), image))
            else:
                yield i, image
            progress(i + 1, len(folder))
    if len(broken) == len(folder) or len(broken) > max_broken * len(folder):
        raise BrokenImagesError(
            f"{len(broken)} of {len(folder)} images in {folder.root} cannot be read "
            f"(first: {broken[0].path}: {broken[0].reason})",
            broken=len(broken),
            total=len(folder),
        )


def _threads() -> int:
    """One for each core that this process may use: more would only take the caches from each other."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(16, usable or 1)
