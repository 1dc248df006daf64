"""Damage: every change to a store is either harmless or reported, and always as an error of ours."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from tilework.core.errors import DamageError, InputError, TileworkError
from tilework.store import Store, StoreWriter

POSITIONS = 45  # per file; all of a smaller file
FILES = [
    "manifest.json",
    "codebook.safetensors",
    "columns/key.safetensors",
    "columns/label.safetensors",
    "shards/00000.tiles",
    "shards/00001.tiles",
    "shards/00002.tiles",
]
SHARDS = [name for name in FILES if name.startswith("shards/")]


def read_all(store: Store) -> tuple[Any, ...]:
    """Everything a store holds."""
    codes = store.batch(np.arange(len(store)))
    label = store.column("label")
    return (
        codes.shape,
        codes.tobytes(),
        store.codebook.vectors.tobytes(),
        label.tobytes(),
        store.column("key"),
        store.classes,
    )


def examine(path: Path) -> tuple[tuple[Any, ...] | str, list[str]]:
    """All contents or why they are refused, and what verify finds; an error that is not ours fails the test."""
    try:
        store = Store(path)
    except (DamageError, InputError) as error:
        return str(error), [str(error)]
    try:
        return read_all(store), store.verify()
    except (DamageError, InputError) as error:
        return str(error), store.verify()


def complaints(path: Path) -> list[str]:
    """What verify finds, or why the store does not open."""
    try:
        return Store(path).verify()
    except TileworkError as error:
        return [str(error)]


def put(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # a new file: the old one may still be mapped
    path.write_bytes(data)


def sampled(size: int) -> list[int]:
    return np.random.default_rng(size).permutation(size)[:POSITIONS].tolist()


def test_faults_reach_every_file(tiny: Path) -> None:
    assert sorted(path.relative_to(tiny).as_posix() for path in tiny.rglob("*") if path.is_file()) == sorted(FILES)
    assert sum(len(sampled((tiny / name).stat().st_size)) for name in FILES) >= 300


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_seen(tiny: Path, name: str) -> None:
    sound, whole = read_all(Store(tiny)), (tiny / name).read_bytes()
    for position in sampled(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[position] ^= 1 << bit
            put(tiny / name, bytes(data))
            result, problems = examine(tiny)
            assert isinstance(result, str) or result == sound, (position, bit)
            assert problems, (position, bit)


@pytest.mark.parametrize("name", SHARDS)
def test_shard_cut_at_any_byte_is_refused(tiny: Path, name: str) -> None:
    whole = (tiny / name).read_bytes()
    for size in range(len(whole)):
        put(tiny / name, whole[:size])
        result, problems = examine(tiny)
        assert isinstance(result, str), size
        assert Path(name).name in result
        assert any(name in problem for problem in problems), size


@pytest.mark.parametrize("name", [name for name in FILES if name not in SHARDS])
def test_other_file_cut_anywhere_is_refused(tiny: Path, name: str) -> None:
    whole = (tiny / name).read_bytes()
    for size in [0, 1, 7, 8, *range(9, len(whole), 37), len(whole) - 2]:
        put(tiny / name, whole[:size])
        result, problems = examine(tiny)
        assert isinstance(result, str), size
        assert Path(name).name in result
        assert any(name in problem for problem in problems), size


@pytest.mark.parametrize("name", FILES)
def test_longer_file_is_seen(tiny: Path, name: str) -> None:
    with (tiny / name).open("ab") as file:
        file.write(b"\0")
    result, problems = examine(tiny)
    assert isinstance(result, str)
    assert Path(name).name in result
    assert any(name in problem for problem in problems)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("instead", ["nothing", "folder", "dangling link"])
def test_missing_file_is_named(tiny: Path, name: str, instead: str) -> None:
    (tiny / name).unlink()
    if instead == "folder":
        (tiny / name).mkdir()
    elif instead == "dangling link":
        (tiny / name).symlink_to("nowhere")
    result, problems = examine(tiny)
    assert isinstance(result, str)
    assert Path(name).name in result
    assert any(name in problem for problem in problems)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2), (1, 2)])
def test_swapped_shards_are_refused(tiny: Path, one: int, other: int) -> None:
    first, second = tiny / SHARDS[one], tiny / SHARDS[other]
    a, b = first.read_bytes(), second.read_bytes()
    put(first, b)
    put(second, a)
    with pytest.raises(DamageError, match=f"shard {first.name} is not the one the manifest names"):
        Store(tiny).batch(np.arange(7))
    problems = complaints(tiny)
    assert all(any(SHARDS[i] in problem for problem in problems) for i in (one, other))


def test_shard_of_another_store_is_found_by_verify(tmp_path: Path, tiny: Path, contents: SimpleNamespace) -> None:
    with StoreWriter(tmp_path / "other.tok", contents.codebook, contents.classes, shard_images=3) as writer:
        writer.add((contents.ids + 1) % 10, contents.labels, contents.keys)
    put(tiny / SHARDS[1], (tmp_path / "other.tok" / SHARDS[1]).read_bytes())
    assert "shards/00001.tiles differs from its hash in the manifest" in complaints(tiny)
    with pytest.raises(DamageError, match=r"00001\.tiles is not the one the manifest names"):
        Store(tiny)[3]


def test_shard_of_a_store_with_other_records_is_named(tmp_path: Path, tiny: Path, contents: SimpleNamespace) -> None:
    with StoreWriter(tmp_path / "other.tok", np.zeros((600, 1)), contents.classes, shard_images=3) as writer:
        writer.add(contents.ids, contents.labels, contents.keys)
    put(tiny / SHARDS[1], (tmp_path / "other.tok" / SHARDS[1]).read_bytes())
    with pytest.raises(DamageError, match=r"00001\.tiles"):
        Store(tiny)[3]


def test_edited_manifest_is_refused(tiny: Path) -> None:
    path = tiny / "manifest.json"
    put(path, path.read_bytes().replace(b'"bee"', b'"wasp"'))
    with pytest.raises(DamageError, match=r"manifest\.json was changed after it was written"):
        Store(tiny)


def test_manifest_of_another_version_is_refused(tiny: Path) -> None:
    path = tiny / "manifest.json"
    put(path, path.read_bytes().replace(b'"version": 2', b'"version": 3'))
    with pytest.raises(DamageError, match=r"tiny\.tok has store version 3, this software reads 1 and 2"):
        Store(tiny)


def test_manifest_of_another_store_is_seen(tmp_path: Path, tiny: Path, contents: SimpleNamespace) -> None:
    with StoreWriter(tmp_path / "other.tok", contents.codebook, contents.classes, shard_images=4) as writer:
        writer.add(contents.ids, contents.labels, contents.keys)
    shutil.copy(tmp_path / "other.tok/manifest.json", tiny / "manifest.json")
    with pytest.raises(DamageError, match=r"shard 00000\.tiles is not the one the manifest names"):
        read_all(Store(tiny))
    assert any("shards/00000.tiles" in problem for problem in complaints(tiny))


@pytest.mark.parametrize("name", ["extra.txt", "shards/00003.tiles", "columns/.hidden", "new/deep/file"])
def test_extra_file_is_found_by_verify(tiny: Path, name: str) -> None:
    (tiny / name).parent.mkdir(parents=True, exist_ok=True)
    (tiny / name).write_bytes(b"")
    assert complaints(tiny) == [f"{name} is not in the manifest"]


def test_verify_names_every_damaged_group_of_records(tiny: Path) -> None:
    data = bytearray((tiny / SHARDS[0]).read_bytes())
    data[48] ^= 1  # 48 bytes of header, then records of 3 bytes
    data[48 + 6] ^= 1
    put(tiny / SHARDS[0], bytes(data))
    assert complaints(tiny) == [
        "shards/00000.tiles differs from its hash in the manifest",
        "one of records 0 to 2 of shard 00000.tiles is damaged",
    ]


def test_verify_goes_on_after_a_damaged_shard(tiny: Path) -> None:
    put(tiny / SHARDS[0], b"")
    data = bytearray((tiny / SHARDS[2]).read_bytes())
    data[48] ^= 1
    put(tiny / SHARDS[2], bytes(data))
    problems = complaints(tiny)
    assert "record 0 of shard 00002.tiles is damaged" in problems
    assert sum("00000.tiles" in problem for problem in problems) == 2  # its hash, and that it does not open


@pytest.mark.parametrize(
    "fields",
    [
        {"grid": [-2, -3]},
        {"grid": [0, 0]},
        {"grid": [3, 2**40]},
        {"grid": [2**31, 2**31]},
        {"grid": [2, 4]},
        {"vocabulary": 0},
        {"vocabulary": -10},
        {"vocabulary": 9},
        {"vocabulary": 2**70},
        {"vocabulary": 1000},
        {"codec": "nonsense"},
        {"codec": ""},
        {"images": 10**30, "shards": [{"file": SHARDS[0], "records": 10**30, "crc": 0}]},
        {"images": 0, "shards": []},
        {
            "images": 7,
            "shards": [{"file": SHARDS[0], "records": -3, "crc": 0}, {"file": SHARDS[1], "records": 10, "crc": 0}],
        },
        {"shards": [{"file": "", "records": 7, "crc": 0}]},
        {"shards": [{"file": "../../etc/passwd", "records": 7, "crc": 0}]},
        {"shards": [{"file": "a\0b", "records": 7, "crc": 0}]},
        {"files": {}},
        {"files": {"../outside": {"bytes": -1, "sha256": ""}}},
        {"files": {"a\0b": {"bytes": 1, "sha256": ""}}},
    ],
    ids=str,
)
def test_forged_manifest_is_refused_as_ours(tiny: Path, forge: Callable[..., None], fields: dict[str, Any]) -> None:
    forge(tiny, **fields)
    with pytest.raises(TileworkError):
        read_all(Store(tiny))
    assert complaints(tiny)


@pytest.mark.parametrize("name", ["tables.safetensors", *FILES[1:4]])
def test_forged_tensors_are_refused_as_ours(tiny: Path, forge: Callable[..., None], name: str) -> None:
    put(tiny / name, b"no safetensors")
    files = {name: vars(file) for name, file in Store(tiny).manifest.files.items()}
    digest = hashlib.sha256(b"no safetensors").hexdigest()
    forge(tiny, files={**files, name: {"bytes": 14, "sha256": digest}})
    with pytest.raises(DamageError, match=Path(name).name):
        read_all(Store(tiny))


@pytest.mark.parametrize("wrong", [np.zeros((2, 1), np.int32), np.full((9, 2), 99, np.int32), np.zeros((10, 3))])
def test_forged_synonyms_are_refused_as_ours(tiny: Path, forge: Callable[..., None], wrong: np.ndarray) -> None:
    name = "codebook.safetensors"
    data = save({"codebook": Store(tiny).codebook.vectors, "synonyms": wrong})
    put(tiny / name, data)
    files = {name: vars(file) for name, file in Store(tiny).manifest.files.items()}
    forge(tiny, files={**files, name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}})
    with pytest.raises(DamageError, match="synonyms"):
        _ = Store(tiny).codebook
    assert any("synonyms" in complaint for complaint in complaints(tiny))


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with everything: tables, used codes, several views, columns of every kind."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("rich") / "rich.tok"
    ids = np.minimum(rng.geometric(0.2, (60, 2, 6, 8)), 30)
    ids[..., 1:] = np.where(rng.random(ids[..., 1:].shape) < 0.6, ids[..., :-1], ids[..., 1:])
    with StoreWriter(
        path, rng.normal(size=(40, 3)), ["a", "b"], codec="rans-context", views=2, cut=True, shard_images=25
    ) as writer:
        writer.add(
            ids,
            np.arange(60) % 2,
            [f"{i}.png" for i in range(60)],
            score=rng.random(60),
            blob=[rng.bytes(i * 40) for i in range(60)],
            boxes=[rng.random((i % 4, 4)).astype(np.float32) for i in range(60)],
        )
    return path


def everything(store: Store) -> list[Any]:
    codes = [store.batch(np.arange(len(store)), view).tobytes() for view in range(store.views)]
    columns = [[bytes(np.asarray(v)) if not isinstance(v, str) else v for v in store.column(c.name)[:]] for c in
               store.manifest.columns]  # fmt: skip
    return [codes, columns, store.codebook.vectors.tobytes(), store.used.tobytes(), store.classes]


def test_a_thousand_flipped_bits_over_all_files(rich: Path, tmp_path: Path) -> None:
    path = shutil.copytree(rich, tmp_path / "x.tok")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    sizes = np.array([file.stat().st_size for file in files])
    sound, rng, refused = everything(Store(rich)), np.random.default_rng(6), 0
    for place in rng.choice(sizes.sum(), 1000, replace=False).tolist():
        file = files[int(np.searchsorted(np.cumsum(sizes), place, side="right"))]
        whole = file.read_bytes()
        at, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        put(file, whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            store = Store(path)
            problems = store.verify()
            found = everything(store)
        except TileworkError as error:
            refused += 1
            problems = [str(error)]
        else:
            assert found == sound, (file.name, at, bit)
        named = [problem for problem in problems if file.stem in problem or file.name == "manifest.json"]
        assert named, (file.name, at, bit, problems)
        put(file, whole)
    assert refused > 500
    assert everything(Store(path)) == sound


def test_four_kilobytes_of_zeros_are_refused(rich: Path, tmp_path: Path) -> None:
    path = shutil.copytree(rich, tmp_path / "x.tok")
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        whole = file.read_bytes()
        for start in range(0, len(whole), max(1, len(whole) // 5)):
            zeroed = whole[:start] + bytes(min(4096, len(whole) - start)) + whole[start + 4096 :]
            if zeroed == whole:
                continue
            put(file, zeroed)
            assert complaints(path), (file.name, start)
        put(file, whole)


def test_renamed_shard_is_missing_and_extra(rich: Path, tmp_path: Path) -> None:
    path = shutil.copytree(rich, tmp_path / "x.tok")
    (path / "shards/00001.tiles").rename(path / "shards/00007.tiles")
    problems = complaints(path)
    assert "shards/00001.tiles is missing" in problems
    assert "shards/00007.tiles is not in the manifest" in problems
    with pytest.raises(DamageError, match=r"00001\.tiles"):
        Store(path).batch(np.arange(60))
