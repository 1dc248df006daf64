"""Label maps in directories and stores, and that every batch carries the maps of its own images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from small_data import write_images, write_store
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError, TileworkError
from tilework.core.files import sha256
from tilework.core.sealed import read_json, write_sealed
from tilework.data import ImageFolder, ImageSource, Part, TokenSource
from tilework.data.label_maps import COLUMN, MAPS, Labelled, LabelMaps, MapsCard, write_maps
from tilework.data.loader import Loader, in_order
from tilework.data.score_map import ScoreMap
from tilework.store import Store, StoreWriter
from tilework.store.columns import pack_column
from tilework.store.label_maps import encode_map

NAMES = ("class0", "class1", "class2")
CARD = MapsCard(NAMES, (4, 3), 2, "chance", 32)
SHARD = "columns/label_map/00000.tiles"
KEYS = "columns/key.safetensors"
VERSION_1 = bytes.fromhex("013f020102000200030062600402263001000000ffffd31116d611d611d60100")


def record(number: int, rows: int = 4, columns: int = 3) -> bytes:
    """The best class of each row is a digit of the number in base 3; the next class has some of the rest."""
    digits = np.array([number // 3**row % 3 for row in range(rows)])
    ids = np.stack([digits, (digits + 1) % 3], -1)[:, None].repeat(columns, 1)  # (rows, columns, 2)
    return encode_map(ids, np.broadcast_to(np.array([0.7, 0.2]), ids.shape))


def numbers(maps: object) -> list[int]:
    """What `record` was given, for each image; rows are rows."""
    assert isinstance(maps, ScoreMap)
    found = (maps.ids[..., 0] * 3 ** torch.arange(4)[:, None]).sum(1)  # (B, columns)
    assert torch.equal(found, found[:, :1].expand_as(found))
    scores = maps.weight + maps.spread[..., None] / 3  # of the two that are named; the third class has the rest
    assert torch.allclose(scores, torch.tensor([0.7, 0.2]), atol=1 / 126)
    return found[:, 0].tolist()


def write_numbers(path: Path, keys: Sequence[str], card: MapsCard = CARD) -> Path:
    """Maps whose numbers count the keys, given in portions."""
    records = list(map(record, range(len(keys))))
    write_maps(path, card, keys, [records[:3], [], records[3:]])
    return path


def put_numbers(store: Store, card: Any = CARD) -> None:
    """The same as columns of a store. card: or its text."""
    store.add_column(COLUMN, list(map(record, range(len(store)))))
    text = card if isinstance(card, str) else json.dumps(asdict(card))
    store.add_column("label_map_card", [text] * len(store))


def refused(kind: type[TileworkError], call: Callable[[], Any], words: str | None = None) -> None:
    """One line and a hint, of the kind expected."""
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert caught.value.hint


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("written") / "maps", [f"{i}.png" for i in range(7)])


@pytest.fixture
def maps(written: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(written, tmp_path / "maps"))


# a directory


def test_round_trip(maps: Path) -> None:
    assert sorted(p.relative_to(maps).as_posix() for p in maps.rglob("*") if p.is_file()) == [KEYS, SHARD, MAPS]
    found = LabelMaps.open(maps)
    assert found.card == CARD
    assert list(found.keys) == [f"{i}.png" for i in range(7)]
    assert numbers(found.take(np.arange(7))) == list(range(7))
    assert numbers(found.take(np.array([5, 0, 5]))) == [5, 0, 5]
    one = found.take(np.array([4]))
    assert (one.ids.shape, one.ids.dtype, one.weight.dtype) == ((1, 4, 3, 2), torch.int64, torch.float32)
    assert one.affine is None


def test_what_lies_elsewhere_comes_back_as_its_own_number(tmp_path: Path) -> None:
    """Places where it comes first, in the middle, and where it is so little that it was dropped."""
    ids = np.array([[[0, 1, 3], [2, 0, 3], [1, 2, 3]]])  # 3: none of the three classes
    scores = np.array([[[0.08, 0.02, 0.9], [0.7, 0.1, 0.2], [0.6, 0.4, 0.001]]])
    card = MapsCard(NAMES, (1, 3), 2, "chance", 32, elsewhere=True)
    write_maps(tmp_path / "maps", card, ["a"], [[encode_map(ids, scores)]])
    found = LabelMaps.open(tmp_path / "maps").take(np.array([0]))
    for place, elsewhere in enumerate([0.9, 0.2, 0.0]):
        own = torch.zeros(3).scatter_add(0, found.ids[0, 0, place], found.weight[0, 0, place])
        own += (found.spread[0, 0, place] - elsewhere) / 3
        wanted = torch.zeros(3).scatter(
            0, torch.from_numpy(ids[0, place, :2]), torch.from_numpy(scores[0, place, :2]).float()
        )
        assert torch.allclose(own, wanted, atol=1 / 50)
        assert found.spread[0, 0, place].item() == pytest.approx(elsewhere, abs=1 / 50)
    refused(
        DamageError,
        lambda: replace(LabelMaps.open(tmp_path / "maps"), card=replace(card, elsewhere=False)).take(np.array([0])),
        "does not fit",
    )


def test_keys_may_be_any_text(tmp_path: Path) -> None:
    keys = ["a/ü \n.png", "", "日本/\udcff.png", "x" * 5000]
    assert list(LabelMaps.open(write_numbers(tmp_path / "maps", keys)).keys) == keys


@pytest.mark.parametrize("count", [2, 4])
def test_as_many_keys_as_maps_or_nothing(tmp_path: Path, count: int) -> None:
    keys = [str(i) for i in range(count)]
    refused(InputError, lambda: write_maps(tmp_path / "maps", CARD, keys, [[record(0)] * 3]), f"3 .* {count} images")
    assert not list(tmp_path.iterdir())


def test_records_that_fail_leave_nothing(tmp_path: Path) -> None:
    def records() -> Any:
        yield [record(0)]
        raise InputError("an image", "is broken")

    refused(InputError, lambda: write_maps(tmp_path / "maps", CARD, ["0", "1"], records()))
    assert not list(tmp_path.iterdir())


def test_a_taken_place_is_refused_before_any_record_is_asked_for(maps: Path) -> None:
    def records() -> Any:
        raise AssertionError("asked")
        yield []

    refused(OutputError, lambda: write_maps(maps, CARD, [], records()))
    assert numbers(LabelMaps.open(maps).take(np.arange(7))) == list(range(7))


@pytest.mark.parametrize("place", ["", "nothing", "maps/columns"])
def test_where_no_maps_are_the_hint_says_how_to_make_them(maps: Path, place: str) -> None:
    refused(InputError, lambda: LabelMaps.open(maps.parent / place), "tilework annotate")


NO_OBJECT = [b"", b"{", b"\xff\xfe", b"\0" * 40, b"null", b"3", b'"x"', b"[]", b"[[]]", b"{}", b"NaN"]


@pytest.mark.parametrize("text", NO_OBJECT)
def test_a_description_that_is_no_object(maps: Path, text: bytes) -> None:
    (maps / MAPS).write_bytes(text)
    refused(DamageError, lambda: LabelMaps.open(maps), "malformed|not JSON")


NONSENSE: list[tuple[str, Any]] = [
    ("format", "tilework store"),
    ("format", None),
    ("version", None),
    ("version", "1\n"),
    ("card", None),
    ("card", []),
    ("card", "a\nb"),
    ("card.classes", None),
    ("card.classes", "abc"),
    ("card.classes", [1, 2]),
    ("card.classes", {"a": 1}),
    ("card.grid", [4]),
    ("card.grid", [4, 3, 2]),
    ("card.grid", [4.0, 3]),
    ("card.grid", ["4", "3\n"]),
    ("card.top", True),
    ("card.top", 2.5),
    ("card.annotator", 3),
    ("card.size", None),
    ("card.more", 1),
    ("entry", None),
    ("entry", 1),
    ("entry.kind", "pictures"),
    ("entry.kind", ["bytes"]),
    ("entry.name", None),
    ("entry.dtype", 5),
    ("entry.shards", None),
    ("entry.shards", []),
    ("entry.shards", [[]]),
    ("entry.shards", [{}]),
    ("entry.shards.0.file", None),
    ("entry.shards.0.records", 6),
    ("entry.shards.0.records", 8),
    ("entry.shards.0.records", -7),
    ("entry.shards.0.records", "7"),
    ("entry.shards.0.records", 7.0),
    ("entry.shards.0.crc", "0"),
    ("entry.shards.0.more", 0),
]


def edit(path: Path, place: str, value: Any) -> None:
    """Change one value of the description."""
    plain = read_json(path / MAPS)
    inner, *keys = plain, *place.split(".")
    for key in keys[:-1]:
        inner = inner[int(key) if key.isdigit() else key]
    inner[keys[-1]] = value
    (path / MAPS).write_text(json.dumps(plain))


@pytest.mark.parametrize(("place", "value"), NONSENSE, ids=[f"{place}-{value!r}" for place, value in NONSENSE])
def test_nonsense_in_the_description(maps: Path, place: str, value: Any) -> None:
    edit(maps, place, value)
    refused(DamageError, lambda: LabelMaps.open(maps), "malformed")


@pytest.mark.parametrize(("version", "hint"), [(1, "annotate again"), (3, "update Tilework")])
def test_maps_of_another_version_say_so(maps: Path, version: int, hint: str) -> None:
    edit(maps, "version", version)
    refused(DamageError, lambda: LabelMaps.open(maps), f"version {version} of label maps.*{hint}")


def test_every_part_of_the_description_is_needed(maps: Path) -> None:
    plain = read_json(maps / MAPS)
    needed = [(plain, key) for key in plain if key != "keys"]  # older ones have no hash of their keys
    needed += [(plain["card"], key) for key in plain["card"] if key != "elsewhere"]
    needed += [(plain["entry"], key) for key in ("name", "kind", "shards")]
    needed += [(plain["entry"]["shards"][0], key) for key in ("file", "records", "crc")]
    for inner, key in needed:
        value = inner.pop(key)
        (maps / MAPS).write_text(json.dumps(plain))
        refused(DamageError, lambda: LabelMaps.open(maps), "malformed")
        inner[key] = value


KEY_FILES = {
    "fewer": pack_column(["0.png"]),
    "numbers": pack_column(np.arange(7)),
    "bytes": pack_column([b"0.png"] * 7),
}


@pytest.mark.parametrize("name", KEY_FILES)
def test_keys_that_are_none(maps: Path, name: str) -> None:
    (maps / KEYS).write_bytes(KEY_FILES[name])
    refused(DamageError, lambda: LabelMaps.open(maps), "is damaged")
    plain = read_json(maps / MAPS)
    write_sealed(maps / MAPS, {**plain, "keys": sha256(maps / KEYS)})  # as if they had been written so
    refused(DamageError, lambda: LabelMaps.open(maps), "malformed")


def test_keys_that_are_gone(maps: Path) -> None:
    (maps / KEYS).unlink()
    refused(DamageError, lambda: LabelMaps.open(maps), "malformed")


def read_all(path: Path) -> ScoreMap:
    return LabelMaps.open(path).take(np.arange(7))


def test_shards_cut_short_and_gone(maps: Path) -> None:
    data = (maps / SHARD).read_bytes()
    for end in {*range(0, len(data), 9), len(data) - 1}:
        (maps / SHARD).write_bytes(data[:end])
        refused(DamageError, lambda: read_all(maps))
    (maps / SHARD).unlink()
    refused(DamageError, lambda: read_all(maps))


def test_every_changed_byte_of_a_shard_is_noticed(maps: Path) -> None:
    data = (maps / SHARD).read_bytes()
    for place in range(0, len(data), 3):
        (maps / SHARD).write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refused(DamageError, lambda: read_all(maps))


def test_the_shard_of_other_maps_is_refused(maps: Path, tmp_path: Path) -> None:
    write_maps(tmp_path / "others", CARD, [str(i) for i in range(7)], [[record(i + 7) for i in range(7)]])
    (maps / SHARD).write_bytes((tmp_path / "others" / SHARD).read_bytes())
    refused(DamageError, lambda: read_all(maps), "not the one")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("card.grid", [3, 4]),
        ("card.grid", [-4, -3]),
        ("card.grid", [1 << 60, 3]),
        ("card.top", 1),
        ("card.classes", ["class0", "class1"]),
        ("card.classes", []),
    ],
)
def test_maps_that_do_not_fit_their_description(maps: Path, place: str, value: Any) -> None:
    edit(maps, place, value)
    refused(DamageError, lambda: read_all(maps), "does not fit")


def test_a_map_of_another_form_than_the_rest(tmp_path: Path) -> None:
    write_maps(tmp_path / "maps", CARD, ["0", "1"], [[record(0), record(1, rows=5)]])
    found = LabelMaps.open(tmp_path / "maps")
    assert numbers(found.take(np.array([0]))) == [0]
    refused(DamageError, lambda: found.take(np.array([1])), "does not fit")
    refused(DamageError, lambda: found.take(np.arange(2)), "differ in form")


# with images


def images(root: Path) -> ImageSource:
    return ImageSource.load(write_images(root / "images"), (16, 16))


def test_maps_are_matched_by_keys(tmp_path: Path) -> None:
    source = images(tmp_path)
    keys = source.folder.keys
    order = np.random.default_rng(0).permutation(len(keys))
    there = ["another.png", *(keys[i] for i in order)]
    labelled = Labelled(source, LabelMaps.open(write_numbers(tmp_path / "maps", there)), "maps")
    index = np.array([7, 3, 3, 23, 0])
    batch, plain = labelled.batch(index), source.batch(index)
    assert [there[i] for i in numbers(batch.columns[COLUMN])] == [keys[i] for i in index]
    assert torch.equal(batch.x, plain.x)
    assert torch.equal(batch.target.ids, plain.target.ids)
    assert batch.index.tolist() == index.tolist()
    assert set(batch.columns) == {COLUMN}


def test_all_but_the_batches_is_the_sources(tmp_path: Path) -> None:
    pixels, tokens = images(tmp_path), TokenSource(Store(write_store(tmp_path / "x.tok")))
    put_numbers(tokens.store)
    beside = LabelMaps.open(write_numbers(tmp_path / "maps", pixels.folder.keys))
    for source, maps in ((pixels, beside), (tokens, LabelMaps.of_store(tokens.store))):
        labelled = Labelled(source, maps, "maps")
        for name in ("stage", "grid", "together", "classes"):
            assert getattr(labelled, name) == getattr(source, name)
        assert labelled.codebook is source.codebook
        assert len(labelled) == len(source)


def test_unreadable_images_do_not_shift_the_maps(tmp_path: Path) -> None:
    root = write_images(tmp_path / "images")
    keys = ImageFolder.open(root).keys
    (root / keys[2]).write_bytes(b"no image")
    source = ImageSource.load(root, (16, 16))
    labelled = Labelled(source, LabelMaps.open(write_numbers(tmp_path / "maps", keys)), "maps")
    assert numbers(labelled.batch(np.arange(23)).columns[COLUMN]) == [0, 1, *range(3, 24)]


def test_an_image_without_a_map_is_named(tmp_path: Path) -> None:
    source = images(tmp_path)
    found = LabelMaps.open(write_numbers(tmp_path / "maps", source.folder.keys[:-1]))
    refused(InputError, lambda: Labelled(source, found, "MAPS"), "MAPS has no map of 'class2/007.png'")


@pytest.mark.parametrize("names", [("class0", "class1"), (*NAMES, "class3"), NAMES[::-1], ()])
def test_maps_of_other_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    source = images(tmp_path)
    path = write_numbers(tmp_path / "maps", source.folder.keys, replace(CARD, classes=names))
    refused(InputError, lambda: Labelled(source, LabelMaps.open(path), "MAPS"), "MAPS has maps of other classes")


# of a store


def test_of_store(store: Path) -> None:
    put_numbers(Store(store))
    found = LabelMaps.of_store(Store(store))
    assert found.card == CARD
    assert list(found.keys) == [f"{i}.png" for i in range(48)]
    assert numbers(found.take(np.array([40, 2]))) == [40, 2]
    assert Store(store).verify(deep=True) == []


def test_a_store_without_maps(store: Path) -> None:
    refused(InputError, lambda: LabelMaps.of_store(Store(store)), r"no (column 'label_map'|label maps)")
    Store(store).add_column(COLUMN, [record(0)] * 48)
    refused(InputError, lambda: LabelMaps.of_store(Store(store)), "label_map_card")


@pytest.mark.parametrize("card", ["", "{", "[]", "null", "3", '{"classes": []}', '{"more": 1}'])
def test_a_store_whose_card_is_nonsense(store: Path, card: str) -> None:
    put_numbers(Store(store), card)
    refused(DamageError, lambda: LabelMaps.of_store(Store(store)), "malformed")


def test_a_store_annotated_by_the_first_version_is_refused_before_it_is_used(store: Path) -> None:
    """Scores of version 1 were probabilities among the classes of the data alone, made to sum to one."""
    Store(store).add_column(COLUMN, [VERSION_1] * 48)
    Store(store).add_column("label_map_card", [json.dumps(asdict(replace(CARD, grid=(2, 2))))] * 48)
    refused(
        DamageError, lambda: LabelMaps.of_store(Store(store)), f"{store} has version 1 of label maps.*annotate again"
    )


def test_records_of_the_first_version_are_refused_in_a_new_directory_too(tmp_path: Path) -> None:
    write_maps(tmp_path / "maps", replace(CARD, grid=(2, 2)), ["0"], [[VERSION_1]])
    found = LabelMaps.open(tmp_path / "maps")
    refused(DamageError, lambda: found.take(np.array([0])), "annotate again")


def test_maps_of_a_directory_may_go_with_a_store(store: Path, tmp_path: Path) -> None:
    keys = [f"{i}.png" for i in range(48)][::-1]
    source = TokenSource(Store(store))
    labelled = Labelled(source, LabelMaps.open(write_numbers(tmp_path / "maps", keys)), "maps")
    assert numbers(labelled.batch(np.array([0, 40])).columns[COLUMN]) == [47, 7]


def test_several_views_of_an_image_are_refused(tmp_path: Path) -> None:
    codebook = np.eye(16, 8, dtype=np.float32)
    with StoreWriter(tmp_path / "x.tok", codebook, list(NAMES), views=2) as writer:
        writer.add(np.zeros((4, 2, 8, 8), np.int64), np.arange(4) % 3, list("abcd"))
    store = Store(tmp_path / "x.tok")
    put_numbers(store)
    maps = LabelMaps.of_store(store)
    refused(ConfigError, lambda: Labelled(TokenSource(store), maps, "x.tok"), "several views")


def test_squashed_codes_are_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "x.tok", np.eye(16, 8, dtype=np.float32), list(NAMES), frame="squash") as writer:
        writer.add(np.zeros((4, 8, 8), np.int64), np.arange(4) % 3, list("abcd"))
    store = Store(tmp_path / "x.tok")
    put_numbers(store)
    maps = LabelMaps.of_store(store)
    refused(ConfigError, lambda: Labelled(TokenSource(store), maps, "x.tok"), "squashed")


# on the way to training


@pytest.fixture(params=["pixels", "ids"])
def labelled(request: pytest.FixtureRequest, tmp_path: Path) -> Labelled:
    """Sample i has map i, though the maps of images lie the other way round."""
    if request.param == "pixels":
        source = images(tmp_path)
        records = [record(i) for i in range(len(source))][::-1]
        write_maps(tmp_path / "maps", CARD, source.folder.keys[::-1], [records])
        return Labelled(source, LabelMaps.open(tmp_path / "maps"), "maps")
    store = Store(write_store(tmp_path / "x.tok"))
    put_numbers(store)
    return Labelled(TokenSource(store), LabelMaps.of_store(store), "x.tok")


def test_a_part_carries_the_maps_of_its_samples(labelled: Labelled) -> None:
    part = Part(labelled, 10)
    batch = part.batch(np.array([9, 0, 4]))
    assert numbers(batch.columns[COLUMN]) == batch.index.tolist() == part.index[[9, 0, 4]].tolist()
    assert torch.equal(batch.x, labelled.source.batch(part.index[[9, 0, 4]]).x)


@pytest.mark.parametrize("repeats", [1, 2])
def test_the_loader_carries_the_right_maps(labelled: Labelled, repeats: int) -> None:
    seen = []
    for batch in Loader(labelled, 8, seed=3, repeats=repeats).run(0, 2 * len(labelled) // 8):
        samples = (batch.index % len(labelled)).tolist()
        assert numbers(batch.columns[COLUMN]) == samples
        assert torch.equal(batch.x, labelled.source.batch(np.array(samples)).x)
        seen += samples
    assert seen[:24] != sorted(seen[:24])
    if repeats == 1:
        assert sorted(seen) == sorted([*range(len(labelled))] * 2)


def test_evaluation_in_order_carries_them_too(labelled: Labelled) -> None:
    found = [number for batch in in_order(labelled, 7) for number in numbers(batch.columns[COLUMN])]
    assert found == list(range(len(labelled)))


def test_the_loader_over_a_part_of_several_processes(labelled: Labelled) -> None:
    part = Part(labelled, 16)
    seen: list[int] = []
    for rank in (0, 1):
        for batch in Loader(part, 8, rank=rank, world=2).run(0, 2):
            assert len(batch.x) == 4
            samples = part.index[batch.index.numpy()].tolist()  # the loader numbers samples within the part
            assert numbers(batch.columns[COLUMN]) == samples
            seen += samples
    assert sorted(seen) == part.index.tolist()
