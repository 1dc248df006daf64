"""Senseless variants of sound files: trees, texts, tables and bytes that parsers meet seldom.

Every function draws from a `random.Random` alone, so that a variant is known by its seed, and so that another source
of choices (`guided.py`) can take its place. Checksums and hashes are right afterwards, where a file has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from math import prod
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import numpy as np
import yaml

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
                parent[key] = deepcopy(there[other])
            case 2 if isinstance(parent, list) and len(places) < 5_000:
                parent[key:key] = deepcopy(parent[key : key + 1]) * rng.choice([1, 2, 50])
            case 2 | 3 if isinstance(parent, dict):
                name = rng.choice([*map(str, VALUES), *(k for holder, k in places if isinstance(holder, dict))])
                parent[name] = deepcopy(old) if rng.randrange(2) else parent.pop(key)
            case 4 | 5 if isinstance(old, int | float) and not isinstance(old, bool):
                parent[key] = rng.choice(
                    [old + 1, old - 1, -old, old * 2, old * 2**40, float(old), str(old), bool(old)]
                )
            case 4 | 5 if isinstance(old, str):
                parent[key] = rng.choice([old.upper(), old[:-1], f"{old} ", (old * 999)[:99_999], [old], f"%00{old}"])
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
        size = rng.choice([len(head)] * 6 + [len(head) + 1, max(0, len(head) - 1), 0, 2**63, 100_000_001])
        found = size.to_bytes(8, "little") + head + found[8 + length :]
    place.write_bytes(found)
    plain = read_json(folder / card)
    known = plain["sha256"]
    plain["sha256"] = {**known, place.name: sha256(place)} if isinstance(known, dict) else sha256(place)
    write_sealed(folder / card, plain)


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
