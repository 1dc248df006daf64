"""Images of a folder as batches: what is set aside, what is kept in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from small_images import HTML, SIZE, gradient, put
from tilework.core.errors import BrokenImagesError, InputError
from tilework.data import ImageFolder, ImageSource, decode_image, image_files, images


def test_a_file_that_may_not_be_read_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "x/a.png")
    shut = put(tmp_path / "x/b.png")
    opened = Image.open

    def guarded(path: Path, **options: object) -> Image.Image:
        if path == shut:
            raise PermissionError(13, "Permission denied")
        return opened(path, **options)

    monkeypatch.setattr(image_files.Image, "open", guarded)
    source = ImageSource.load(tmp_path, SIZE, max_broken=0.5)
    assert [(one.path, one.reason) for one in source.broken] == [("x/b.png", "[Errno 13] Permission denied")]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Three good images and five broken ones."""
    root = tmp_path / "mixed"
    for name in ("a/good.jpg", "b/good.png", "b/zgood.webp"):
        put(root / name)
    whole = put(tmp_path / "whole.jpg", Image.fromarray(gradient(200, 200))).read_bytes()
    put(root / "a/cut.jpg", whole[: len(whole) // 2])
    put(root / "a/empty.png", b"")
    put(root / "b/page.jpg", HTML)
    put(root / "b/stump.webp", b"RIFF")
    Image.fromarray(gradient()).save(root / "b/bitmap.png", format="PPM")  # a format that is not read
    return root


def test_broken_files_are_set_aside_with_reasons(mixed: Path) -> None:
    source = ImageSource.load(mixed, SIZE, max_broken=0.9)
    assert source.folder.keys == ("a/good.jpg", "b/good.png", "b/zgood.webp")
    assert [b.path for b in source.broken] == ["a/cut.jpg", "a/empty.png", "b/bitmap.png", "b/page.jpg", "b/stump.webp"]
    assert len(source) + len(source.broken) == len(ImageFolder.open(mixed))
    assert all(b.reason and str(mixed) not in b.reason for b in source.broken)
    assert "truncated" in source.broken[0].reason


def test_pixels_and_labels_stay_together_around_broken_files(mixed: Path) -> None:
    batch = ImageSource.load(mixed, SIZE, max_broken=0.9).batch(np.array([2, 0]))
    expected = np.stack([decode_image(mixed / name, SIZE) for name in ("b/zgood.webp", "a/good.jpg")])
    assert (batch.x.numpy() == expected).all()
    assert batch.target.ids[:, 0].tolist() == [1, 0]
    assert batch.index.tolist() == [2, 0]


def test_too_many_broken_files_are_refused(mixed: Path) -> None:
    what = r"5 of 8 images in .*mixed.* \(first: a/cut.jpg: .*truncated"
    with pytest.raises(BrokenImagesError, match=what) as refused:
        ImageSource.load(mixed, SIZE, max_broken=0.6)
    assert str(refused.value.accepted_by("max_broken=")).endswith("or accept them with max_broken=0.63")


def test_threshold_itself_is_allowed(mixed: Path) -> None:
    assert len(ImageSource.load(mixed, SIZE, max_broken=5 / 8).broken) == 5


def test_nothing_but_broken_files_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "a/page.jpg", HTML)
    with pytest.raises(InputError, match="1 of 1 images"):
        ImageSource.load(tmp_path, SIZE, max_broken=1.0)


def test_progress_counts_every_file(mixed: Path) -> None:
    seen: list[tuple[int, int]] = []
    ImageSource.load(mixed, SIZE, max_broken=0.9, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 8) for i in range(1, 9)]


def test_all_broken_files_are_named_alike(tmp_path: Path) -> None:
    put(tmp_path / "a/good.png")
    for i in range(1001):
        (tmp_path / f"a/{i:04d}.png").touch()
    source = ImageSource.load(tmp_path, SIZE, max_broken=1.0)
    assert [b.path for b in source.broken] == [f"a/{i:04d}.png" for i in range(1001)]


def test_decoding_again_gives_what_is_kept_in_memory(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ImageSource.load(mixed, SIZE, max_broken=0.9)
    monkeypatch.setattr(images, "KEEP_BYTES", 0)
    again = ImageSource.load(mixed, SIZE, max_broken=0.9)
    assert kept._kept is not None
    assert again._kept is None
    index = np.array([1, 2, 0, 1])
    assert (kept.batch(index).x == again.batch(index).x).all()
    assert kept.folder.keys == again.folder.keys
    assert kept.broken == again.broken


def test_source_describes_itself(mixed: Path) -> None:
    source = ImageSource.load(mixed, SIZE, max_broken=0.9)
    assert (source.stage, source.grid, source.classes, source.codebook) == ("pixels", SIZE, ("a", "b"), None)
