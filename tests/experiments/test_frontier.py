"""`tilework frontier`: rows, the Pareto front, resuming, bad rows, the command end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from small_data import write_images
from tilework.cli.main import main
from tilework.core.errors import BrokenImagesError, ConfigError, DamageError, InputError, OutputError
from tilework.data import ImageFolder
from tilework.experiments.frontier import ROWS, Frontier, better
from tilework.experiments.frontier_rows import Point, _write_files, check, rows
from tilework.store import Store
from tilework.tokenizers import TeacherCodesConfig, VitVqConfig, save_tokenizer


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path, Path]:
    torch.manual_seed(0)
    config = TeacherCodesConfig(size=(32, 32), code_dim=4, codes=4, stage=1)
    save_tokenizer(tmp_path / "teacher", config.build(3, (32, 32), 0), config, (32, 32))
    train = write_images(tmp_path / "train", 3, 8)
    return train, write_images(tmp_path / "val", 3, 4, seed=1), tmp_path / "teacher"


def test_features_and_codes_and_resuming(data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    train, val, teacher = data
    names = ("float16", "int8", "rounded:0.85", "rounded:3", "pq:4", "kmeans:4", "codes:4", "codes:4x2")
    found = Frontier(train, val, tmp_path / "out", names, teacher, quiet=True).run()
    sizes = {row["row"]: row["bytes"] for row in found["rows"]}
    assert (sizes["float16"], sizes["int8"], sizes["pq:4"]) == (80, 40, 4)  # 40 channels
    assert sizes["rounded:3"] < sizes["rounded:0.85"] < sizes["int8"]
    assert sizes["codes:4"] <= 16 * 2 / 8  # 4x4 codes of two bits
    assert all(row["whole"] >= row["bytes"] for row in found["rows"])
    first = {path: path.read_bytes() for path in (tmp_path / "out" / "points").iterdir()}
    again = Frontier(train, val, tmp_path / "out", (*names, "codes:8"), teacher, quiet=True).run()
    assert len(again["rows"]) == 9
    assert all(path.read_bytes() == data for path, data in first.items())
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError, match="other settings"):
        Frontier(train, val, tmp_path / "out", names, teacher, seeds=2, quiet=True).run()


def test_rows_that_a_command_does_not_name_stay(data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """They were gone from the table, though not their points; so were those after a row that failed."""
    train, val, teacher = data
    first = Frontier(train, val, tmp_path / "out", ("float16", "int8"), teacher, quiet=True).run()
    second = Frontier(train, val, tmp_path / "out", ("pq:4",), teacher, quiet=True).run()
    assert [row["row"] for row in second["rows"]] == ["pq:4", "float16", "int8"]
    kept = {row["row"]: row["mean"] for row in second["rows"]}
    assert all(kept[row["row"]] == row["mean"] for row in first["rows"])
    with pytest.raises(ConfigError):
        Frontier(train, val, tmp_path / "out", ("float16", "pq:200", "int8"), teacher, quiet=True).run()
    written = json.loads((tmp_path / "out/results.json").read_bytes())["rows"]
    assert {row["row"] for row in written} == {"pq:4", "float16", "int8"}


def test_other_images_in_the_same_place_are_refused(data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """The teacher's maps were those of the former."""
    train, val, teacher = data
    out = tmp_path / "out"
    Frontier(train, val, out, ("int8",), teacher, quiet=True).run()
    settings = json.loads((out / "settings.json").read_text())
    del settings["samples"]  # as older versions wrote it
    (out / "settings.json").write_text(json.dumps(settings))
    Frontier(train, val, out, ("int8",), teacher, quiet=True).run()
    next(train.rglob("*.png")).unlink()
    with pytest.raises(OutputError, match="a frontier of other images than lie there now"):
        Frontier(train, val, out, ("int8", "float16"), teacher, quiet=True).run()


@pytest.mark.parametrize(
    ("row", "setting", "said"),
    [
        ("jpeg:32:30", "nonsense=3", "nonsense"),
        ("pixels:seit_cpu", "fit.steps=2", "takes|does not train on images"),
        ("pixels:nonsense", "fit.steps=2", "unknown recipe 'nonsense'"),
    ],
)
def test_settings_and_recipes_are_checked_before_anything_is_written(
    data: tuple[Path, Path, Path], tmp_path: Path, row: str, setting: str, said: str
) -> None:
    """A misspelt setting stayed in settings.json, and the right one was refused."""
    train, val, teacher = data
    with pytest.raises(ConfigError, match=said):
        Frontier(train, val, tmp_path / "out", (row,), teacher, 1, (setting,), quiet=True).run()
    assert not (tmp_path / "out").exists()
    with pytest.raises(OutputError, match="lies among the images in"):
        Frontier(train, val, train / "out", ("int8",), teacher, quiet=True).run()
    assert not (train / "out").exists()


def test_a_trained_row_and_the_command(data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    train, val, teacher = data
    words = f"frontier {train} --val {val} --teacher {teacher} --rows vit:4 jpeg:16:30 --out {tmp_path / 'out'} --json"
    settings = ["--settings", "fit.steps=2", "fit.batch=4", "fit.schedule.warmup_steps=1"]
    with pytest.raises(SystemExit) as stop:
        main([*words.split(), *settings])
    assert stop.value.code == 0
    rows = {row["row"]: row for row in json.loads((tmp_path / "out" / "results.json").read_bytes())["rows"]}
    assert rows["jpeg:16:30"]["bytes"] > 100
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| vit:4 |" in text
    assert "Pooled features" not in text  # there are none


def test_a_tokenizer_of_ones_own(data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    train, val, teacher = data
    config = VitVqConfig(patch=4, codes=16, code_dim=8, width=16, depth=1, heads=2)
    save_tokenizer(tmp_path / "own", config.build(3, (32, 32), 0), config, (32, 32))
    settings = ("fit.steps=2", "fit.batch=4", "fit.schedule.warmup_steps=1", "model.width=16", "model.heads=2")
    row = f"tokens:{tmp_path / 'own'}"
    (found,) = Frontier(train, val, tmp_path / "out", (row,), teacher, 2, settings, quiet=True).run()["rows"]
    store = Store(next((tmp_path / "out/data").glob("tokens-*-train.tok")))
    assert (store.grid, len(store.codebook.vectors), len(found["accuracy"])) == ((8, 8), 16, 2)
    assert found["bytes"] == store.sizes["tokens"] / len(store)
    assert f"--tokenizer {tmp_path / 'own'}" in found["command"]
    with pytest.raises(InputError, match="nowhere"):
        Frontier(train, val, tmp_path / "no", ("tokens:nowhere",), teacher, quiet=True).run()
    assert not (tmp_path / "no").exists()


def test_what_start_keeps(data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    settings = ("fit.steps=3", "fit.schedule.warmup_steps=1")
    names = ("box:pooled", "box:corners")
    found = Frontier(data[0], data[1], tmp_path / "out", names, seeds=2, settings=settings, quiet=True).run()
    for row, name in zip(found["rows"], names, strict=True):
        assert len(row["accuracy"]) == 2
        assert row["bytes"] < 320 < row["whole"]
        assert Store(tmp_path / "out" / "data" / f"{name.replace(':', '-')}-val.tok").grid == (1, 1, 320)


def test_the_front() -> None:
    points = [{"bytes": b, "mean": m} for b, m in ((10, 0.5), (20, 0.4), (30, 0.5), (30, 0.6))]
    assert [not any(better(o, p) for o in points) for p in points] == [True, False, False, True]


BAD = [
    "pq:x",
    "pq:0",
    "rounded",
    "rounded:0",
    "codes:1",
    "tokens",
    "jpeg:4:30",
    "jpeg:32",
    "float16:3",
    "webp:32:101",
    "box",
    "box:grid",
]


@pytest.mark.parametrize("row", BAD)
def test_bad_rows(row: str) -> None:
    with pytest.raises(ConfigError):
        check(*row.partition(":")[::2])


def test_the_default_rows_are_rows(data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    for row in ROWS:
        check(*row.partition(":")[::2])
    train, val, teacher = data
    with pytest.raises(ConfigError, match="of the tokenizer in the box, not of"):
        Frontier(train, val, tmp_path / "out", ("box:pooled",), teacher).run()
    with pytest.raises(ConfigError, match="weak_pixel"):
        Frontier(train, val, tmp_path / "out", ("pixels:weak_pixels_cpu",), teacher).run()
    with pytest.raises(ConfigError, match="unknown row 'code'"):
        Frontier(train, val, tmp_path / "out", ("code:4",), teacher).run()
    assert not (tmp_path / "out").exists()


def test_names_that_differ_in_capitals_or_signs_are_rows_of_their_own(
    data: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, val, teacher = data
    one = Frontier(train, val, tmp_path / "out", teacher=teacher, quiet=True)

    def named(self: Frontier, value: str) -> Point:
        return Point(1.0, 1.0, (0.5,), value)

    monkeypatch.setitem(rows._entries, "tokens", named)
    names = ("tokens:runs/A", "tokens:runs/B", "tokens:tok_1", "tokens:tok-1")
    for _ in range(2):
        found = [one._point(name, "tokens", name.partition(":")[2]) for name in names]
        assert [point["row"] for point in found] == list(names)


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", '{"row": "int8", "bytes": "x", "mean": 1}'])
def test_damaged_points_are_named(data: tuple[Path, Path, Path], tmp_path: Path, text: str) -> None:
    train, val, teacher = data
    one = Frontier(train, val, tmp_path / "out", ("int8",), teacher, quiet=True)
    one.run()
    file = tmp_path / "out/points/int8.json"
    whole = file.read_bytes()
    file.write_text(text)
    with pytest.raises(DamageError, match=r"int8\.json"):
        one.run()
    file.write_bytes(whole.replace(b'"mean": ', b'"mean": 1'))
    with pytest.raises(DamageError, match="was changed"):
        one.run()


@pytest.mark.parametrize("name", ["train.npy", "val.labels.npy"])
def test_damaged_maps_of_the_teacher_are_named(data: tuple[Path, Path, Path], tmp_path: Path, name: str) -> None:
    train, val, teacher = data
    Frontier(train, val, tmp_path / "out", ("int8",), teacher, quiet=True).run()
    file = tmp_path / "out/maps" / name
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    with pytest.raises(DamageError, match=f"{name} is damaged: remove .*maps: it is computed again"):
        Frontier(train, val, tmp_path / "out", ("int8", "float16"), teacher, quiet=True).run()


def test_what_a_killed_process_left_is_removed(data: tuple[Path, Path, Path], tmp_path: Path) -> None:
    train, val, teacher = data
    one = Frontier(train, val, tmp_path / "out", ("int8", "rounded:1"), teacher, quiet=True)
    one.run()
    before = sorted((tmp_path / "out").rglob("*"))
    for folder in ("", "points", "maps", "data"):
        (tmp_path / "out" / folder / ".x.json.0123abcd.tmp").write_bytes(b"half")
    one.run()
    assert sorted((tmp_path / "out").rglob("*")) == before


def test_images_that_cannot_be_read_are_left_out_of_small_files(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "train", 2, 20)
    first = sorted(folder.rglob("*.png"))[0]
    first.write_text("no image")
    _write_files(ImageFolder.open(folder), tmp_path / "small", "jpeg", 16, 30)
    assert len(list((tmp_path / "small").rglob("*.png"))) == 39
    for file in sorted(folder.rglob("*.png"))[:5]:
        file.write_text("no image")
    with pytest.raises(BrokenImagesError, match="5 of 40 images"):
        _write_files(ImageFolder.open(folder), tmp_path / "other", "jpeg", 16, 30)
    assert not [file for file in tmp_path.iterdir() if file.name not in ("train", "small")]


@pytest.mark.parametrize("label", ["../../outside", "/outside", "a/b", ".", "x" * 300])
def test_labels_that_are_no_names_of_folders_are_refused(tmp_path: Path, label: str) -> None:
    """Nothing is written outside, and nothing half-written stays."""
    write_images(tmp_path / "photos", 2, 2)
    label = f"{tmp_path}{label}" if label.startswith("/") else label
    (tmp_path / "labels.csv").write_text(f"path,label\nphotos/class0/000.png,{label}\nphotos/class1/000.png,b\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="cannot be the name of a folder: rename it"):
        _write_files(ImageFolder.open(tmp_path / "labels.csv"), tmp_path / "out", "jpeg", 16, 50)
    assert sorted(tmp_path.rglob("*")) == before
