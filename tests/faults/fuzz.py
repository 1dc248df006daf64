"""Row 3: files that are well formed and senseless. Only errors of ours, little memory, within two seconds.

A tree (JSON, YAML, XML) is changed at random places to values that parsers meet seldom, and written again with its
checksum where it has one; bytes are changed for formats whose own libraries read them. Stores are forged by the
generator of tests/store/test_store_fuzz.py.
"""

from __future__ import annotations

import io
import json
import resource
import struct
import tarfile
import time
import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow
import pyarrow.parquet
import yaml
from PIL import Image
from safetensors.numpy import load, save

from faults.matrix import ROWS, Row, Trials
from faults.things import (
    make_adapter,
    make_maps,
    make_run,
    make_tokenizer,
    read_adapter,
    read_maps,
    read_run,
    read_tokenizer,
)
from small_data import write_images, write_objects, write_voc
from store.test_store_fuzz import examine, forge, make_subjects
from tilework.core.config import decode, read_yaml
from tilework.core.errors import TileworkError
from tilework.core.files import sha256
from tilework.core.sealed import read_json, write_sealed
from tilework.data.detected import ObjectSource, open_objects
from tilework.data.images import ImageSource
from tilework.data.label_file import LabelFile
from tilework.data.open_images import open_images
from tilework.runs.run import Run

EVERY, HOUR = 1_000_000_000, 3600.0  # as many as an hour allows
SECONDS, MEMORY = 2.0, 512 << 20  # of processor time, and growth of resident memory
ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, -(2**70), 10**40, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "x", "..",
    "a\0b", "\n", "\ud83d\ude00", "9" * 400, [], [[]], {}, {"": {}}, [1] * 50, "/etc/passwd", "!!python/object:os.exec",
]  # fmt: skip


def changed(tree: Any, rng: np.random.Generator) -> Any:
    """A tree of JSON values with a few places changed, left out, added or repeated."""
    tree = json.loads(json.dumps(tree))
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(tree))
        if not places:
            return ODD[rng.integers(len(ODD))]
        parent, key = places[rng.integers(len(places))]
        what = rng.integers(6)
        if what == 0:
            del parent[key]
        elif what == 1 and isinstance(parent, list):
            parent.insert(key, deepcopy(parent[key]))
        elif what == 2 and isinstance(parent, dict):
            parent["surprise"] = deepcopy(parent[key])
        elif what == 3 and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            parent[key] = parent[key] * int(rng.choice([-1, 2, 1000, 2**40]))
        else:
            parent[key] = deepcopy(ODD[rng.integers(len(ODD))])
    return tree


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def bitten(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, cut, or repeated."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        at = int(rng.integers(len(found)))
        what = rng.integers(4)
        if what == 0:
            found[at] ^= 1 << int(rng.integers(8))
        elif what == 1:
            found[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31 - 1, 2**32 - 1])))
        elif what == 2:
            found[at:at] = found[at : at + int(rng.integers(1, 40))]
        elif len(found) > 1:
            del found[at : at + int(rng.integers(1, 40))]
        found = found or bytearray(b"\0")
    return bytes(found)


@dataclass(frozen=True)
class Parser:
    """A reader of untrusted files. write: a senseless variant into a folder that `make` filled."""

    name: str
    make: Callable[[Path], object]
    write: Callable[[Path, np.random.Generator], None]
    read: Callable[[Path], Any]


def tried(parser: Parser, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Files of a parser, one after another."""
    parser.make(folder)
    parser.read(folder)  # sound as it is; and imports happen
    for number in range(count):
        state = rng.bit_generator.state["state"]["state"]
        parser.write(folder, rng)
        trouble = judged(partial(parser.read, folder))
        yield trouble and f"{parser.name}, file {number} (state {state}): {trouble}"


def judged(read: Callable[[], Any]) -> str | None:
    """What is wrong with how a file is read or refused, if anything."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    trouble = None
    try:
        read()
    except TileworkError as error:
        trouble = "more than one line" if "\n" in str(error) else None
    except Exception as error:
        trouble = f"{type(error).__name__}: {str(error)[:200]}"
    seconds = time.process_time() - begun
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    trouble = trouble or (f"{seconds:.1f} s" if seconds > SECONDS else None)
    return trouble or (f"{grown >> 20} MB" if grown > MEMORY else None)


def forged_stores(count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Stores whose checksums, hashes and seal are right, whatever they hold."""
    subjects, seed = make_subjects(folder), int(rng.integers(2**31))

    def read(path: Path) -> None:
        for error in examine(path)[1]:
            raise error

    for number in range(count):
        draft = forge(subjects, seed, number)
        changed = draft.lay_out()
        trouble = judged(partial(read, draft.subject.path))
        draft.clear(changed)
        yield trouble and f"store {number} of seed {seed} ({'; '.join(draft.story)}): {trouble}"


def of_json(file: str, sealed: bool = True) -> Callable[[Path, np.random.Generator], None]:
    """Writes changed variants of a JSON file, with the right hash if it has one."""
    kept: dict[Path, Any] = {}

    def write(folder: Path, rng: np.random.Generator) -> None:
        place = folder / file
        tree = changed(kept.setdefault(place, read_json(place)), rng)
        if sealed and isinstance(tree, dict):
            write_sealed(place, tree)
        else:
            place.write_text(json.dumps(tree))

    return write


def of_bytes(file: str) -> Callable[[Path, np.random.Generator], None]:
    """Writes changed variants of any file."""
    kept: dict[Path, bytes] = {}

    def write(folder: Path, rng: np.random.Generator) -> None:
        place = folder / file
        place.write_bytes(bitten(kept.setdefault(place, place.read_bytes()), rng))

    return write


def yaml_settings(folder: Path, rng: np.random.Generator) -> None:
    """Settings with odd values, keys or tags."""
    text = yaml.safe_dump(changed(read_yaml(folder / "sound.yaml"), rng), allow_unicode=True)
    if rng.integers(4) == 0:
        lines = text.splitlines()
        at = int(rng.integers(len(lines)))
        lines[at] += str(
            rng.choice([" !!python/object/apply:os.getcwd []", " &a [*a]", " {{{{", "\t- x", " 1e9999", " ? !"])
        )
        text = "\n".join(lines)
    (folder / "run.yaml").write_text(text)


def xml_boxes(folder: Path, rng: np.random.Generator) -> None:
    """Elements with odd texts, left out, repeated or nested; entities."""
    tree = ElementTree.parse(folder / "sound.xml")
    every = list(tree.iter())
    for _ in range(int(rng.integers(1, 4))):
        one, other = (every[rng.integers(len(every))] for _ in range(2))
        what = rng.integers(4)
        if what == 0:
            one.text = str(rng.choice(["", "-5", "1e400", "nan", "x" * 500, "99999999999999999999", "0", " 7 "]))
        elif what == 1 and len(one):
            one.remove(one[int(rng.integers(len(one)))])
        elif what == 2:
            other.append(ElementTree.fromstring(ElementTree.tostring(one)))
        else:
            one.tag = str(rng.choice(["object", "bndbox", "size", "width", "name", "zzz"]))
    data = ElementTree.tostring(tree.getroot())
    if rng.integers(5) == 0:
        data = b'<!DOCTYPE a [<!ENTITY b "bbbbbbbbbb"><!ENTITY c "&b;&b;&b;&b;">]>' + data.replace(b"dog", b"&c;")
    (folder / "Annotations/a.xml").write_bytes(data)


def weights(file: str, card: str, key: str) -> Callable[[Path, np.random.Generator], None]:
    """Safetensors with other tensors under the right hash."""
    kinds = [np.float32, np.float16, np.int8, np.int64, np.bool_]

    def write(folder: Path, rng: np.random.Generator) -> None:
        place = folder / file
        kept = place.with_suffix(".kept")
        if not kept.exists():
            kept.write_bytes(place.read_bytes())
        tensors = load(kept.read_bytes())
        for _ in range(int(rng.integers(1, 4))):
            name = list(tensors)[rng.integers(len(tensors))]
            what = rng.integers(5)
            if what == 0 and len(tensors) > 1:
                del tensors[name]
            elif what == 1:
                tensors[name] = tensors[name].astype(kinds[rng.integers(len(kinds))])
            elif what == 2:
                tensors[name] = np.zeros(rng.integers(0, 4, int(rng.integers(0, 4))), np.float32)
            elif what == 3:
                tensors[name] = np.full_like(tensors[name], np.nan, dtype=np.float32)
            else:
                tensors[f"{name}.more"] = tensors[name]
        place.write_bytes(save(tensors))
        plain = read_json(folder / card)
        plain[key] = {**plain[key], place.name: sha256(place)} if isinstance(plain[key], dict) else sha256(place)
        write_sealed(folder / card, plain)

    return write


def png(folder: Path, rng: np.random.Generator) -> None:
    """A PNG with changed chunks under the right checksum, or another format with changed bytes."""
    formats = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")
    kind, data = formats[rng.integers(len(formats))], io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (20, 24, 3)).astype(np.uint8)).save(data, kind)
    found = data.getvalue()
    if kind == "PNG":
        found = found[:8]
        rest = data.getvalue()[8:]
        while rest:
            length = struct.unpack(">I", rest[:4])[0]
            name, body, rest = rest[4:8], rest[8 : 8 + length], rest[12 + length :]
            if rng.integers(2) and body:
                body = bitten(body, rng)
            found += struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    else:
        found = bitten(found, rng)
    (folder / "images/class0/000.png").write_bytes(found)


def tar_file(folder: Path, rng: np.random.Generator) -> None:
    """Headers with odd names, sizes, types and links under the right checksum."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for number in range(3):
            picture = io.BytesIO()
            Image.new("RGB", (16, 16), (number * 60, 5, 5)).save(picture, "PNG")
            for ending, body in (("png", picture.getvalue()), ("cls", str(number % 2).encode())):
                info = tarfile.TarInfo(f"{number}.{ending}")
                info.size = len(body)
                if rng.integers(6) == 0:
                    info.name = str(
                        rng.choice(["../x.png", "/etc/x.png", "a" * 200 + ".png", "é.png", ".png", "0.png"])
                    )
                if rng.integers(6) == 0:
                    info.type = bytes([int(rng.choice(list(b"01234567LKSxgV")))])
                    info.linkname = "../../etc/passwd"
                tar.addfile(info, io.BytesIO(body))
    found = data.getvalue()
    (folder / "x.tar").write_bytes(bitten(found, rng) if rng.integers(2) else found)


def parquet_file(folder: Path, rng: np.random.Generator) -> None:
    """Columns of other names and types, or changed bytes."""
    body = (folder / "images/class0/001.png").read_bytes()
    odd: list[list[Any]] = [[body] * 4, [b""] * 4, [None] * 4, ["x"] * 4, [1, 2, 3, 4], [[1], [], [2], [3]]]
    table = {
        str(rng.choice(["image", "jpg", "bytes", "surprise"])): odd[0 if rng.integers(2) else rng.integers(len(odd))],
        str(rng.choice(["label", "cls", "surprise2"])): [[0, 1, 0, 1], [-1, 2**40, 0, 1], [None] * 4, ["a"] * 4][
            rng.integers(4)
        ],
    }
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "x.parquet")
    if rng.integers(2):
        (folder / "x.parquet").write_bytes(bitten((folder / "x.parquet").read_bytes(), rng))


def _read_images(path: Path) -> Any:
    return ImageSource.load(path, (16, 16), None, 1.0).batch(np.arange(1))


def _read_shards(file: str, folder: Path) -> Any:
    images = open_images(folder / file)
    return (
        images.keys,
        images.labels,
        [one if isinstance(one, Path) else one.read() for one in images.files(range(len(images)))],
    )


def _read_objects(path: Path) -> Any:
    found = open_objects(path)
    assert found is not None
    source = ObjectSource.read(found, (32, 32), 1.0)
    return source.batch(np.arange(len(source)))


def _parquet(folder: Path) -> None:
    _images(folder)
    body = (folder / "images/class0/001.png").read_bytes()
    pyarrow.parquet.write_table(pyarrow.table({"image": [body] * 4, "label": [0, 1, 0, 1]}), folder / "x.parquet")


def _images(folder: Path) -> None:
    write_images(folder / "images", count=2, side=16)
    (folder / "labels.csv").write_text("path,label\nclass0/000.png,a\nclass1/000.png,b\nclass2/001.png,a\n")


def _voc(folder: Path) -> None:
    write_voc(folder, {"a": [("dog", 5, 5, 20, 30)], "b": [("cat", 1, 1, 50, 39), ("dog", 10, 2, 30, 12)]})
    (folder / "sound.xml").write_bytes((folder / "Annotations/a.xml").read_bytes())


def _settings(folder: Path) -> None:
    make_run(folder / "run")
    (folder / "sound.yaml").write_bytes((folder / "run/run.yaml").read_bytes())
    (folder / "run.yaml").write_bytes((folder / "run/run.yaml").read_bytes())


def _tar(folder: Path) -> None:
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number in range(2):
            picture = io.BytesIO()
            Image.new("RGB", (16, 16)).save(picture, "PNG")
            for ending, body in (("png", picture.getvalue()), ("cls", b"0")):
                info = tarfile.TarInfo(f"{number}.{ending}")
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))


PARSERS = (
    Parser("run settings", _settings, yaml_settings, lambda folder: decode(Run, read_yaml(folder / "run.yaml"))),
    Parser("data.json", lambda f: make_run(f / "run"), of_json("run/data.json"), lambda f: read_run(f / "run")),
    Parser(
        "tokenizer.json", lambda f: make_tokenizer(f / "t"), of_json("t/tokenizer.json"),
        lambda f: read_tokenizer(f / "t"),
    ),
    Parser(
        "token_adapt.json", lambda f: make_adapter(f / "a"), of_json("a/token_adapt.json"),
        lambda f: read_adapter(f / "a"),
    ),
    Parser("maps.json", lambda f: make_maps(f / "m"), of_json("m/maps.json"), lambda f: read_maps(f / "m")),
    Parser(
        "tokenizer weights", lambda f: make_tokenizer(f / "t"),
        weights("t/weights.safetensors", "t/tokenizer.json", "sha256"), lambda f: read_tokenizer(f / "t"),
    ),
    Parser(
        "TokenAdapt weights", lambda f: make_adapter(f / "a"),
        weights("a/weights.safetensors", "a/token_adapt.json", "sha256"), lambda f: read_adapter(f / "a"),
    ),
    Parser(
        "checkpoint", lambda f: make_run(f / "run"),
        weights("run/checkpoints/step-00000004/ema.safetensors", "run/checkpoints/step-00000004/state.json", "sha256"),
        lambda f: read_run(f / "run"),
    ),
    Parser(
        "COCO JSON", write_objects, of_json("instances.json", False),
        lambda f: _read_objects(f / "instances.json"),
    ),
    Parser("VOC XML", _voc, xml_boxes, lambda f: _read_objects(f / "ImageSets/Main/train.txt")),
    Parser("images", _images, png, lambda f: _read_images(f / "images")),
    Parser("label file", _images, of_bytes("labels.csv"), lambda f: LabelFile.read(f / "labels.csv", f / "images")),
    Parser("tar", _tar, tar_file, partial(_read_shards, "x.tar")),
    Parser("Parquet", _parquet, parquet_file, partial(_read_shards, "x.parquet")),
)  # fmt: skip

ROWS.append(Row(3, "senseless files: store", EVERY, 20, forged_stores, HOUR))
for parser in PARSERS:
    ROWS.append(Row(3, f"senseless files: {parser.name}", EVERY, 20, partial(tried, parser), HOUR))
