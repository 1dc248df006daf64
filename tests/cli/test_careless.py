"""Careless command lines: each gives one line and its exit code, and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from small_data import write_images, write_store
from tilework.cli.main import main
from tilework.models import create_model
from tilework.store import Store, StoreWriter
from tilework.tokenizers import VitVqConfig, save_tokenizer

SMALL = ["fit.steps=2", "fit.batch=8", "model.width=16", "model.heads=2", "model.depth=1"]
TOKEN = ["demo_token", *SMALL, "augment.1.size=[8,8]"]
PIXEL = ["demo_pixel", *SMALL, "size=[24,24]", "augment.1.size=[24,24]", "model.stem.patch=8"]


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything a careless person may mix up; no test changes it."""
    root = tmp_path_factory.mktemp("careless")
    write_images(root / "images")
    write_images(root / "many", count=12, seed=1)
    write_store(root / "x.tok")
    config = VitVqConfig(patch=4, codes=16, code_dim=8, width=16, depth=1, heads=2)
    torch.manual_seed(0)
    save_tokenizer(root / "tokenizer", config.build(3, (32, 32), 0), config, (32, 32))
    with StoreWriter(root / "other.tok", np.eye(4, 8, dtype=np.float32), ["a"], tokenizer={"sha256": "x"}) as writer:
        writer.add(np.zeros((2, 4, 4), np.int64), np.zeros(2, np.int64), ["0.png", "1.png"])
    (root / "killed.tok.spool").mkdir()
    (root / "killed.tok.spool/plan.json").write_text("{}")
    (root / "empty").mkdir()
    (root / "flat").mkdir()
    Image.new("RGB", (32, 32)).save(root / "flat/a.png")
    write_images(root / "thirteen", classes=1, count=12)
    (root / "thirteen/class0/broken.png").write_bytes(b"no image")
    write_images(root / "line")
    (root / "line/class0").rename(root / "line/class\n0")
    (root / "line.csv").write_text('path,label\n"line/class\n0/0.png",a\n')
    (root / "page.html").write_text("<html>")
    (root / "page.jpg").write_text("<html>")
    (root / "again.csv").write_text("path,label\n" + 2 * "images/class0/000.png,a\n")
    shutil.copytree(root / "x.tok", root / "cut.tok")
    shard = next((root / "cut.tok/shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:50])
    (root / "bad.csv").write_text("only one column\n")
    (root / "twice.yaml").write_text("fit: {steps: 3}\nfit: {steps: 4}\n")
    assert run("train", *TOKEN, "--data", root / "x.tok", "--val", root / "x.tok", "--out", root / "run") == 0
    assert run("train", *PIXEL, "--data", root / "images", "--out", root / "pixels") == 0
    assert run("export", root / "run", "--out", root / "model") == 0
    return root


Words = Callable[[Path], list[object]]
CASES: dict[str, tuple[Words, int, str]] = {
    # wrong paths
    "data nowhere": (lambda r: ["train", *TOKEN, "--data", r / "nowhere"], 3, "no such data"),
    "val nowhere": (lambda r: ["train", *TOKEN, "--data", r / "x.tok", "--val", r / "no.tok"], 3, "no such data"),
    "run nowhere": (lambda r: ["eval", r / "nowhere", "--data", r / "x.tok"], 3, "no run or exported model in"),
    "run is a store": (lambda r: ["eval", r / "x.tok", "--data", r / "x.tok"], 3, "is a token store, not a run"),
    "run is a tokenizer": (lambda r: ["predict", r / "tokenizer", r / "flat/a.png"], 3, "is a tokenizer, not a run"),
    "run is a folder": (lambda r: ["predict", r / "images", r / "flat/a.png"], 3, "no run or exported model in"),
    "data is a tokenizer": (lambda r: ["train", *TOKEN, "--data", r / "tokenizer"], 3, "is a tokenizer, not data"),
    "data is a run": (lambda r: ["train", *TOKEN, "--data", r / "run"], 3, "is a run, not data"),
    "data is a model": (lambda r: ["eval", r / "run", "--data", r / "model"], 3, "is an exported model, not data"),
    "killed spool": (lambda r: ["train", *TOKEN, "--data", r / "killed.tok"], 3, "is not finished: its parts lie in"),
    "killed spool itself": (lambda r: ["inspect", r / "killed.tok.spool"], 3, "is an unfinished token store"),
    "tokenizer nowhere": (
        lambda r: ["tokenize", r / "images", "--tokenizer", r / "no", "--out", r / "new"], 3, "no tokenizer in"),
    "tokenizer is a store": (
        lambda r: ["tokenize", r / "images", "--tokenizer", r / "x.tok", "--out", r / "new"], 3,
        "is a token store, not a tokenizer"),
    "tokenize a store": (
        lambda r: ["tokenize", r / "x.tok", "--out", r / "new"], 3,
        "is a token store, not images: its images are tokenized already"),
    "one image in thirteen is broken": (
        lambda r: ["tokenize", r / "thirteen", "--tokenizer", r / "tokenizer", "--out", r / "new"], 3,
        "or accept them with --max-broken 0.08"),
    "one image in thirteen is broken, pixels": (
        lambda r: ["train", *PIXEL, "--data", r / "thirteen"], 3, "or accept them with max_broken=0.08"),
    "one image in thirteen is broken, label maps": (
        lambda r: ["annotate", r / "thirteen", "--model", r / "pixels", "--top", 1, "--out", r / "new"], 3,
        "or accept them with --max-broken 0.08"),
    "a line break in a name, start": (lambda r: ["start", r / "line"], 3, "a name has a control character"),
    "a line break in a name, tokenize": (
        lambda r: ["tokenize", r / "line", "--out", r / "new"], 3, "a name has a control character"),
    "a line break in a name, split": (
        lambda r: ["split", r / "line", "--out", r / "a.csv", r / "b.csv"], 3, "a name has a control character"),
    "a line break in a label file": (lambda r: ["start", r / "line.csv"], 3, "has a quote that is not closed"),
    "a line break in a path": (lambda r: ["start", r / "no\nfolder"], 3, "no such data"),
    "a second run nowhere": (
        lambda r: ["robustness", r / "run", r / "no", "--data", r / "images", "--out", r / "new"], 3, "no run or exp"),
    "shifted data nowhere": (
        lambda r: ["robustness", r / "run", "--data", r / "images", "--shift", f"a={r / 'no'}", "--out", r / "new"], 3,
        "no such data"),
    "box for codes of another tokenizer": (
        lambda r: ["predict", r / "run", r / "flat/a.png", "--tokenizer", "box"], 3, "has other codes"),
    "box draws nothing": (
        lambda r: ["explain", r / "run", "--data", r / "x.tok", "--tokenizer", "box", "--out", r / "a.png"], 4,
        "the tokenizer box has no decoder to draw codes with: leave --tokenizer out and add --images FOLDER"),
    "box of a store of another tokenizer": (
        lambda r: ["inspect", r / "x.tok", "--tokenizer", "box", "--picture", r / "a.png"], 3, "another tokenizer"),
    "like is a folder": (
        lambda r: ["tokenize", r / "images", "--tokenizer", r / "tokenizer", "--like", r / "run", "--out", "x"], 3,
        "is a run, not a token store"),
    "config nowhere": (
        lambda r: ["train", *TOKEN, "--config", r / "no.yaml", "--data", r / "x.tok"], 3, "no such file"),
    "start nowhere": (lambda r: ["train", *TOKEN, "--start", r / "no", "--data", r / "x.tok"], 3, "no such file"),
    "store is a folder": (lambda r: ["verify", r / "images"], 3, "is not a token store"),
    "photograph nowhere": (lambda r: ["predict", r / "run", r / "no.jpg"], 3, "no such image"),
    "photograph is a page": (lambda r: ["predict", r / "run", r / "page.html"], 3, "is not an image"),
    "photographs in an empty folder": (lambda r: ["predict", r / "run", r / "empty"], 3, "holds no images"),
    "no photograph": (lambda r: ["predict", r / "run"], 3, "no photographs"),
    "store beside a photograph": (
        lambda r: ["predict", r / "run", r / "x.tok", r / "flat/a.png"], 3, "is a token store, beside other paths"),
    "photograph without a tokenizer": (lambda r: ["predict", r / "run", r / "flat/a.png"], 3, "add --tokenizer"),
    "another tokenizer": (
        lambda r: ["predict", r / "run", r / "flat/a.png", "--tokenizer", r / "tokenizer"], 3, "has other codes"),
    "store to a pixel run": (lambda r: ["predict", r / "pixels", r / "x.tok"], 3, "was trained on images"),
    "top 0": (lambda r: ["predict", r / "pixels", r / "flat", "--top", 0], 4, "give 1 or more"),
    "best without validation": (
        lambda r: ["eval", r / "pixels", "--data", r / "images", "--best"], 3, "has no best checkpoint"),
    "best of an export": (lambda r: ["eval", r / "model", "--data", r / "x.tok", "--best"], 4, "leave --best out"),
    # data that are not what they should be
    "folder to a token recipe": (lambda r: ["train", *TOKEN, "--data", r / "images"], 4, "first: tilework tokenize"),
    "store to a pixel recipe": (lambda r: ["train", *PIXEL, "--data", r / "x.tok"], 4, "recipes --input tokens"),
    "flat folder": (lambda r: ["train", *PIXEL, "--data", r / "flat"], 3, "one class only"),
    "flat validation": (
        lambda r: ["train", *PIXEL, "--data", r / "images", "--val", r / "flat"], 3, "has no labels"),
    "label file without labels": (lambda r: ["train", *PIXEL, "--data", r / "bad.csv"], 3, "names no image"),
    "one photograph": (lambda r: ["eval", r / "pixels", "--data", r / "flat/a.png"], 3, "has no labels"),
    "empty folder": (lambda r: ["train", *PIXEL, "--data", r / "empty"], 3, "has no class folders"),
    # settings
    "no recipe": (lambda r: ["train", "fit.steps=1", "--data", r / "x.tok"], 4, "no recipe before"),
    "unknown recipe": (lambda r: ["train", "demo_tokn", "--data", r / "x.tok"], 4, "did you mean 'demo_token'"),
    "a folder almost right": (lambda r: ["start", r / "imagse"], 3, "/images?"),
    "a recipe like no other": (lambda r: ["recipes", "nosuch"], 4, "closest of"),
    "unknown key": (lambda r: ["train", *TOKEN, "steps=5", "--data", r / "x.tok"], 4, "did you mean 'fit.steps'?"),
    "key twice": (lambda r: ["train", *TOKEN, "fit.steps=3", "--data", r / "x.tok"], 4, "'fit.steps' is given twice"),
    "key twice in a file": (
        lambda r: ["train", "demo_token", "--config", r / "twice.yaml", "--data", r / "x.tok"], 4, "is given twice"),
    "impossible probability": (
        lambda r: ["train", "seit_cpu", "augment.cutmix.probability=7", "--data", r / "x.tok"], 4, "between 0 and 1"),
    "wrong word after data": (
        lambda r: ["train", *TOKEN, "--data", r / "x.tok", "fit.stepz=3"], 4, "did you mean 'steps'"),
    "no small form": (lambda r: ["recipes", "demo_token", "--small"], 4, "is small already"),
    "small of nothing": (lambda r: ["recipes", "--small"], 4, "give its name"),
    "find-lr of a chain": (
        lambda r: ["train", "seit_to_pixels_cpu", "--find-lr", "--data", r / "x.tok", r / "images"], 4, "single run"),
    # outputs
    "picture is no PNG": (lambda r: ["inspect", r / "x.tok", "--picture", r / "a.jpg"], 4, "is not a PNG file"),
    "picture in no folder": (lambda r: ["inspect", r / "x.tok", "--picture", r / "no/a.png"], 7, "there is no folder"),
    "class of another store": (
        lambda r: ["inspect", r / "x.tok", "--picture", r / "a.png", "--class", "clas1"], 3, "did you mean 'class1'"),
    "no pictures": (lambda r: ["inspect", r / "x.tok", "--picture", r / "a.png", "--count", 0], 4, "give 1 or more"),
    "confusion is no PNG": (
        lambda r: ["eval", r / "run", "--data", r / "x.tok", "--picture", r / "a.pdf"], 4, "is not a PNG file"),
    "answers into a folder": (
        lambda r: ["predict", r / "pixels", r / "flat", "--out", r / "empty"], 7, "is a directory"),
    "export taken": (lambda r: ["export", r / "run", "--out", r / "model"], 7, "exists"),
    "pixels without onnx": (lambda r: ["export", r / "run", "--pixels", "--out", r / "new"], 4, "add --onnx"),
    "split into stores of images": (
        lambda r: ["split", r / "images", "--out", r / "a.tok", r / "b.tok"], 4, "give two names with .csv"),
    "split of nothing": (lambda r: ["split", r / "nowhere", "--out", r / "a.csv", r / "b.csv"], 3, "no such data"),
    "split taken": (lambda r: ["split", r / "images", "--out", r / "bad.csv", r / "b.csv"], 7, "exists"),
    "split of all": (
        lambda r: ["split", r / "images", "--fraction", 1, "--out", r / "a.csv", r / "b.csv"], 3, "leaves nothing"),
    # reports, names, photographs
    "report of nothing": (lambda r: ["report", "--out", r / "a.html"], 3, "nothing to report on"),
    "report nowhere": (lambda r: ["report", r / "nowhere", "--out", r / "a.html"], 3, "no such data: "),
    "second of a report nowhere": (lambda r: ["report", r / "run", r / "no", "--out", r / "a.html"], 3, "no such data"),
    "report of images": (
        lambda r: ["report", r / "images", "--out", r / "a.html"], 3, "is not a run, a token store or a table"),
    "report of a tokenizer": (
        lambda r: ["report", r / "tokenizer", "--out", r / "a.html"], 3, "is a tokenizer, not a run, a token store"),
    "report as PDF": (lambda r: ["report", r / "run", "--out", r / "a.pdf"], 4, "is not an HTML file"),
    "report in no folder": (lambda r: ["report", r / "run", "--out", r / "no/a.html"], 7, "cannot be written"),
    "report without pictures": (
        lambda r: ["report", r / "run", "--count", 0, "--out", r / "a.html"], 4, "give 1 or more"),
    "report of the best of nothing": (
        lambda r: ["report", r / "pixels", "--best", "--out", r / "a.html"], 3, "has no best checkpoint"),
    "report with other photographs": (
        lambda r: ["report", r / "x.tok", "--images", r / "flat", "--out", r / "a.html"], 3, "has no photograph of"),
    "report with names of others": (
        lambda r: ["report", r / "run", "--names", r / "page.html", "--out", r / "a.html"], 3, "names none of the 3"),
    "report on data of another kind": (
        lambda r: ["report", r / "pixels", "--data", r / "x.tok", "--out", r / "a.html"], 3, "was trained on images"),
    "report to the web": (lambda r: ["report", r / "run", "--out", "http://x/a.html"], 4, "cannot be a URL"),
    "names nowhere": (
        lambda r: ["eval", r / "run", "--data", r / "x.tok", "--names", r / "no.txt"], 3, "no such file"),
    "names of others": (
        lambda r: ["eval", r / "run", "--data", r / "x.tok", "--names", r / "page.html"], 3, "names none of the 3"),
    "names that are a photograph": (
        lambda r: ["predict", r / "pixels", r / "flat", "--names", r / "flat/a.png"], 3, "cannot be read"),
    "names without a picture": (
        lambda r: ["inspect", r / "x.tok", "--names", r / "bad.csv"], 4, "add --picture"),
    "photographs of another store": (
        lambda r: ["inspect", r / "x.tok", "--picture", r / "a.png", "--images", r / "images"], 3, "no photograph of"),
    "explained with other photographs": (
        lambda r: ["explain", r / "run", "--data", r / "x.tok", "--images", r / "flat", "--out", r / "a.png"], 3,
        "has no photograph of"),
    "explained without a picture": (
        lambda r: ["explain", r / "run", "--data", r / "x.tok", "--out", r / "a.jpg"], 4, "is not a PNG file"),
    "maps for no place": (lambda r: ["annotate", r / "images", "--model", r / "pixels"], 4, "no output for the label"),
    "maps by a run on tokens": (
        lambda r: ["annotate", r / "images", "--model", r / "run", "--out", r / "new"], 3, "no classifier of pixels"),
    "maps of too many classes": (
        lambda r: ["annotate", r / "images", "--model", r / "pixels", "--top", 9, "--out", r / "new"], 4,
        "9 classes cannot be kept of 3"),
    "maps replaced in no store": (
        lambda r: ["annotate", r / "images", "--model", r / "pixels", "--replace", "--out", r / "new"], 4,
        "about the label maps of a store"),
    # outputs and options
    "one image of no class to the demo": (
        lambda r: ["demo", "--images", r / "flat/a.png", "--out", r / "new"], 3, "has no classes"),
    "split into one store twice": (
        lambda r: ["split", r / "x.tok", "--out", r / "new", r / "new"], 4, "is one name twice"),
    "split into one file twice": (
        lambda r: ["split", r / "images", "--out", r / "a.csv", r / "a.csv"], 4, "is one name twice"),
    "a size that is none": (
        lambda r: ["tokenize", r / "images", "--size", "big", "--out", r / "new"], 4, "give HEIGHTxWIDTH in pixels"),
    "no size": (lambda r: ["tokenize", r / "images", "--size", "0x0", "--out", r / "new"], 4, "a size of '0x0'"),
    "a share that is none": (
        lambda r: ["tokenize", r / "images", "--shard", "3/2", "--out", r / "new"], 4, "a share of '3/2'"),
    "no views": (lambda r: ["tokenize", r / "images", "--views", 0, "--out", r / "new"], 4, "at least 1 view"),
    "unknown codec": (lambda r: ["tokenize", r / "images", "--codec", "zip", "--out", r / "new"], 4, "known: mix,"),
    "store exists": (lambda r: ["tokenize", r / "images", "--out", r / "x.tok"], 7, "exists"),
    "store among images": (lambda r: ["start", r / "images", "--out", r / "images/new"], 7, "lies among the images"),
    "unknown device": (lambda r: ["start", r / "images", "--device", "tpu"], 6, "this machine has"),
    "all images unreadable": (
        lambda r: ["tokenize", r / "page.jpg", "--out", r / "new"], 3, "1 of 1 images cannot be read"),
    "fraction 0": (lambda r: ["subset", r / "x.tok", "--fraction", 0, "--out", r / "new"], 3, "above 0 and at most 1"),
    "subset of nothing": (lambda r: ["subset", r / "x.tok", "--out", r / "new"], 4, "give exactly one"),
    "unknown keys": (
        lambda r: ["subset", r / "x.tok", "--keys", r / "bad.csv", "--out", r / "new"], 3, "has no image 'only one"),
    "an image twice in a label file": (
        lambda r: ["train", *PIXEL, "--data", r / "again.csv"], 3, "line 3 of"),
    "a damaged store": (lambda r: ["verify", r / "cut.tok"], 5, "cut.tok is damaged"),
    "a damaged store inspected": (lambda r: ["inspect", r / "cut.tok"], 5, "not what its header says"),
    "images converted": (lambda r: ["convert", r / "images", "--out", r / "new"], 3, "no tokens found in"),
    "merge of nothing": (lambda r: ["merge", "--out", r / "new"], 3, "no stores to merge"),
    "merge with images": (
        lambda r: ["merge", r / "x.tok", r / "images", "--out", r / "new"], 3, "images is not a token store"),
    "no name on the hub": (lambda r: ["push", r / "x.tok", "owner"], 3, "give hf://OWNER/NAME"),
    "images to the hub": (lambda r: ["push", r / "images", "hf://a/b"], 3, "is nothing of Tilework"),
    "a text as a checkpoint": (
        lambda r: ["tokenizer", "import", r / "page.html", "--out", r / "new"], 3, "is no checkpoint of plain tensors"),
    "quality 0": (lambda r: ["tokenizer", "dct", "--quality", 0, "--out", r / "new"], 4, "change --quality or --keep"),
    "odd size": (lambda r: ["tokenizer", "dct", "--size", 7, 9, "--out", r / "new"], 4, "give multiples of 8"),
    "tokenizers of no folder": (lambda r: ["tokenizer", "list", r / "nowhere"], 3, "no folder"),
    "card of no tokenizer": (lambda r: ["tokenizer", "card", r / "nowhere"], 3, "no tokenizer in"),
    "card of a tokenizer without images": (lambda r: ["tokenizer", "card", "box", r / "empty"], 3, "has no class fold"),
    "a recipe of no tokenizer": (
        lambda r: ["tokenizer", "train", r / "images", "--recipe", "seit_cpu", "--out", r / "new"], 4,
        "does not train a tokenizer"),
    "unknown command": (lambda r: ["trian"], 2, "unknown command 'trian': did you mean 'train'?"),
    "unknown command of tokenizers": (
        lambda r: ["tokenizer", "lst"], 2, "unknown command 'tokenizer lst': did you mean 'tokenizer list'?"),
    # sizes that cannot be
    "no width": (
        lambda r: ["train", "demo_pixel", "model.width=0", "--data", r / "images"], 4, "must be at least 1"),
    "negative heads": (
        lambda r: ["train", "demo_pixel", "model.heads=-2", "--data", r / "images"], 4, "must be at least 1"),
    "no patch": (
        lambda r: ["train", "demo_pixel", "model.stem.patch=0", "--data", r / "images"], 4, "must be at least 1"),
    "a rate that is no number": (
        lambda r: ["train", *TOKEN, "fit.optim.lr=.nan", "--data", r / "x.tok"], 4, "must be a finite number"),
    "no batch": (
        lambda r: ["train", "demo_token", "fit.batch=0", "--data", r / "x.tok"], 4, "must be at least 1"),
    "a device that is not there": (
        lambda r: ["train", *TOKEN, "--data", r / "x.tok", "--device", "cuda:9"], 6, ""),
    "merge of another tokenizer": (
        lambda r: ["merge", r / "x.tok", r / "other.tok", "--out", r / "new"], 3, "made with another tokenizer"),
    "merge with --prefix and nothing": (
        lambda r: ["merge", r / "x.tok", r / "x.tok", "--prefix", "--out", r / "new"], 4,
        "--prefix is given no text: give one for each of the 2 stores, such as --prefix a/ b/"),
    "merge with --prefix and nothing at the end": (
        lambda r: ["merge", r / "x.tok", r / "x.tok", "--out", r / "new", "--prefix"], 4, "give one for each of the 2"),
    "merge with one prefix": (
        lambda r: ["merge", r / "x.tok", r / "x.tok", "--prefix", "a/", "--out", r / "new"], 3, "1 prefixes for 2"),
    "merge of the same": (
        lambda r: ["merge", r / "x.tok", r / "x.tok", "--out", r / "new"], 3, "keys must be unique: add --prefix"),
}  # fmt: skip


UNREADABLE: dict[str, list[str]] = {  # what the parser of words refuses: exit code 2, and how to get help
    "nothing given": ["train"],
    "no images": ["start"],
    "no photographs": ["predict"],
    "no output": ["tokenize", "{root}/images", "--out"],
    "no data": ["train", "demo_token", "--out", "{root}/new"],
    "unknown option": ["train", "demo_token", "--data", "{root}/x.tok", "--nosuch", "1", "--out", "{root}/new"],
    "one name of two": ["split", "{root}/images", "--out", "{root}/a.csv"],
    "no such choice": ["start", "{root}/images", "--classes", "middle"],
    "no number": ["start", "{root}/images", "--max-broken", "x"],
    "a word too many": ["doctor", "x"],
    "no validation": ["table", "a: seit_cpu", "--data", "{root}/x.tok", "--out", "{root}/new"],
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_words_that_cannot_be_read(case: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(made.rglob("*"))
    assert run(*(word.format(root=made) for word in UNREADABLE[case])) == 2
    said = capsys.readouterr().err
    assert "--help" in said
    assert "Traceback" not in said
    assert sorted(made.rglob("*")) == before


@pytest.mark.parametrize("case", CASES)
def test_careless(case: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, code, said = CASES[case]
    before = sorted(made.rglob("*"))
    given = words(made)
    needs_out = given[0] == "train" and "--out" not in given
    assert run(*given, *(["--out", made / "new"] if needs_out else [])) == code, capsys.readouterr().err
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tilework: error")]
    assert len(lines) == 1
    assert said in lines[0]
    assert sorted(made.rglob("*")) == before


QUICK: dict[str, list[str]] = {
    "recipes": ["recipes"],
    "one recipe": ["recipes", "seit_vit_b"],
    "unknown recipe": ["train", "demo_tokn", "--data", "x", "--out", "y"],
    "no data": ["train", "demo_token", "--data", "nowhere", "--out", "y"],
    "no run": ["eval", "nowhere", "--data", "x"],
    "no photograph's run": ["predict", "nowhere", "x.jpg"],
    "no images": ["tokenize", "nowhere", "--tokenizer", "x", "--out", "y"],
    "no photograph": ["predict", "{run}", "nowhere.jpg"],
    "a contact sheet that is no PNG": ["predict", "{run}", "{root}", "--picture", "a.jpg"],
    "a folder as a run": ["predict", "{root}", "x.jpg"],
    "no data for robustness": ["robustness", "{run}", "--data", "nowhere", "--out", "y"],
    "no second run": ["robustness", "{run}", "nowhere", "--data", "{root}", "--out", "y"],
    "a store as images": ["tokenize", "{store}", "--out", "y"],
    "start nowhere": ["start", "nowhere"],
    "tokenizers": ["tokenizer", "list"],
    "no store": ["verify", "nowhere"],
    "verify": ["verify", "{store}"],
    "split": ["split", "nowhere", "--out", "a.csv", "b.csv"],
    "no report": ["report", "nowhere"],
}


@pytest.mark.parametrize("name", QUICK)
def test_quick_answers_need_no_torch(name: str, made: Path) -> None:
    words = [word.format(store=made / "x.tok", run=made / "run", root=made) for word in QUICK[name]]
    code = (
        f"import sys\nfrom tilework.cli.main import main\ntry:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, 'matplotlib' in sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines()[-1] == "False False"


def test_settings_may_stand_anywhere(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", TOKEN[0], "--data", made / "x.tok", *TOKEN[1:], "--out", tmp_path / "run", "--json"]
    assert run(*words) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2


def test_a_folder_without_validation(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [tmp_path / "lists/train.csv", tmp_path / "lists/val.csv"]
    assert run("split", made / "images", "--fraction", 0.75, "--out", *parts, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {str(parts[0]): 18, str(parts[1]): 6}
    assert run("train", *PIXEL, "--data", parts[0], "--val", parts[1], "--out", tmp_path / "run") == 0
    assert "validation images looked at" not in capsys.readouterr().err
    assert run("eval", tmp_path / "run", "--data", parts[1], "--picture", tmp_path / "confusion.png") == 0
    assert "class1" in capsys.readouterr().out
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_odd_pairs_are_said(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "many/class0", tmp_path / "val/class0")
    shutil.copytree(made / "images/class1", tmp_path / "val/class1")
    (tmp_path / "val/class1/notes.txt").write_text("x")
    (tmp_path / "val/class2").mkdir()
    assert run("train", *PIXEL, "--data", made / "images", "--val", tmp_path / "val", "--out", tmp_path / "run") == 0
    said = capsys.readouterr().err
    assert "8 of 20 validation images looked at are in the training data too" in said
    assert "has no image of 1 of 3 classes (class2)" in said
    assert "1 class folder without images (class2)" in said
    assert "1 files are not images (1 .txt): skipped" in said
    assert run("eval", tmp_path / "run", "--data", tmp_path / "val", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["per_class"]["class2"] is None
    assert "top5" not in told
    assert run("train", *PIXEL, "--data", made / "images", "--val", made / "many", "--out", tmp_path / "swapped") == 0
    assert "are --data and --val the right way round?" in capsys.readouterr().err
    part = ["train", PIXEL[0], "samples=8", *PIXEL[1:]]
    assert run(*part, "--data", made / "many", "--val", made / "many", "--out", tmp_path / "part") == 0
    assert "right way round" not in capsys.readouterr().err  # a part was asked for


def test_nested_classes_by_option(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("a", "b"):
        shutil.copytree(made / "images", tmp_path / "nested" / part)
    out = ["--dry-run", "--json", "--data", tmp_path / "nested", "--out", tmp_path / "r"]
    assert run("train", *PIXEL, *out) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == 6
    assert run("train", *PIXEL, "--classes", "top", *out) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == 2
    words = ["--tokenizer", made / "tokenizer", "--classes", "top", "--out", tmp_path / "n.tok"]
    assert run("tokenize", tmp_path / "nested", *words) == 0
    said = capsys.readouterr()
    assert "classes are the 2 folders of the first level, not the 6" in said.err
    assert "times smaller" in said.out
    assert Store(tmp_path / "n.tok").classes == ("a", "b")
    assert "48 images, 2 classes, 8x8 of" in repr(Store(tmp_path / "n.tok"))


@pytest.mark.parametrize("command", ["eval", "probe"])
def test_no_option_is_named_that_a_command_does_not_take(
    command: str, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--val", made / "images"] if command == "probe" else []
    assert run(command, made / "pixels", "--data", made / "thirteen", *more) == 3
    assert capsys.readouterr().err.strip().endswith("'broken.png'): repair or remove them")


def test_merge_with_prefixes(made: Path, tmp_path: Path) -> None:
    assert run("merge", made / "x.tok", made / "x.tok", "--prefix", "a/", "b/", "--out", tmp_path / "two.tok") == 0
    two = Store(tmp_path / "two.tok")
    assert two.column("key")[:1] + two.column("key")[48:49] == ["a/0.png", "b/0.png"]
    assert np.array_equal(two.batch(np.arange(48)), two.batch(np.arange(48, 96)))


def test_find_lr(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", *TOKEN, "--find-lr", "--data", made / "x.tok", "--out", tmp_path / "r", "--json"]
    assert run(*words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rates"][0] == pytest.approx(1e-6)
    assert told["rates"] == sorted(told["rates"])
    assert told["suggested_lr"] == pytest.approx(told["lowest_loss_at"] / 10, rel=0.1)
    assert not (tmp_path / "r").exists()


def test_tensorboard(made: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ["train", *TOKEN, "fit.log_every=1", "--tensorboard", "--data", made / "x.tok", "--val", made / "x.tok"]
    assert run(*words, "--out", tmp_path / "r") == 0
    events = EventAccumulator(str(tmp_path / "r/tensorboard")).Reload()
    logged = [json.loads(line) for line in (tmp_path / "r/log.jsonl").read_text().splitlines()]
    wanted = [(line["step"], line["loss"]) for line in logged if "loss" in line]
    assert [(e.step, pytest.approx(e.value, rel=1e-5)) for e in events.Scalars("loss")] == wanted
    assert len(events.Scalars("val/top1")) == 1
    table = (tmp_path / "r/log.csv").read_text().splitlines()
    assert table[0].startswith("step,epoch,loss")
    assert len(table) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_ctrl_c_leaves_a_clean_screen(made: Path, tmp_path: Path) -> None:
    """On a terminal: the bar ends, the cursor comes back, one line says what to do; no trace."""
    import os
    import pty

    words = ["train", *TOKEN[:1], *SMALL[1:], "augment.1.size=[8,8]", "fit.steps=100000", "fit.log_every=1"]
    words += ["--data", str(made / "x.tok"), "--out", str(tmp_path / "run")]
    child, screen = pty.fork()
    if not child:  # pragma: no cover
        os.execve(sys.executable, [sys.executable, "-m", "tilework", *words], {**os.environ, "TERM": "xterm"})
    seen, sent = b"", False
    while True:
        try:
            part = os.read(screen, 4096)
        except OSError:  # the terminal is closed
            part = b""
        if not part:
            break
        seen += part
        if b"loss" in seen and not sent:
            sent = True
            os.write(screen, b"\x03")
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end = seen.decode(errors="replace").rpartition("\x1b[?25h")
    assert end[1], "the cursor is shown again"
    assert end[2].strip().startswith("tilework: stopped after step")
    assert end[2].strip().endswith("repeat the command to resume")
    assert "Traceback" not in seen.decode(errors="replace")
    assert code == 75


def test_doctor_knows_every_extra() -> None:
    import tomllib

    from tilework.cli.doctor import EXTRAS

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert set(EXTRAS) == set(project["project"]["optional-dependencies"]) - {"dev"}


def test_lines_show_validation_only_when_it_is_new(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tilework.core.console.time.monotonic", iter(range(0, 10**6, 60)).__next__
    )  # a line is always due
    words = ["train", "demo_token", *SMALL[1:], "augment.1.size=[8,8]", "fit.steps=12", "fit.log_every=1"]
    assert run(*words, "--data", made / "x.tok", "--val", made / "x.tok", "--out", tmp_path / "run") == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("demo_token ")]
    logged = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    evaluations = [line["step"] for line in logged if "val_top1" in line]
    assert [int(line.split()[1].split("/")[0]) for line in lines if "| val" in line] == evaluations == [6, 12]
    assert len(lines) == 12 + 2


def test_a_grid_may_be_one_number() -> None:
    one, two = (create_model("vit_ti", input="tokens", grid=g, code_dim=8, classes=3) for g in (28, (28, 28)))
    assert one.grid == two.grid == (14, 14)


def test_the_run_of_a_start_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine/run").mkdir(parents=True)
    (tmp_path / "mine/settings.json").write_text("{}")
    (tmp_path / "mine/run/run.yaml").write_text("")
    (tmp_path / "photo.jpg").write_bytes(b"")
    assert run("predict", tmp_path / "mine", tmp_path / "photo.jpg") == 3
    assert f"give the run in it: {tmp_path / 'mine/run'}" in capsys.readouterr().err


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", LONG],
        ["report", LONG],
        ["predict", LONG, "x.jpg"],
        ["train", "demo_token", "--data", LONG, "--out", "{root}/new"],
        ["train", "demo_token", "--data", "{root}/x.tok", "--out", "{root}/" + LONG],
        [
            "train",
            "demo_token",
            f"augment=[{{name: token_crop{' ' * 250}, size: 4}}]",
            "--data",
            "none",
            "--out",
            "n",
        ],
    ],
)
def test_words_too_long_for_a_path(words: list[str], made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*(word.format(root=made) if "{root}" in word else word for word in words)) > 0
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("tilework: error")]) == 1


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.width=1000000", "do not fit"),
        ("model.width=10000000000", "do not fit"),
        ("model.depth=1000000", "do not fit"),
        ("fit.seed=99999999999999999999999999", "below 2^63"),
    ],
)
def test_senseless_sizes_of_new_runs(setting: str, said: str, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "demo_token", setting, "model.heads=2", "fit.batch=6", "--data", made / "x.tok"]
    assert run(*words, "--out", made / "new") == 4
    assert said in capsys.readouterr().err
    assert not (made / "new").exists()


def test_remarks_of_the_image_library_stay_unsaid(made: Path, tmp_path: Path) -> None:
    """Files that Pillow remarks on, one by a warning and one by a log line; the command lists what it cannot read."""
    write_images(tmp_path / "images", classes=1, count=40)
    for name, tag, changed in (("warned", 256, (3, 3)), ("logged", 277, (1, 273))):  # width; channels of a pixel
        place = tmp_path / f"images/class0/{name}.tif"
        Image.new("RGB", (32, 32)).save(place)
        data = place.read_bytes()
        at = next(
            data.index(struct.pack("<HHI", tag, kind, 1))
            for kind in (3, 4)
            if struct.pack("<HHI", tag, kind, 1) in data
        )
        place.write_bytes(data[: at + 4] + struct.pack("<IH", *changed) + data[at + 10 :])
    words = [
        "tokenize",
        tmp_path / "images",
        "--tokenizer",
        made / "tokenizer",
        "--out",
        tmp_path / "out.tok",
        "--max-broken",
        "0.5",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "tilework", *map(str, words)], capture_output=True, text=True, check=True
    )
    assert "PIL" not in ran.stderr
    assert "samples per pixel" not in ran.stderr
    listed = json.loads((tmp_path / "out.tok.quarantine.json").read_text())
    assert "logged.tif" in json.dumps(listed)
