"""What files of images may cost. Oracle: headers, scans and sizes made for the test."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from threading import Barrier, Lock
from time import sleep

import numpy as np
import pytest
from PIL import Image

from small_images import SIZE, gradient, png_header, put, tags
from tilework.data import ImageSource, decode_image, image_files, image_limits
from tilework.data.pairs import image_sides


@pytest.mark.parametrize(("mode", "bytes_per_pixel"), [("L", 5), ("P", 5), ("I;16", 6), ("RGBA", 8), ("CMYK", 8)])
def test_a_copy_in_rgb_is_bounded(monkeypatch: pytest.MonkeyPatch, mode: str, bytes_per_pixel: int) -> None:
    image = Image.new(mode, (30, 20))
    monkeypatch.setattr(image_limits, "MOST_BYTES", 600 * bytes_per_pixel)
    assert image_files.to_rgb(image).mode == "RGB"
    monkeypatch.setattr(image_limits, "MOST_BYTES", 600 * bytes_per_pixel - 1)
    with pytest.raises(ValueError, match=f"30x20 pixels .{mode}. take, beside a copy in RGB, too much memory"):
        image_files.to_rgb(image)


@pytest.mark.parametrize("large", [True, False])
def test_large_images_are_in_memory_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """As many as there are cores took as many times the memory of one."""
    monkeypatch.setattr(image_limits, "LARGE", 20 * 30 - large)
    file = put(tmp_path / "a.png", Image.fromarray(gradient(20, 30)))
    met, inside, lock, most = Barrier(3), 0, Lock(), 0

    def look() -> None:
        nonlocal inside, most
        met.wait()
        with image_files.open_image(file, (4, 4)):
            with lock:
                inside += 1
                most = max(most, inside)
            if large:
                sleep(0.05)
            else:
                met.wait(timeout=20)  # all of them at once, or this fails
            with lock:
                inside -= 1

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(look) for _ in range(3)]:
            done.result()
    assert most == (1 if large else 3)


def held(do: Callable[[], object]) -> bool:
    """Whether something waits while another thread has a large image."""
    with ThreadPoolExecutor(1) as pool:
        image_limits.ONE_LARGE.acquire()
        done = pool.submit(do)
        try:
            done.result(timeout=0.5)
        except FutureTimeoutError:
            return True
        finally:
            image_limits.ONE_LARGE.release()
            done.result()
    return False


@pytest.mark.parametrize(
    ("ending", "settings", "waits"),
    [("jpg", {}, False), ("jpg", {"progressive": True}, True), ("png", {}, True)],
)
def test_jpeg_files_that_are_decoded_small_do_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, settings: dict[str, bool], waits: bool
) -> None:
    """But progressive ones do, whose coefficients are in memory at full size."""
    monkeypatch.setattr(image_limits, "LARGE", 400 * 300 - 1)
    monkeypatch.setattr(image_limits, "THIN", 10**6)
    file = tmp_path / f"a.{ending}"
    Image.fromarray(gradient(300, 400)).save(file, **settings)
    assert held(lambda: decode_image(file, (40, 40))) == waits


def test_headers_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_limits, "LARGE", 1)
    monkeypatch.setattr(image_limits, "THIN", 10**6)
    file = put(tmp_path / "a.png", Image.fromarray(gradient(20, 30)))
    assert not held(lambda: image_sides(file))


def test_memory_of_an_image_that_is_turned_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 100 million pixels took 0.76 GB."""
    file = tmp_path / "a.png"
    Image.fromarray(gradient(20, 30)).save(file, exif=tags(6))
    monkeypatch.setattr(image_limits, "MOST_BYTES", 8 * 600)
    with image_files.open_image(file) as image:
        assert image.size == (20, 30)
    monkeypatch.setattr(image_limits, "MOST_BYTES", 8 * 600 - 1)
    with (
        pytest.raises(ValueError, match="30x20 pixels lie on their side and take too much memory"),
        image_files.open_image(file),
    ):
        pass


@pytest.mark.parametrize(("subsampling", "coefficients"), [(0, 6), (2, 3)])
def test_memory_of_a_progressive_jpeg_file_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subsampling: int, coefficients: int
) -> None:
    """Two bytes for each coefficient, of all three channels; they stay while the image is decoded."""
    file = tmp_path / "a.jpg"
    Image.fromarray(gradient(64, 64)).save(file, progressive=True, subsampling=subsampling)
    monkeypatch.setattr(image_limits, "MOST_BYTES", 64 * 64 * (coefficients + 4))
    with image_files.open_image(file):
        pass
    monkeypatch.setattr(image_limits, "MOST_BYTES", 64 * 64 * (coefficients + 4) - 1)
    with (
        pytest.raises(ValueError, match="are a progressive JPEG file that takes too much"),
        image_files.open_image(file),
    ):
        pass
    decode_image(file, (4, 4))  # an eighth of the sides: coefficients alone


def with_scans(count: int, trailing: bytes = b"") -> bytes:
    """A progressive JPEG file with so many scans, the last one repeated."""
    data = io.BytesIO()
    Image.fromarray(gradient(64, 64)).save(data, "JPEG", progressive=True, quality=50)
    whole = data.getvalue()
    first, last = whole.count(b"\xff\xda"), whole[whole.rfind(b"\xff\xda") : -2]
    return whole[:-2] + last * (count - first) + b"\xff\xd9" + trailing


def test_many_scans_of_a_jpeg_file_are_refused(tmp_path: Path) -> None:
    """Each takes as long as the image, and 28 bytes."""
    most = image_limits.MOST_SCANS
    put(tmp_path / "many.jpg", with_scans(most + 1))
    for file in (tmp_path / "many.jpg", image_files.ImageBytes(with_scans(most + 1), "many.jpg")):
        with pytest.raises(ValueError, match="a JPEG file of more than 100 scans"):
            decode_image(file, SIZE)
    usual = decode_image(put(tmp_path / "usual.jpg", with_scans(10)), SIZE)
    beyond = with_scans(most, b"\xff\xda" * 1000)  # other data may follow the image
    assert np.array_equal(decode_image(put(tmp_path / "most.jpg", beyond), SIZE), usual)


def test_marks_of_scans_within_other_segments_do_not_count(tmp_path: Path) -> None:
    note = b"\xff\xda" * 1000
    segment = b"\xff\xfe" + (len(note) + 2).to_bytes(2, "big") + note
    data = with_scans(10)
    path = put(tmp_path / "a.jpg", data[:2] + segment + data[2:])
    assert decode_image(path, SIZE).shape == (3, *SIZE)


def test_too_many_pixels_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_limits, "LARGEST", 30 * 30)
    put(tmp_path / "a/fits.png", Image.new("RGB", (30, 30)))
    put(tmp_path / "a/large.png", png_header(31, 30))  # decoding it would complain of missing data instead
    source = ImageSource.load(tmp_path, SIZE, max_broken=0.5)
    assert source.folder.keys == ("a/fits.png",)
    assert source.broken[0].reason == "31x30 pixels are more than 900"


def test_decompression_bomb_is_set_aside(tmp_path: Path) -> None:
    put(tmp_path / "a/fits.png")
    put(tmp_path / "a/bomb.png", png_header(60_000, 60_000))
    source = ImageSource.load(tmp_path, SIZE, max_broken=0.5)
    assert [b.path for b in source.broken] == ["a/bomb.png"]
    assert "pixels" in source.broken[0].reason


def test_many_pixels_in_few_bytes_are_refused(tmp_path: Path) -> None:
    """A GIF of 43 bytes took 1.3 GB."""
    gif = b"GIF89a" + (9000).to_bytes(2, "little") * 2 + b"\x80\0\0\0\0\0\xff\xff\xff"
    gif += b"!\xf9\4\1\0\0\0\0,\0\0\0\0" + (9000).to_bytes(2, "little") * 2 + b"\0\2\2D\1\0;"
    (tmp_path / "thin.gif").write_bytes(gif)
    for file in (tmp_path / "thin.gif", image_files.ImageBytes(gif, "thin.gif")):
        with pytest.raises(ValueError, match=r"9000x9000 pixels in .* bytes are no photograph"):
            decode_image(file, SIZE)
    put(tmp_path / "small.png", Image.new("1", (3000, 3000)))  # below the size that is looked at
    assert decode_image(tmp_path / "small.png", SIZE).shape == (3, *SIZE)
