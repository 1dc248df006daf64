"""Commands from end to end, and what bad input gives: one line, a documented exit code, nothing left behind."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch

import published_tokenizers as published
from small_data import write_images, write_store
from small_shards import samples_of, write_tar
from tilework.cli.main import COMMANDS, main
from tilework.core.errors import EXIT_CODES, TileworkError
from tilework.recipes import find
from tilework.store import Plan, Spool, Store, spool_of
from tilework.tokenizers import VitVqConfig, VqVaeConfig, save_tokenizer
from tilework.version import __version__


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """The one line that an error prints."""
    assert run(*arguments) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tilework: error: ")]
    assert len(lines) == 1
    return lines[0]


SMALL_TOKENIZER = ["size=[32,32]", "model.patch=4", "model.codes=16", "fit.batch=8", "fit.steps=3"]
SMALL_TOKENIZER += ["objective.warm_steps=1"]
SMALL_VIT = [
    "fit.batch=8",
    "fit.epochs=2",
    "fit.steps=0",
    "model.width=16",
    "model.heads=2",
    "model.depth=1",
    "augment.1.size=[8,8]",
]


def test_the_steps_of_the_readme(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, stored, out = tmp_path / "tokenizer", tmp_path / "x.tok", tmp_path / "run"
    assert run("tokenizer", "train", images, *SMALL_TOKENIZER, "--val", images, "--out", tokenizer, "--json") == 0
    assert json.loads(capsys.readouterr().out)["psnr"] > 0
    assert run("tokenize", images, "--tokenizer", tokenizer, "--out", stored, "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["images"], made["quarantined"]) == (24, 0)
    assert run("tokenize", images, "--tokenizer", tokenizer, "--out", tmp_path / "v.tok", "--like", stored) == 0
    keys = sorted(path.relative_to(images).as_posix() for path in images.rglob("*.png"))
    write_tar(tmp_path / "shards/0.tar", samples_of(images, keys, "name"))
    pattern = tmp_path / "shards/*.tar"
    assert run("tokenize", pattern, "--tokenizer", tokenizer, "--out", tmp_path / "t.tok", "--like", stored) == 0
    assert (Store(tmp_path / "t.tok").batch(np.arange(24)) == Store(stored).batch(np.arange(24))).all()
    squashed, like = ["--tokenizer", tokenizer, "--out", tmp_path / "s.tok", "--frame", "squash"], ["--like", stored]
    assert "made with another frame than squash" in fails(capsys, 3, "tokenize", images, *squashed, *like)
    assert "squash does not work with 2 views" in fails(capsys, 4, "tokenize", images, *squashed, "--views", "2")
    assert run("tokenize", images, *squashed) == 0
    assert "squashed" in Store(tmp_path / "s.tok").manifest.preprocessing
    covered = ["--tokenizer", tokenizer, "--out", tmp_path / "u.tok", "--like", tmp_path / "s.tok"]
    assert "give --frame squash" in fails(capsys, 3, "tokenize", images, *covered, "--frame", "cover")
    assert run("tokenize", images, *covered[:3], tmp_path / "frame.tok", *covered[4:]) == 0  # takes the frame over
    assert Store(tmp_path / "frame.tok").manifest.frame == "squash"
    assert "has squashed images" in fails(capsys, 4, "tokenize", images, *covered, "--views", "2")
    both = ["--shard", "0/2", "--engine", "ray"]
    assert "drop one" in fails(
        capsys, 4, "tokenize", images, "--tokenizer", tokenizer, "--out", tmp_path / "u.tok", *both
    )
    assert run("verify", stored) == 0
    assert "24 images in 1 shards, no damage found" in capsys.readouterr().out
    picture = tmp_path / "samples.png"
    assert run("inspect", stored, "--tokenizer", tokenizer, "--picture", picture, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["images_per_class"] == {"class0": 8, "class1": 8, "class2": 8}
    assert shown["bytes"] == sum(p.stat().st_size for p in stored.rglob("*") if p.is_file())
    assert picture.read_bytes().startswith(b"\x89PNG")
    data = ["--data", stored, "--val", tmp_path / "v.tok"]
    assert run("train", "demo_token", *SMALL_VIT, *data, "--out", out, "--json") == 0
    trained = json.loads(capsys.readouterr().out)
    assert trained["steps"] == 6
    assert run("eval", out, "--data", stored, "--json") == 0
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(trained["top1"])
    assert run("eval", out, "--data", images, "--tokenizer", tokenizer) == 0
    assert "per class" in capsys.readouterr().out


def test_a_transfer_set_keeps_the_codes_of_training_and_its_own_classes(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer, stored, flowers = tmp_path / "tokenizer", tmp_path / "x.tok", tmp_path / "flowers"
    assert run("tokenizer", "train", images, *SMALL_TOKENIZER, "--out", tokenizer) == 0
    few = tmp_path / "few"  # one class: not all codes occur
    copytree(images / "class0", few / "class0")
    assert run("tokenize", few, "--tokenizer", tokenizer, "--out", stored) == 0
    copytree(images / "class1", flowers / "daisy")
    copytree(images / "class2", flowers / "rose")
    words = ["tokenize", flowers, "--tokenizer", tokenizer, "--out", tmp_path / "f.tok"]
    capsys.readouterr()
    assert "add --new-classes" in fails(capsys, 3, *words, "--like", stored)
    assert "--new-classes does not work without --like" in fails(capsys, 4, *words, "--new-classes")
    assert run(*words, "--like", stored, "--new-classes") == 0
    made, known = Store(tmp_path / "f.tok"), Store(stored)
    assert made.classes == ("daisy", "rose")
    assert np.bincount(made.column("label")[:]).tolist() == [8, 8]
    assert made.used.tolist() == known.used.tolist()


def test_dry_runs_cost_nothing_and_write_nothing(
    images: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert run("train", "demo_token", *SMALL_VIT, "--data", store, "--out", tmp_path / "r", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 12
    assert run("tokenizer", "train", images, *SMALL_TOKENIZER, "--out", tmp_path / "t", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 24
    assert run("demo", "--images", images, "--out", tmp_path / "d", "--dry-run") == 0
    assert "24 in" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_recipes_lists_and_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("recipes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert ["seit_vit_b", "74.0", "-", "tokens", "SeiT", "(table", "2),", "ViT-B"] in [line.split() for line in lines]
    assert ["seit_patch_cpu", "-", "47.5", "tokens", "SeiT", "(table", "7,", "row", "1)"] in [x.split() for x in lines]
    heads = [line.split("  ")[0] for line in lines[:-3] if line and not line.startswith(" ")]
    assert heads == ["SeiT", "SeiT++", "LV-ViT", "TL-Align", "Good tokenizers", "VQGAN", "Tilework"]
    assert run("recipes", "--json") == 0
    cards = {card["name"]: card for card in json.loads(capsys.readouterr().out)}
    assert (cards["demo_pixel"]["takes"], cards["seit_vit_b"]["small"]) == ("pixels", "seit_cpu")
    assert run("recipes", "demo_token", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    top1 = find("demo_token").measured.figures["top1"]
    assert (shown["run"]["model"]["name"], shown["measured"]["top1"]) == ("vit", top1)
    assert {**shown, "run": None} == {**cards["demo_token"], "run": None}


def test_a_recipe_is_shown_as_a_file_for_config(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("recipes", "demo_token") == 0
    text = capsys.readouterr().out
    top1 = find("demo_token").measured.figures["top1"]
    assert text.splitlines()[:4] == [
        "# the demo from tokens, small ViT, tokens",
        "# published: no figure",
        f"# measured: top1 {top1} (docs/results.md, The demo)",
        "# tilework train demo_token --data STORE --val STORE --out OUT",
    ]
    (tmp_path / "mine.yaml").write_text(text.replace("steps: 435", "steps: 7"))
    given = ["--config", tmp_path / "mine.yaml", "--data", store, "--out", tmp_path / "r", "--dry-run", "--json"]
    settings = ["fit.batch=8", "augment.random_resized_crop.size=[8,8]"]
    assert run("train", "demo_token", *settings, *given) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 7
    assert run("recipes", "deit_s_tl_align") == 0
    assert "# published: top1 80.6\n# measured: not yet\n# on two cores: tl_align_cpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("filters", "some", "none"),
    [
        (["--paper", "seit++"], "mtm_vit_b", "seit_vit_b"),
        (["--paper", "none"], "demo_token", "seit_vit_b"),
        (["--input", "pixels"], "deit_b", "seit_vit_b"),
        (["--size", "cpu"], "seit_cpu", "seit_vit_b"),
        (["--search", "TransMix", "--size", "full"], "deit_s_trans_mix", "trans_mix_cpu"),
        (["--search", "good_plain_cpu"], "lv_class_cpu", "lv_labels_cpu"),
    ],
)
def test_recipes_are_filtered(filters: list[str], some: str, none: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes", *filters) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert some in listed
    assert none not in listed
    assert run("recipes", *filters, "--json") == 0
    assert {card["name"] for card in json.loads(capsys.readouterr().out)} <= set(listed)


def test_unknown_papers_and_recipes_name_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'TL-Align'?" in fails(capsys, 4, "recipes", "--paper", "TL-Alin")
    assert "did you mean 'demo_token'?" in fails(capsys, 4, "recipes", "demo_tokn")
    assert run("recipes", "--search", "nothing of the sort") == 0
    assert capsys.readouterr().out == "No recipe matches.\n"


def test_train_small(store: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--data", images, "--out", tmp_path / "r", "--dry-run", "--json"]
    small = ["fit.steps=2", "fit.batch=8"]
    assert run("train", "deit_s", *small, "--small", *given) == 0
    plan = json.loads(capsys.readouterr().out)
    assert run("train", "deit_s_cpu", *small, *given) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == plan["parameters"] < 1_000_000
    assert run("train", "deit_s", *small, "--small", *given[:4]) == 0
    assert "deit_s_cpu 2/2" in capsys.readouterr().err
    assert "has no small form: leave --small out" in fails(capsys, 4, "train", "good_pvt_small", "--small", *given)
    assert "is small already" in fails(capsys, 4, "train", "seit_cpu", "--small", *given)


def test_settings_by_name(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--data", store, "--out", tmp_path / "r", "--dry-run"]
    missing = fails(capsys, 4, "train", "seit_cpu", "augment.cutmx.probability=0", *given)
    assert "did you mean 'cutmix'?" in missing
    settings = ["augment=[{name: flip}, {name: embed}, {name: flip}]", "augment.flip.probability=0"]
    assert "'flip' in 'augment.flip.probability' is at 0 and 2" in fails(
        capsys, 4, "train", "seit_cpu", *settings, *given
    )


def test_settings_from_a_file_then_from_the_line(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("fit: {batch: 6, epochs: 7, optim: {lr: 5e-4}}\n")
    arguments = [*SMALL_VIT[2:], "fit.epochs=1", "--config", file, "--data", store, "--out", tmp_path / "run", "--json"]
    assert run("train", "demo_token", *arguments) == 0
    saved = (tmp_path / "run/run.yaml").read_text()
    assert "lr: 0.0005" in saved
    assert json.loads(capsys.readouterr().out)["steps"] == 8  # 48 samples, batches of 6, one epoch


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["torch"]
    assert all(state == "installed" or "pip install 'tilework[" in state for state in found["extras"].values())
    assert run("doctor") == 0
    assert "extras" in capsys.readouterr().out


def test_demo_quick_on_own_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_images(tmp_path / "images", count=40)
    (images / "class0/000.png").write_bytes(b"")
    assert run("demo", "--images", images, "--out", tmp_path / "out", "--quick", "--device", "cpu") == 0
    assert "times smaller" in capsys.readouterr().out
    assert "1 image cannot be read" in (tmp_path / "out/report.html").read_text()
    assert run("demo", "--images", images, "--out", tmp_path / "out", "--quick", "--device", "cpu", "--json") == 0
    assert json.loads(capsys.readouterr().out)["classes"] == 3


def test_help_is_quick_to_import_and_lists_the_exit_codes() -> None:
    code = "import sys; sys.argv = ['tilework', '--help']\nfrom tilework.cli.main import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'numpy', 'matplotlib', 'PIL', 'yaml') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"  # nothing heavy is imported
    assert all(f"{number:>3}  {meaning}" in shown for number, meaning in EXIT_CODES.items())


def test_the_overview_has_the_docstring_line_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for name, path in COMMANDS.items():
        module, _, function = path.partition(".")
        line = getattr(importlib.import_module(f"tilework.cli.{module}"), function).__doc__.splitlines()[0]
        assert line.endswith(".")
        assert f"  {name:<20}{line}\n" in shown
    assert max(map(len, shown.splitlines())) <= 104


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == __version__


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspekt", "x.tok") == 2
    assert "did you mean 'inspect'" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*name.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert f"tilework {name}" in shown.split("options")[0]
    assert "--json" in shown


def test_exit_codes_are_documented() -> None:
    assert {kind.exit_code for kind in TileworkError.__subclasses__()} < set(EXIT_CODES)


def test_usage_error_is_two() -> None:
    assert run("train") == 2
    assert run("nonsense") == 2


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda root: root / "nowhere", 3, "no such data"),
        (lambda root: (root / "empty").mkdir() or root / "empty", 3, "no class folders"),
        (lambda root: write_images(root / "one", classes=1), 3, "one class only"),
        (lambda root: (root / "a/b").mkdir(parents=True) or root / "a", 3, "holds no images"),
        (lambda root: (root / "a.mov").write_text("no") and root / "a.mov", 3, "a.mov is a file"),
        (lambda root: (root / "a.txt").write_text("no") and root / "a.txt", 3, "a.txt has no rows"),
        (lambda root: write_images(root / "p/train") and write_images(root / "p/val").parent, 3, "p/train"),
        (lambda root: write_store(root / "x.tok"), 4, "the recipe trains on images"),
    ],
)
def test_data_that_cannot_be_used(
    make: object, code: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make(tmp_path)  # type: ignore[operator]
    line = fails(capsys, code, "train", "demo_pixel", "--data", data, "--out", tmp_path / "run")
    assert words in line
    assert not (tmp_path / "run").exists()


def test_too_many_unreadable_files(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (images / "class0/000.png").write_bytes(b"")
    (images / "class0/001.png").write_bytes(b"<html>")
    line = fails(capsys, 3, "train", "demo_pixel", "fit.batch=8", "--data", images, "--out", tmp_path / "run")
    assert "2 of 24 images" in line
    assert "class0/000.png" in line
    assert not (tmp_path / "run").exists()


def test_wrong_recipe_key_value_and_name(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rest = ["--data", store, "--out", tmp_path / "run"]
    assert "did you mean 'demo_token'" in fails(capsys, 4, "train", "demo_tokn", *rest)
    assert "did you mean 'width'" in fails(capsys, 4, "train", "demo_token", "model.widht=3", *rest)
    assert "model.width" in fails(capsys, 4, "train", "demo_token", "model.width=wide", *rest)
    assert "must not be negative" in fails(capsys, 4, "train", "demo_token", "fit.steps=-5", *rest)
    assert "has no '='" in fails(capsys, 4, "train", "demo_token", "model.width", *rest)
    assert not (tmp_path / "run").exists()


def test_device_that_does_not_exist(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "demo_token", "--data", store, "--out", tmp_path / "run", "--device", "cuda:77"]
    assert "--device cpu" in fails(capsys, 6, *arguments)
    assert not (tmp_path / "run").exists()
    assert "'abacus'" in fails(capsys, 6, *arguments[:-1], "abacus")


def test_output_that_is_taken(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "demo_token", *SMALL_VIT, "--data", store, "--out", tmp_path / "run"]
    assert run(*arguments) == 0
    assert "another run" in fails(capsys, 7, *arguments[:2], "fit.seed=1", *arguments[2:])
    assert "exists" in fails(capsys, 7, "tokenizer", "train", tmp_path, "--out", store)
    assert "exists" in fails(capsys, 7, "tokenize", tmp_path, "--tokenizer", "box", "--out", store)


def test_output_that_cannot_be(images: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for out in (file, file / "below", Path("/proc/nothing")):
        assert str(out) in fails(capsys, 7, "train", "demo_token", *SMALL_VIT, "--data", store, "--out", out)
        assert str(out) in fails(capsys, 7, "demo", "--quick", "--images", images, "--out", out)
        assert str(out) in fails(capsys, 7, "tokenizer", "train", images, *SMALL_TOKENIZER, "--out", out)
    assert file.read_text() == "mine"


def test_a_finished_run_says_so(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "demo_token", *SMALL_VIT, "--data", store, "--out", tmp_path / "run"]
    assert run(*arguments) == 0
    assert "finished" not in capsys.readouterr().err
    assert run(*arguments) == 0
    assert "already finished" in capsys.readouterr().err


def test_quarantined_images_are_spoken_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_images(tmp_path / "images", count=40)
    (images / "class0/000.png").write_bytes(b"")
    tokenizer, out = tmp_path / "tokenizer", tmp_path / "new.tok"
    assert run("tokenizer", "train", images, *SMALL_TOKENIZER, "--out", tokenizer) == 0
    assert f"1 image cannot be read: see {tokenizer}.run/quarantine.json" in capsys.readouterr().err
    assert run("tokenize", images, "--tokenizer", tokenizer, "--out", out) == 0
    assert f"1 image cannot be read: see {out}.quarantine.json" in capsys.readouterr().err


@pytest.mark.parametrize("out", [["--out", "http://host/x"], ["--out=https://host/x"]])
def test_nothing_is_written_to_urls(
    store: Path, capsys: pytest.CaptureFixture[str], out: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert "cannot be written" in fails(capsys, 4, "convert", store, *out)
    assert sorted(tmp_path.iterdir()) == before


def test_a_family_of_commands_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tokenizer", "--help") == 0
    assert "tokenizer train" in capsys.readouterr().out
    assert run("tokenizer") == 2
    assert "tokenizer train" in capsys.readouterr().err


def test_damaged_stores(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = store / Store(store).manifest.shards[1].file
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9])
    line = fails(capsys, 5, "verify", store)
    assert "00001.tiles" in line
    assert "00001.tiles" in fails(
        capsys, 5, "train", "demo_token", *SMALL_VIT, "--data", store, "--out", tmp_path / "r"
    )
    shard.write_bytes(whole[:105] + bytes([whole[105] ^ 4]) + whole[106:])
    assert run("verify", store, "--json") == 5
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert any("of shard 00001.tiles is damaged" in problem for problem in problems)
    manifest = store / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 9', 1))
    assert "store version 9, this software reads 1 and 2" in fails(capsys, 5, "inspect", store)
    assert "is not a token store" in fails(capsys, 3, "inspect", tmp_path)


def test_tokenize_refuses_and_leaves_nothing(
    images: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new.tok"
    assert "no tokenizer in" in fails(capsys, 3, "tokenize", images, "--tokenizer", tmp_path, "--out", out)
    tokenizer = tmp_path / "tokenizer"
    assert run("tokenizer", "train", images, *SMALL_TOKENIZER, "--out", tokenizer) == 0
    capsys.readouterr()
    other = ["--like", write_store(tmp_path / "other.tok")]
    assert "another tokenizer" in fails(capsys, 3, "tokenize", images, "--tokenizer", tokenizer, "--out", out, *other)
    line = fails(capsys, 3, "inspect", store, "--tokenizer", tokenizer, "--picture", tmp_path / "p.png")
    assert "another tokenizer" in line
    assert run("tokenize", images, "--tokenizer", tokenizer, "--out", out, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["images"] == 24
    (images / "class0/000.png").write_bytes(b"")
    assert "1 of 24" in fails(
        capsys, 3, "tokenize", images, "--tokenizer", tokenizer, "--out", out, "--max-broken", "0.01"
    )
    assert not out.exists()
    assert run("tokenize", images, "--tokenizer", tokenizer, "--out", out, "--max-broken", "0.1") == 0
    assert json.loads((tmp_path / "new.tok.quarantine.json").read_text())[0]["path"] == "class0/000.png"
    assert len(Store(out)) == 23
    assert not list(tmp_path.glob(".*tmp"))


def test_tokenizers_are_imported_and_measured(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = VqVaeConfig(width=16, blocks=1, hidden=8, codes=12, code_dim=6).build(3, (0, 0), 0)
    tensors = {k.replace("quantiser.embedding.", "vq_vae.codebook."): v for k, v in model.state_dict().items()}
    torch.save(tensors, tmp_path / "x.pt")
    out = tmp_path / "taken"
    assert run("tokenizer", "import", tmp_path / "x.pt", "--size", 32, 32, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["layout"] == "plain VQ-VAE"
    assert run("tokenizer", "card", out, images, "--limit", 9, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["images"], shown["grid"], shown["codes"]) == (9, [8, 8], 12)
    assert "plain VQ-VAE, from x.pt" in json.loads((out / "card.json").read_text())["origin"]
    assert (out / "card.png").read_bytes().startswith(b"\x89PNG")
    assert run("tokenize", images, "--tokenizer", out, "--out", tmp_path / "x.tok", "--views", 2) == 0
    assert Store(tmp_path / "x.tok").views == 2
    assert "change --size" in fails(
        capsys, 4, "tokenizer", "import", tmp_path / "x.pt", "--size", 30, 31, "--out", tmp_path / "y"
    )
    assert "exists" in fails(capsys, 7, "tokenizer", "import", tmp_path / "x.pt", "--out", out)
    (tmp_path / "bad.pt").write_bytes(b"nothing")
    assert "none of it was run" in fails(capsys, 3, "tokenizer", "import", tmp_path / "bad.pt", "--out", tmp_path / "y")


FAMILIES = {
    "llamagen": (published.LlamaGen, [16, 16]),
    "ibq": (published.Ibq, [16, 16]),
    "var": (published.Var, [680]),
    "maskgit": (published.MaskgitVq, [16, 16]),
    "magvit2": (published.Magvit2, [8, 8]),
    "titok": (published.Titok, [6]),
    "titok_vq8k": (published.TitokVq8k, [6]),
    "fsq": (published.Fsq, [4, 4]),
}


@pytest.mark.parametrize("name", list(FAMILIES))
def test_published_layouts_are_imported_measured_and_used(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, grid = FAMILIES[name]
    photos, out, store = write_images(tmp_path / "photos", classes=2, count=2), tmp_path / "taken", tmp_path / "x.tok"
    torch.save(published.weights(family.layout), tmp_path / "x.pt")
    size = [] if len(grid) == 1 else ["--size", 32, 32]
    assert run("tokenizer", "import", tmp_path / "x.pt", *size, "--out", out, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["grid"] == grid
    assert shown["loader"].startswith("untested on real weights")
    assert run("tokenizer", "card", out, photos, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["images"], shown["grid"]) == (4, grid)
    assert "untested on real weights" in shown["origin"]
    assert run("tokenize", photos, "--tokenizer", out, "--out", store) == 0
    assert list(Store(store).grid) == grid
    assert ("sequence" in Store(store).manifest.tokenizer) == (len(grid) == 1)
    assert run("inspect", store, "--tokenizer", out, "--picture", tmp_path / "x.png") == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_job_array_on_the_line(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = tmp_path / "tokenizer"
    assert run("tokenizer", "train", images, *SMALL_TOKENIZER, "fit.picture_every=2", "--out", tokenizer) == 0
    assert (tmp_path / "tokenizer.run/pictures/step-00000002.png").is_file()
    (images / "class0/000.png").write_bytes(b"")
    settings = ["--tokenizer", tokenizer, "--max-broken", 0.1]
    assert run("tokenize", images, *settings, "--out", tmp_path / "one.tok") == 0
    for share in ("1/2", "0/2"):
        assert run("tokenize", images, *settings, "--out", tmp_path / "two.tok", "--shard", share) == 0
    said = capsys.readouterr()
    assert "tilework seal" in said.out
    assert "images/s" in said.err
    assert run("seal", tmp_path / "two.tok", "--max-broken", 0.1) == 0
    for path in sorted((tmp_path / "one.tok").rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "two.tok" / path.relative_to(tmp_path / "one.tok")).read_bytes()
    assert (tmp_path / "two.tok.quarantine.json").is_file()
    assert "give i/n" in fails(capsys, 4, "tokenize", images, *settings, "--out", tmp_path / "x.tok", "--shard", "2/2")
    assert "out of range" in fails(capsys, 4, "tokenize", images, *settings, "--out", tmp_path / "x.tok", "--views", 0)


def test_stores_are_converted_merged_cut_and_split(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*arguments: object) -> dict[str, Any]:
        assert run(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    ids = Store(store).batch(np.arange(48))
    assert shown("convert", store, "--codec", "pairwise", "--out", tmp_path / "p.tok")["codec"] == "pairwise"
    assert np.array_equal(Store(tmp_path / "p.tok").batch(np.arange(48)), ids)
    shown("convert", store, "--to", "seit", "--out", tmp_path / "seit")
    shown("convert", tmp_path / "seit", "--grid", 8, 8, "--out", tmp_path / "s.tok")
    assert np.array_equal(Store(tmp_path / "s.tok").batch(np.arange(48)), ids)
    for form in ("wds", "parquet"):
        shown("convert", store, "--to", form, "--out", tmp_path / form)
        shown("convert", tmp_path / form, "--out", tmp_path / f"{form}.tok")
        assert np.array_equal(Store(tmp_path / f"{form}.tok").batch(np.arange(48)), ids)
    shown("convert", store, "--to", "npy", "--out", tmp_path / "npy")
    codes = tmp_path / "npy/codes.npy"
    shown("convert", codes, "--codebook", tmp_path / "npy/codebook.npy", "--out", tmp_path / "n.tok")
    assert np.array_equal(Store(tmp_path / "n.tok").batch(np.arange(48)), ids)
    assert shown("split", store, "--fraction", 0.75, "--out", tmp_path / "a.tok", tmp_path / "b.tok")
    assert (len(Store(tmp_path / "a.tok")), len(Store(tmp_path / "b.tok"))) == (36, 12)
    assert shown("merge", tmp_path / "a.tok", tmp_path / "b.tok", "--out", tmp_path / "m.tok")["images"] == 48
    np.save(tmp_path / "scores.npy", np.linspace(0, 1, 48))
    assert shown("column", store, "c_score", tmp_path / "scores.npy")["bytes_per_image"] > 8
    best = ["subset", store, "--fraction", 0.25, "--score", "c_score", "--out", tmp_path / "c.tok"]
    assert shown(*best)["images"] == 12
    assert Store(tmp_path / "c.tok").column("key") == [f"{i}.png" for i in range(36, 48)]
    (tmp_path / "keys.txt").write_text("3.png\n5.png\n")
    assert shown("subset", store, "--keys", tmp_path / "keys.txt", "--out", tmp_path / "k.tok")["images"] == 2
    assert run("verify", store, "--deep") == 0


def test_conversions_that_cannot_be(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", tmp_path / "new.tok"]
    assert "no tokens found in" in fails(capsys, 3, "convert", tmp_path / "nowhere", *out)
    assert "leave out --to" in fails(capsys, 4, "convert", tmp_path, "--to", "seit", *out)
    assert "'zip'" in fails(capsys, 4, "convert", store, "--codec", "zip", *out)
    assert "exists" in fails(capsys, 7, "convert", store, "--out", store)
    assert "give exactly one" in fails(capsys, 4, "subset", store, *out)
    assert "leaves nothing" in fails(
        capsys, 3, "split", store, "--fraction", 1, "--out", tmp_path / "x", tmp_path / "y"
    )
    assert "no column" in fails(capsys, 3, "subset", store, "--fraction", 0.5, "--score", "nope", *out)
    assert "is not a spool" in fails(capsys, 3, "seal", tmp_path / "new.tok")
    (tmp_path / "few.txt").write_text("a\n")
    assert "1 values of column" in fails(capsys, 3, "column", store, "few", tmp_path / "few.txt")
    assert "has a column 'key'" in fails(capsys, 7, "column", store, "key", _lines(tmp_path / "k.txt", 48))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["few.txt", "k.txt", "train.tok"]


def _lines(path: Path, count: int) -> Path:
    path.write_text("x\n" * count)
    return path


def test_seal_makes_a_store_of_a_spool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool = Spool.create(spool_of(tmp_path / "a.tok"), Plan(9, (2, 2), ("a",), parts=2), np.zeros((9, 1)))
    columns = {"label": np.zeros(3, int), "key": list("abc")}
    spool.put(1, np.ones((3, 2, 2), int), columns)
    assert "lacks 1 of 2 parts (0)" in fails(capsys, 3, "seal", tmp_path / "a.tok")
    spool.put(0, np.ones((3, 2, 2), int), {**columns, "key": list("xyz")})
    assert run("seal", tmp_path / "a.tok", "--keep-order") == 0
    assert Store(tmp_path / "a.tok").column("key") == list("xyzabc")
    assert [p.name for p in tmp_path.iterdir()] == ["a.tok"]


def test_a_recipe_of_another_kind_is_refused(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["fit.batch=8", "--recipe", "demo_pixel", "--out", tmp_path / "t"]
    assert "choose one of" in fails(capsys, 4, "tokenizer", "train", images, *settings)
    assert not (tmp_path / "t").exists()
    assert not (tmp_path / "t.run").exists()


def test_a_tokenizer_on_the_line(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer, config = tmp_path / "of 2024 #7", VitVqConfig(patch=4, codes=16, code_dim=8, width=16, depth=1, heads=2)
    save_tokenizer(tokenizer, config.build(3, (16, 16), 0), config, (16, 16))
    settings = ["fit.batch=4", "fit.steps=2", "model.width=16", "model.heads=2", "--data", images, "--json"]
    assert run("train", "token_adapt_cpu", *settings, "--tokenizer", tokenizer, "--out", tmp_path / "run") == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2
    assert (tmp_path / "run/token_adapt/token_adapt.json").is_file()
    assert "needs a tokenizer" in fails(capsys, 4, "train", "token_adapt_cpu", *settings, "--out", tmp_path / "other")


def test_python_surface(store: Path) -> None:
    import tilework

    assert len(tilework.open(store)) == len(tilework.TokenDataset(store)) == 48
    assert tilework.recipes.demo_token().model.width == 128
    with pytest.raises(AttributeError, match="demo_tokn"):
        _ = tilework.recipes.demo_tokn
    model = tilework.create_model("vit_ti", input="tokens", grid=(8, 8), code_dim=8, classes=3, depth=1)
    assert model.head.out_features == 3
    assert tilework.create_tokenizer("vit_vq", codes=4).codebook.shape == (4, 32)
    assert callable(tilework.fit)
    assert callable(tilework.evaluate)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = tilework.nothing_like_it


SMALL_CHAIN = [
    f"links.{link}.run.{setting}"
    for link in (0, 1)
    for setting in ("fit.batch=12", "fit.steps=2", "model.width=16", "model.heads=2", "model.depth=1")
]
SMALL_CHAIN += ["links.0.run.codes=[8,8]"]
SMALL_CHAIN += ["links.0.run.augment.0.size=[8,8]", "links.0.run.evaluation.1.size=[8,8]"]
SMALL_CHAIN += ["links.1.run.size=[32,32]", "links.1.run.model.stem.patch=8"]
SMALL_CHAIN += ["links.1.run.augment.0.size=[32,32]", "links.1.run.evaluation.0.size=[32,32]"]


def test_a_chain_from_tokens_to_pixels(
    images: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "chain"
    chain = [
        "train",
        "seit_to_pixels_cpu",
        *SMALL_CHAIN,
        "--data",
        store,
        images,
        "--val",
        "none",
        images,
        "--out",
        out,
    ]
    assert run(*chain, "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {name: (link["input"], link["grid"]) for name, link in shown.items()} == {
        "pretrain": ("ids", [8, 8]),
        "pixels": ("pixels", [32, 32]),
    }
    assert not out.exists()
    assert run(*chain) == 0
    said = capsys.readouterr()
    assert f"starts from {out / '1-pretrain'} (fresh: patch_embed; resized: nothing)" in said.err
    assert "top1" in said.out
    assert run(*chain, "--json") == 0
    ended = json.loads(capsys.readouterr().out)
    assert (ended["run"], ended["steps"]) == (str(out), 2)
    assert run("eval", out / "2-pixels", "--data", images, "--json") == 0
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(ended["top1"])
    assert not (tmp_path / "none").exists()
    assert "another chain" in fails(capsys, 7, *chain[:2], "links.1.run.fit.seed=1", *chain[2:])
    tuned = ["train", "demo_pixel", "size=[32,32]", "augment.1.size=[32,32]", "model.stem.patch=8", *SMALL_VIT[:-1]]
    rest = ["--data", images, "--start", out / "2-pixels", "--out"]
    assert run(*tuned, *rest, tmp_path / "tuned") == 0
    assert "(fresh: nothing; resized: nothing)" in capsys.readouterr().err
    assert "another model" in fails(capsys, 4, *tuned[:-1], "model.depth=2", *rest, tmp_path / "deep")
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("name", "counts", "words"),
    [
        ("seit_to_pixels_cpu", (1, 1), "the chain has 2 links, but 1 data sets and 1 to evaluate on: give"),
        ("seit_to_pixels_cpu", (2, 1), "2 data sets and 1 to evaluate on: give"),
        ("seit_to_pixels_cpu", (3, 3), "the chain has 2 links, but 3 data sets"),
        ("demo_token", (2, 1), "recipe 'demo_token' is a single run, not a chain: give one path to --data and --val"),
        ("demo_token", (1, 2), "recipe 'demo_token' is a single run, not a chain"),
    ],
)
def test_a_wrong_number_of_paths(
    name: str, counts: tuple[int, int], words: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, val = ([store] * count for count in counts)
    arguments = ["train", name, "--data", *data, "--val", *val, "--out", tmp_path / "out"]
    assert words in fails(capsys, 4, *arguments)
    assert words in fails(capsys, 4, *arguments, "--dry-run")
    assert not (tmp_path / "out").exists()


def test_chains_are_listed_and_shown(
    images: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("recipes") == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [
        "seit_to_pixels_cpu",
        "-",
        "-",
        "tokens",
        "SeiT,",
        "21k",
        "tokens,",
        "1k",
        "pixels",
        "(table",
        "3)",
    ] in shown
    assert any(line[:1] == ["seit_three_stages"] for line in shown)
    assert run("recipes", "seit_to_pixels_cpu") == 0
    text = capsys.readouterr().out
    assert "\nlinks:\n- name: pretrain\n" in text
    file = tmp_path / "mine.yaml"
    file.write_text(text.replace("seed: 0", "seed: 5"))
    given = ["--config", file, "--data", store, images, "--out", tmp_path / "out"]
    assert run("train", "seit_to_pixels_cpu", *SMALL_CHAIN, *given, "--json") == 0
    assert (tmp_path / "out/chain.yaml").read_text().count("seed: 5") == 4  # of fit and draw
    assert run("recipes", "seit_to_pixels_cpu", "--json") == 0


@pytest.mark.parametrize("command", [["recipes"], ["train", "--data", "x", "y", "--out", "z"]])
def test_the_nearest_chain_is_named(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'seit_to_pixels_cpu'" in fails(capsys, 4, command[0], "seit_to_pixel_cpu", *command[1:])


def test_names_of_files_are_printed_as_they_are(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [tmp_path / "my_train.tok", tmp_path / "my_val.tok"]
    assert run("split", store, "--out", *parts) == 0
    said = capsys.readouterr().out
    assert all(str(part) in said for part in parts)


def test_the_store_page_names_a_command_that_works(
    images: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pooled, grid = tmp_path / "pooled.tok", tmp_path / "grid.tok"
    assert run("tokenize", images, "--out", pooled, "--codes", "pooled") == 0
    assert run("tokenize", images, "--out", grid, "--codes", "grid") == 0
    for data in (pooled, grid, store):
        assert run("report", data, "--out", tmp_path / "page.html") == 0
        words = re.search(r"tilework (train \S+ --data \S+) --val", (tmp_path / "page.html").read_text())
        assert words is not None
        assert run(*words[1].split(), "--out", tmp_path / "r", "--dry-run") == 0


def test_damaged_tokenizers_are_listed_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = {"model": {"name": "x"}, "size": [8, 8]}
    for name, text, card in (("list", "[]", "{}"), ("deep", "[" * 100_000, "{}"), ("card", json.dumps(sound), "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text(text)
        (tmp_path / name / "card.json").write_text(card)
    assert run("tokenizer", "list", tmp_path, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [found[name]["kind"] for name in found if str(tmp_path) in name or name in ("list", "deep", "card")] == [
        "damaged"
    ] * 3


def test_halves_of_characters_are_shown_escaped(tmp_path: Path) -> None:
    """As in names of files of another encoding; in a process of its own, whose output is a pipe."""
    store = write_store(tmp_path / os.fsdecode(b"x\xff.tok"))
    done = subprocess.run(
        [sys.executable, "-m", "tilework", "inspect", store, "--json"],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] > 0
