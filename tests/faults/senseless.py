"""Senseless variants of sound files: trees, texts, tables and bytes that parsers meet seldom.

Every function draws from a `random.Random` alone, so that a variant is known by its seed, and so that another source
of choices (`guided.py`) can take its place. Checksums and hashes are right afterwards, where a file has them.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from math import prod
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
import yaml
from PIL import Image

from store.test_store_fuzz import DEPTHS, DTYPES, INTS, ODD, SHAPES, Tensors, build_tensors, change_bytes, read_tensors
from tilework.core.files import sha256
from tilework.core.sealed import read_json, write_sealed

DEEP = "\x02deep\x02"  # stands for a list within a list within ..., which json writes no deeper than Python allows
VALUES = [*INTS, *ODD, 10**40, "a\0b", "\n", "\x1b[2J", "9" * 400, "é" * 200, "!!python/object:os.exec", [1] * 50, DEEP]
NAMES = [
    "../x.png",
    "/etc/passwd",
    "a" * 200 + ".png",
    "a" * 300,
    "é.png",
    ".png",
    "0.png",
    "x/../y.png",
    "x\n",
    "",
    ".",
]
NAMES += ["CON", "C:\\x.png", "a\0b.png", "~/x.png", "\udcff.png", " ", "-x.png", "x//y.png", "images"]


def change_tree(tree: Any, rng: Random) -> Any:
    """A copy of a tree of JSON values with a few places changed, left out, added, exchanged or repeated."""
    tree = deepcopy(tree)
    for _ in range(rng.choice([1, 1, 2, 3])):
        places = list(_places(tree))
        if not places:
            return rng.choice(VALUES)
        (parent, key), (there, other) = rng.choice(places), rng.choice(places)
        old = parent[key]
        match rng.randrange(9):
            case 0:
                del parent[key]
            case 1:
                new = deepcopy(there[other])
                parent[key] = new
            case 2 if isinstance(parent, list):
                parent[key:key] = deepcopy(parent[key : key + 1]) * rng.choice([1, 2, 50])
            case 2 | 3 if isinstance(parent, dict):
                name = rng.choice([*map(str, VALUES), *(k for holder, k in places if isinstance(holder, dict))])
                parent[name] = deepcopy(old) if rng.randrange(2) else parent.pop(key)
            case 4 | 5 if isinstance(old, int | float) and not isinstance(old, bool):
                parent[key] = rng.choice(
                    [old + 1, old - 1, -old, old * 2, old * 2**40, float(old), str(old), bool(old)]
                )
            case 4 | 5 if isinstance(old, str):
                parent[key] = rng.choice(
                    [
                        old.upper(),
                        old[:-1],
                        old * 2,
                        f"{old} ",
                        old * 999,
                        [old],
                        old.encode("utf-8", "surrogatepass").hex(),
                    ]
                )
            case 4 | 5 if isinstance(old, list) and old:
                parent[key] = rng.choice([old[:-1], old * 2, old[::-1], [old], old[0], dict(enumerate(old))])
            case _:
                parent[key] = deepcopy(rng.choice(VALUES))
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def json_text(tree: Any, rng: Random) -> bytes:
    """A tree as JSON, now and then in another coding or cut."""
    text = json.dumps(tree, skipkeys=True)
    depth = rng.choice(DEPTHS)
    data = text.replace(json.dumps(DEEP), "[" * depth + "]" * depth).encode()
    if rng.randrange(12) == 0:
        what = rng.choice(["utf-16", "utf-32", "utf-8-sig", "cut", "changed", "twice"])
        if what == "cut":
            return data[: rng.randrange(len(data) + 1)]
        if what == "changed":
            return change_bytes(data, rng, [data])[0]
        return data * 2 if what == "twice" else data.decode().encode(what)
    return data


def json_file(file: str, folder: Path, rng: Random) -> None:
    """Another tree in a JSON file; with the hash of itself, where it has one."""
    place = folder / file
    plain = json.loads(place.read_bytes())
    sealed = isinstance(plain, dict) and plain.pop("seal", None)
    tree = change_tree(plain, rng)
    if sealed and isinstance(tree, dict):
        write_sealed(place, json.loads(json.dumps(tree, skipkeys=True)))
    else:
        place.write_bytes(json_text(tree, rng))


LINES = (
    "!!python/object/apply:os.getcwd []", " &a [*a]", " &b b", "*b", " {{{{", "\t- x", " 1e9999", " ? !", "<<: {a: 1}",
    "x: !!binary aGFsbG8=", "x: 2001-13-45", "x: 190:20:30", "x: 0o17", "? [a, b]\n: c", "---", "...", "x: |\n  y",
    "%YAML 9.9",
    "%TAG ! tag:x,2000:", "x: !!set {a, b}", "x: !!omap [a: 1]", "x: !!bool word", "x: .inf", "x: ~", "x: !!int ''",
    "\ufeff",
    "x: !!float x", "x: !!timestamp 2001", "x: !!null x", "x: ''''", 'x: "\\ud800"', "x: " + "[" * 600 + "]" * 600, "#",
    "x: !!python/name:os.system", "x: !<tag:yaml.org,2002:str> a", "=: 1", "x: =", "fit: {steps: 1", "- - - - x",
    "x: 1_000",
)  # fmt: skip


def yaml_settings(folder: Path, rng: Random) -> None:
    """Settings of a run with odd values, keys, tags or lines, under the right hash."""
    place = folder / "run/run.yaml"
    text = yaml.safe_dump(change_tree(yaml.safe_load(place.read_text()), rng), allow_unicode=True)
    text = text.replace(json.dumps(DEEP), "[" * 200 + "]" * 200)
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        lines = text.splitlines() or [""]
        at = rng.randrange(len(lines))
        if rng.randrange(2):
            lines[at] += rng.choice(LINES)
        else:
            lines.insert(at, lines[at][: len(lines[at]) - len(lines[at].lstrip())] + rng.choice(LINES))
        text = "\n".join(lines)
    data = text.encode("utf-8", "surrogatepass")
    if rng.randrange(10) == 0:
        data = change_bytes(data, rng, [data])[0]
    place.write_bytes(data)
    card = read_json(folder / "run/data.json")
    write_sealed(folder / "run/data.json", {**card, "settings": sha256(place)})


TEXTS = (
    "",
    "-5",
    "1e400",
    "nan",
    "inf",
    "x" * 500,
    "9" * 20,
    "9" * 5000,
    "0",
    " 7 ",
    "1,5",
    "٣",
    "0x10",
    "1_0",
    "dog",
    "é",
)
TAGS = ("object", "bndbox", "size", "width", "height", "name", "zzz", "xmin", "xmax", "difficult", "part", "segmented")
HEADS = (
    b'<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;">]>', b'<!DOCTYPE a SYSTEM "file:///etc/passwd">',
    b'<?xml version="1.0" encoding="utf-16"?>', b'<?xml version="1.0" encoding="none"?>', b'<?xml version="9"?>',
    b"\xef\xbb\xbf",
    b'<!DOCTYPE a [<!ENTITY c SYSTEM "file:///etc/passwd">]>', b'<?xml version="1.0" encoding="latin-1"?>',
    b"<!-- -- -->",
    b"<?php echo 1 ?>", b'<!DOCTYPE a [<!ATTLIST name x CDATA "y">]>', b'<?xml version="1.0" encoding="cp037"?>',
    b"\0", b" \n",
)  # fmt: skip


def xml_boxes(folder: Path, rng: Random) -> None:
    """Elements with odd texts, left out, repeated or nested; entities and codings."""
    tree = ElementTree.parse(folder / "Annotations/a.xml")
    for _ in range(rng.choice([1, 1, 2, 3])):
        every = list(tree.iter())
        one, other = rng.choice(every), rng.choice(every)
        match rng.randrange(6):
            case 0 | 1:
                one.text = rng.choice(TEXTS)
            case 2 if len(one):
                one.remove(rng.choice(list(one)))
            case 3:
                other.extend([ElementTree.fromstring(ElementTree.tostring(one)) for _ in range(rng.choice([1, 1, 30]))])
            case 4:
                one.set(rng.choice(["x", "xmlns", "encoding"]), rng.choice(TEXTS))
            case _:
                one.tag = rng.choice(TAGS)
    data = ElementTree.tostring(tree.getroot())
    match rng.randrange(12):
        case 0 | 1:
            data = rng.choice(HEADS) + data.replace(
                b"dog", rng.choice([b"&c;", b"<![CDATA[dog]]>", b"&#0;", b"&#x110000;"])
            )
        case 2:
            data = change_bytes(data, rng, [data])[0]
        case 3:
            depth = rng.choice(DEPTHS)
            data = data.replace(b"<size>", b"<a>" * depth + b"</a>" * depth + b"<size>")
    (folder / "Annotations/a.xml").write_bytes(data)


def change_tensors(tensors: Tensors, rng: Random) -> Tensors:
    """Tensors of safetensors with a few of other values, types, sides or names."""
    tensors = dict(tensors)
    for _ in range(rng.choice([1, 1, 2, 3])):
        name = rng.choice(list(tensors))
        kind, shape, data = tensors[name]
        match rng.randrange(7):
            case 0 if len(tensors) > 1:
                del tensors[name]
            case 1:  # the same bytes as another type
                other = rng.choice([name for name in DTYPES if name not in ("X", "")])
                count = len(data) // DTYPES[other]
                tensors[name] = other, [count], data[: count * DTYPES[other]]
            case 2:  # other sides
                sides = [
                    max(0, side) for side in rng.choice([*SHAPES, shape[::-1], [*shape, 1], shape[1:], [*shape, 2]])
                ]
                size = min(prod(sides), 1 << 20) * DTYPES[kind]
                tensors[name] = kind, sides, (data + bytes(size))[:size]
            case 3 if kind == "F32":
                values = np.frombuffer(data, np.float32).copy()
                values[:: rng.choice([1, 7, len(values) or 1])] = rng.choice(
                    [np.nan, np.inf, -np.inf, 3e38, 1e-45, -0.0, 0.0]
                )
                tensors[name] = kind, shape, values.tobytes()
            case 4:
                tensors[rng.choice([f"{name}.more", name.upper(), "", "é", "x"])] = tensors[name]
            case 5:
                other = rng.choice(list(tensors))
                tensors[name], tensors[other] = tensors[other], tensors[name]
            case _:
                tensors[name] = kind, shape, change_bytes(data, rng, [data])[0][: len(data)].ljust(len(data), b"\0")
    return tensors


def weights(file: str, card: str, folder: Path, rng: Random) -> None:
    """Safetensors with other tensors or another header, under the right hash in its card."""
    place = folder / file
    found = build_tensors(change_tensors(read_tensors(place.read_bytes()), rng))
    if rng.randrange(3) == 0:  # another header
        length = int.from_bytes(found[:8], "little")
        head = json_text(change_tree(json.loads(found[8 : 8 + length]), rng), rng)
        size = rng.choice([len(head)] * 6 + [len(head) + 1, len(head) - 1, 0, 2**63, 100_000_001])
        found = size.to_bytes(8, "little") + head + found[8 + length :]
    place.write_bytes(found)
    plain = read_json(folder / card)
    known = plain["sha256"]
    plain["sha256"] = {**known, place.name: sha256(place)} if isinstance(known, dict) else sha256(place)
    write_sealed(folder / card, plain)


MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F", "YCbCr", "PA", "LAB", "HSV")
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "TGA", "ICO", "JPEG2000", "PCX", "AVIF", "DDS", "ICNS")
CHUNKS = (
    b"acTL",
    b"fcTL",
    b"fdAT",
    b"iCCP",
    b"tEXt",
    b"zTXt",
    b"iTXt",
    b"eXIf",
    b"tRNS",
    b"gAMA",
    b"PLTE",
    b"IDAT",
    b"IEND",
)
SIDES = (0, 1, 20, 255, 65_535, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1)


def picture(folder: Path, rng: Random) -> None:
    """An image of any format and mode with changed chunks under their checksums, tags, sizes or bytes."""
    format_, pixels = rng.choice(FORMATS), np.random.default_rng(rng.getrandbits(16)).integers(0, 255, (20, 24, 4))
    image = Image.fromarray(pixels.astype(np.uint8)).convert("RGB")
    mode, data = rng.choice(MODES), io.BytesIO()
    more = rng.choice([{}, {}, {"exif": _exif(rng)}, {"icc_profile": rng.randbytes(40)}, {"save_all": True}])
    if more.get("save_all"):
        more["append_images"] = [image.rotate(90 * i) for i in range(rng.choice([1, 3]))]
    if format_ == "JPEG":
        more["progressive"] = bool(rng.randrange(2))
    try:
        image.convert(mode if mode != "I;16" else "I").convert(mode).save(data, format_, **more)
    except Exception:  # Pillow refuses in many ways
        data = io.BytesIO()  # a mode that the format does not have
        image.save(data, format_)
    found = data.getvalue()
    if format_ == "PNG" and rng.randrange(4):
        found = found[:8] + b"".join(_chunk(*part) for part in _changed_chunks(found[8:], rng))
    elif format_ == "TIFF" and rng.randrange(4):
        found = _changed_tags(found, rng)
    elif rng.randrange(8):
        for _ in range(rng.choice([1, 1, 2, 5])):
            if rng.randrange(3):  # most of what a parser decides on stands in front
                at = rng.randrange(min(len(found), 120))
                number = rng.choice(SIDES).to_bytes(4, rng.choice(["little", "big"]))[: rng.choice([1, 2, 4])]
                found = found[:at] + number + found[at + len(number) :]
            else:
                found = change_bytes(found, rng, [found])[0] or b"\0"
    (folder / "images/class0/000.png").write_bytes(found)


def _exif(rng: Random) -> bytes:
    exif = Image.Exif()
    exif[274] = rng.choice([1, 3, 6, 8, 9, 0, 255])  # how it is turned
    data = exif.tobytes()
    return data if rng.randrange(2) else change_bytes(data, rng, [data])[0]


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _changed_chunks(rest: bytes, rng: Random) -> list[tuple[bytes, bytes]]:
    chunks = []
    while rest:
        length = struct.unpack(">I", rest[:4])[0]
        chunks.append((rest[4:8], rest[8 : 8 + length]))
        rest = rest[12 + length :]
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(chunks))
        name, body = chunks[at]
        match rng.randrange(6):
            case 0 if name == b"IHDR":
                width, height = rng.choice(SIDES), rng.choice(SIDES)
                kinds = [rng.choice([0, 1, 2, 3, 4, 6, 8, 16, 255]) for _ in range(5)]
                chunks[at] = name, struct.pack(">II", width, height) + bytes(kinds)
            case 1:
                packed = zlib.compress(bytes(rng.choice([10, 1 << 20, 1 << 26])))
                bodies = [b"", b"a\0\0" + packed, packed, struct.pack(">II", rng.choice(SIDES), 0), rng.randbytes(26)]
                chunks.insert(at, (rng.choice(CHUNKS), rng.choice(bodies)))
            case 2 if len(chunks) > 1:
                del chunks[at]
            case 3:
                chunks.insert(rng.randrange(len(chunks)), chunks[at])
            case 4 if name == b"IDAT":
                packed = zlib.compress(bytes(rng.choice([0, 1, 1 << 10, 1 << 24])))
                chunks[at] = name, rng.choice([packed, body[: len(body) // 2], b"", packed[:-1]])
            case _:
                chunks[at] = name, change_bytes(body, rng, [body])[0]
    return chunks


def _changed_tags(data: bytes, rng: Random) -> bytes:
    """Entries of a TIFF file's first table with other numbers."""
    found, start = bytearray(data), int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[start : start + 2], "little")
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = start + 2 + 12 * rng.randrange(max(1, count))
        place, size = rng.choice([(0, 2), (2, 2), (4, 4), (8, 4), (8, 2)])
        value = rng.choice(
            [*SIDES, 3, 4, 5, 6, 7, 8, 12, 16, 257, 258, 259, 262, 273, 277, 278, 279, 322, 323, 324, 32773]
        )
        found[at + place : at + place + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(found)


def tar_file(folder: Path, rng: Random) -> None:
    """Members with odd names, sizes, types and links, and headers with odd fields under the right checksum."""
    data = io.BytesIO()
    kinds = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=data, mode="w", format=kinds) as tar:
        for number in range(3):
            for ending, body in (("png", _plain_png(number)), ("cls", str(number % 2).encode())):
                info = tarfile.TarInfo(f"{number}.{ending}")
                info.size = len(body)
                if rng.randrange(6) == 0:
                    info.name = rng.choice(NAMES)
                if rng.randrange(6) == 0:
                    info.type = bytes([rng.choice(list(b"01234567LKSxgV"))])
                    info.linkname = rng.choice(["../../etc/passwd", f"{number}.cls", "", "/"])
                if kinds == tarfile.PAX_FORMAT and rng.randrange(4) == 0:
                    key = rng.choice(
                        ["path", "size", "linkpath", "mtime", "GNU.sparse.size", "hdrcharset", "GNU.sparse.map", "x"]
                    )
                    info.pax_headers = {
                        key: rng.choice(["", "-1", "9" * 30, "0", "x", "BINARY", "1,2,3", "1e5", "../x", "nan"])
                    }
                if ending == "cls" and rng.randrange(4) == 0:
                    body = rng.choice(
                        [b"-1", b"9" * 30, b"x", b"", b"1.5", "é".encode("latin-1"), b"1\n", b'{"label": 1}']
                    )
                    info.size = len(body)
                try:
                    tar.addfile(info, io.BytesIO(body))
                except (ValueError, UnicodeError):  # a name that this format does not have
                    tar.addfile(tarfile.TarInfo("x"))
    found = bytearray(data.getvalue())
    for _ in range(rng.choice([0, 1, 1, 2])):  # name, mode, owner, group, size, time, type, link, magic, prefix
        at = 512 * rng.randrange(max(1, len(found) // 512 - 2))
        place, size = rng.choice(
            [(0, 100), (100, 8), (108, 8), (116, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155)]
        )
        fields = [
            b"",
            b"\xff" * size,
            b"7" * size,
            b"-1",
            b"\x80" + b"\0" * (size - 2) + b"\1",
            b"x",
            b"../../x",
            b"0",
            b" ",
        ]
        found[at + place : at + place + size] = rng.choice(fields)[:size].ljust(size, b"\0")
        block = bytes(found[at : at + 512])
        found[at + 148 : at + 156] = b"%06o\0 " % (sum(block) - sum(block[148:156]) + 8 * 32)
    (folder / "x.tar").write_bytes(
        change_bytes(bytes(found), rng, [bytes(found)])[0] if rng.randrange(4) == 0 else found
    )


def _plain_png(number: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (16, 16), (number * 60, 5, 5)).save(data, "PNG")
    return data.getvalue()


def parquet_file(folder: Path, rng: Random) -> None:
    """Columns of other names, types, codings and lengths, or changed bytes."""
    body = (folder / "images/class0/001.png").read_bytes()
    odd: list[Any] = [
        [body] * 4, [b""] * 4, [None] * 4, ["x"] * 4, [1, 2, 3, 4], [[1], [], [2], [3]], [{"bytes": body,
        "path": "x"}] * 4,
        [{"bytes": None, "path": "../x"}] * 4, [True] * 4, [1.5, float("nan"), float("inf"), 0.0], [datetime(2001, 1,
        1)] * 4,
        [body, None, body, b""], [[body]] * 4, [{"a": {"b": 1}}] * 4,
    ]  # fmt: skip
    labels: list[Any] = [
        [0, 1, 0, 1],
        [-1, 2**40, 0, 1],
        [None] * 4,
        ["a"] * 4,
        ["a", None, "b", "../x"],
        [0.0, 1.0, 0.5, 1.0],
        [[0]] * 4,
    ]
    table = pyarrow.table({
        rng.choice(["image", "jpg", "bytes", "image.bytes",
        "surprise"]): odd[0 if rng.randrange(2) else rng.randrange(len(odd))],
        rng.choice(["label", "cls", "key", "surprise2"]): rng.choice(labels),
    })  # fmt: skip
    for number, name in enumerate(table.column_names):
        wide = [
            pyarrow.large_binary(),
            pyarrow.large_string(),
            pyarrow.int8(),
            pyarrow.float16(),
            pyarrow.uint64(),
            pyarrow.null(),
        ]
        wide += [
            pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
            pyarrow.timestamp("ns"),
            pyarrow.decimal128(30, 5),
        ]
        if rng.randrange(5) == 0:
            with suppress(pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
                table = table.set_column(number, name, table[name].cast(rng.choice(wide)))
    if rng.randrange(6) == 0:
        table = table.slice(0, rng.choice([0, 1, 3]))
    if rng.randrange(6) == 0:
        table = table.replace_schema_metadata(
            {"huggingface": rng.choice(["", "{}", '{"info": {"features": 1}}', "[" * 999])}
        )
    with suppress(pyarrow.ArrowInvalid):  # a type that this version of the format does not have
        pyarrow.parquet.write_table(
            table, folder / "x.parquet", compression=rng.choice(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
            row_group_size=rng.choice([1, 4, 1000]), use_dictionary=bool(rng.randrange(2)),
            version=rng.choice(["1.0", "2.6"]),
        )  # fmt: skip
    if rng.randrange(2):
        found = (folder / "x.parquet").read_bytes()
        if rng.randrange(2):  # what describes the file stands at its end
            length = min(int.from_bytes(found[-8:-4], "little") + 8, len(found))
            tail = change_bytes(found[-length:-8], rng, [found])[0]
            found = found[:-length] + tail + len(tail).to_bytes(4, "little") + b"PAR1"
        else:
            found = change_bytes(found, rng, [found])[0]
        (folder / "x.parquet").write_bytes(found)


def label_file(folder: Path, rng: Random) -> None:
    """Lines of other forms, names, labels and codings."""
    mark = rng.choice([",", ",", ";", "\t", " ", "|", ""])
    paths = ["class0/000.png", "class1/000.png", "class2/001.png"]
    lines = [
        f"{rng.choice([*paths, *paths, *NAMES])}{mark}{rng.choice(['a', 'b', *map(str, VALUES)])}"
        for _ in range(rng.choice([0, 1, 3, 40]))
    ]
    heads = [
        "path,label",
        "file;class",
        "label\tpath",
        "# root: .",
        "# root: ../..",
        "# root: " + "a" * 300,
        "#",
        '"',
        "path",
        "",
        "a,b,c,d",
    ]
    for _ in range(rng.choice([0, 1, 1, 2])):
        lines.insert(rng.randrange(len(lines) + 1) if rng.randrange(3) == 0 else 0, rng.choice(heads))
    if lines and rng.randrange(4) == 0:
        at = rng.randrange(len(lines))
        lines[at] = rng.choice(
            [
                f'"{lines[at]}"',
                f'"{lines[at]}',
                lines[at] * 300,
                f"{lines[at]}{mark}x",
                lines[at].replace(mark or ",", ""),
            ]
        )
    text = rng.choice(["\n", "\n", "\r\n", "\r"]).join(lines)
    data = text.encode(rng.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "cp037"]), "replace")
    (folder / "labels.csv").write_bytes(change_bytes(data, rng, [data])[0] if rng.randrange(6) == 0 else data)
    (folder / "classes.txt").write_text(rng.choice(["", "a\nb\n", "a\na\n", "0\n1\n2\n", "\0\n", "x" * 9999]))


def npy_data(rng: Random) -> bytes:
    """An array's file with any header, type or length."""
    kinds = ["<i8", "<u2", "|u1", "<f4", ">i4", "|b1", "<c8", "<U3", "|V5", "<M8[s]", "<f2", "<i4"]
    ids = np.random.default_rng(rng.getrandbits(8)).integers(
        0, 9, rng.choice([(4, 2, 3), (4, 6), (4,), (0, 2), (1, 2, 3, 4), ()])
    )
    data = io.BytesIO()
    with np.errstate(all="ignore"):
        np.save(data, ids.astype("<i8").view("<M8[s]") if (kind := rng.choice(kinds)) == "<M8[s]" else ids.astype(kind))
    found = data.getvalue()
    if rng.randrange(2):  # another header
        start = 10 if found[6] == 1 else 12
        length = int.from_bytes(found[8:start], "little")
        head = found[start : start + length].decode("latin-1")
        old = rng.choice([str(ids.shape), "descr", "False", "shape", kind, "{", "}", ","])
        new = rng.choice(
            [
                "(4, 2**9)",
                "(-1,)",
                f"({2**62}, 4)",
                "()",
                "(True,)",
                "(1.5,)",
                "O",
                "True",
                "__import__('os')",
                "",
                "'a'",
                "[" * 300,
            ]
        )
        head = head.replace(old, new) if rng.randrange(4) else head[: rng.randrange(len(head) + 1)]
        found = (
            found[:8]
            + len(head).to_bytes(start - 8, "little")[: start - 8]
            + head.encode("latin-1")
            + found[start + length :]
        )
    return change_bytes(found, rng, [found])[0] if rng.randrange(4) == 0 else found


def npy_file(folder: Path, rng: Random) -> None:
    """Codes, or one of the files beside them, as an array of any kind."""
    (folder / f"{rng.choice(['codes', 'codes', 'labels', 'codebook', 'synonyms'])}.npy").write_bytes(npy_data(rng))


def seit_file(folder: Path, rng: Random) -> None:
    """One of SeiT's files changed, in its own packing."""
    path = rng.choice(sorted((folder / "seit").iterdir()))
    data = path.read_bytes()
    if path.name.endswith("npy.gz"):
        offsets = np.load(io.BytesIO(gzip.decompress(data))).copy()
        if rng.randrange(3):
            offsets[rng.randrange(len(offsets))] = rng.choice([n for n in INTS if abs(n) < 2**63])
            out = io.BytesIO()
            np.save(out, offsets)
            data = gzip.compress(out.getvalue(), mtime=0)
        else:
            data = gzip.compress(npy_data(rng), mtime=0)
    elif path.name.endswith("bin.gz"):
        plain = gzip.decompress(data)
        data = gzip.compress(
            rng.choice([change_bytes(plain, rng, [plain])[0], b"", b"\xff" * 99, bytes(1 << 22)]), mtime=0
        )
    elif path.suffix == ".json":
        data = json_text(change_tree(json.loads(data), rng), rng)
    elif path.suffix == ".txt":
        lines = data.decode().split("\n")
        lines[rng.randrange(len(lines))] = str(rng.choice(VALUES))
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
    else:
        data = torch_data(rng)
    path.write_bytes(change_bytes(data, rng, [data])[0] if rng.randrange(6) == 0 else data)


def torch_data(rng: Random) -> bytes:
    """A file of torch with a table of any kind, or something else."""
    kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
    table = torch.arange(36.0).view(9, 4).to(rng.choice(kinds))
    odd: list[Any] = [
        table.to_sparse(), table.T, table[:, :0], table[0], {"a": table}, {"a": table, "b": table}, [table],
        table.expand(2, 9, 4)[0], 5,
        torch.nn.Parameter(torch.rand(9, 4)), torch.full((9, 4), float("nan")), torch.empty(0, 4), table.to("meta"),
        {1: {2: [table]}},
        torch.rand(1, 4).expand(9, 4), "x", None, torch.rand(5, 4),
    ]  # fmt: skip
    data = io.BytesIO()
    torch.save(rng.choice([table, *odd]), data, _use_new_zipfile_serialization=bool(rng.randrange(4)))
    found = data.getvalue()
    return change_bytes(found, rng, [found])[0] if rng.randrange(2) else found


def token_files(folder: Path, rng: Random) -> None:
    """Codes in tar or Parquet files: the description, the codebook or the data changed, under the right hashes."""
    root = folder / "tokens"
    path = rng.choice(sorted(path for path in root.rglob("*") if path.is_file()))
    data, card = path.read_bytes(), root / "tokens.json"
    if path.suffix == ".json":
        path.write_bytes(json_text(change_tree(json.loads(data), rng), rng))
        return
    if path.suffix == ".safetensors":
        tensors = change_tensors(read_tensors(data), rng)
        path.write_bytes(build_tensors(tensors))
    else:
        path.write_bytes(change_bytes(data, rng, [data])[0])
    if card.is_file():
        told = json.loads(card.read_bytes())
        if path.suffix == ".safetensors":
            told["codebook"] = sha256(path)
        else:
            told["files"][path.name] = sha256(path)
        card.write_text(json.dumps(told))


def mask_file(folder: Path, rng: Random) -> None:
    """A mask of other numbers, sides or modes, or what describes it."""
    root = folder / "pairs"
    match rng.randrange(4):
        case 0:
            json_file("pairs/dataset.json", folder, rng)
        case 1:
            names = rng.choice(
                ["", "ground\n", "a\na\n", "x" * 9999, "\n".join(map(str, range(300))), "\0\n", "ground\ndisc\nbox\n\n"]
            )
            (root / "classes.txt").write_bytes(names.encode(rng.choice(["utf-8", "utf-16"])))
        case 2:
            place = root / "masks/000.png"
            data = place.read_bytes()
            place.write_bytes(data[:8] + b"".join(_chunk(*part) for part in _changed_chunks(data[8:], rng)))
        case _:
            sides = rng.choice([(40, 56), (56, 40), (1, 1), (1, 3000)])
            mask = Image.fromarray(np.full(sides, rng.choice([0, 1, 3, 200, 255]), np.uint8))
            mask.convert(rng.choice(["L", "RGB", "P", "1", "RGBA", "LA"])).save(root / "masks/000.png")
