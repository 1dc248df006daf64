"""Senseless images, containers and arrays; the rest is in senseless.py."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image

from faults.senseless import NAMES, VALUES, change_tensors, change_tree, json_file, json_text
from store.test_store_fuzz import INTS, build_tensors, change_bytes, read_tensors
from tilework.core.files import sha256

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
    file = io.BytesIO()
    try:
        pyarrow.parquet.write_table(
            table, file, compression=rng.choice(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
            row_group_size=rng.choice([1, 4, 1000]), use_dictionary=bool(rng.randrange(2)),
            version=rng.choice(["1.0", "2.6"]),
        )  # fmt: skip
        found = file.getvalue()
    except pyarrow.ArrowException:  # a type that this version of the format does not have
        found = (folder / "x.parquet").read_bytes()
    if rng.randrange(2):
        if rng.randrange(2):  # what describes the file stands at its end
            length = min(int.from_bytes(found[-8:-4], "little") + 8, len(found))
            tail = change_bytes(found[-length:-8], rng, [found])[0]
            if rng.randrange(8) == 0:  # a list of very many empty structs
                tail = (
                    tail[:-1]
                    + b"\xf9\xfc\x80\x80"
                    + bytes([rng.choice([8, 64, 127])])
                    + bytes(rng.choice([1, 1 << 17, 1 << 21]))
                    + b"\0"
                )
            found = found[:-length] + tail + len(tail).to_bytes(4, "little") + b"PAR1"
        else:
            found = change_bytes(found, rng, [found])[0]
    (folder / "x.parquet").write_bytes(found)


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
