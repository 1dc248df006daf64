"""Images decoded when a batch needs them, from folders, tar and Parquet files.

Oracle: the same images decoded beforehand (`WholeImages`, `ImageSource`), which tests of their own compare with Pillow.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tilework
from tilework.core.config import resolve
from tilework.core.errors import InputError
from tilework.data import ImageFolder, ImageSource, Loader, RandomCrops, WholeImages, in_order
from tilework.data.image_folder import Images
from tilework.data.open_images import open_images, take_images
from tilework.data.streamed_images import Opened, Streamed, StreamedImages

CROP = ((16, 16), (0.2, 1.0), (3 / 4, 4 / 3))


def encoded(number: int) -> bytes:
    held, rng = io.BytesIO(), np.random.default_rng(number)
    small = Image.fromarray(rng.integers(0, 255, (6, 8, 3), np.uint8))
    small.resize((60 + number, 40), Image.Resampling.BICUBIC).save(held, "JPEG", quality=90)
    return held.getvalue()


def write_folder(root: Path, count: int = 12) -> Path:
    for number in range(count):
        path = root / "abc"[number % 3] / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number))
    return root


def write_tars(root: Path, count: int = 12) -> Path:
    root.mkdir()
    for part in range(2):
        with tarfile.open(root / f"{part}.tar", "w") as tar:
            for number in range(part * count // 2, (part + 1) * count // 2):
                for ending, data in (("jpg", encoded(number)), ("cls", str(number % 3).encode())):
                    info = tarfile.TarInfo(f"{number:03d}.{ending}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return root


def write_parquet(root: Path, count: int = 12) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    root.mkdir()
    for part in range(2):
        numbers = range(part * count // 2, (part + 1) * count // 2)
        table = pyarrow.table({"image": [encoded(n) for n in numbers], "label": [n % 3 for n in numbers]})
        parquet.write_table(table, root / f"{part}.parquet", row_group_size=2)
    return root


WRITERS: dict[str, Callable[[Path], Path]] = {"folder": write_folder, "tar": write_tars, "parquet": write_parquet}


def streamed(images: Images, max_broken: float = 0.05) -> StreamedImages:
    return StreamedImages.open(images, (24, 24), max_broken, "cover", "photos")


def training(images: Images, crop: bool = True, max_broken: float = 0.05) -> Streamed:
    return Streamed(streamed(images, max_broken), ImageSource.blank(images, (1, 1)), CROP if crop else None)


@pytest.mark.parametrize("kind", WRITERS)
def test_crops_and_squares_are_those_of_images_decoded_beforehand(kind: str, tmp_path: Path) -> None:
    """By names, since each kind has an order of its own."""
    images = open_images(WRITERS[kind](tmp_path / kind))
    folder = ImageFolder.open(write_folder(tmp_path / "known"))
    by_name = {Path(key).stem: i for i, key in enumerate(folder.keys)}
    names = [f"{int(Path(key).stem):03d}" for key in images.keys]
    same = folder.take(np.array([by_name[name] for name in names]))
    known = WholeImages.scan(same, (24, 24), CROP[0])
    known._whole = None  # cut from the files
    expected = RandomCrops(known, ImageSource.blank(same, (1, 1)), *CROP)
    number = np.array([3, 0, 11, 7, 12 + 3])
    mine, theirs = training(images).draw(1, 2, number), expected.draw(1, 2, number)
    assert torch.equal(mine.x, theirs.x)
    assert torch.equal(mine.index, theirs.index)
    assert mine.target.ids.flatten().tolist() == [same.labels[i % 12] for i in number]
    squares = ImageSource.read(same, (24, 24)).batch(number % 12)
    assert torch.equal(streamed(images).batch(number % 12).x, squares.x)
    assert torch.equal(training(images, crop=False).draw(0, 0, number).x, squares.x)
    some = take_images(images, np.array([5, 2]))
    assert torch.equal(streamed(some).batch(np.arange(2)).x, ImageSource.read(same, (24, 24)).batch(np.array([5, 2])).x)


def test_row_groups_of_several_files_are_told_apart(tmp_path: Path) -> None:
    images = open_images(write_parquet(tmp_path / "parquet"))
    index = [0, 6, 0, 8, 2, 0, 11, 1]
    assert [file.getvalue() for file in images.files(index)] == [encoded(number) for number in index]  # type: ignore[union-attr]


def test_row_groups_are_read_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilework.data import parquet_images

    images = open_images(write_parquet(tmp_path / "parquet"))
    read: list[int] = []
    real = parquet_images.read_group
    monkeypatch.setattr(parquet_images, "read_group", lambda file, *rest: read.append(1) or real(file, *rest))
    loader = Loader(training(images), 4, lanes=2)
    seen = torch.cat([batch.index for batch in loader.run(0, loader.steps)])
    assert sorted(seen.tolist()) == list(range(12))
    assert len(read) <= 8  # six row groups, of which two may be cut between lanes


def damaged(root: Path, *numbers: int) -> ImageFolder:
    """The images of a folder; some of them end in the middle, or are no images."""
    folder = ImageFolder.open(write_folder(root))
    for at, number in enumerate(numbers):
        path = folder.paths[number]
        path.write_bytes(path.read_bytes()[:300] if at % 2 else b"no image")
    return folder


@pytest.mark.parametrize("crop", [True, False])
def test_the_next_image_takes_the_place_of_a_broken_one(crop: bool, tmp_path: Path) -> None:
    source = training(damaged(tmp_path, 4, 5), crop, max_broken=0.2)
    file = tmp_path / "quarantine-0.jsonl"
    source.images.quarantine.write_to(file)
    number = np.array([3, 4, 5])
    found = source.draw(0, 0, number)
    labels = source.images.labels
    assert found.target.ids.flatten().tolist() == [labels[3], labels[6], labels[6]]
    assert found.index.tolist() == [3, 4, 5]  # which keys the draws
    again = training(ImageFolder.open(tmp_path), crop, max_broken=0.2).draw(0, 0, number)
    assert torch.equal(found.x, again.x)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(line["path"] for line in lines) == sorted(source.images.folder.key(i) for i in (4, 5))
    assert all(line["reason"] for line in lines)
    later = training(ImageFolder.open(tmp_path), crop, max_broken=0.2)
    with file.open("a") as cut:
        cut.write('{"path": "a')  # by a process that was killed
    later.images.quarantine.write_to(file)
    later.draw(0, 0, number)
    assert len(file.read_text().splitlines()) == 3  # a run that goes on names them once


def test_images_of_a_batch_are_freed_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them stayed in memory until the batch was cut: 1.4 GB of 16 large ones."""
    source = training(open_images(write_folder(tmp_path / "photos")))
    opened: list[Opened] = []
    real = Opened.of
    monkeypatch.setattr(Opened, "of", lambda data: opened.append(real(data)) or opened[-1])
    source.draw(0, 0, np.arange(len(source)))
    assert len(opened) == len(source)
    for one in opened:
        with pytest.raises(ValueError, match="closed image"):
            one.image.getpixel((0, 0))


def test_evaluation_leaves_broken_images_out(tmp_path: Path) -> None:
    source = streamed(damaged(tmp_path, 4, 5), 0.2)
    seen = [batch.index.tolist() for batch in in_order(source, 2)]
    assert seen == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize("max_broken", [0.0, 0.1])
def test_too_many_broken_images_end_the_run_with_their_number(max_broken: float, tmp_path: Path) -> None:
    source = training(damaged(tmp_path, 2, 5), max_broken=max_broken)
    with pytest.raises(InputError, match=r"cannot be read so far \(first: .*repair or remove them$") as refused:
        for _ in Loader(source, 4).run(0, 3):
            pass
    assert len(str(refused.value).splitlines()) == 1


def test_a_share_that_is_evidently_too_large_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilework.data import streamed_images

    monkeypatch.setattr(streamed_images, "LOOKED", 4)
    folder = damaged(tmp_path, 0, 1)
    source = StreamedImages.open(folder, (24, 24), 0.2, "cover", "photos")
    source.quarantine.total = 1000
    with pytest.raises(InputError, match="cannot be read so far"):
        source.batch(np.array([3, 2, 0, 1]))


def test_nothing_but_broken_images_ends(tmp_path: Path) -> None:
    source = training(damaged(tmp_path, *range(12)), max_broken=1.0)
    with pytest.raises(InputError, match="12 of 12 images"):
        source.draw(0, 0, np.arange(3))


def test_nothing_is_read_before_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ImageFolder.open(write_folder(tmp_path))
    opened: list[Path] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path) or real(path))
    source = training(folder)
    assert not opened
    batches = Loader(source, 4, ahead=1).run(0, 3)
    next(batches)
    assert 4 <= len(opened) <= 12
    batches.close()  # type: ignore[attr-defined]


SMALL = [
    "fit.epochs=0",
    "fit.steps=4",
    "fit.batch=4",
    "fit.log_every=1",
    "model.width=16",
    "model.depth=1",
    "model.heads=2",
]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_run_streams_names_what_is_broken_and_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tilework.data import images as small_folders

    monkeypatch.setattr(small_folders, "KEEP_BYTES", 0)  # folders of this size would be kept in memory
    data = WRITERS[kind](tmp_path / kind)
    if kind == "folder":
        (data / "b/004.jpg").write_bytes(b"no image")
    run = resolve(tilework.recipes.recipes["tl_align_cpu"].run, None, [*SMALL, "max_broken=0.1", "fit.save_every=2"])
    run = resolve(run, None, ["augment.0.name=whole_crop"])
    tilework.fit(run, data, data, tmp_path / "run", "cpu")
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "norm" in line] == [1, 2, 3, 4]
    assert any("val_top1" in line for line in lines)
    broken = tmp_path / "run/quarantine-0.jsonl"
    assert broken.exists() == (kind == "folder")
    if broken.exists():
        assert json.loads(broken.read_text())["path"] == "b/004.jpg"
        assert "1 image could not be read" in capsys.readouterr().err
    (tmp_path / "run/checkpoints/latest").write_text("step-00000002\n")
    tilework.fit(run, data, data, tmp_path / "run", "cpu", quiet=True)
    again = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert again == lines
