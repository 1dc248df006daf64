"""From images to a token store: parts of the list are decoded, encoded and spooled, then sealed.

A part is always the same images in the same batches, so any number of processes, stopped and started at will, make the
same bytes. On a CPU every core takes whole batches, decoding and encoding by itself: nothing waits for anything else.

N images | B batch | V views | h, w code grid, with C codes at a position where stacked, or T codes of a sequence
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilework.core.config import decode
from tilework.core.errors import BrokenImagesError, ConfigError, DamageError, InputError
from tilework.core.files import locked, remove_unfinished, write, write_json
from tilework.core.sealed import read_json, write_sealed
from tilework.data.detected import COLUMN, SIDES, ObjectFolder, pack_objects
from tilework.data.image_files import Broken, Frame, attempt, decode_image
from tilework.data.image_folder import ImageFolder, Images
from tilework.data.pairs import PairFolder, image_sides
from tilework.data.views import decode_views, sample_crops
from tilework.store import Plan, Spool, seal, spool_of
from tilework.store.columns import Values
from tilework.store.finish import refuse_existing
from tilework.store.masks import encode_mask
from tilework.tokenizers.find import place_from
from tilework.tokenizers.tokenizer import Card, Tokenizer

PART = 1024  # images
AHEAD = 8  # batches under way
POOLED = "pooled"  # files of features beside a store, and in its spool
SpoolAll = Callable[["Images", "Tokenizing", Spool, float, Callable[[int, int], None]], None]


@dataclass(frozen=True)
class Tokenizing:
    """What becomes of an image: everything that changes a byte of the store."""

    tokenizer: Tokenizer
    card: Card
    device: torch.device
    licence: str = ""
    views: int = 1  # above 1: random crops, their boxes in column `box`
    area: tuple[float, float] = (0.35, 1.0)  # share of the image that a crop takes
    seed: int = 0  # of the crops
    batch: int = 64  # images encoded in one call
    part: int = PART  # images spooled together
    frame: Frame = "cover"  # squash: the whole image, its aspect not kept, as SeiT
    tiles: tuple[int, int] | None = None  # pixels of the parts that are encoded by themselves; None: the whole image
    mask_step: int = 0  # masks are kept in column `mask`, every so many pixels; 0: none are
    boxes: bool = False  # boxes are kept in column `boxes`, sizes of images in `sides`
    pooled: bool = False  # whether features before the codes, pooled over positions, are kept beside the store

    def plan(self, images: Images) -> Plan:
        """What all parts of the store have in common."""
        tokenizer, size = self.tokenizer, self.card.size
        if self.mask_step and not isinstance(images, PairFolder):
            raise InputError("these images have no masks", "give a folder of images and masks, or leave --masks out")
        if isinstance(images, PairFolder) and not self.mask_step:
            raise InputError(f"{images.root} holds masks and no classes of images", "add --masks to keep them")
        if self.boxes != isinstance(images, ObjectFolder):
            if self.boxes:
                raise InputError(
                    "these images have no boxes", "give a COCO file or a list of VOC, or leave --boxes out"
                )
            raise InputError("these images have boxes and no classes", "add --boxes to keep them")
        crops = [self.views, *self.area, self.seed, "redrawn"] if self.views > 1 else []
        settings: list[object] = [crops, self.batch, self.part]
        settings += [self.tiles, self.mask_step] if self.tiles or self.mask_step else []
        settings += ["boxes"] if self.boxes else []
        preprocessing = self.card.preprocessing if self.frame == "cover" else self.card.squashing
        order = {"sequence": tokenizer.sequence} if tokenizer.sequence else {}
        if self.views > 1:
            preprocessing = (
                f"upright RGB, {self.views} random crops of {self.area[0]:g} to {self.area[1]:g} of the area (seed "
                f"{self.seed}), resized (bicubic) to {size[0]}x{size[1]} px, in [0, 1]"
            )
        if self.tiles:
            preprocessing += f", encoded in tiles of {self.tiles[0]}x{self.tiles[1]} px"
        return Plan(
            vocabulary=len(tokenizer.codebook),
            grid=self.grid(size),
            classes=images.classes,
            views=self.views,
            tokenizer={**self.card.made_by, **order},
            preprocessing=preprocessing,
            frame=self.frame if self.views == 1 else "cover",
            licence=self.licence,
            parts=-(-len(images) // self.part),
            source=digest_of(images, settings),
            original_bytes=images.bytes if isinstance(images, ImageFolder) else 0,
        )

    def grid(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Codes of an image; of tiles, those of each side by side."""
        if self.tiles is None:
            return self.tokenizer.grid(size)
        self.tokenizer.check_grid()
        down, across = (side // tile for side, tile in zip(size, self.tiles, strict=True))
        if (down * self.tiles[0], across * self.tiles[1]) != size:
            (height, width), (h, w) = size, self.tiles
            raise InputError(f"images of {height}x{width} px do not divide into tiles of {h}x{w}", "change --size")
        rows, columns, *stack = self.tokenizer.grid(self.tiles)
        return (down * rows, across * columns, *stack)

    def encode(self, pixels: Tensor) -> Tensor:
        """Codes of images in [0, 1], (B, h, w). pixels: (B, 3, H, W)."""
        if self.tiles is None:
            return self.tokenizer.encode(pixels)
        h, w = self.tiles
        down, across = pixels.shape[2] // h, pixels.shape[3] // w
        parts = pixels.unflatten(3, (across, w)).unflatten(2, (down, h)).permute(0, 2, 4, 1, 3, 5)  # (B, d, a, 3, h, w)
        codes = self.tokenizer.encode(parts.flatten(0, 2)).unflatten(0, (-1, down, across))  # (B, d, a, rows, columns)
        return codes.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def digest_of(images: Images, settings: Sequence[object]) -> str:
    """SHA-256 of the JSON list [names, labels, *settings], of which no more than a part is ever in memory."""
    digest, labels = hashlib.sha256(b"["), images.labels
    values: tuple[Callable[[int], object], ...] = (images.key, lambda i: int(labels[i]))
    for value in values:
        digest.update(b"[")
        for start in range(0, len(images), PART):
            piece = json.dumps([value(i) for i in range(start, min(start + PART, len(images)))])
            digest.update(f"{', ' if start else ''}{piece[1:-1]}".encode())
        digest.update(b"], ")
    digest.update(json.dumps(settings)[1:].encode())
    return digest.hexdigest()


def tokenize(
    images: Images,
    job: Tokenizing,
    out: Path,
    codec: str = "auto",
    used: np.ndarray | None = None,
    max_broken: float = 0.05,
    progress: Callable[[int, int], None] = lambda done, total: None,
    spool_all: SpoolAll | None = None,
    shuffle: bool = False,
) -> list[Broken]:
    """Write a store of all images that can be read; the others are returned, and listed beside it.

    used: the tokenizer's codes that the store keeps, as another store does; those in use if it is not given.
    max_broken: share of unreadable images above which nothing is written.
    spool_all: what spools the parts, if not this process.
    shuffle: put the images in random order, so that shards can be read one after another; keys say which is which.
    """
    refuse_existing(out)
    spool = open_spool(images, job, out)
    try:
        (spool_all or _spool_here)(images, job, spool, max_broken, progress)
    except InputError:
        spool.remove()  # once the images are repaired, all of them are read again
        raise
    beside: dict[Path, Any] = {}
    if isinstance(images, ImageFolder):
        beside[images_of(out)] = {"folder": os.path.relpath(images.root, out.parent)}
    return finish(spool, out, codec, used, max_broken, shuffle=shuffle, beside=beside)


def open_spool(images: Images, job: Tokenizing, out: Path) -> Spool:
    """The spool of a store, new or as an earlier process left it."""
    plan = job.plan(images)
    plan = replace(plan, tokenizer={**plan.tokenizer, **place_from(out.parent, job.card.place)})
    with torch.inference_mode():
        return Spool.create(spool_of(out), plan, job.tokenizer.codebook.cpu().float().numpy())


def spool_share(
    images: Images,
    job: Tokenizing,
    spool: Spool,
    rank: int,
    world: int,
    max_broken: float = 0.05,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Spool every world-th part that is not there yet, beginning with number `rank`."""
    done, broken = set(spool.done()), [one for receipt in _receipts(spool) for one in receipt.broken]
    mine = range(rank, spool.plan.parts, world)
    total = sum(count_images(images, job, number) for number in mine)
    seen = sum(count_images(images, job, number) for number in mine if number in done)
    progress(seen, total)
    spool_parts(
        images, job, spool, [number for number in mine if number not in done], broken, max_broken,
        lambda count: progress(seen + count, total),
    )  # fmt: skip


def _spool_here(
    images: Images, job: Tokenizing, spool: Spool, max_broken: float, progress: Callable[[int, int], None]
) -> None:
    spool_share(images, job, spool, 0, 1, max_broken, progress)


def spool_parts(
    images: Images,
    job: Tokenizing,
    spool: Spool,
    numbers: Sequence[int],
    broken: list[Broken],
    max_broken: float,
    progress: Callable[[int], None] = lambda done: None,
    first: int = 0,
    total: int = 0,
) -> None:
    """Spool some parts. broken: images that are known not to be readable, which those found here join.

    first, total: where `images` are only a slice of the list: images before it, and in the whole list.
    """
    seen, total, before = 0, total or len(images), first // job.part
    job.tokenizer.to(job.device).eval()
    with _workers(job.device) as pool:
        part = _Batch.empty()
        for number, batch in _encoded(images, job, numbers, pool, first):
            for whole, piece in zip(vars(part).values(), vars(batch).values(), strict=True):
                whole += piece
            seen += batch.images
            progress(seen)
            if part.images == count_images(images, job, number):
                broken += part.broken
                check_broken(broken, total, max_broken)
                _put(images, job, spool, before + number, part)
                part = _Batch.empty()


def _put(images: Images, job: Tokenizing, spool: Spool, number: int, part: _Batch) -> None:
    """A part, after the receipt that says what it lacks."""
    receipt = {"images": part.images, "broken": [asdict(one) for one in part.broken]}
    if job.boxes:
        strays = images.strays if isinstance(images, ObjectFolder) and number == 0 else ()
        receipt["boxes"] = [asdict(one) for one in (*strays, *part.unusable)]
    write_sealed(_receipt_file(spool, number), receipt)
    shape = (job.views, *spool.plan.grid) if job.views > 1 else spool.plan.grid
    columns: dict[str, Values] = {"label": images.labels[part.kept], "key": [images.key(i) for i in part.kept]}
    if job.views > 1:
        columns["box"] = np.array(part.boxes, np.float32).reshape(-1, job.views, 4)
    if job.mask_step:
        columns["mask"] = part.masks
    if job.boxes:
        columns[COLUMN], columns[SIDES] = part.objects, np.array(part.sides, np.int32).reshape(-1, 2)
    if job.pooled:
        write(spool.path / f"{POOLED}/{number:05d}.npy", _npy(np.array(part.pooled, np.float32)))
    spool.put(number, np.array(part.values, np.int32).reshape(-1, *shape), columns)


def finish(
    spool: Spool,
    out: Path,
    codec: str = "auto",
    used: np.ndarray | None = None,
    max_broken: float = 0.05,
    progress: Callable[[int, int], None] = lambda done, total: None,
    shuffle: bool = False,
    code_ranges: Callable[[Spool, Sequence[int], Callable[[int, int], None]], None] | None = None,
    beside: Mapping[Path, Any] = MappingProxyType({}),
) -> list[Broken]:
    """Seal a spool and list what could not be read in OUT.quarantine.json. beside: more files to write, as JSON.

    The spool goes last: a process killed before that finds it again, and writes what is missing beside the store.
    """
    receipts = _receipts(spool)
    broken = [one for receipt in receipts for one in receipt.broken]
    if broken:
        check_broken(broken, sum(receipt.images for receipt in receipts), max_broken)
    boxes = [entry for receipt in receipts for entry in receipt.boxes]
    with locked(spool.path):
        if pooled := sorted((spool.path / POOLED).glob("*.npy")):
            found = [features for file in pooled if len(features := np.load(file))]
            remove_unfinished(out.parent, pooled_of(out).name)
            write(pooled_of(out), _npy(np.concatenate(found)))
            shuffle = False  # they lie in the order of the parts
        seal(spool, out, codec, used=used, progress=progress, held=True, shuffle=shuffle, code_ranges=code_ranges)
        quarantine = [asdict(one) for one in broken]
        for file, lines in {quarantine_of(out): quarantine, boxes_of(out): boxes, **beside}.items():
            remove_unfinished(file.parent, file.name)
            if lines:
                write_json(file, lines)
        spool.remove()
    return broken


def quarantine_of(out: Path) -> Path:
    """Where the images that could not be read are listed."""
    return out.with_name(f"{out.name}.quarantine.json")


def images_of(out: Path) -> Path:
    """Where the folder of a store's images is named, as seen from there; outside the store, which may go elsewhere."""
    return out.with_name(f"{out.name}.images.json")


def boxes_of(out: Path) -> Path:
    """Where the boxes that cannot be used are listed."""
    return out.with_name(f"{out.name}.boxes_set_aside.json")


def pooled_of(out: Path) -> Path:
    """Where the pooled features of a store's images lie, (N, D) float32, if they were asked for."""
    return out.with_name(f"{out.name}.{POOLED}.npy")


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def count_images(images: Images, job: Tokenizing, number: int) -> int:
    """Images of a part."""
    return min(job.part, len(images) - number * job.part)


@dataclass(frozen=True)
class Receipt:
    """What a part was made of, and what it lacks."""

    images: int
    broken: tuple[Broken, ...]
    boxes: tuple[dict[str, Any], ...] = ()  # that cannot be used


def _receipt_file(spool: Spool, number: int) -> Path:
    return spool.path / f"receipts/{number:05d}.json"


def _receipts(spool: Spool) -> list[Receipt]:
    return [_receipt(file) for file in sorted((spool.path / "receipts").glob("*.json"))]


def _receipt(file: Path) -> Receipt:
    body = read_json(file)
    try:
        receipt: Receipt = decode(Receipt, body)
    except ConfigError as error:
        raise DamageError(f"{file} is malformed", f"remove it with its part and tokenize again ({error})") from error
    return receipt


def check_receipt(spool: Spool, number: int, broken: list[Broken], total: int, max_broken: float) -> None:
    """Add the images that a part lacks to those known; refuse too many."""
    broken += _receipt(_receipt_file(spool, number)).broken
    check_broken(broken, total, max_broken)


def check_broken(broken: Sequence[Broken], total: int, share: float) -> None:
    """Refuse a larger share of unreadable images than is accepted."""
    if len(broken) > share * total or len(broken) == total:
        raise BrokenImagesError(
            f"{len(broken)} of {total} images cannot be read (first: {broken[0].path}: {broken[0].reason})",
            broken=len(broken),
            total=total,
        )


@dataclass(frozen=True)
class _Batch:
    values: list[np.ndarray]  # of each image: pixels (3, H, W) or (V, 3, H, W), then codes (h, w) or (V, h, w)
    kept: list[int]
    boxes: list[np.ndarray]  # (V, 4) where there are several views
    broken: list[Broken]
    masks: list[bytes]  # where they are kept
    objects: list[np.ndarray]  # likewise, (M, 7) as `pack_objects` gives them
    sides: list[tuple[int, int]]  # height and width of images with objects
    unusable: list[Broken]  # boxes that were set aside
    pooled: list[np.ndarray]  # (D,) each, where they are kept

    @staticmethod
    def empty() -> _Batch:
        """Of no images."""
        return _Batch([], [], [], [], [], [], [], [], [])

    @property
    def images(self) -> int:
        """Good and broken ones."""
        return len(self.kept) + len(self.broken)


def _encoded(
    images: Images, job: Tokenizing, parts: Sequence[int], pool: ThreadPoolExecutor, first: int
) -> Iterator[tuple[int, _Batch]]:
    """Batches of codes in order, each with its part; on a CPU whole batches are under way ahead, else their pixels."""
    cpu = job.device.type == "cpu"
    waiting: deque[tuple[int, Future[_Batch]]] = deque()

    def next_one() -> tuple[int, _Batch]:
        number, future = waiting.popleft()
        return number, future.result() if cpu else _encode(job, future.result())

    for number in parts:
        index = np.arange(number * job.part, number * job.part + count_images(images, job, number))
        for batch in np.split(index, range(job.batch, len(index), job.batch)):
            waiting.append((number, pool.submit(_prepare, images, job, batch, cpu, first)))
            if len(waiting) > AHEAD:
                yield next_one()
    while waiting:
        yield next_one()


def _prepare(images: Images, job: Tokenizing, index: np.ndarray, encode: bool, first: int = 0) -> _Batch:
    batch = _decode(images, job, index, first)
    return _encode(job, batch) if encode else batch


def _decode(images: Images, job: Tokenizing, index: np.ndarray, first: int) -> _Batch:
    """Pixels of images, several views of each where asked for; what cannot be read is set aside."""
    size, batch = job.card.size, _Batch.empty()
    draws = sample_crops(job.seed, first + index, job.views)  # (B, V, 4 T)
    for i, file, drawn in zip(index.tolist(), images.files(index.tolist()), draws, strict=True):
        decode: Callable[[], Any] = partial(decode_image, file, size, job.frame)
        if job.views > 1:
            decode = partial(decode_views, file, size, drawn, job.area)
        image: Any = attempt(file, decode)
        mask = _read_mask(images, job, i) if job.mask_step and not isinstance(image, str) else b""
        checked = attempt(file, partial(images.check, i)) if isinstance(images, ObjectFolder) else None
        if reason := next((part for part in (image, mask, checked) if isinstance(part, str)), ""):
            batch.broken.append(Broken(images.key(i), reason))
            continue
        if job.mask_step:
            assert isinstance(mask, bytes)
            batch.masks.append(mask)
        if checked is not None:
            assert not isinstance(checked, str)
            objects, reasons, _, sides = checked
            batch.objects.append(pack_objects(objects))
            batch.sides.append(sides)
            batch.unusable.extend(Broken(images.key(i), reason) for reason in reasons)
        batch.kept.append(i)
        if isinstance(image, tuple):
            batch.boxes.append(image[1])
        batch.values.append(image[0] if isinstance(image, tuple) else image)
    return batch


def _read_mask(images: Images, job: Tokenizing, index: int) -> bytes | str:
    """The record of an image's mask, or why there is none."""
    assert isinstance(images, PairFolder)
    path, step = images.paths[index], job.mask_step

    def read() -> bytes:
        mask = images.read_mask(index, image_sides(path))
        return encode_mask(np.ascontiguousarray(mask[step // 2 :: step, step // 2 :: step]))

    return attempt(path, read)


@torch.inference_mode()
def _encode(job: Tokenizing, batch: _Batch) -> _Batch:
    """Codes of pixels."""
    if not batch.kept:
        return batch
    pixels = torch.from_numpy(np.stack(batch.values)).to(job.device)  # (B, 3, H, W) or (B, V, 3, H, W)
    if job.pooled:
        ids, features = job.tokenizer.encode_pooled(pixels / 255)
        return replace(batch, values=list(ids.cpu().numpy()), pooled=list(features.float().cpu().numpy()))
    ids = torch.cat([job.encode(part / 255) for part in pixels.flatten(0, -4).split(job.batch)])
    codes = ids.cpu().numpy().reshape(*pixels.shape[:-3], *ids.shape[1:])  # (B, h, w) or (B, V, h, w)
    return replace(batch, values=list(codes))


def try_batch(images: Images, job: Tokenizing, index: np.ndarray) -> int:
    """Decode and encode some images on one core, for an estimate; returns how many cannot be read."""
    job.tokenizer.to(job.device).eval()
    with _workers(job.device) as pool:
        return len(pool.submit(_prepare, images, job, index, True).result().broken)


@contextmanager
def _workers(device: torch.device) -> Iterator[ThreadPoolExecutor]:
    """A thread for every core; on a CPU each computes alone, so that none waits for the others."""
    before = torch.get_num_threads()
    count = before if device.type == "cpu" else os.cpu_count() or 1
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(count) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


def parse_share(text: str) -> tuple[int, int]:
    """'3/8' as (3, 8): the fourth of eight processes."""
    first, _, second = text.partition("/")
    if not (first.isdigit() and second.isdigit()) or int(first) >= int(second):
        raise ConfigError(f"a share of '{text}'", "give i/n with i from 0 to n - 1, for example 0/8")
    return int(first), int(second)


def parse_size(text: str) -> tuple[int, int]:
    """'176x240' as (176, 240): height and width."""
    height, _, width = text.partition("x")
    if not (height.isdigit() and width.isdigit()) or min(int(height), int(width)) < 1:
        raise ConfigError(f"a size of '{text}'", "give HEIGHTxWIDTH in pixels, for example 176x240")
    return int(height), int(width)
