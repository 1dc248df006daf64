"""Commands on stores behind a URL: the same results as on the files, the URL kept as it was given.

Oracle: the same command on the local store.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaky_server import FlakyServer, serve
from small_data import CODES, write_images, write_store
from tilework import evaluate, fit, recipes
from tilework.cli.main import main
from tilework.core.config import resolve
from tilework.store import Store
from tilework.tokenizers import VitVqConfig, save_tokenizer

SMALL = ["fit.batch=8", "fit.steps=3", "model.width=16", "model.heads=2", "model.depth=1", "augment.1.size=[8,8]"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyServer]:
    root = tmp_path / "served"
    write_store(root / "train.tok")
    write_store(root / "val.tok", count=18, seed=1)
    monkeypatch.setenv("TILEWORK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve(root) as server:
        yield server


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What a command prints as JSON."""
    capsys.readouterr()
    assert run(*arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_inspect_fetches_no_shards(server: FlakyServer, capsys: pytest.CaptureFixture[str]) -> None:
    url, local = f"{server.url}/train.tok", server.root / "train.tok"
    found, wanted = said(capsys, "inspect", url), said(capsys, "inspect", local)
    assert not [name for name in server.requests if "shards" in name]
    assert found.pop("store") == url
    uncounted = {"store", "codes_used", "entropy_bits_per_token", "entropy_bytes_per_image"}
    assert found == {name: value for name, value in wanted.items() if name not in uncounted}


def test_verify(server: FlakyServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{server.url}/train.tok"
    assert run("verify", url) == 0
    assert f"{url}: 48 images in 3 shards, no damage found" in capsys.readouterr().out
    server.always["val.tok/shards/00000.tiles"] = "corrupt"
    assert run("verify", f"{server.url}/val.tok") == 5
    assert "shards/00000.tiles is damaged" in capsys.readouterr().err


def test_training_from_a_url_is_training_from_the_files(
    server: FlakyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = []
    for number, root in enumerate((str(server.root), server.url)):
        out = tmp_path / f"run{number}"
        data = ["--data", f"{root}/train.tok", "--val", f"{root}/val.tok"]
        assert run("train", "demo_token", *SMALL, *data, "--out", out, "--json") == 0
        outs.append(out)
    local, remote = outs
    results = [json.loads((out / "results.json").read_text()) for out in outs]
    assert results[0] == results[1]
    weights = [sorted((out / "checkpoints").rglob("*.safetensors")) for out in outs]
    assert weights[0]
    for mine, yours in zip(*weights, strict=True):
        assert mine.read_bytes() == yours.read_bytes()
    kept = json.loads((remote / "data.json").read_text())
    assert (kept["train"], kept["val"]) == (f"{server.url}/train.tok", f"{server.url}/val.tok")
    # the same command again goes on with the run, or finds it done
    data = ["--data", f"{server.url}/train.tok", "--val", f"{server.url}/val.tok"]
    assert run("train", "demo_token", *SMALL, *data, "--out", remote, "--json") == 0
    assert json.loads((remote / "results.json").read_text()) == results[1]
    for command in (["eval", local, "--data"], ["probe", local, "--data", server.root / "train.tok", "--val"]):
        assert said(capsys, *command, f"{server.url}/val.tok") == said(capsys, *command, server.root / "val.tok")
    assert run("export", local, "--out", tmp_path / "model", "--data", f"{server.url}/val.tok") == 0
    mine, yours = (evaluate(local, place).summary() for place in (f"{server.url}/val.tok", server.root / "val.tok"))
    assert mine == yours


def test_python_takes_urls(server: FlakyServer, tmp_path: Path) -> None:
    settings = resolve(recipes.demo_token(), None, SMALL)
    result = fit(settings, f"{server.url}/train.tok", f"{server.url}/val.tok", tmp_path / "run", quiet=True)
    assert result.steps == 3


def test_a_table_keeps_its_urls(server: FlakyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["table", "demo_token", "--settings", *SMALL, "--out", tmp_path / "table"]
    line += ["--data", f"{server.url}/train.tok", "--val", f"{server.url}/val.tok"]
    first = said(capsys, *line)
    assert said(capsys, *line) == first
    trial = json.loads((tmp_path / "table/runs/demo_token/seed-0/trial.json").read_text())
    assert (trial["data"], trial["val"]) == ([f"{server.url}/train.tok"], [f"{server.url}/val.tok"])
    assert json.loads((tmp_path / "table/settings.json").read_text())["data"] == f"{server.url}/train.tok"


def test_stores_made_of_remote_ones(server: FlakyServer, tmp_path: Path) -> None:
    url, local = f"{server.url}/train.tok", server.root / "train.tok"
    for name, *command in (
        ("convert", "convert", "{}", "--codec", "packed"),
        ("subset", "subset", "{}", "--fraction", "0.5"),
        ("merge", "merge", "{}"),
    ):
        for kind, source in (("url", url), ("path", local)):
            line = [word.format(source) for word in command]
            assert run(*line, "--out", tmp_path / f"{name}-{kind}.tok", "--json") == 0
        mine, yours = (Store(tmp_path / f"{name}-{kind}.tok") for kind in ("url", "path"))
        assert mine.manifest == yours.manifest
        np.testing.assert_array_equal(mine.batch(np.arange(len(mine))), yours.batch(np.arange(len(yours))))
    assert run("convert", url, "--to", "seit", "--out", tmp_path / "seit") == 0
    assert list((tmp_path / "seit").glob("train-token*"))


def test_tokenize_like_a_remote_store(server: FlakyServer, tmp_path: Path) -> None:
    config = VitVqConfig(patch=4, codes=CODES, code_dim=4, width=16, depth=1, heads=2)
    tokenizer = tmp_path / "tokenizer"
    save_tokenizer(tokenizer, config.build(3, (16, 16), 0), config, (16, 16))
    images = write_images(tmp_path / "images", count=2)
    first = server.root / "first.tok"
    assert run("tokenize", images, "--tokenizer", tokenizer, "--out", first) == 0
    like = ["tokenize", images, "--tokenizer", tokenizer, "--like", f"{server.url}/first.tok"]
    assert run(*like, "--out", tmp_path / "second.tok") == 0
    np.testing.assert_array_equal(Store(tmp_path / "second.tok").used, Store(first).used)


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        (7, ["column", "{}/train.tok", "score", "{scores}"], "is read-only"),
        (7, ["annotate", "{images}", "--model", "x", "--store", "{}/train.tok"], "is read-only"),
        (3, ["inspect", "{}/nothing.tok"], "is not a token store"),
        (3, ["inspect", "ftp://host/x.tok"], "http, https, s3, gs, memory"),
        (3, ["inspect", "simplecache::s3://bucket/x.tok"], "http, https, s3, gs, memory"),
        (3, ["verify", "https://user:SECRET@host/x.tok"], "remove it"),
        (3, ["train", "demo_token", "--data", "https://h/x.tok?key=SECRET", "--out", "{out}"], "remove it"),
        (3, ["eval", "run", "--data", "s3://key:SECRET@bucket/x.tok"], "remove it"),
    ],
)
def test_refusals_are_one_line(
    server: FlakyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, words: list[str], hint: str
) -> None:
    np.save(tmp_path / "scores.npy", np.arange(48.0))
    places = {"scores": tmp_path / "scores.npy", "images": tmp_path, "out": tmp_path / "out"}
    assert run(*(word.format(server.url, **places) for word in words)) == code
    shown = capsys.readouterr()
    lines = [line for line in shown.err.splitlines() if line.startswith("tilework: error: ")]
    assert len(lines) == 1
    assert hint in lines[0]
    assert "SECRET" not in shown.err + shown.out
    assert not (tmp_path / "out").exists()
