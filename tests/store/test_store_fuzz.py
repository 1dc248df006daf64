"""Fuzzing of what a store is read from: forged stores, their checksums, hashes and seal all right.

Whatever they hold, only errors of ours may come out, no warnings, within bounds of time and memory; and codes that do
come out are codes. An input is made from the seed and its number alone, so that
`python tests/store/test_store_fuzz.py SEED FIRST COUNT` shows again what was forged and where it failed.

T codes of a record | K codes
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilework.core.compiled import kernels
from tilework.core.errors import TileworkError
from tilework.core.files import crc32c
from tilework.store import Store, StoreWriter, reader
from tilework.store.codec import KERNELS

MEMORY = 3 << 29  # bytes beyond those of the bare process
SECONDS = 2.0  # of processor time for an input: other processes on the machine do not count
LONGEST = 1 << 16  # codes of a record: what is longer must be refused, or be read as quickly
HANGS = 120.0  # seconds without any progress
BATCH = 10_000  # inputs of a process
SHARD_1 = struct.Struct("<8sIIQQI")  # magic, version, records, first, bytes, width
SHARD = struct.Struct("<8sIIQQIII")  # the same to the bytes, smallest size, bytes of sizes, records of a checksum
VERSION_1 = (-1, 0, 2, 4)  # forms of version 1: width of sizes, -1 for the one that fits
VERSION_2 = ("1", "2", "4", "8", "16")  # forms of version 2: records that share a checksum
Form = int | str
SOURCE = str(Path(reader.__file__).parents[1])

INTS = [0, 1, -1, 2, 3, 4, 7, 8, 9, 10, 11, 24, 64, 255, 256, 4096, 2**16 - 1, 2**16, 2**20, 2**24, 2**24 + 1]
INTS += [s * n for n in (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64) for s in (1, -1)]
ODD: list[Any] = [10**30, -(10**300), 0.5, 1.0, -0.0, 1e308, float("nan"), float("inf"), None, True, False, [], {}]
ODD += [[[]], [0], [None], {"a": 1}, {"": {}}, [2, 3], ["x"], "", "0", "x", "nan", "\0", "\ud800", "é", "a" * 300]
ODD += ["../x", "/etc/passwd", "a/../../b", ".", "shards", "packed", "rans", "pairwise", "bytes", "text"]
TEXTS = ["9" * 4300, "-" + "9" * 4300, "9" * 4301, "1e999", '"' + "x" * 100_000 + '"']  # as they stand in the JSON
DEPTHS = [10, 100, 960, 970, *range(975, 1000), 1500, 5000, 10_000, 100_000]
NAMES = ["", ".", "x", "label", "key", "__class__", "a" * 120, "a" * 300, "é", "\ud800", "a b", "a/b", "../x", "x\0"]
DTYPES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4}
DTYPES |= {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "X": 1, "": 1}
TENSORS = ["values", "offsets", "text", "bytes", "ragged", "codebook", "used", "left", "frequencies", "v", "x"]
SHAPES = [[], [0], [0, 3], [2, 2], [1] * 40, [1] * 70, [0, 2**63], [2**32, 2**32, 0], [2**64 - 1, 0], [2**40, 0]]
KINDS = ["<i2", "<f2", "<f8", "|b1", "|u1", "<u8", ">i4", "i4", "<c8", "O", "V4", "<U1", "<M8[s]", "i4,i4", "q", ""]


class Broken(Exception):
    """Something came out that must not."""


class Overtime(BaseException):
    """An input that takes too long."""


# stores to forge ------------------------------------------------------------------------------------------------------


@dataclass
class Subject:
    """A store in memory."""

    path: Path
    files: dict[str, bytes]
    body: dict[str, Any]  # its manifest without format, version and seal
    text: str  # the same as JSON


def make_subjects(folder: Path) -> list[Subject]:
    """A small store for every codec, grid, way to keep the codebook, and kind of column."""
    rng = np.random.default_rng(0)
    extra = {
        "plain": lambda n: {},
        "blob": lambda n: {"blob": [rng.bytes(i % 4) for i in range(n)]},
        "boxes": lambda n: {"boxes": [rng.normal(size=(i % 3, 4)).astype(np.float32) for i in range(n)]},
        "depth": lambda n: {"depth": rng.normal(size=(n, 2, 3)).astype(np.float16)},
    }
    subjects = []
    #   codec, codes, grid, images, views, images of a shard, cut, column
    for codec, codes, grid, images, views, most, cut, column in [
        ("packed", 10, (2, 3), 7, 1, 3, False, "blob"),
        ("packed", 300, (5,), 4, 2, 9, True, "boxes"),
        ("packed", 1, (2, 2), 3, 1, 9, False, "depth"),
        ("rans", 10, (2, 3), 5, 1, 3, True, "boxes"),
        ("rans", 4097, (6,), 4, 1, 9, False, "plain"),
        ("rans", 3, (2,), 64, 1, 64, False, "plain"),
        ("rans", 1, (4,), 2, 2, 9, False, "blob"),
        ("rans-context", 10, (3, 3), 4, 2, 9, False, "depth"),
        ("rans-context", 30, (6,), 5, 1, 9, True, "blob"),
        ("rans-context", 1, (2, 2), 3, 1, 9, False, "plain"),
        ("pairwise", 10, (2, 3), 4, 1, 9, True, "boxes"),
        ("pairwise", 12, (5,), 3, 2, 4, False, "depth"),
        ("pairwise", 1, (2, 2), 2, 1, 9, False, "plain"),
        ("mix", 10, (3, 3), 4, 1, 9, False, "plain"),
        ("mix", 30, (4, 4), 6, 1, 4, False, "blob"),
    ]:
        if codec == "mix" and kernels(KERNELS) is None:  # which fit it
            continue
        path = folder / f"{len(subjects):02d}-{codec}.tok"
        shape = (images, *((views,) if views > 1 else ()), *grid)
        ids = (rng.integers(0, codes, shape) * rng.integers(0, 2, shape)).astype(np.int64)  # many are 0
        ids.flat[0] = codes - 1
        if codec == "mix":
            ids[1::2] = ids[::2]  # coded in blocks
        book = rng.normal(size=(codes, 2)).astype(np.float32)
        with StoreWriter(path, book, ("a", "b"), codec, {"name": "t"}, shard_images=most, cut=cut, views=views) as out:
            keys = [f"ü{i}"[: i % 4] for i in range(images)]
            out.add(ids, np.arange(images) % 2, keys, **extra[column](images))
        files = {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
        body = json.loads(files.pop("manifest.json"))
        body = {key: value for key, value in body.items() if key not in ("format", "version", "seal")}
        subjects.append(Subject(path, files, body, json.dumps(body)))
    return subjects


class Draft:
    """A store being forged; `files` that are None are taken away."""

    def __init__(self, subject: Subject, others: list[Subject], rng: random.Random) -> None:
        self.subject, self.others, self.rng = subject, others, rng
        self.files: dict[str, bytes | None] = dict(subject.files)
        self.body: Any = json.loads(subject.text)
        self.head: dict[str, Any] = {"format": "tilework store", "version": 2}
        self.raw: list[str] = []  # JSON that json cannot write
        self.recode: Callable[[bytes], bytes] = bytes
        self.story: list[str] = []

    def put(self, name: str, data: bytes) -> None:
        """A file, with its size and hash in the manifest, and the CRC of its index if it is a shard."""
        self.files[name] = data
        self.body["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for row in [self.body["shards"], *(column["shards"] for column in self.body["columns"])]:
            for shard in row:
                if shard["file"] == name:
                    shard["crc"] = int.from_bytes(data[-4:], "little")

    def literal(self, text: str) -> str:
        """A value that stands in the manifest as this text."""
        self.raw.append(text)
        return f"\x02{len(self.raw) - 1}\x02"

    def manifest(self) -> bytes:
        """Its text, sealed. Keys that begin with \\x01 lose it, and so can stand twice."""
        text = json.dumps({**self.head, **self.body} if isinstance(self.body, dict) else self.body)
        sealed = json.dumps(self.body, sort_keys=True)
        if '"\\u0001' in sealed:
            text = text.replace('"\\u0001', '"')
            body = json.loads(json.dumps(self.body).replace('"\\u0001', '"'))
            sealed = json.dumps(body, sort_keys=True)
        for number, raw in enumerate(self.raw):
            text, sealed = (part.replace(f'"\\u0002{number}\\u0002"', raw) for part in (text, sealed))
        seal = hashlib.sha256(sealed.encode()).hexdigest()
        text = text[:-1] + f', "seal": "{seal}"}}' if text.endswith("}") else text
        return self.recode(text.encode())

    def lay_out(self) -> list[str]:
        """Write what differs from the subject; returns the names of these files."""
        root, old = self.subject.path, self.subject.files
        changed = [name for name in {*self.files, *old} if self.files.get(name) is not old.get(name)]
        for name in changed:
            put(root / name, self.files.get(name))
        put(root / "manifest.json", self.manifest())
        return changed

    def clear(self, changed: list[str]) -> None:
        """Undo it; the manifest is written anew for every input."""
        for name in changed:
            put(self.subject.path / name, self.subject.files.get(name))


def put(path: Path, data: bytes | None) -> None:
    """A new file, since the old one may still be mapped."""
    path.unlink(missing_ok=True)
    if data is not None:
        with open(path, "xb", buffering=0) as file:
            file.write(data)


# shards ---------------------------------------------------------------------------------------------------------------


def read_shard(data: bytes) -> tuple[int, Form, list[bytes]]:
    """First record, form, and the records of a shard of version 2."""
    _, _, count, first, size, smallest, packed, group = SHARD.unpack_from(data)
    at = SHARD.size + 4
    planes = zlib.decompress(data[at + size : at + size + packed]) if packed else bytes(4 * count)
    beyond = np.frombuffer(planes, np.uint8).reshape(4, count).astype(np.int64) << np.array([[0], [8], [16], [24]])
    ends = np.cumsum([at, *(smallest + beyond.sum(0)).tolist()]).tolist()
    return first, str(group), [data[a:b] for a, b in pairwise(ends)]


def build_shard(
    first: int,
    records: list[bytes],
    form: Form = "1",
    sizes: list[int] | None = None,
    head: tuple[int, Any] | None = None,
) -> bytes:
    """Header, records and index with the right CRCs; sizes and fields of the header may be told otherwise."""
    sizes = [len(record) for record in records] if sizes is None else sizes
    if isinstance(form, str):
        group, smallest = int(form), min(sizes, default=0)
        beyond = np.array([(size - smallest) % (1 << 32) for size in sizes], "<u4")
        index = zlib.compress(beyond.view(np.uint8).reshape(-1, 4).T.tobytes()) if beyond.any() else b""
        fields = [b"TILESHRD", 2, len(records), first, sum(map(len, records)), smallest % (1 << 32), len(index), group]
    else:
        group = 1
        width = form if form >= 0 else 0 if len(set(sizes)) == 1 else 2 if max(sizes, default=0) < 1 << 16 else 4
        index = b"".join((size % (1 << 8 * width)).to_bytes(width, "little") for size in sizes)
        fields = [b"TILESHRD", 1, len(records), first, sum(map(len, records)), width]
    if head is not None:
        fields[head[0]] = head[1]
    start = (SHARD if isinstance(form, str) else SHARD_1).pack(*fields)
    index += b"".join(
        struct.pack("<I", crc32c(b"".join(records[at : at + group]))) for at in range(0, len(records), group)
    )
    return b"".join([start, struct.pack("<I", crc32c(start)), *records, index, struct.pack("<I", crc32c(index))])


def any_form(rng: random.Random) -> Form:
    return rng.choice(rng.choice([VERSION_1, VERSION_2]))


def pick_shard(draft: Draft) -> tuple[str, int, Form, list[bytes]]:
    names = [name for name in draft.subject.files if name.endswith(".tiles")]
    if draft.rng.random() < 0.6:
        names = [name for name in names if name.startswith("shards/")]
    name = draft.rng.choice(names)
    return name, *read_shard(draft.subject.files[name])


def forge_header(draft: Draft) -> str:
    rng = draft.rng
    name, first, _, records = pick_shard(draft)
    form = any_form(rng)
    more = [(5, 32), (6, 32), (7, 32)] if isinstance(form, str) else [(5, 32), (5, 32)]
    place, bits = rng.choice([(0, 0), (1, 32), (2, 32), (3, 64), (4, 64), *more])
    value: Any = rng.choice([b"TILESHRE", b"\0" * 8, rng.randbytes(8)])
    if bits:
        value = rng.choice([*INTS, len(records) - 1, len(records) + 1, rng.getrandbits(bits)]) % (1 << bits)
    draft.put(name, build_shard(first, records, form, head=(place, value)))
    return f"{name}: form {form}, header field {place} is {value}"


def forge_sizes(draft: Draft) -> str:
    """The index says other sizes than the records have."""
    rng = draft.rng
    name, first, _, records = pick_shard(draft)
    sizes = [len(record) for record in records]
    form = any_form(rng)
    one, other = rng.randrange(len(sizes)), rng.randrange(len(sizes))
    match rng.randrange(4):
        case 0:
            sizes[one] = rng.choice(INTS)
        case 1:  # the sum stays
            moved = rng.choice([1, 2, sizes[one], rng.randrange(1, 9)])
            sizes[one], sizes[other] = sizes[one] - moved, sizes[other] + moved
        case 2:
            rng.shuffle(sizes)
        case 3:  # the sum stays, but for a carry
            sizes[one], sizes[other] = sizes[one] + (1 << 31), sizes[other] + (1 << 31)
    draft.put(name, build_shard(first, records, form, sizes))
    return f"{name}: sizes {sizes[:8]} in form {form}"


def forge_records(draft: Draft) -> str:
    """Other records, and an index that fits them."""
    rng = draft.rng
    name, first, _, records = pick_shard(draft)
    done = []
    if rng.random() < 0.03:  # one among small ones
        more, i = rng.choice([1 << 16, 1 << 22]), rng.randrange(len(records))
        records[i] += bytes(more)
        draft.put(name, build_shard(first, records))
        return f"{name}: record {i} with {more} bytes more"
    for _ in range(rng.choice([1, 1, 2, len(records)])):
        i = rng.randrange(len(records))
        records[i], what = change_bytes(records[i], rng, records)
        done.append(f"{i}: {what}")
    form = any_form(rng)
    draft.put(name, build_shard(first, records, form))
    return f"{name}: records {'; '.join(done[:8])}, form {form}"


def change_bytes(old: bytes, rng: random.Random, others: list[bytes]) -> tuple[bytes, str]:
    match rng.randrange(10):
        case 0 | 1:
            new = bytearray(old)
            for _ in range(rng.choice([1, 1, 2, 5]) if old else 0):
                new[rng.randrange(len(old))] ^= 1 << rng.randrange(8)
            return bytes(new), "bits flipped"
        case 2 | 3:
            return rng.randbytes(len(old)), "random"
        case 4:
            size = rng.randrange(len(old) + 1)
            return old[:size], f"cut to {size}"
        case 5:
            more = rng.choice([1, 2, 3, 4, 8, 100])
            return old + rng.choice([b"\0" * more, b"\xff" * more, rng.randbytes(more)]), f"{more} more"
        case 6:
            size = rng.choice([0, 1, 2, 3, 4, 5, 6, 8, 16, 33])
            return rng.randbytes(size), f"random of {size}"
        case 7:
            value = rng.choice([b"\0", b"\xff", b"\0\0\1\0", b"\xff\xff\0\0"])
            return value * min(len(old), 1 << 18), "one value"  # many such changes would fill the memory
        case 8:
            return rng.choice(others), "another record"
        case _:
            return old[::-1], "reversed"


def forge_count(draft: Draft) -> str:
    """Fewer or more records; the manifest may know it."""
    rng = draft.rng
    name, first, form, records = pick_shard(draft)
    count = rng.choice([0, 1, len(records) - 1, len(records) + 1, 2 * len(records), 70])
    draft.put(name, build_shard(first, [records[i % len(records)] for i in range(count)], rng.choice([-1, form])))
    known = rng.random() < 0.7
    if known:
        for row in [draft.body["shards"], *(column["shards"] for column in draft.body["columns"])]:
            for shard in row:
                shard["records"] += (count - len(records)) * (shard["file"] == name)
        draft.body["images"] = sum(shard["records"] for shard in draft.body["shards"]) // draft.body["views"]
    return f"{name}: {count} records instead of {len(records)}, {'known' if known else 'unknown'} to the manifest"


def forge_bytes(draft: Draft) -> str:
    """Any file, changed anywhere; of the checksums only its hash is right."""
    name = draft.rng.choice(list(draft.subject.files))
    data, what = change_bytes(draft.subject.files[name], draft.rng, list(draft.subject.files.values()))
    draft.put(name, data)
    return f"{name}: bytes {what}"


def forge_places(draft: Draft) -> str:
    """A file of another store, or none."""
    name = draft.rng.choice([*draft.subject.files, "tables.safetensors", "codebook.safetensors"])
    other = draft.rng.choice(draft.others)
    if name in other.files and draft.rng.random() < 0.8:
        draft.put(name, other.files[name])
        if draft.rng.random() < 0.5:
            key = draft.rng.choice(["codec", "vocabulary", "grid"])
            draft.body[key] = other.body[key]
            return f"{name} and {key} of {other.path.name}"
        return f"{name} of {other.path.name}"
    draft.files[name] = None
    return f"{name} is missing"


# safetensors ----------------------------------------------------------------------------------------------------------

Tensors = dict[str, tuple[str, list[int], bytes]]  # dtype, shape, data


def read_tensors(data: bytes) -> Tensors:
    size = int.from_bytes(data[:8], "little")
    head, rest = json.loads(data[8 : 8 + size]), data[8 + size :]
    return {k: (v["dtype"], v["shape"], rest[slice(*v["data_offsets"])]) for k, v in head.items() if k[:2] != "__"}


def tensor_header(tensors: Tensors) -> dict[str, Any]:
    head, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    return head


def build_tensors(tensors: Tensors, head: str | None = None, size: int | None = None) -> bytes:
    start = (json.dumps(tensor_header(tensors)) if head is None else head).encode("utf-8", "surrogatepass")
    start += b" " * (-len(start) % 8)
    length = len(start) if size is None else size
    return (length % (1 << 64)).to_bytes(8, "little") + start + b"".join(data for _, _, data in tensors.values())


def pick_tensors(draft: Draft) -> tuple[str, Tensors]:
    names = [name for name in draft.subject.files if name.endswith(".safetensors")]
    name = draft.rng.choice([*names, *(name for name in names if name.startswith("tables"))])
    return name, read_tensors(draft.subject.files[name])


def boundary(size: int, rng: random.Random) -> bytes:
    """0, 1, -1, largest, smallest, infinity, random: of any type of this size."""
    infinity = {2: b"\0\x7c", 4: b"\0\0\x80\x7f", 8: b"\0" * 6 + b"\xf0\x7f"}.get(size, b"\2" * size)
    one = {2: b"\0\x3c", 4: b"\0\0\x80\x3f", 8: b"\0" * 6 + b"\xf0\x3f"}.get(size, b"\3" * size)
    words = [b"\0" * size, b"\1" + b"\0" * (size - 1), b"\xff" * size, b"\xff" * (size - 1) + b"\x7f"]
    words += [b"\0" * (size - 1) + b"\x80", infinity, one, rng.randbytes(size), rng.randbytes(1) + b"\0" * (size - 1)]
    return rng.choice(words)


def forge_tensors(draft: Draft) -> str:
    """One tensor of other values, type, form or name."""
    rng = draft.rng
    file, tensors = pick_tensors(draft)
    if not tensors:
        return f"{file}: as it is"
    name = rng.choice(list(tensors))
    dtype, shape, data = tensors[name]
    size, count = DTYPES[dtype], prod(shape)
    match rng.randrange(7):
        case 0 | 1:
            new = bytearray(data)
            for _ in range(rng.choice([1, 1, 2, count])):
                at = size * rng.randrange(max(1, count))
                new[at : at + size] = boundary(size, rng) if count else b""
            tensors[name] = dtype, shape, bytes(new)
            what = f"values {bytes(new[:24]).hex()}"
        case 2:  # the same bytes, or as many other values
            other = rng.choice(list(DTYPES))
            wide = DTYPES[other]
            if rng.random() < 0.5:
                tensors[name] = other, [len(data) // wide], data[: len(data) // wide * wide]
            else:
                tensors[name] = other, shape, rng.choice([boundary(wide, rng), bytes(wide)]) * count
            what = f"of type {other}"
        case 3:
            form = [max(0, side) for side in rng.choice([*SHAPES, [count, 1], [1, count], [count - 1], [count + 1]])]
            tensors[name] = dtype, form, (data * 3 + bytes(64))[: size * prod(form)]
            what = f"of form {form}"
        case 4:
            new = rng.choice([*NAMES, *tensors, *TENSORS])
            tensors[new] = tensors.pop(name)
            what = f"is now {new!r}"
        case 5 if rng.random() < 0.5:
            del tensors[name]
            what = "removed"
        case 5:
            new = rng.choice(TENSORS)
            tensors[new] = tensors[name]
            what = f"is also {new!r}"
        case 6:
            other = rng.choice(list(tensors))
            tensors[name], tensors[other] = tensors[other], tensors[name]
            what = f"exchanged for {other}"
    draft.put(file, build_tensors(tensors))
    return f"{file}: {name} {what}"


def forge_tensor_header(draft: Draft) -> str:
    """A header with any lengths, types, forms and places, or none at all."""
    rng = draft.rng
    file, tensors = pick_tensors(draft)
    head = tensor_header(tensors)
    text = json.dumps(head)
    if rng.random() < 0.35:
        size = rng.choice([*INTS, len(text) - 1, len(text) + 1, len(text) + 1000, 100_000_000, 100_000_001])
        draft.put(file, build_tensors(tensors, size=size))
        return f"{file}: header of {size} bytes"
    if rng.random() < 0.3:
        deep = "[" * rng.choice([100, 126, 127, 128, 1000])
        texts = ["", "{}", "[]", "null", "{", text[: len(text) // 2], text.replace("[", deep), text + "}", text * 2]
        texts += [
            "\ud800",
            "\ufeff" + text,
            text.replace("{", '{"__metadata__": 1, ', 1),
            '{"__metadata__": {"a": ""}}',
        ]
        text = rng.choice(texts)
    elif head:
        name = rng.choice(list(head))
        place = rng.choice(["dtype", "shape", "shape", "data_offsets", "data_offsets"])
        if place == "dtype":
            head[name][place] = rng.choice([*DTYPES, "f32", None, 7])
        elif head[name][place] and rng.random() < 0.8:
            head[name][place][rng.randrange(len(head[name][place]))] = rng.choice(INTS + ODD)
        else:
            head[name][place] = rng.choice(INTS + ODD)
        text = json.dumps(head)
    draft.put(file, build_tensors(tensors, text))
    return f"{file}: header {text[:150]!r}"


def of_array(array: np.ndarray) -> tuple[str, list[int], bytes]:
    names = {"|u1": "U8", "|i1": "I8", "<u2": "U16", "<i4": "I32", "<u4": "U32", "<i8": "I64", "<f8": "F64"}
    return names[array.dtype.str], list(array.shape), array.tobytes()


def sample_frequencies(rng: random.Random, codes: int, precision: int) -> np.ndarray:
    """Any table that adds up, or almost."""
    cuts = sorted(rng.sample(range(1, 1 << precision), codes - 1)) if 1 <= codes <= 1 << precision else []
    table = np.diff([0, *cuts, 1 << precision])
    if rng.random() < 0.3:
        table[rng.randrange(len(table))] += rng.choice([1, -1, 65536, -int(table[0])])
    return table


def forge_tables(draft: Draft) -> str:
    """Tables of the right form, with any values; the manifest's vocabulary may be theirs."""
    rng, codec, codes = draft.rng, draft.subject.body["codec"], draft.subject.body["vocabulary"]
    if codec == "packed":
        draft.put("tables.safetensors", build_tensors({"x": ("U8", [0], b"")}))
        return "tables of packed"
    if codec == "mix":
        return forge_network(draft)
    if rng.random() < 0.3:
        codes = rng.choice([1, 2, codes + 1, 2048, 2049, 4096, 4097, 8192, 8193, 65536, 65537])
        draft.body["vocabulary"] = codes
    tensors = {"rans": rans_tables, "rans-context": context_tables, "pairwise": pairwise_tables}[codec](rng, codes)
    draft.put("tables.safetensors", build_tensors({name: of_array(table) for name, table in tensors.items()}))
    shown = ", ".join(f"{name} {table.shape} {table.ravel()[:4].tolist()}" for name, table in tensors.items())
    return f"tables of {codes} codes: {shown}"


def forge_network(draft: Draft) -> str:
    """Other weights, tree or sizes of codec `mix`, deflated as they should be."""
    rng, tensors = draft.rng, read_tensors(draft.subject.files["tables.safetensors"])
    done = []
    for name in rng.sample(list(tensors), rng.choice([1, 1, 2, 4])):
        dtype, shape, data = tensors[name]
        raw = bytearray(data if name == "sizes" else zlib.decompress(data))
        for _ in range(rng.choice([1, 1, 3, len(raw)]) if raw else 0):
            raw[rng.randrange(len(raw))] = rng.choice([0, 1, 127, 128, 129, 255, rng.randrange(256)])
        new = bytes(raw) if name == "sizes" else zlib.compress(bytes(raw))
        tensors[name] = dtype, shape if name == "sizes" else [len(new)], new
        done.append(name)
    draft.put("tables.safetensors", build_tensors(tensors))
    return f"weights of mix: {', '.join(done)}"


def rans_tables(rng: random.Random, codes: int) -> dict[str, np.ndarray]:
    low = max(0, (codes - 1).bit_length() - 12)
    return {"frequencies": sample_frequencies(rng, (codes - 1 >> low) + 1, 14).astype("<u2")}


def context_tables(rng: random.Random, codes: int) -> dict[str, np.ndarray]:
    some = [64, 255, 256, 2000, 65535, 2**31 - 1] if rng.random() < 0.1 else [0, 1, 1, 2, 4, 9, 24]
    clusters = rng.choice(some)
    kind = "|u1" if clusters < 256 and rng.random() < 0.8 else "<i8"
    below = min(255, max(1, clusters) + (rng.random() < 0.1))
    places = [np.frombuffer(rng.randbytes(codes), np.uint8) % below for _ in range(2)]
    rows = (clusters + 1) ** 2 if (clusters + 1) ** 2 * codes < 1 << 23 else rng.choice([1, 4])
    if codes == 1 or rows > 30:  # deflates to almost nothing
        row = np.full(codes, (1 << 12) // codes)
        row[:1] += (1 << 12) - row.sum()
        table = row.astype("<u2").tobytes() * rows
    else:
        table = b"".join(sample_frequencies(rng, codes, 12).astype("<u2").tobytes() for _ in range(rows))
    packed = zlib.compress(table, 1)
    match rng.randrange(8):
        case 0:
            packed = packed[: rng.randrange(len(packed))]
        case 1:
            packed += rng.randbytes(5)
        case 2:
            packed = zlib.compress(table + b"\0\0")
        case 3 if rng.random() < 0.05:
            packed = zlib.compress(bytes(1 << 26), 1)
        case 4:
            packed = rng.randbytes(len(packed))
    left, above = (place.astype(rng.choice(["|u1", "|u1", "<i8", "<f8"])) for place in places)
    return {
        "clusters": np.array([clusters]).astype(kind),
        "left": left,
        "above": above,
        "frequencies": np.frombuffer(packed, np.uint8),
    }


def pairwise_tables(rng: random.Random, codes: int) -> dict[str, np.ndarray]:
    rank = rng.choice([0, 1, 1, 2, 3, 63, 64, 65]) if codes < 300 else 1
    bias = np.array([rng.choice([0, 0, 1, -7, 999, 1 << 22, -(1 << 22)]) for _ in range(min(codes, 99))], "<i4")
    if rng.random() < 0.2:
        bias[rng.randrange(len(bias))] = rng.choice([(1 << 22) + 1, -(1 << 31), (1 << 31) - 1])
    table = np.frombuffer(rng.randbytes(2048), "<u2").copy()
    table[0] = rng.choice([65535, 65535, 65535, 65535, 0, 65534])
    if rng.random() < 0.4:
        table[1:] = rng.choice([0, 1, 65535])
    draw = rng.choice([rng.randbytes, rng.randbytes, lambda n: b"\x80" * n, lambda n: b"\x7f" * n])
    return {
        "u": np.frombuffer(draw(4 * (codes + 1) * rank), np.int8).reshape(4, codes + 1, rank),
        "v": np.frombuffer(draw(codes * rank), np.int8).reshape(codes, rank),
        "bias": np.resize(bias, codes),
        "shift": np.array([rng.choice([0, 0, 1, 5, 12, 13, -1, 31, 32, -(1 << 31)])], "<i4"),
        "table": table,
    }


def forge_column(draft: Draft) -> str:
    """Texts or values that are cut in any way."""
    rng, images = draft.rng, draft.subject.body["images"]
    column = rng.choice(draft.body["columns"])
    kind = rng.choice(["<i8", "<i8", "<i8", "<f8", "<i4", "<u4"])
    places = [0, 1, 2, 5, 9, -1, -3, 10**6, 2**31 - 1]
    offsets = rng.choices(places, k=images + rng.choice([1, 1, 1, 0, 2]))
    if rng.random() < 0.3:
        offsets.sort()
    if rng.random() < 0.2:
        offsets[0] = -(2**62)
    text = rng.choice([b"", b"abcdefghi", b"\xff\xfe\xed\xa0\x80", rng.randbytes(30)])
    with np.errstate(all="ignore"):
        cuts = np.array(offsets).astype(kind)
    tensors = {rng.choice(["text", "text", "text", "bytes", "ragged"]): np.frombuffer(text, np.uint8), "offsets": cuts}
    name = f"columns/{column['name']}.safetensors"
    draft.put(name, build_tensors({name: of_array(array) for name, array in tensors.items()}))
    if column["kind"] in ("bytes", "ragged") or rng.random() < 0.1:
        column["kind"] = rng.choice(["text", "array"])
        if rng.random() < 0.5:
            column["shards"] = []
    return f"{name}: {column['kind']}, {list(tensors)} of {kind} {offsets[:8]}"


# manifest -------------------------------------------------------------------------------------------------------------


def descend(draft: Draft) -> tuple[Any, Any, str]:
    """A place somewhere in the manifest: what holds it, its key or number there, and its path."""
    rng, node, path = draft.rng, draft.body, ""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = rng.choice(keys)
        path += f".{key}"
        if not isinstance(node[key], dict | list) or not node[key] or rng.random() < 0.2:
            return node, key, path
        node = node[key]


def hostile(draft: Draft, old: Any) -> Any:
    rng = draft.rng
    match rng.randrange(10):
        case 0 | 1 | 2 if isinstance(old, int):
            return rng.choice([old + 1, old - 1, 2 * old, -old, float(old), str(old), [old], old + 2**32, old + 2**64])
        case 3 if isinstance(old, str):
            return rng.choice([old + "x", old[:-1], old.upper(), "./" + old, old.replace("/", "//"), *NAMES])
        case 4 if rng.random() < 0.5:
            depth = rng.choice(DEPTHS)
            return draft.literal(rng.choice(["[" * depth + "]" * depth, '{"a": ' * depth + "1" + "}" * depth]))
        case 4:
            return draft.literal(rng.choice(TEXTS))
        case 5 | 6 | 7:
            return rng.choice(INTS)
    return json.loads(json.dumps(rng.choice(ODD)))


def forge_value(draft: Draft) -> str:
    node, key, path = descend(draft)
    old = node[key]
    node[key] = hostile(draft, old)
    return f"manifest{path} is {show(draft, node[key])}, was {old!r:.40}"


def show(draft: Draft, value: Any) -> str:
    text = repr(value)
    for number, raw in enumerate(draft.raw):
        text = text.replace(repr(f"\x02{number}\x02"), f"{raw[:8]}... ({len(raw)} characters)")
    return text[:100]


def forge_keys(draft: Draft) -> str:
    """Something less, twice, under another name, or new."""
    rng = draft.rng
    node, key, path = descend(draft)
    what = rng.choice(["removed", "twice", "renamed", "new"])
    old = node[key]
    new = rng.choice([old, hostile(draft, old)]) if what == "twice" else hostile(draft, old)
    if what == "removed":
        del node[key]
        return f"manifest{path} removed"
    if isinstance(node, list):
        node.insert(rng.randrange(len(node) + 1), new)
        return f"manifest{path} has {show(draft, new)} beside it"
    names = [*NAMES, key.upper(), key[:-1], "images", "choices", "self", "seal", "format", "length", "a" * 9999]
    name = f"\x01{key}" if what == "twice" else rng.choice(names)
    node[name] = node.pop(key) if what == "renamed" else new
    return f"manifest{path} {what}, now {name[:40]!r}: {show(draft, node[name])}"


def forge_head(draft: Draft) -> str:
    key = draft.rng.choice(["format", "version"])
    draft.head[key] = hostile(draft, draft.head[key])
    return f"manifest.{key} is {show(draft, draft.head[key])}"


def forge_text(draft: Draft) -> str:
    """The manifest's JSON in another coding, cut, or changed."""
    rng, body = draft.rng, draft.body
    what = rng.choice(["utf-16", "utf-32", "utf-8-sig", "cut", "spaces", "flipped", "list", "long", "many"])
    if what == "cut":
        draft.recode = lambda data: data[: rng.randrange(len(data))]
    elif what == "flipped":
        draft.recode = lambda data: change_bytes(data, rng, [data])[0]
    elif what == "spaces":
        draft.recode = lambda data: b" \n\t" * 1000 + data + b"\r\n" * 1000
    elif what == "list":
        draft.body = rng.choice([[body], [], 0, None, "x", {}])
    elif what == "long":
        body["licence"] = "x" * 200_000
    elif what == "many":
        body["classes"] = ["x"] * 1000
    else:
        draft.recode = lambda data: data.decode().encode(what)
    return f"manifest in text {what}"


def forge_sums(draft: Draft) -> str:
    """Numbers of images, shards and views that add up, with or without the records."""
    rng, body = draft.rng, draft.body
    what = rng.choice(["images", "views", "shards", "merged", "many"])
    if what == "images":
        count = rng.choice([n for n in INTS if n > 0])
        body["shards"][-1]["records"] = count
        body["images"] = sum(shard["records"] for shard in body["shards"])
        for column in body["columns"]:
            column["shards"] = [{**shard, "records": body["images"]} for shard in column["shards"][:1]]
    elif what == "views":
        body["views"], body["images"] = body["images"], body["views"]
    elif what == "shards":
        body["shards"] = rng.sample(body["shards"], len(body["shards"]))
    elif what == "merged":
        body["shards"] = [{**body["shards"][0], "records": sum(shard["records"] for shard in body["shards"])}]
    else:
        times = rng.choice([2, 100])
        body["shards"], body["images"] = body["shards"] * times, body["images"] * times
    return f"{what}: {body['images']} images of {body['views']} views in {show(draft, body['shards'])}"


def forge_grid(draft: Draft) -> str:
    rng, body = draft.rng, draft.body
    length = prod(body["grid"])
    grids = [[length], [1, length], [length, 1], [length, 2], [length + 1], [length - 1], [1], [1, 1, length]]
    if rng.random() < 0.05:
        grids = [[2**24], [2**12, 2**12], [2**23 + 1, 2], [65535], [2**24, 1], [1, 2**20], [2**32, 2**32], [2**16, 2]]
    body["grid"] = rng.choice(grids)
    if rng.random() < 0.3:
        body["vocabulary"] = max(1, body["vocabulary"] + rng.choice([1, -1, 6, -6, 1000, 2**24]))
    if rng.random() < 0.1:
        body["codec"] = rng.choice(["packed", "rans", "rans-context", "pairwise", "mix"])
    return f"grid {body['grid']}, vocabulary {body['vocabulary']}, codec {body['codec']}"


def forge_entry(draft: Draft) -> str:
    """A column kept in another way, or a file under another name, which the manifest knows."""
    rng, body = draft.rng, draft.body
    column = rng.choice(body["columns"])
    what = rng.choice(["kind", "dtype", "shape", "name", "file"])
    if what == "kind":
        column["kind"] = rng.choice(["array", "text", "bytes", "ragged"])
        column["dtype"] = rng.choice(["|u1", "<f4", ""])
        column["shards"] = rng.choice([column["shards"], [], body["shards"], body["shards"][:1]])
    elif what == "dtype":
        column["dtype"] = rng.choice(KINDS)
    elif what == "shape":
        column["shape"] = [rng.choice(INTS[:20]) for _ in range(rng.choice([0, 1, 1, 2, 3, 70]))]
    elif what == "name":
        old, column["name"] = f"columns/{column['name']}.safetensors", rng.choice([*NAMES, "ａ", "a" * 239, "a" * 240])
        move(draft, old, f"columns/{column['name']}.safetensors")
    else:
        shard = rng.choice(body["shards"] + column["shards"])
        old = shard["file"]
        names = [*NAMES, "shards//0", "./x", "shards/", "manifest.json", "codebook.safetensors", "x\n", "C:\\x"]
        shard["file"] = rng.choice(names)
        move(draft, old, shard["file"])
    return f"{what} of {show(draft, column)}"


def move(draft: Draft, old: str, new: str) -> None:
    """A file under another name, as far as there can be one."""
    if (entry := draft.body["files"].pop(old, None)) is None:
        return
    draft.body["files"][new] = entry
    folder, _, name = new.rpartition("/")
    taken = name in ("", ".", "..", "shards", "columns", "manifest.json", *draft.subject.files)
    if folder in ("", "shards", "columns") and not taken and name.isprintable() and len(name) < 256:
        draft.files[new], draft.files[old] = draft.files.get(old), None


FILES = [forge_header, forge_sizes, forge_records, forge_records, forge_count, forge_bytes, forge_places]
FILES += [forge_tensors, forge_tensors, forge_tensor_header, forge_tables, forge_tables, forge_column]
SUMS = [forge_grid, forge_sums, forge_entry]
PLACES = [forge_value, forge_value, forge_keys]
WHOLE = [forge_text, forge_head]


def numbered(seed: int, number: int) -> random.Random:
    """What input `number` of a seed is drawn from."""
    return random.Random(f"{seed}/{number}")


def forge(subjects: list[Subject], rng: random.Random) -> Draft:
    """An input."""
    draft = Draft(rng.choice(subjects), subjects, rng)
    plan = rng.choice(["f", "f", "f", "ff", "fff", "fs", "fp", "s", "s", "sp", "p", "p", "p", "pp", "w"])
    for step in plan:  # each leaves the manifest in a form that the next can take
        change = rng.choice({"f": FILES, "s": SUMS, "p": PLACES, "w": WHOLE}[step])
        draft.story.append(change(draft))
    return draft


# reading everything ---------------------------------------------------------------------------------------------------


def examine(path: Path) -> tuple[str, list[Exception]]:
    """Read all that a store has, and check what comes out; returns how far that went, and what failed."""
    try:
        store = Store(path)
    except TileworkError:
        return "refused when opened", []
    except Exception as error:
        return "failed", [error]
    refused: list[str] = []
    failed: list[Exception] = []
    for read in readings(store):
        try:
            read()
        except TileworkError as error:
            refused.append(error.what)
        except Exception as error:
            failed.append(error)
    try:
        problems = store.verify(deep=True)
    except TileworkError as error:
        problems = [str(error)]
    except Exception as error:
        problems, failed = [], [*failed, error]
    if refused and not problems and not failed:
        failed.append(Broken(f"verify finds nothing where reading does: {refused[0]}"))
    if failed:
        return "failed", failed
    return "refused when read" if refused else "refused by verify" if problems else "accepted", []


def readings(store: Store) -> Iterator[Callable[[], None]]:
    for view in range(min(store.views, 3)):
        yield lambda view=view: check_codes(store, view)
    yield lambda: check_codebook(store)
    yield lambda: check_used(store)
    for entry in store.manifest.columns[:9]:
        yield lambda entry=entry: check_column(store, entry)
    yield lambda: expect(len(store.sizes) == 4, "sizes of other parts")


def expect(right: Any, what: str) -> None:
    if not right:
        raise Broken(what)


def check_codes(store: Store, view: int) -> None:
    for start in range(0, len(store), 1024):
        index = np.arange(start, min(start + 1024, len(store)))
        ids = store.batch(index, view)
        expect(ids.shape == (len(index), *store.grid) and ids.dtype == np.int32, "codes of another form")
        expect(ids.min() >= 0 and ids.max() < store.vocabulary, "codes outside the vocabulary")


def check_codebook(store: Store) -> None:
    book = store.codebook.vectors
    expect(book.ndim == 2 and len(book) == store.vocabulary, "a codebook that is not (K, C)")
    expect(book.dtype == np.float32, "a codebook that is not float32")


def check_used(store: Store) -> None:
    used = store.used
    expect(used.shape == (store.vocabulary,), "used codes of another form")
    expect(used.dtype.kind in "iu", "used codes that are no integers")
    expect(used.min() >= 0, "negative used codes")


def check_column(store: Store, entry: Any) -> None:
    values = store.column(entry.name)
    expect(len(values) == len(store), "a column of another length")
    if entry.kind == "array":
        expect(isinstance(values, np.ndarray), "a column of kind array that is none")
        return
    items = [item for start in range(0, len(values), 1024) for item in values[start : start + 1024]]
    kind = {"text": str, "bytes": bytes, "ragged": np.ndarray}[entry.kind]
    expect(all(isinstance(item, kind) for item in items), f"a column of kind {entry.kind} that is none")
    if entry.kind == "text":
        size = sum(len(item.encode("utf-8", "surrogateescape")) for item in items)
        expect(size <= (store.path / entry.file).stat().st_size, "texts larger than their file")
    if entry.kind == "ragged":
        right = all(item.dtype == np.dtype(entry.dtype) and item.shape[1:] == entry.shape for item in items)
        expect(right, "ragged values of another type or form")


# a process that runs many inputs --------------------------------------------------------------------------------------


class Serial:
    """A pool of threads without threads: starting them takes longer than anything else here."""

    def __init__(self, threads: int) -> None:
        pass

    def __enter__(self) -> Serial:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    map = staticmethod(map)


def location(error: BaseException) -> str:
    """What failed and where in the package: failures alike are one failure."""
    if isinstance(error, Broken):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(SOURCE)]
    if not frames:
        return f"{type(error).__name__} outside of the package: {error}"
    frame = frames[0 if isinstance(error, Overtime) else -1]  # where time runs out is a matter of chance
    return f"{type(error).__name__} in {Path(frame.filename).relative_to(SOURCE)}:{frame.lineno} ({frame.name})"


def stop(*_: object) -> None:
    raise Overtime(f"more than {SECONDS} s")


def run_inputs(folder: Path, seed: int, first: int, count: int, speak: bool = False) -> None:
    """Print every new failure as a line of JSON, and how often each ending occurred at the end."""
    import resource

    os.fsync = lambda handle: None  # nothing here has to outlive the machine
    reader.ThreadPoolExecutor = Serial
    subjects = make_subjects(folder)
    for subject in subjects:
        expect(examine(subject.path)[0] == "accepted", f"{subject.path.name} is not sound")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, stop)
    warnings.simplefilter("error")
    gc.freeze()
    gc.disable()  # done by hand, and less often
    progress = os.open(folder / "progress", os.O_WRONLY | os.O_CREAT)
    failed: list[Any]
    endings: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    long = 0  # inputs that took too long
    for number in range(first, first + count):
        if number % 500 == 0:
            gc.collect()
        os.pwrite(progress, number.to_bytes(8, "little"), 0)
        draft = forge(subjects, numbered(seed, number))
        if 1024 < (length := length_of(draft)) <= LONGEST or (long >= 5 and length > LONGEST):  # known by then
            endings["left out as long"] += 1
            continue
        changed = draft.lay_out()
        try:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            ending, failed = examine(draft.subject.path)
        except Overtime as error:
            ending, failed, long = "failed", [error], long + 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            draft.clear(changed)
        for error in failed:
            place = location(error)
            seen[place] += 1
            if seen[place] == 1 or speak:
                tell(number, draft, place, f"{type(error).__name__}: {error}"[:300])
            if speak:
                traceback.print_exception(error)
        endings[ending] += 1
        if speak and ending != "failed":
            print(number, ending, draft.subject.path.name, *draft.story, sep=" | ")
    print(json.dumps({"endings": endings, "seen": seen}), flush=True)


def length_of(draft: Draft) -> int:
    """Codes of a record, where each takes a step."""
    grid = draft.body.get("grid") if isinstance(draft.body, dict) and draft.body.get("codec") != "packed" else None
    return prod(grid) if isinstance(grid, list) and all(isinstance(side, int) for side in grid) else 0


def tell(number: int, draft: Draft, place: str, message: str) -> None:
    story = f"{draft.subject.path.name}: {'; '.join(draft.story)}".encode("ascii", "backslashreplace").decode()
    print(json.dumps({"number": number, "place": place, "message": message, "story": story}), flush=True)


def fuzz(seed: int, count: int) -> tuple[Counter[str], list[str]]:
    """Run inputs in processes of their own; returns how they ended, and the failures that differ, a line each."""
    endings: Counter[str] = Counter()
    times: Counter[str] = Counter()
    first_of: dict[str, dict[str, Any]] = {}
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    first = 0
    while first < count:
        end = min(count, first - first % BATCH + BATCH)
        folder = Path(tempfile.mkdtemp(dir=memory))
        try:
            status, lines, number = run_process(folder, seed, first, end - first)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for line in lines:
            if "endings" in line:
                endings.update(line["endings"])
                times.update(line["seen"])
            else:
                first_of.setdefault(line["place"], line)
        if status:  # it died, which no input may bring about
            place = f"process ended with {status}"
            first_of.setdefault(place, {"number": number, "message": "", "story": "run it alone to see"})
            times[place] += 1
        first = max(first, number) + 1 if status else end
    failures = [
        f"{place}, {times[place]} times; first input {at['number']}: {at['message']}\n    {at['story']}"
        for place, at in first_of.items()
    ]
    return endings, failures


def run_process(folder: Path, seed: int, first: int, count: int) -> tuple[int | str, list[dict[str, Any]], int]:
    """How the process ended, what it printed, and the input it reached."""
    command = [sys.executable, __file__, str(seed), str(first), str(count), str(folder)]
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    progress = folder / "progress"
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        environment = {"TILEWORK_KERNELS": "1", **os.environ, **threads}  # loaded before time is measured
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        status: int | str | None = None
        reached = -1
        while status is None:
            try:
                status = process.wait(HANGS)
            except subprocess.TimeoutExpired:
                now = int.from_bytes(progress.read_bytes(), "little") if progress.exists() else -1
                if now == reached:
                    process.kill()
                    process.wait()
                    status = f"no progress in {HANGS} s"
                reached = now
        out.seek(0)
        lines = [json.loads(line) for line in out if line.startswith("{")]
        err.seek(0)
        assert progress.exists(), err.read()
        if status:
            status = f"{status} {err.read()[-300:]!r}"
    return status, lines, int.from_bytes(progress.read_bytes(), "little")


def judge(seed: int, count: int) -> None:
    endings, failures = fuzz(seed, count)
    print(dict(endings))
    assert not failures, f"seed {seed}, {dict(endings)}\n" + "\n".join(failures)
    assert sum(endings.values()) == count
    assert all(endings[f"refused when {done}"] > count // 20 for done in ("opened", "read")), endings
    assert endings["accepted"] > count // 20, endings


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does")


@linux
def test_forged_stores_are_refused_as_ours() -> None:
    judge(seed=0, count=3_000)


@linux
@pytest.mark.slow
def test_many_forged_stores_are_refused_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", "0")
    judge(seed=1, count=100_000)


@linux
@pytest.mark.slow
def test_many_forged_stores_read_nothing_out_of_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compiled to check every index: one outside would be an IndexError, which is none of our errors."""
    pytest.importorskip("numba")
    for name, value in {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "TILEWORK_KERNELS": "1"}.items():
        monkeypatch.setenv(name, value)
    judge(seed=2, count=100_000)


if __name__ == "__main__":
    seed_, first_, count_ = map(int, sys.argv[1:4])
    with tempfile.TemporaryDirectory() as aside:
        run_inputs(Path(sys.argv[4] if len(sys.argv) > 4 else aside), seed_, first_, count_, speak=len(sys.argv) == 4)
