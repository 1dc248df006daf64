"""Outputs never replace what Tilework has not written: photographs, label files, pages of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_data import write_images
from tilework.cli.main import main

SMALL = ["size=[24,24]", "augment.1.size=[24,24]", "model.stem.patch=8", "model.width=16", "model.depth=1"]


def run(*words: object) -> int:
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("overwriting")
    write_images(root / "photos")
    shorter = ["fit.steps=2", "fit.batch=8", "--data", root / "photos", "--out", root / "run", "--device", "cpu"]
    assert run("train", "demo_pixel", *SMALL, *shorter) == 0
    return root


@pytest.mark.parametrize("name", ["answers.csv", "answers.json", "answers.txt", "answers"])
def test_predict_replaces_its_own_answers_alone(
    name: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / name
    out.write_text("path,label\nmine.jpg,cat\n")
    assert run("predict", made / "run", made / "photos", "--out", out) == 7
    assert f"--out {out} exists, and was not written by this command" in capsys.readouterr().err
    assert out.read_text() == "path,label\nmine.jpg,cat\n"
    out.unlink()
    again = 0 if name.endswith(("csv", "json")) else 7  # plain columns cannot be told from other texts
    assert [run("predict", made / "run", made / "photos", "--out", out) for _ in range(2)] == [0, again]


def test_pictures_replace_no_photograph(made: Path, tmp_path: Path) -> None:
    photograph = next((made / "photos").rglob("*.png"))
    before = photograph.read_bytes()
    for command in ("predict", "eval"):
        data = [made / "photos"] if command == "predict" else ["--data", made / "photos"]
        assert run(command, made / "run", *data, "--picture", photograph) == 7
        assert photograph.read_bytes() == before
        picture = tmp_path / f"{command}.png"
        assert [run(command, made / "run", *data, "--picture", picture) for _ in range(2)] == [0, 0]


def test_report_replaces_no_page_of_others(made: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<html>mine</html>")
    assert run("report", made / "run", "--out", page) == 7
    assert page.read_text() == "<html>mine</html>"
    page.unlink()
    assert [run("report", made / "run", "--out", page) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("name", ["answers.xlsx", "answers.parquet", "answers.png"])
def test_answers_of_another_kind_are_refused(
    name: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", made / "run", made / "photos", "--out", tmp_path / name) == 4
    assert "end its name in .csv, .json or .txt" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["codes.npz", "codes.npy", "codes.parquet", "codes.zip"])
def test_a_directory_named_like_a_file_is_refused(
    name: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("convert", store, "--out", tmp_path / name) == 4
    assert "is named like a file, and convert writes a directory" in capsys.readouterr().err
    assert not (tmp_path / name).exists()


def test_predict_says_what_it_leaves_out(made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos")
    (photos / "Thumbs.db").write_bytes(b"x")
    (photos / "holiday.heic").write_bytes(b"x")
    assert run("predict", made / "run", photos) == 0
    said = capsys.readouterr()
    assert "2 files are not images (" in said.err
    assert "1 .heic" in said.err
    assert "Thumbs" not in said.out
    assert run("predict", made / "run", photos, "--json") == 0
    assert capsys.readouterr().err == ""


def test_eval_says_what_it_leaves_out(made: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    photos = write_images(tmp_path / "photos")
    folder = next(path for path in photos.iterdir() if path.is_dir())
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("x")
    assert run("eval", made / "run", "--data", photos) == 0
    said = capsys.readouterr().err
    assert "1 image cannot be read and left out (first: " in said
    assert "1 files are not images (1 .txt): skipped" in said
