"""The demo from end to end, quickly; and that validation never overlaps training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from html_checks import check_page
from small_data import write_images
from tilework.core.errors import DamageError, InputError, InUseError, OutputError
from tilework.core.files import locked
from tilework.evaluation import Classification
from tilework.experiments.demo import Demo, split_folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    Demo(out, quick=True, device="cpu", quiet=True).run()
    return out


def test_results_have_what_is_promised(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    assert results["seconds"] > 0
    assert results["classes"] == 14
    assert 0 <= results["token"]["accuracy"] <= 1
    assert 0 <= results["pixel"]["accuracy"] <= 1
    files = list((finished / "images/train").rglob("*.jpg"))
    assert results["jpeg"]["bytes_per_image"] == sum(f.stat().st_size for f in files) / len(files)
    stored = sum(path.stat().st_size for path in (finished / "train.tok").rglob("*") if path.is_file())
    assert results["token"]["bytes_per_image"] == stored / len(files)


def test_report_shows_every_section(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    for section in ("Storage and accuracy", "Training", "Reconstruction from tokens", "Predictions", "Confusion"):
        assert section in page
    assert check_page(page)
    assert page.count("<svg") == 3, "storage, loss, accuracy"
    assert page.count("<figure><div class='images'>") == 10 + 12, "reconstructions, predictions"
    assert page.count("<table class='grid'>") == 2


def test_the_headline_compares_image_by_image(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten images that only tokens name right are no chance (0.2 %), though two accuracies of 84 images differ so."""
    demo, count = Demo(finished, quick=True, device="cpu", quiet=True), 84
    labels = np.arange(count) % 14

    def found(right: int) -> Classification:
        said = np.where(np.arange(count) < right, labels, (labels + 1) % 14)
        return Classification(np.eye(14, dtype=np.float32)[said], labels, tuple(map(str, range(14))), np.arange(count))

    for right, noise in ((60, False), (52, True)):
        answers = {"token": found(right), "pixel": found(50)}
        monkeypatch.setattr(demo, "_evaluate", lambda name, *_, answers=answers: answers[name])
        monkeypatch.setattr(demo, "_page", lambda results, *_: str(results["within_noise"]))
        demo.state = json.loads((finished / "demo.json").read_text())
        assert demo._report(torch.device("cpu"))[1] == str(noise)


def test_no_validation_crop_overlaps_a_training_crop(finished: Path) -> None:
    crops = json.loads((finished / "images/crops.json").read_text())
    for name in {crop["photograph"] for crop in crops}:
        train = [c for c in crops if c["photograph"] == name and c["part"] == "train"]
        val = [c for c in crops if c["photograph"] == name and c["part"] == "val"]
        for a in train:
            for b in val:
                apart = abs(a["left"] - b["left"]) >= a["side"] or abs(a["top"] - b["top"]) >= a["side"]
                assert apart, (a, b)


def test_a_finished_demo_is_not_run_again(finished: Path) -> None:
    before = (finished / "demo.json").read_text()
    stamps = {p: p.stat().st_mtime_ns for p in finished.glob("*/checkpoints/latest")}
    Demo(finished, quick=True, device="cpu", quiet=True).run()
    assert (finished / "demo.json").read_text() == before
    assert {p: p.stat().st_mtime_ns for p in finished.glob("*/checkpoints/latest")} == stamps


def test_another_demo_or_other_files_are_left_alone(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="holds a demo with other images"):
        Demo(finished, quick=False, quiet=True).run()
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(OutputError, match="other files"):
        Demo(tmp_path, quick=True, quiet=True).run()
    with pytest.raises(InputError, match="no folder"):
        Demo(tmp_path / "new", images=tmp_path / "nowhere", quiet=True).run()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"settings": {}, "seconds": {}}'])
def test_a_damaged_state_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "demo.json").write_text(text)
    with pytest.raises(DamageError, match=r"demo\.json"):
        Demo(tmp_path, quick=True, quiet=True, device="cpu").run()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(InUseError, match="in use by another process"):
        Demo(tmp_path, quick=True, quiet=True).run()
    assert not list(tmp_path.iterdir())


def test_images_that_cannot_be_used_leave_no_directory(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError):
        Demo(tmp_path / "out", tmp_path / "images", quiet=True).run()
    assert not (tmp_path / "out").exists()


def test_own_images_are_split_and_used(tmp_path: Path) -> None:
    write_images(tmp_path / "mine", count=10)
    results = Demo(tmp_path / "out", images=tmp_path / "mine", quick=True, device="cpu", quiet=True).run()
    assert results["images"] == {"train": 24, "val": 6, "quarantined": 0}
    assert results["classes"] == 3


@pytest.mark.slow
def test_own_train_and_val_are_used_as_they_are(tmp_path: Path) -> None:
    write_images(tmp_path / "mine/train", count=5)
    write_images(tmp_path / "mine/val", count=2)
    results = Demo(tmp_path / "out", images=tmp_path / "mine", quick=True, device="cpu", quiet=True).run()
    assert results["images"] == {"train": 15, "val": 6, "quarantined": 0}


def test_split_needs_two_images_of_each_class(tmp_path: Path) -> None:
    write_images(tmp_path / "mine", count=1)
    with pytest.raises(InputError, match="has 1 image"):
        split_folder(tmp_path / "mine", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_tokens_reach_nine_tenths_of_the_pixel_accuracy(tmp_path: Path) -> None:
    results = Demo(tmp_path / "out", quiet=True).run()
    assert results["pixel"]["accuracy"] >= 0.7
    assert results["token"]["accuracy"] >= 0.9 * results["pixel"]["accuracy"]
