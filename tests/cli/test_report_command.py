"""`tilework report`: one page about anything, self-contained; in a browser nothing overflows, no text is too small."""

from __future__ import annotations

import io
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from browser import Browser, browser
from html_checks import check_page, full_page
from small_data import write_images, write_pairs
from tilework.cli.main import main
from tilework.core.config import encode
from tilework.core.sealed import read_json
from tilework.experiments.repeat import assignments, train_command
from tilework.runs import evaluate_run
from tilework.runs.directory import RunDirectory
from tilework.tokenizers import VitVqConfig, save_tokenizer

SMALL = ["fit.batch=8", "fit.log_every=1", "model.width=16", "model.heads=2", "model.depth=1"]
TOKEN = ["demo_token", *SMALL, "fit.steps=6", "augment.1.size=[8,8]"]
PIXEL = ["demo_pixel", *SMALL, "fit.steps=4", "size=[24,24]", "augment.1.size=[24,24]", "model.stem.patch=8"]
EVIL = "<b>&'\""


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on tokens, one on pixels, one that segments, a store, a table; no test changes them."""
    root = tmp_path_factory.mktemp("report")
    images = write_images(root / "images")
    (images / "class2").rename(images / f"class2{EVIL}")
    config = VitVqConfig(patch=4, codes=16, code_dim=8, width=16, depth=1, heads=2)
    torch.manual_seed(0)
    save_tokenizer(root / "tokenizer", config.build(3, (32, 32), 0), config, (32, 32))
    assert run("tokenize", images, "--tokenizer", root / "tokenizer", "--out", root / "x.tok") == 0
    data = ["--data", root / "x.tok", "--val", root / "x.tok"]
    assert run("train", *TOKEN, *data, "--out", root / "token") == 0
    assert run("train", *PIXEL, "--data", images, "--val", images, "--out", root / "pixel") == 0
    pairs = write_pairs(root / "pairs")
    small = ["fit.steps=2", "fit.batch=2", "fit.log_every=1"]
    assert run("train", "seg_cpu", *small, "--data", pairs, "--val", pairs, "--out", root / "seg") == 0
    rows = [f"{EVIL}: demo_token fit.steps=2 @2", "second: demo_token fit.steps=3 @2"]
    assert run("table", *rows, "--settings", *SMALL, "augment.1.size=[8,8]", *data, "--out", root / "table") == 0
    return root


def page_of(out: Path, *words: object) -> str:
    assert run("report", *words, "--out", out) == 0
    return check_page(out.read_text())


def test_a_run_on_tokens(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page_of(tmp_path / "a.html", made / "token", "--images", made / "images", "--count", 5)
    found = evaluate_run(made / "token", made / "x.tok")
    assert f"{found.top(1):.1%}" in text
    wrong = np.flatnonzero(found.predicted != found.labels)
    sure = wrong[np.argsort(-found.probabilities.max(1)[wrong], kind="stable")[:5]]
    keys = [text.index(key) for key in _keys(made, sure)]
    assert keys == sorted(keys), "the most confident first"
    for i in sure.tolist():
        assert f"said: {found.classes[found.predicted[i]]} ({found.probabilities[i].max():.0%})" in text
        assert f"true: {found.classes[found.labels[i]]}" in text
    assert f"class2{EVIL}" in text
    assert "6 steps in batches of 8." in text
    html = (tmp_path / "a.html").read_text()
    assert html.count("<img") == 2 * len(sure), "a photograph and its codes of each"
    assert html.count("<svg") == 2
    assert f"--data {made / 'x.tok'} --val {made / 'x.tok'}" in text
    assert "page" in capsys.readouterr().out


def _keys(made: Path, index: np.ndarray) -> list[str]:
    from tilework.store import Store

    return [str(Store(made / "x.tok").column("key")[i]) for i in index.tolist()]


def test_the_command_on_the_page_trains_the_same_run(made: Path, tmp_path: Path) -> None:
    for name in ("token", "pixel", "seg"):
        words = shlex.split(train_command(made / name))
        assert words[:2] == ["tilework", "train"]
        assert len(words) < 25, "the nearest recipe and what differs, not everything"
        assert run(*words[1:-1], tmp_path / name) == 0
        again, first = RunDirectory(tmp_path / name), RunDirectory(made / name)
        assert again.settings() == first.settings()
        assert again.figures() == pytest.approx(first.figures(), abs=1e-6)


def test_settings_between_two_configurations() -> None:
    base = {"name": "a", "x": 1, "steps": [{"name": "s", "p": 0.5}], "size": [1, 2]}
    assert assignments(base, {**base, "x": 2, "size": [3, 4]}) == ["x=2", "size=[3, 4]"]
    assert assignments(base, {**base, "steps": [{"name": "s", "p": 1.0}]}) == ["steps.0.p=1.0"]
    assert assignments(base, {**base, "steps": []}) is None
    assert assignments(base, {**base, "name": "b"}) is None
    assert encode({"a": ()}) == {"a": []}


def test_a_run_on_pixels_an_export_and_a_store_on_one_page(made: Path, tmp_path: Path) -> None:
    assert run("export", made / "token", "--out", tmp_path / "model") == 0
    names = tmp_path / "names.txt"
    names.write_text("class0 tench, Tinca tinca\nclass1,crane\n")
    words = [made / "pixel", tmp_path / "model", made / "x.tok", "--data", made / "images", "--names", names]
    text = page_of(tmp_path / "b.html", *words)
    assert text.index("name") < text.index("pixel: Vit")
    assert "tench" in text
    assert "Tinca" not in text
    assert "24 images as 8x8 of" in text
    assert "times smaller" in text
    assert "bits per code (entropy)" in text
    assert "Not evaluated" not in text


def test_a_run_that_segments(made: Path, tmp_path: Path) -> None:
    text = page_of(tmp_path / "c.html", made / "seg", "--count", 3)
    for word in ("mIoU", "ground", "disc", "box", "Confusion of pixels", "Images with the fewest right pixels"):
        assert word in text
    assert (tmp_path / "c.html").read_text().count("<img") == 9, "photograph, true mask, predicted mask"
    out = tmp_path / "masks"
    assert run("eval", made / "seg", "--data", made / "pairs", "--out", out, "--pictures", 2) == 0
    text = check_page((out / "report.html").read_text())
    assert "Inference: whole" in text


def test_a_table(made: Path, tmp_path: Path) -> None:
    text = page_of(tmp_path / "d.html", made / "table")
    results = json.loads((made / "table/results.json").read_text())
    assert f"{100 * results['rows'][0]['mean']:.1f} ± " in text
    assert EVIL in text
    line = next(line for line in text.splitlines() if line.startswith("tilework table"))
    assert shlex.split(line)[2:4] == [row["line"] for row in results["rows"]]
    assert "--settings fit.batch=8" in line


def converged() -> dict[str, Any]:
    rows = [
        {"row": name, "line": f"{name}: demo_token", "rate": 0.001, "mean": 0.5, "deviation": 0.1, "training": 0.97,
         "difference": 0.0, "differences": [0.0], "resolved": False, "plateau": [2, None], "cpu_minutes": [1.0]}
        for name in ("a", EVIL)
    ]  # fmt: skip
    curve = [{"pass": i, "loss": 1 / i, "training": 0.5, "validation": 0.1 * i} for i in (1, 2)]
    return {
        "metric": "top1", "protocol": {"rates": [0.001, 0.002]}, "resolvable": 0.01, "deviation": 0.01,
        "degrees_of_freedom": 2, "converged": True, "cpu_minutes": 3.0, "rows": rows,
        "trials": [{"row": row["row"], "rate": 0.001, "curve": curve} for row in rows],
    }  # fmt: skip


def front() -> dict[str, Any]:
    rows = [
        {"row": name, "bytes": size, "whole": size + 9, "mean": mean, "deviation": None, "front": True, "command": EVIL}
        for name, size, mean in (("codes:64", 36.0, 0.9), ("int8", 320.0, 0.94))
    ]
    return {"images": {"train": 9}, "rows": rows}


def robust() -> dict[str, Any]:
    attacks = {"apgd-ce exact": {"0.004": {"accuracy": 0.2, "estimated": False, "gradient": "exact", "steps": 2}}}
    one = {
        "tokens": False, "clean": {"accuracy": 0.8, "ece": 0.1, "unseen_codes": None}, "proxies": {}, "shifts": {},
        "corruptions": {"fog": {"1": {"accuracy": 0.7}, "3": {"accuracy": 0.4}}}, "corruption_means": {"fog": 0.55},
        "mean_accuracy": 0.55, "mean_over": ["fog"], "relative_drop": 0.3, "attacked_clean": 0.8, "attacks": attacks,
        "worst": {"0.004": 0.2}, "checks": [{"row": "apgd-ce exact", "check": EVIL, "passed": True, "seen": "-"}],
        "codes": {kind: {"1": {"accuracy": 0.5, "psnr": 30.0}} for kind in ("any", "near")},
    }  # fmt: skip
    settings = {
        "data": "val", "images": 20, "attacked": 4, "size": [32, 32], "seed": 0, "norm": "linf", "eps": [0.004],
        "steps": 2, "lengths": "as published", "severities": [1, 3],
    }  # fmt: skip
    return {"settings": settings, "runs": {"a": one, EVIL: one}, "differences": {EVIL: {"clean": 0.0, "clean_p": 1.0}}}


STATES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "converged": (
        converged(),
        {"data": "d", "val": "v", "settings": ["x=1"],
         "protocol": {"samples": 9, "passes": 2, "held": 3, "seeds": 2, "rates": [0.001, 0.002]}},
        ["converged table of 2 rows", "--protocol --samples 9 --passes 2", "--rates 0.001 0.002", "converged (95"],
    ),
    "frontier": (
        front(), {"images": "i", "val": "v", "teacher": "x", "seeds": 1, "settings": []},
        ["frontier of 2 rows", "tilework frontier i --val v --rows codes:64 int8", "94.0"],
    ),
    "robustness": (
        robust(), {"data": "val"},
        ["robustness of 2 runs", "Corruptions", "Attacks on pixels", "--eps 1.02/255", "severity", "eps (1/255)"],
    ),
}  # fmt: skip


def write_state(root: Path, name: str) -> Path:
    results, settings, _ = STATES[name]
    (root / name).mkdir(parents=True)
    (root / name / "results.json").write_text(json.dumps(results))
    (root / name / "settings.json").write_text(json.dumps(settings))
    return root / name


@pytest.mark.parametrize("name", STATES)
def test_directories_of_many_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_state(tmp_path, name)
    text = page_of(tmp_path / "e.html", path)
    for words in STATES[name][2]:
        assert words in text
    assert "<svg" in (tmp_path / "e.html").read_text()
    (path / "results.json").write_text(json.dumps({**STATES[name][0], "rows": [{}], "runs": {"a": {}}}))
    capsys.readouterr()
    assert run("report", path, "--out", tmp_path / "f.html") in (3, 5)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "f.html").exists()


SENSELESS: tuple[dict[str, Any], ...] = (
    {"rows": 5},
    {"rows": [5], "metric": 1},
    {"rows": {"a": 1}, "metric": "top1"},
    {"rows": [{"row": "a", "mean": 10**400}], "protocol": {}},
    {"runs": [], "differences": 1, "settings": {}},
    {"runs": {"a": {"clean": {}}}, "differences": {}, "settings": {"norm": "linf"}},
)


@pytest.mark.parametrize("results", SENSELESS, ids=range(len(SENSELESS)))
def test_senseless_results_are_refused_in_a_line(
    results: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "settings.json").write_text("{}")
    assert run("report", tmp_path, "--out", tmp_path / "page.html") in (3, 5)
    said = capsys.readouterr().err
    assert "results.json is" in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_photographs_and_names_in_pictures(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = tmp_path / "names.csv"
    names.write_text("class0,tench\n")
    capsys.readouterr()
    assert run("inspect", made / "x.tok", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    size = sum(file.stat().st_size for file in (made / "images").rglob("*.png")) / 24
    assert told["original_bytes_per_image"] == pytest.approx(size)
    assert told["times_smaller"] == pytest.approx(size / told["bytes_per_image"])
    sizes = []
    shutil.copytree(made / "x.tok", tmp_path / "x.tok")  # without the note where its photographs lie
    for store, more in ((tmp_path, []), (tmp_path, ["--images", made / "images"]), (made, [])):
        words = ["--picture", tmp_path / "a.png", "--names", names, "--count", 3, *more]
        assert run("inspect", store / "x.tok", *words) == 0
        sizes.append(Image.open(tmp_path / "a.png").size)
    assert sizes[1][0] > 1.5 * sizes[0][0], "two pictures of each"
    assert sizes[2] == sizes[1], "the folder is known"
    rows = []
    for more in ([], ["--images", made / "images"]):
        words = ["--data", tmp_path / "x.tok", "--out", tmp_path / "b.png", "--count", 2, "--names", names, *more]
        capsys.readouterr()
        assert run("explain", made / "token", *words, "--json") == 0, "the run holds its tokenizer"
        said = json.loads(capsys.readouterr().out)
        assert set(said) == {"picture", "token, top 1", "token, top 2"}
        rows.append(Image.open(tmp_path / "b.png").size[1])
    assert rows[1] > 1.2 * rows[0], "a row of photographs more"
    assert run("predict", made / "token", made / "images/class0", "--top", 3, "--names", names, "--json") == 0
    assert "tench" in json.loads(capsys.readouterr().out)[0]["classes"]
    assert run("eval", made / "token", "--data", made / "x.tok", "--names", names, "--json") == 0
    assert "tench" in json.loads(capsys.readouterr().out)["per_class"]


def test_validation_data_that_are_gone(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "pixel", tmp_path / "pixel")
    told = read_json(tmp_path / "pixel/data.json")
    (tmp_path / "pixel/data.json").write_text(json.dumps({**told, "val": "nowhere", "train": "nowhere"}))
    text = page_of(tmp_path / "g.html", tmp_path / "pixel")
    assert "Not evaluated on nowhere: no such data" in text
    assert "accuracy" in text, "what training found is there still"
    (tmp_path / "pixel/data.json").write_text(json.dumps({**told, "val": None}))
    assert "give --data to see classes and mistakes" in page_of(tmp_path / "g.html", tmp_path / "pixel")


def test_a_run_without_a_log_or_an_end(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "token", tmp_path / "token")
    (tmp_path / "token/results.json").unlink()
    assert "not finished" in page_of(tmp_path / "h.html", tmp_path / "token")
    (tmp_path / "token/log.jsonl").unlink()
    capsys.readouterr()
    assert run("report", tmp_path / "token", "--out", tmp_path / "i.html") == 3
    assert "has no log" in capsys.readouterr().err
    assert not (tmp_path / "i.html").exists()


# in a browser

OVERFLOW = "return [document.documentElement.scrollWidth, innerWidth]"
OUTSIDE = """
const scrolls = e => e && (e.classList.contains('wide') || e.tagName === 'PRE' || scrolls(e.parentElement));
return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1
  && !scrolls(e)).map(e => e.tagName + '.' + e.className).slice(0, 5)"""
SMALLEST = """
return Math.min(...[...document.querySelectorAll('svg')].flatMap(s => { const k = s.getBoundingClientRect().width /
  s.viewBox.baseVal.width; return [...s.querySelectorAll('text')].map(
  t => k * parseFloat(getComputedStyle(t).fontSize)) }))"""
COLOURS = """
const c = (e, p) => getComputedStyle(e)[p].match(/\\d+(\\.\\d+)?/g).slice(0, 3).map(Number);
const q = s => document.querySelector(s);
return {ground: c(document.body, 'backgroundColor'), text: c(document.body, 'color'), soft: c(q('figcaption'), 'color'),
  plot: c(q('svg text'), 'fill'), wrong: c(q('.wrong') || document.body, 'color')}"""
LOADED = "return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).map(e => e.name)"


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG 2.1's ratio, from 1 to 21."""

    def light(colour: list[float]) -> float:
        parts = [v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def look_at(window: Browser, page: Path) -> None:
    for width, dark in ((1280, False), (1280, True), (400, True), (400, False)):
        window.show(page, width, dark)
        wide, room = window.run(OVERFLOW)
        assert (wide, room) == (width, width), f"{page.name} overflows at {width}"
        assert window.run(OUTSIDE) == [], f"{page.name} at {width}"
        assert window.run(SMALLEST) >= 8, f"text of plots in {page.name} at {width}"
        assert window.run(LOADED) == []
        colours = window.run(COLOURS)
        assert (sum(colours["ground"]) < 200) == dark
        for name in ("text", "soft", "plot", "wrong"):
            assert contrast(colours[name], colours["ground"]) > 4.5, (name, dark)
    with Image.open(io.BytesIO(window.picture())) as shot:
        assert shot.width == 400
        assert np.asarray(shot).std() > 5, "something is drawn"


def test_pages_in_a_browser(made: Path, tmp_path: Path) -> None:
    """Debian's chromium, at 1,280 and 400 pixels, light and dark."""
    with browser() as window:
        states = [write_state(tmp_path / "states", name) for name in STATES]
        page_of(
            tmp_path / "all.html", made / "token", made / "x.tok", made / "table", *states, "--images", made / "images"
        )
        page_of(tmp_path / "seg.html", made / "seg")
        (tmp_path / "full.html").write_text(full_page().html())
        for name in ("all", "seg", "full"):
            look_at(window, tmp_path / f"{name}.html")
