"""From images to a token store: parts of the list are encoded and spooled, then sealed.

A part is always the same images in the same batches, so any number of processes, stopped and started at will, make the
same bytes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tilework.core.errors import ConfigError, InputError
from tilework.core.files import locked, remove_unfinished, write, write_json
from tilework.core.sealed import write_sealed
from tilework.data.detected import COLUMN, SIDES, ObjectFolder
from tilework.data.image_files import Broken
from tilework.data.image_folder import ImageFolder, Images
from tilework.store import Spool, seal, spool_of
from tilework.store.columns import Values
from tilework.store.finish import refuse_existing
from tilework.tokenizers.find import place_from
from tilework.tokenizers.image_codes import CodeBatch, Tokenizing, code_batches, count_images, workers
from tilework.tokenizers.receipts import (
    POOLED,
    boxes_of,
    check_broken,
    images_of,
    pooled_of,
    quarantine_of,
    read_receipts,
    receipt_file,
)

SpoolAll = Callable[["Images", "Tokenizing", Spool, float, Callable[[int, int], None]], None]


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
    done, broken = set(spool.done()), [one for receipt in read_receipts(spool) for one in receipt.broken]
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
    with workers(job.device) as pool:
        part = CodeBatch.empty()
        for number, batch in code_batches(images, job, numbers, pool, first):
            for whole, piece in zip(vars(part).values(), vars(batch).values(), strict=True):
                whole += piece
            seen += batch.images
            progress(seen)
            if part.images == count_images(images, job, number):
                broken += part.broken
                check_broken(broken, total, max_broken)
                _put(images, job, spool, before + number, part)
                part = CodeBatch.empty()


def _put(images: Images, job: Tokenizing, spool: Spool, number: int, part: CodeBatch) -> None:
    """A part, after the receipt that says what it lacks."""
    receipt = {"images": part.images, "broken": [asdict(one) for one in part.broken]}
    if job.boxes:
        strays = images.strays if isinstance(images, ObjectFolder) and number == 0 else ()
        receipt["boxes"] = [asdict(one) for one in (*strays, *part.unusable)]
    write_sealed(receipt_file(spool, number), receipt)
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
    receipts = read_receipts(spool)
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


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


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
