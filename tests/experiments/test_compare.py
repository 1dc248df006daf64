"""Storage against accuracy: bytes of each row against the files, the same table however often it is interrupted."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_data import write_images
from tilework.augment import CentreCrop, Embed, Normalise, RandomResizedCrop, TokenCrop, TokenEda
from tilework.core.errors import BrokenImagesError, ConfigError, DamageError, InputError, OutputError, TileworkError
from tilework.core.files import locked
from tilework.data import ImageFolder
from tilework.experiments.compare import Compare, augmentation, parse_row, rows
from tilework.layers.stems import PatchStemConfig, StemConfig, TokenF16StemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes import Recipe, recipes
from tilework.runs import Run
from tilework.store import Store
from tilework.tokenizers import VitVqConfig, save_tokenizer
from tilework.train import FitConfig

ROWS = ("pixels", "uniform:0.5", "score:0.5", "resolution:0.5", "jpeg:10", "plain@2", "tokens", "views:2", "chain")


def vit(stem: StemConfig) -> VitConfig:
    return VitConfig(width=16, depth=1, heads=2, pool="mean", stem=stem)


def tiny_pixel() -> Run:
    crop = RandomResizedCrop((28, 28))
    fit = FitConfig(epochs=0, steps=3, batch=8)
    steps = (crop, Normalise()), (CentreCrop((28, 28)), Normalise())
    return Run(vit(PatchStemConfig(4)), ClassifyConfig(), *steps, size=(32, 32), fit=fit)


def tiny_plain() -> Run:
    steps = (TokenCrop((7, 7)),), (Embed(), CentreCrop((7, 7)))
    return Run(vit(TokenF16StemConfig()), ClassifyConfig(), *steps, codes=(8, 8), fit=tiny_pixel().fit)


def tiny_token() -> Run:
    run = tiny_plain()
    return replace(run, augment=(TokenEda(), *run.augment))


@pytest.fixture(autouse=True)
def small_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe in (tiny_pixel, tiny_plain, tiny_token):
        monkeypatch.setitem(recipes._entries, recipe.__name__, Recipe(recipe.__name__, "", "", recipe()))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compare")
    for part, seed in (("train", 0), ("val", 1)):
        write_images(root / part, count=8, side=40, seed=seed)
        for path in list((root / part).rglob("*.png")):  # as JPEG, like the rows
            Image.open(path).save(path.with_suffix(".jpg"), quality=95)
            path.unlink()
    config = VitVqConfig(patch=4, codes=32, code_dim=8, width=16, depth=1, heads=2)
    save_tokenizer(root / "tokenizer", config.build(3, (32, 32), 0), config, (32, 32))
    return root


def job(data: Path, out: Path, names: tuple[str, ...] = ROWS, **changes: Any) -> Compare:
    made = Compare(data / "train", data / "val", out, names, [data / "tokenizer"], quiet=True, device="cpu")
    made.pixel_recipe, made.token_recipes, made.plain_recipes = "tiny_pixel", ("tiny_token",), ("tiny_plain",)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def without_times(results: dict[str, Any]) -> dict[str, Any]:
    return {**results, "rows": [{k: v for k, v in row.items() if k != "seconds"} for row in results["rows"]]}


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        for recipe in (tiny_pixel, tiny_plain, tiny_token):
            patch.setitem(recipes._entries, recipe.__name__, Recipe(recipe.__name__, "", "", recipe()))
        out = tmp_path_factory.mktemp("out") / "whole"
        yield out, job(data, out).run()


def test_rows_are_stored_and_measured(whole: tuple[Path, dict[str, Any]], data: Path) -> None:
    out, results = whole
    table = {row["row"]: row for row in results["rows"]}
    assert list(table) == [name.split("@")[0] for name in ROWS]
    files = ImageFolder.open(data / "train")
    assert table["pixels"]["bytes"] == files.bytes == sum(p.stat().st_size for p in (data / "train").rglob("*.jpg"))
    assert table["pixels"]["of_the_files"] == 1
    for name in ("uniform-0.5", "score-0.5", "resolution-0.5", "jpeg-10"):
        kept = list((out / "data" / name).rglob("*.jpg"))
        row = table[name.replace("-", ":", 1)]
        assert row["bytes"] == sum(path.stat().st_size for path in kept)
        assert row["samples"] == len(kept) == (24 if name[0] in "rj" else 12)
    store = Store(out / "data/train-1.tok")
    held = sum(path.stat().st_size for path in store.path.rglob("*") if path.is_file())
    assert table["tokens"]["bytes"] == table["plain"]["bytes"] == held
    assert table["views:2"]["samples"] == 48
    assert table["chain"]["bytes"] == held + files.bytes
    assert {row["steps"] for row in results["rows"]} == {3}


def test_kept_images_are_what_the_row_says(whole: tuple[Path, dict[str, Any]], data: Path) -> None:
    out, _ = whole
    originals = {path.read_bytes() for path in (data / "train").rglob("*.jpg")}
    for name in ("uniform-0.5", "score-0.5"):
        folder = ImageFolder.open(out / "data" / name)
        assert {path.read_bytes() for path in folder.paths} <= originals
        assert np.bincount(folder.labels).tolist() == [4, 4, 4]  # balanced
    sizes = {Image.open(path).size for path in (out / "data/resolution-0.5").rglob("*.jpg")}
    assert sizes == {(20, 20)}


def test_unreadable_images_are_left_out_of_rewritten_files_and_too_many_are_refused(data: Path, tmp_path: Path) -> None:
    photographs = tmp_path / "photographs"
    shutil.copytree(data, photographs)
    torn = sorted((photographs / "train").rglob("*.jpg"))
    torn[0].write_bytes(torn[0].read_bytes()[:90])  # 1 of 24 is below 5 %
    rows = {row["row"]: row for row in job(photographs, tmp_path / "out", ("resolution:0.5", "jpeg:10")).run()["rows"]}
    assert [row["samples"] for row in rows.values()] == [23, 23]
    torn[1].write_bytes(b"")
    with pytest.raises(BrokenImagesError, match=r"2 of 24 images in .* cannot be read"):
        job(photographs, tmp_path / "other", ("jpeg:10",)).run()
    assert not (tmp_path / "other/data/jpeg-10").exists()


def test_scores_are_exported_and_choose_the_best_of_each_class(whole: tuple[Path, dict[str, Any]], data: Path) -> None:
    out, _ = whole
    with (out / "scores.csv").open() as file:
        table = list(csv.DictReader(file))
    scores = np.load(out / "scores.npy")
    assert [row["path"] for row in table] == list(ImageFolder.open(data / "train").keys)
    assert [float(row["score"]) for row in table] == pytest.approx(scores.tolist(), abs=1e-6)
    assert ((scores > 0) & (scores < 1)).all()
    chosen = {int(path.stem) for path in (out / "data/score-0.5").rglob("*.jpg")}
    for label in {row["label"] for row in table}:
        mine = [i for i, row in enumerate(table) if row["label"] == label]
        assert chosen & set(mine) == set(sorted(mine, key=lambda i: -scores[i])[:4])


def test_table_and_plot_are_written(whole: tuple[Path, dict[str, Any]]) -> None:
    out, results = whole
    text = (out / "table.md").read_text()
    assert all(f"| {row['row']} |" in text for row in results["rows"])
    assert "random_resized_crop" in text  # pixel rows name their augmentation
    assert "Standard deviation between seeds" in text
    assert Image.open(out / "storage-accuracy.png").size[0] > 400
    assert without_times(json.loads((out / "results.json").read_bytes())) == without_times(results)
    plain = next(row for row in results["rows"] if row["row"] == "plain")
    assert plain["seeds"] == [0, 1]
    assert results["degrees_of_freedom"] == 1


class Killed(BaseException):
    """As if the process had ended here."""


@pytest.mark.parametrize("every", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_interrupted_again_and_again_gives_the_same_table(
    every: int, data: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls, kills = os.fsync, 0, 0

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls % every == 0:
            raise Killed
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(100):
        try:
            results = job(data, tmp_path / "out").run()
            break
        except Killed:
            kills += 1
            every = every * 3 // 2  # it gets further each time
    assert kills > 1
    assert without_times(results) == without_times(whole[1])


def test_killed_for_real_and_run_again(data: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of a run of its own process, then the rest here."""
    code = (
        "import sys, os, signal; sys.path[:0] = {paths!r}\n"
        "import test_compare as t\nfrom pathlib import Path\nfrom tilework.recipes import Recipe, recipes\n"
        "for r in (t.tiny_pixel, t.tiny_plain, t.tiny_token):\n"
        "    recipes._entries[r.__name__] = Recipe(r.__name__, '', '', r())\n"
        "f = sys.modules['tilework.train.fit']; real = f.save_checkpoint\n"
        "def save(*a):\n    real(*a)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "f.save_checkpoint = save\n"
        "t.job(Path({data!r}), Path({out!r}), ('pixels', 'tokens')).run()\n"
    ).format(
        paths=[str(Path(__file__).parent), str(Path(__file__).parents[1])], data=str(data), out=str(tmp_path / "a")
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert ended.returncode == -9, ended.stderr
    finished = job(data, tmp_path / "a", ("pixels", "tokens")).run()
    assert without_times(finished) == without_times(job(data, tmp_path / "b", ("pixels", "tokens")).run())


@pytest.mark.parametrize(
    ("names", "match"),
    [
        (("pixel",), "did you mean 'pixels'"),
        (("uniform:0",), "share"),
        (("uniform:two",), "share"),
        (("jpeg:0",), "quality"),
        (("jpeg:99",), "quality"),
        (("tokens:2",), "tokenizer"),
        (("views:1",), "views"),
        (("pixels:3",), "value"),
        (("tokens@x",), "seeds"),
        (("pixels", "pixels@2"), "twice"),
        ((), "there are no rows"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_written(
    names: tuple[str, ...], match: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match):
        job(data, tmp_path / "out", names).run()
    assert not (tmp_path / "out").exists()


def test_bad_data_are_refused_before_anything_is_written(data: Path, images: Path, tmp_path: Path) -> None:
    def refuses(kind: type[TileworkError], match: str, **changes: Any) -> None:
        with pytest.raises(kind, match=match):
            job(data, tmp_path / "out", ("pixels",), **changes).run()
        assert not (tmp_path / "out").exists()

    refuses(InputError, "no folder", images=tmp_path / "nowhere")
    few = write_images(tmp_path / "few", classes=2)
    refuses(InputError, "does not know", images=few)
    refuses(ConfigError, "unknown recipe", pixel_recipe="tiny_pixle")
    refuses(InputError, "no tokenizer", tokenizers=[tmp_path / "few"])
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text("{}")
    refuses(DamageError, "malformed", tokenizers=[broken])


def test_codes_that_no_recipe_takes_are_refused(data: Path, tmp_path: Path) -> None:
    config = VitVqConfig(patch=8, codes=32, code_dim=8, width=16, depth=1, heads=2)
    save_tokenizer(tmp_path / "coarse", config.build(3, (32, 32), 0), config, (32, 32))
    with pytest.raises(ConfigError, match="takes 4x4 codes"):
        job(data, tmp_path / "out", ("tokens",), tokenizers=[tmp_path / "coarse"]).run()


def test_another_comparison_in_the_same_place_is_refused(whole: tuple[Path, dict[str, Any]], data: Path) -> None:
    out, _ = whole
    with pytest.raises(OutputError, match="a comparison with other settings"):
        job(data, out, settings=("fit.steps=4",)).run()
    with pytest.raises(OutputError, match="other files"):
        job(data, data).run()


def test_more_rows_can_be_added_later(data: Path, tmp_path: Path) -> None:
    first = job(data, tmp_path / "out", ("pixels",)).run()
    second = job(data, tmp_path / "out", ("pixels", "jpeg:10")).run()
    assert first["rows"][0]["top1"] == second["rows"][0]["top1"]
    assert first["rows"][0]["seconds"] == second["rows"][0]["seconds"]  # not trained again


def test_rows_that_a_command_does_not_name_stay(data: Path, tmp_path: Path) -> None:
    first = job(data, tmp_path / "out", ("pixels", "jpeg:10")).run()
    second = job(data, tmp_path / "out", ("jpeg:20",)).run()
    assert [row["row"] for row in second["rows"]] == ["jpeg:20", "pixels", "jpeg:10"]
    for before, now in zip(first["rows"], second["rows"][1:], strict=True):
        assert [before[key] for key in ("kept", "bytes", "top1", "seconds")] == [
            now[key] for key in ("kept", "bytes", "top1", "seconds")
        ]
    assert "| jpeg:10 |" in (tmp_path / "out/table.md").read_text().replace("JPEG q10", "jpeg:10")
    (tmp_path / "out/results.json").write_text('{"rows": [{"row": "x"}]}')
    with pytest.raises(DamageError, match=r"results\.json is malformed"):
        job(data, tmp_path / "out", ("jpeg:20",)).run()


def test_other_images_in_the_same_place_are_refused(data: Path, tmp_path: Path) -> None:
    """Rows of two sets of images stood in one table."""
    shutil.copytree(data, tmp_path / "own")
    job(tmp_path / "own", tmp_path / "out", ("pixels",)).run()
    next((tmp_path / "own/train").rglob("*.jpg")).unlink()
    with pytest.raises(OutputError, match="a comparison of other images than lie there now"):
        job(tmp_path / "own", tmp_path / "out", ("pixels",)).run()
    with pytest.raises(OutputError, match="lies among the images in"):
        job(data, data / "train/compared", ("pixels",)).run()


def test_names_of_rows_and_augmentations() -> None:
    assert parse_row("jpeg:10@3") == ("jpeg", "10", 3)
    assert set(rows) == {"pixels", "uniform", "score", "resolution", "jpeg", "tokens", "plain", "views", "chain"}
    assert augmentation(tiny_pixel()) == "random_resized_crop"
    assert augmentation(tiny_token()) == "token_eda, token_crop"


def test_what_a_killed_write_left_is_cleared_and_one_process_works_at_a_time(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job(data, out, ("pixels",)).run()
    left = out / "data/.jpeg-10.12345678.tmp"
    left.mkdir(parents=True)
    with locked(out), pytest.raises(OutputError, match="in use"):
        job(data, out, ("pixels", "jpeg:10")).run()
    assert left.exists()
    job(data, out, ("pixels", "jpeg:10")).run()
    assert not left.exists()


def test_recipes_and_shares_are_checked_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes ids but gets pixels"):
        job(data, tmp_path / "out", ("pixels",), pixel_recipe="tiny_token").run()
    with pytest.raises(ConfigError, match=r"row 'uniform:0.01' has fewer images than a batch"):
        job(data, tmp_path / "out", ("pixels", "uniform:0.01")).run()
    assert not (tmp_path / "out").exists()
