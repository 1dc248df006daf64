"""Writing a store in one process: codes are spooled as they are added, and sealed at the end.

B images | V views | H, W code grid | K codes | C code dim | n synonyms of a code
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import numpy as np

from tilework.core.errors import InputError, OutputError
from tilework.core.files import locked, make_directory, write
from tilework.store.codec import check_codes
from tilework.store.columns import Values, entry_of, join_values
from tilework.store.finish import clear
from tilework.store.manifest import Frame
from tilework.store.seal import SHARD_IMAGES, seal
from tilework.store.spool import LARGEST_VOCABULARY, LAST, MARK, Plan, Spool, spool_of

PART_TOKENS = 1 << 22  # codes held in memory before they are spooled


@dataclass
class StoreWriter:
    """`with StoreWriter(path, ...) as writer: writer.add(ids, labels, keys)`."""

    path: Path | str
    codebook: np.ndarray  # (K, C) float32; C is 0 if the code vectors are unknown
    classes: Sequence[str]
    codec: str = "auto"  # the smallest of the fast codecs
    tokenizer: dict[str, str] = field(default_factory=dict)
    preprocessing: str = ""
    frame: Frame = "cover"
    licence: str = ""
    shard_images: int = SHARD_IMAGES
    cut: bool = False  # keep only codes that occur, renumbered
    used: np.ndarray | None = None  # keep these codes, as another store does
    views: int = 1
    synonyms: np.ndarray | None = None  # (K, n) int32: other codes, the nearest first; None: by their vectors
    original_bytes: int = 0  # of the image files; 0: not known

    def __enter__(self) -> StoreWriter:
        if self.codebook.ndim != 2 or not 0 < len(self.codebook) <= LARGEST_VOCABULARY or self.shard_images < 1:
            what = f"codebook of shape {self.codebook.shape}, {self.shard_images} images per shard"
            raise InputError(what, f"give (K, C) of at most {LARGEST_VOCABULARY} codes, and 1 or more images per shard")
        self._path = Path(self.path)
        self._spool_path = spool_of(self._path)
        if self._path.exists():
            clear(self._spool_path, self._path)
            raise OutputError(f"{self._path} exists", "choose another directory or remove it")
        self._held: list[tuple[np.ndarray, dict[str, Values]]] = []
        self._images = self._parts = 0
        self._grid: tuple[int, ...] | None = None
        self._spool: Spool | None = None
        self._locks = ExitStack()
        make_directory(self._spool_path)
        try:
            with ExitStack() as stack:
                stack.enter_context(locked(self._spool_path))
                _clear_own(self._spool_path)
                write(self._spool_path / MARK, b"")
                self._locks = stack.pop_all()
        except OSError as error:
            raise OutputError(f"cannot clear {self._spool_path}", str(error)) from error
        except OutputError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                with suppress(OSError):
                    (self._spool_path / MARK).unlink(missing_ok=True)
                    self._spool_path.rmdir()  # unless it holds something
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._flush()
                if self._spool is None:
                    raise InputError(f"no images for {self._path}", "add some before closing it")
                settings = self.codec, self.cut, self.used, self._parts, self.shard_images
                seal(self._spool, self._path, *settings, held=True)
        finally:
            if self._spool is not None:
                with suppress(OutputError):
                    self._spool.remove()
            shutil.rmtree(self._spool_path, ignore_errors=True)
            self._locks.close()

    def add(self, ids: np.ndarray, labels: Sequence[int] | np.ndarray, keys: Sequence[str], **columns: Values) -> None:
        """Append images with their columns. ids: (B, H, W), (B, H, W, C) or (B, T) integers; (B, V, ...) with views."""
        grid = ids.shape[1 + (self.views > 1) :]
        views = ids.shape[1] if self.views > 1 and ids.ndim > 1 else 1
        if len(grid) not in (1, 2, 3) or 0 in grid or views != self.views or ids.dtype.kind not in "iu":
            raise InputError(f"ids of shape {ids.shape} and type {ids.dtype}", "(B, H, W) integers are needed")
        if not len(ids) == len(labels) == len(keys):
            raise InputError(f"{len(ids)} images with {len(labels)} labels and {len(keys)} keys", "give one each")
        if self._grid not in (None, grid):
            raise InputError(f"grid {grid} does not fit a store of {self._grid}", "tokenize all images at one size")
        self._grid = grid
        check_codes(ids.reshape(len(ids), int(np.prod(ids.shape[1:]))), len(self.codebook), first=self._images)
        all_columns: dict[str, Values] = {"label": np.asarray(labels, np.int64), "key": list(map(str, keys)), **columns}
        for name, values in columns.items():
            entry_of(name, values)
        narrow = np.uint16 if len(self.codebook) <= 1 << 16 else np.uint32
        if len(ids):
            self._held.append((ids.astype(narrow), all_columns))
            self._images += len(ids)
        if sum(held.size for held, _ in self._held) >= PART_TOKENS:
            self._flush()

    def _flush(self) -> None:
        """Write the codes held in memory as a part."""
        if not self._held or self._grid is None:
            return
        if self._spool is None:
            plan = Plan(
                vocabulary=len(self.codebook),
                grid=self._grid,
                classes=tuple(self.classes),
                views=self.views,
                tokenizer=self.tokenizer,
                preprocessing=self.preprocessing,
                frame=self.frame,
                licence=self.licence,
                original_bytes=self.original_bytes,
            )
            self._spool = Spool.create(self._spool_path, plan, self.codebook, self.synonyms)
        ids = np.concatenate([held for held, _ in self._held])
        names = self._held[0][1].keys()
        if any(columns.keys() != names for _, columns in self._held):
            raise InputError("images have different columns", "give every image the same columns")
        columns = {name: join_values([columns[name] for _, columns in self._held]) for name in names}
        self._spool.put(self._parts, ids, columns)
        self._parts += 1
        self._held.clear()


def _clear_own(spool: Path) -> None:
    """Remove what a writer that was killed has left; refuse what others have put there."""
    left = [file for file in spool.iterdir() if not (file.name.startswith(".") and file.name.endswith(".tmp"))]
    own = (spool / MARK).is_file() or (
        {file.name for file in left} <= set(LAST)
        and not ((spool / "plan.json").is_file() and Spool.open(spool).plan.parts)
    )
    if left and not own:
        what = f"{spool} holds files of another command, perhaps of an unfinished 'tilework tokenize'"
        raise OutputError(what, "finish that, remove the folder, or choose another output")
    for file in spool.iterdir():
        shutil.rmtree(file) if file.is_dir() else file.unlink()
