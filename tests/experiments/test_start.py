"""`tilework start` from end to end on small images, what it says, resumes and refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from small_data import write_images, write_objects, write_store, write_voc
from tilework.cli.main import main
from tilework.evaluation.accuracy import interval
from tilework.experiments import start as module
from tilework.experiments.start_page import next_commands, verdict
from tilework.experiments.start_parts import find_parts
from tilework.recipes import run_of
from tilework.runs import Run
from tilework.store import Store


def command(*words: object) -> int:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
    finally:
        signal.signal(signal.SIGTERM, before)
    return int(ended.value.code or 0)


def interrupt(*_: object) -> None:
    """Ctrl-C."""
    raise KeyboardInterrupt


def short(name: str) -> Run:
    run = run_of(name)
    return replace(run, fit=replace(run.fit, steps=20))


@pytest.fixture(scope="module", autouse=True)
def few_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "run_of", short)
        yield


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs, and what was made of it."""
    root = tmp_path_factory.mktemp("start")
    write_images(root / "photos", 3, 10)
    (root / "photos/class1/broken.png").write_bytes(b"no image")
    assert command("start", root / "photos", "--out", root / "out") == 0
    return root


def test_results_hold_the_classifier_and_its_rivals(started: Path) -> None:
    results = json.loads((started / "out/results.json").read_text())
    assert results["recipe"] == "linear_cpu"
    assert results["images"]["train"] + results["images"]["val"] == 30
    assert [row["row"] for row in results["rows"]] == ["trained", "probe", "colours", "largest class"]
    assert results["rows"][0]["accuracy"] == results["accuracy"]
    assert results["rows"][2]["accuracy"] == 1.0  # the classes differ by their colours
    train, val = (Store(started / f"out/{part}.tok").column("label") for part in ("train", "val"))
    assert results["rows"][3]["accuracy"] == pytest.approx((val == np.bincount(train).argmax()).mean())
    assert results["rows"][1]["bytes_per_image"] == 4 * 320
    assert set(results["seconds"]) == {"split", "tokenize", "train", "compare"}
    page = (started / "out/report.html").read_text()
    for words in ("Beside simpler things", "Per class", "Confusion", "tilework predict", "ImageNet-1k"):
        assert words in page


def test_the_bytes_are_those_of_the_store(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of codes, of everything, and of what does not grow with the number of images."""
    results, store = json.loads((started / "out/results.json").read_text()), Store(started / "out/train.tok")
    files = {path.relative_to(store.path).as_posix(): path.stat().st_size for path in store.path.rglob("*.*")}
    codes = sum(size for name, size in files.items() if name.startswith(("shards/", "tables")))
    assert results["codes_bytes_per_image"] == pytest.approx(codes / len(store))
    assert results["store_bytes_per_image"] == pytest.approx(sum(files.values()) / len(store))
    assert results["fixed_bytes"] == files["codebook.safetensors"] + files["manifest.json"]
    assert command("start", started / "photos", "--out", started / "out") == 0
    said = capsys.readouterr().out
    assert f"{codes / len(store):,.0f} B of codes per image; the whole store" in said
    assert f"tables that do not grow with the images ({results['fixed_bytes'] / 1e3:,.0f} kB)" in said


def test_training_and_validation_share_no_image(started: Path) -> None:
    train, val = (set((started / "out" / f"{part}.csv").read_text().splitlines()[2:]) for part in ("train", "val"))
    assert not train & val
    assert len(train | val) == 31


def test_a_report_of_its_directory_is_that_of_its_run(started: Path, tmp_path: Path) -> None:
    pages = []
    for thing in (started / "out", started / "out/run"):
        assert command("report", thing, "--out", tmp_path / "page.html") == 0
        pages.append((tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1]


def test_answers_are_written_as_the_name_of_their_file_says(started: Path, tmp_path: Path) -> None:
    photo, run = started / "photos/class0/000.png", started / "out/run"
    for name, first in (("a.csv", "image,class_1,"), ("a.JSON", "[\n"), ("a.txt", str(photo)[-20:])):
        assert command("predict", run, photo, "--out", tmp_path / name) == 0
        assert first in (tmp_path / name).read_text()
    assert command("predict", run, photo, "--out", tmp_path / "b.csv", "--format", "json") == 0
    assert (tmp_path / "b.csv").read_text().startswith("[")


def test_its_run_predicts_photographs(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photo = started / "photos/class2/003.png"
    assert command("predict", started / "out/run", photo, "--top", 1, "--json") == 0
    assert set(json.loads(capsys.readouterr().out)[0]["classes"]) <= {"class0", "class1", "class2"}


def test_a_finished_start_is_read_not_repeated(
    started: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {path: path.stat().st_mtime_ns for path in (started / "out").rglob("*") if path.is_file()}
    monkeypatch.setattr(module.FolderStart, "plan", None)  # not needed again
    assert command("start", started / "photos", "--out", started / "out") == 0
    said = capsys.readouterr()
    assert {path: path.stat().st_mtime_ns for path in (started / "out").rglob("*") if path.is_file()} == files
    assert said.err == f"tilework: {started / 'out'} is finished; nothing is repeated (another --out trains anew)\n"
    assert "linear probe of the same network's pooled features" in said.out
    assert f"tilework predict {started / 'out/run'}" in said.out


def test_other_images_in_its_directory_are_refused(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(started / "photos", started / "more", dirs_exist_ok=True)
    assert command("start", started / "more", "--out", started / "out") == 7
    assert f"holds a start with other settings (start: {started / 'photos'}"[:90] in capsys.readouterr().err


def test_a_vit_on_pixels_joins_a_finished_start(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = shutil.copytree(started / "out", started / "with-pixels")
    monkeypatch.setattr(module, "TIMED", (1, 2))
    monkeypatch.setattr(module, "tokenize", None)  # not needed again
    (out / "times.json").write_text(json.dumps({name: [1.0, 0.2] for name in ("tokenize", "train", "compare")}))
    before = json.loads((out / "results.json").read_text())
    assert command("start", started / "photos", "--out", out, "--pixel-vit") == 0
    results = json.loads((out / "results.json").read_text())
    *others, last = results["rows"]
    assert others == before["rows"]
    steps = json.loads((out / "pixel-steps.json").read_text())["steps"]
    ended = json.loads((out / "pixel-run/results.json").read_text())
    assert (last["row"], last["accuracy"], ended["steps"]) == ("pixels", ended["top1"], steps)
    assert f"({steps} steps)" in last["what"]
    assert last["bytes_per_image"] == results["original_bytes_per_image"]
    assert not (out / "pixel-timing").exists()


def test_eval_notices_images_that_it_was_trained_on(started: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Among images and among codes; not in the validation part, which is what 'start' suggests."""
    run, seen = started / "out/run", f"are in the training data ({started / 'out/train.tok'})"
    for data, said in (("photos", seen), ("out/train.tok", seen), ("out/val.tok", "")):
        assert command("eval", run, "--data", started / data) == 0
        told = capsys.readouterr().err
        assert said in told
        assert ("validation data: " in told) == bool(said)


def test_reports_find_the_photographs(started: Path) -> None:
    for folder, there in (("photos", True), ("nowhere", False)):
        copy = shutil.copytree(started / "out/val.tok", started / "val-copy.tok", dirs_exist_ok=True)
        (copy.parent / "val-copy.tok.images.json").write_text(json.dumps({"folder": folder}))
        assert command("report", copy, "--out", started / "page.html") == 0
        assert ("photographs stand before them" in (started / "page.html").read_text()) == there


def test_changed_images_are_named(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a folder that is split, and of one with parts, where a name stands in both."""
    write_images(tmp_path / "photos/train", 2, 6)
    write_images(tmp_path / "photos/val", 2, 3, seed=1)
    shutil.copytree(started / "photos", tmp_path / "split")
    for name, part, lost in (("split", "", "class0/000.png"), ("photos", "val/", "class0/000.png")):
        words = ("start", tmp_path / name, "--out", tmp_path / f"out-{name}")
        with monkeypatch.context() as patch:
            patch.setattr(module, "train", interrupt)
            assert command(*words) == 130
        (tmp_path / name / part / lost).rename(tmp_path / name / part / "class0/100.png")
        Image.new("RGB", (32, 32)).save(tmp_path / name / part / "class1/101.png")
        capsys.readouterr()
        assert command(*words) == 7
        said = capsys.readouterr().err
        assert f"2 images new ({part}class0/100.png, ...) and 1 image gone ({part}{lost})" in said
        assert "choose another --out" in said


def test_train_with_a_folder_is_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parts of its own, and the default name of the output."""
    write_images(tmp_path / "photos/train", 2, 6)
    write_images(tmp_path / "photos/test", 2, 3, seed=1)
    monkeypatch.chdir(tmp_path)
    assert command("train", "photos", "--json") == 0
    results = json.loads(capsys.readouterr().out)
    assert (results["images"]["train"], results["images"]["val"]) == (12, 6)
    assert (tmp_path / "start-photos/report.html").is_file()
    assert len((tmp_path / "start-photos/val.csv").read_text().splitlines()) == 2 + 6


def test_a_plan_writes_nothing(started: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("start", started / "photos", "--out", tmp_path / "out", "--dry-run", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["images"], plan["classes"], plan["smallest_class"], plan["largest_class"]) == (31, 3, 10, 11)
    found = json.loads((started / "out/results.json").read_text())["images"]
    assert (plan["train"], plan["val"], plan["unreadable"]) == (found["train"], found["val"], 1)
    assert plan["median_size"] == [32, 32]
    assert plan["estimated_minutes"] > 0
    assert not (tmp_path / "out").exists()


def test_a_stopped_start_goes_on(
    started: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("start", started / "photos", "--out", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(module, "train", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        assert command(*words) == 75
    assert "repeat the command to resume" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(module, "train", lambda *_: None)
        patch.setattr(module, "linear_hits", interrupt)
        assert command(*words) == 130
    assert "interrupted: repeat the command to resume" in capsys.readouterr().err
    assert not (tmp_path / "out/results.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(module, "tokenize", None)  # not needed again
        assert command(*words) == 0
    one, other = (json.loads((path / "out/results.json").read_text()) for path in (started, tmp_path))
    assert one["rows"] == other["rows"]


def test_nested_folders_and_levels(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write_images(tmp_path / "nested" / part, 2, 4)
    assert len(find_parts(tmp_path / "nested").folder.classes) == 4
    assert find_parts(tmp_path / "nested", level="top").folder.classes == ("a", "b")


def test_validation_images_that_were_trained_on_and_few_of_them_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the screen, on the page and in results.json; codes are fitted also to few images."""
    images = write_images(tmp_path / "photos", 3, 5)
    assert command("start", images, "--val", images, "--out", tmp_path / "out") == 0
    said, results = capsys.readouterr(), json.loads((tmp_path / "out/results.json").read_text())
    assert "fitting codes to these images" in said.err
    assert "320 codes an image" in said.out
    assert results["shared_images"] == 15
    shared = "15 of 15 validation images are training images too: the accuracy is too high."
    low, high = results["interval"]
    assert low < results["accuracy"] <= high
    few = f"With 15 validation images the accuracy may as well be {low:.0%} or {high:.0%} (95 %)."
    page = (tmp_path / "out/report.html").read_text()
    for words in (shared, few):
        assert words in said.out
        assert words in page


def test_what_an_earlier_version_wrote_is_judged_again_and_not_trained(started: Path) -> None:
    copy = started / "earlier"
    shutil.copytree(started / "out", copy)
    results = json.loads((copy / "results.json").read_text())
    (copy / "results.json").write_text(
        json.dumps({key: value for key, value in results.items() if key not in ("shared_images", "interval")})
    )
    before = {path: path.stat().st_mtime_ns for path in (copy / "run/checkpoints").rglob("*.safetensors")}
    assert command("start", started / "photos", "--out", copy) == 0
    again = json.loads((copy / "results.json").read_text())
    assert (again["shared_images"], again["accuracy"]) == (0, results["accuracy"])
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_interval_of_an_accuracy() -> None:
    """Against scipy's."""
    for right, count in ((0, 3), (3, 3), (57, 64), (500, 1000)):
        wanted = stats.binomtest(right, count).proportion_ci(0.95, "wilson")
        assert interval(right / count, count) == pytest.approx((wanted.low, wanted.high), abs=1e-4)


def test_it_says_when_something_simpler_does_better() -> None:
    def results(difference: float, noise: bool) -> dict[str, object]:
        rival = {"row": "probe", "what": "the probe", "difference": difference, "within_noise": noise}
        own = {"row": "trained", "what": "the run", "difference": 0.0, "within_noise": True}
        return {"rows": [own, rival], "simpler_and_better": ["probe"] if difference > 0 and not noise else []}

    assert verdict(results(0.05, False)) == "Something simpler does better on these images: the probe."
    assert "within it, the probe is ahead" in verdict(results(0.01, True))
    assert verdict(results(-0.05, False)) == "Nothing simpler does better on these images."


def one_class(root: Path) -> Path:
    return write_images(root / "in", 1, 12)


def flat(root: Path) -> Path:
    (root / "in").mkdir()
    for i in range(12):
        Image.new("RGB", (8, 8)).save(root / f"in/{i}.png")
    return root / "in"


def broken(root: Path) -> Path:
    write_images(root / "in", 2, 6)
    for file in sorted((root / "in").glob("*/*"))[::3]:
        file.write_bytes(b"no image")
    return root / "in"


def all_broken(root: Path) -> Path:
    write_images(root / "in", 2, 6)
    for file in (root / "in").glob("*/*"):
        file.write_bytes(b"no image")
    return root / "in"


def taken(root: Path) -> Path:
    (root / "out").mkdir()
    (root / "out/letter.txt").write_text("mine")
    return write_images(root / "in", 2, 6)


def a_file(root: Path) -> Path:
    (root / "out").write_text("mine")
    return write_images(root / "in", 2, 6)


def beside_a_label_file(root: Path) -> Path:
    (flat(root) / "klassen.csv").write_text("0.png,a\n")
    return root / "in"


def page(root: Path) -> Path:
    (root / "in.html").write_text("<html>")
    return root / "in.html"


def beside_a_store(root: Path) -> Path:
    write_store(root / "x.tok")
    return write_images(root / "in", 2, 6)


VOC = {"a": [("cell", 1, 1, 9, 9)], "b": [("cell", 2, 2, 8, 8)]}


def coco_folder(root: Path) -> Path:
    file = write_objects(root / "in")
    (root / "in/annotations").mkdir()
    file.rename(root / "in/annotations/instances.json")
    return root / "in"


def xml_folder(root: Path) -> Path:
    whole = write_voc(root / "voc", VOC).parents[2]
    (root / "in").mkdir()
    (whole / "JPEGImages").rename(root / "in/images")
    (whole / "Annotations").rename(root / "in/annotations")
    return root / "in"


def test_commands_can_be_pasted_and_classes_without_validation_are_said(tmp_path: Path) -> None:
    write_images(tmp_path / "mine", 2, 10)
    for number in range(1, 10):
        (tmp_path / f"mine/class1/{number:03d}.png").unlink()
    write_images(tmp_path / "same", 2, 10)
    assert next_commands(Path("my photos"))[0] == "tilework predict 'my photos/run' PHOTO|FOLDER ..."
    plan = {"images": 11, "train": 9, "val": 2, "classes": 2, "smallest_class": 1, "largest_class": 10, "steps": 5,
            "median_size": [32, 32], "bytes_per_image": 900, "unreadable": 0, "recipe": "linear_cpu",
            "estimated_minutes": 1}  # fmt: skip
    lines = module.announce(module.FolderStart(tmp_path / "mine", tmp_path / "out"), plan)
    assert "(1 to 10 each)" in lines[0]
    assert "(2 images; 1 of 2 classes have none)" in lines[1]
    even = {**plan, "smallest_class": 10}
    lines = module.announce(module.FolderStart(tmp_path / "same", tmp_path / "out"), even)
    assert "(10 each)" in lines[0]
    assert "(2 images)" in lines[1]


def test_boxes_beside_classes_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "in", 2, 6)
    (tmp_path / "in/class0/0.xml").write_text("<annotation/>")
    assert command("start", tmp_path / "in", "--dry-run") == 0
    assert "annotations of boxes" not in capsys.readouterr().err
    write_objects(tmp_path / "objects").rename(tmp_path / "in/instances.json")
    assert command("start", tmp_path / "in", "--dry-run") == 0
    assert "annotations of boxes (instances.json) are not read here: train a detector" in capsys.readouterr().err


BAD: dict[str, tuple[Callable[[Path], Path], tuple[str, ...], int, str]] = {
    "nowhere": (lambda root: root / "no", (), 3, "no such data"),
    "a store": (lambda root: write_store(root / "x.tok"), (), 3, "is a token store, not images"),
    "a page": (page, (), 3, "is a file: give a folder"),
    "an empty folder": (lambda root: (root / "in").mkdir() or root / "in", (), 3, "has no class folders"),
    "no classes": (flat, (), 3, "has no class folders and no labels"),
    "labels under another name": (beside_a_label_file, (), 3, "in/klassen.csv if it has them"),
    "one class": (one_class, (), 3, "12 images of 1 class: two classes"),
    "too few": (lambda root: write_images(root / "in", 2, 4), (), 3, "8 images of 2 classes: two classes and 10"),
    "two of each": (lambda root: write_images(root / "in", 6, 2), (), 3, "no class of"),
    "boxes as COCO": (
        lambda root: write_objects(root / "in").parent, (), 3,
        "in has annotations of boxes (instances.json), no classes of images: train a detector with 'tilework train "
        "detect_cpu --data "),
    "boxes of COCO in a folder": (coco_folder, (), 3, "annotations of boxes (annotations/instances.json)"),
    "images of COCO": (lambda root: coco_folder(root) / "images", (), 3, "(annotations/instances.json)"),
    "a file of COCO": (lambda root: coco_folder(root) / "annotations/instances.json", (), 3, "of boxes (instances.j"),
    "boxes as VOC": (lambda root: write_voc(root / "in", VOC).parents[2], (), 3, "ImageSets/Main/train.txt --out RUN'"),
    "boxes of VOC without a list": (
        xml_folder, (), 3, "annotations of boxes (annotations/*.xml), no classes of images: put them into folders"),
    "too many broken": (broken, (), 3, "or accept them with --max-broken 0.3"),
    "all broken": (all_broken, (), 3, "12 of 12 images cannot be read"),
    "output is taken": (taken, (), 7, "holds other files"),
    "output is a file": (a_file, (), 7, "is a file"),
    "output among the images": (
        lambda root: write_images(root, 2, 6), (), 7, "lies among the images"),
    "a share of 2": (lambda root: write_images(root / "in", 2, 6), ("--max-broken", "2"), 4, "out of range"),
    "validation nowhere": (lambda root: write_images(root / "in", 2, 6), ("--val", "nowhere"), 3, "no such data"),
    "validation is a store": (beside_a_store, ("--val", "{root}/x.tok"), 3, "is a token store, not images"),
    "validation with other classes": (
        lambda root: write_images(root / "in", 2, 6), ("--val", "{other}"), 3, "'class2' that training does not know"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(
    case: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words, code, said = BAD[case]
    other = write_images(tmp_path_factory.mktemp("other") / "val", 3, 2) if "{other}" in words else None
    images = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words = tuple(word.format(other=other, root=tmp_path) for word in words)
    assert command("start", images, "--out", tmp_path / "out", *words) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tilework: error")]
    assert len(lines) == 1
    assert said in lines[0]
    assert sorted(tmp_path.rglob("*")) == before
