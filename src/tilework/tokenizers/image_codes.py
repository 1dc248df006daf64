"""Images to codes, batch by batch: what becomes of an image, and the threads that decode and encode ahead.

On a CPU every core takes whole batches, decoding and encoding by itself: nothing waits for anything else.

N images | B batch | V views | h, w code grid, with C codes at a position where stacked, or T codes of a sequence
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilework.core.errors import InputError
from tilework.data.detected import ObjectFolder, pack_objects
from tilework.data.image_files import Broken, Frame, attempt, decode_image
from tilework.data.image_folder import ImageFolder, Images
from tilework.data.pairs import PairFolder, image_sides
from tilework.data.views import decode_views, sample_crops
from tilework.store import Plan
from tilework.store.masks import encode_mask
from tilework.tokenizers.tokenizer import Card, Tokenizer

PART = 1024  # images
AHEAD = 8  # batches under way


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


def count_images(images: Images, job: Tokenizing, number: int) -> int:
    """Images of a part."""
    return min(job.part, len(images) - number * job.part)


@dataclass(frozen=True)
class CodeBatch:
    """Some images of a part, or all: their codes, and what is kept beside them."""

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
    def empty() -> CodeBatch:
        """Of no images."""
        return CodeBatch([], [], [], [], [], [], [], [], [])

    @property
    def images(self) -> int:
        """Good and broken ones."""
        return len(self.kept) + len(self.broken)


def code_batches(
    images: Images, job: Tokenizing, parts: Sequence[int], pool: ThreadPoolExecutor, first: int
) -> Iterator[tuple[int, CodeBatch]]:
    """Batches of codes in order, each with its part; on a CPU whole batches are under way ahead, else their pixels."""
    cpu = job.device.type == "cpu"
    waiting: deque[tuple[int, Future[CodeBatch]]] = deque()

    def next_one() -> tuple[int, CodeBatch]:
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


def _prepare(images: Images, job: Tokenizing, index: np.ndarray, encode: bool, first: int = 0) -> CodeBatch:
    batch = _decode(images, job, index, first)
    return _encode(job, batch) if encode else batch


def _decode(images: Images, job: Tokenizing, index: np.ndarray, first: int) -> CodeBatch:
    """Pixels of images, several views of each where asked for; what cannot be read is set aside."""
    size, batch = job.card.size, CodeBatch.empty()
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
def _encode(job: Tokenizing, batch: CodeBatch) -> CodeBatch:
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
    with workers(job.device) as pool:
        return len(pool.submit(_prepare, images, job, index, True).result().broken)


@contextmanager
def workers(device: torch.device) -> Iterator[ThreadPoolExecutor]:
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
