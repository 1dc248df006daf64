"""Files of images: formats, orientation, modes. Oracle: pictures made for the test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from small_images import SIZE, UNDO, colour, gradient, put, tags
from tilework.data import ImageFolder, ImageSource, decode_image, image_files, image_limits


@pytest.mark.parametrize(("suffix", "tolerance"), [(".png", 0), (".jpg", 15), (".jpeg", 15), (".webp", 15)])
def test_formats_give_the_picture(tmp_path: Path, suffix: str, tolerance: int) -> None:
    path = put(tmp_path / f"a{suffix}", **({"quality": 95} if suffix != ".png" else {}))
    pixels = decode_image(path, SIZE)
    assert (pixels.shape, pixels.dtype) == ((3, *SIZE), np.uint8)
    assert pixels.flags["C_CONTIGUOUS"]
    assert np.abs(pixels.transpose(1, 2, 0).astype(int) - gradient()).max() <= tolerance


def test_suffix_may_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(gradient()).save(path, format="PNG")
    assert (decode_image(path, SIZE).transpose(1, 2, 0) == gradient()).all()


def test_centre_is_cut_when_only_the_sides_are_too_long(tmp_path: Path) -> None:
    wide = gradient(16, 64)
    path = put(tmp_path / "a.png", Image.fromarray(wide))
    assert (decode_image(path, (16, 16)).transpose(1, 2, 0) == wide[:, 24:40]).all()


def test_short_side_is_resized(tmp_path: Path) -> None:
    path = put(tmp_path / "a.png", Image.fromarray(gradient(64, 64)))
    assert np.abs(decode_image(path, (16, 16)).transpose(1, 2, 0).astype(int) - gradient(16, 16)).max() <= 8


def test_large_jpeg_decodes_like_the_same_png(tmp_path: Path) -> None:
    picture = Image.fromarray(gradient(512, 768))  # large enough for the reduced decoding of JPEG
    jpeg = decode_image(put(tmp_path / "a.jpg", picture, quality=95), SIZE)
    png = decode_image(put(tmp_path / "a.png", picture), SIZE)
    assert np.abs(jpeg.astype(int) - png).max() <= 5


@pytest.mark.parametrize("orientation", UNDO)
def test_every_orientation_comes_upright(tmp_path: Path, orientation: int) -> None:
    undo = UNDO[orientation]
    picture = Image.fromarray(gradient())
    laid = picture if undo is None else picture.transpose(undo)
    path = put(tmp_path / "a.png", laid, exif=tags(orientation))
    assert (decode_image(path, SIZE).transpose(1, 2, 0) == gradient()).all()


@pytest.mark.parametrize("ending", ["png", "tif"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P"])
def test_large_images_are_reduced_before_they_are_turned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, mode: str
) -> None:
    """Oracle: the same file where it does not count as large."""
    file = tmp_path / f"a.{ending}"
    picture = Image.fromarray(gradient(630, 900))
    if mode.endswith("A"):
        picture.putalpha(Image.fromarray(gradient(630, 900)[..., 0]))
    picture.convert(mode).save(file, exif=tags(6))
    usual = decode_image(file, SIZE)
    reduced: list[int] = []
    real = Image.Image.reduce
    monkeypatch.setattr(Image.Image, "reduce", lambda image, factor: reduced.append(factor) or real(image, factor))
    monkeypatch.setattr(image_limits, "LARGE", 900 * 630 - 1)
    monkeypatch.setattr(image_limits, "THIN", 10**6)
    found = decode_image(file, SIZE)
    assert set(reduced) == {630 // (2 * max(SIZE))}
    assert np.abs(found.astype(int) - usual).max() <= (5 if mode in ("RGB", "L") else 8)
    assert np.ptp(usual) >= 100


def sixteen_bits() -> Image.Image:
    return Image.fromarray(np.arange(150 * 200).reshape(150, 200).astype(np.uint16))


def transparent(mode: str) -> Image.Image:
    picture = Image.fromarray(gradient(150, 200))
    picture.putalpha(Image.fromarray(gradient(150, 200)[..., 1]))
    return picture.convert(mode)


@pytest.mark.parametrize("picture", [transparent("RGBA"), transparent("LA"), sixteen_bits()])
def test_large_images_turn_to_rgb_by_tiles(monkeypatch: pytest.MonkeyPatch, picture: Image.Image) -> None:
    """Copies of a whole image in other modes took four times its memory."""
    usual = np.asarray(image_files.to_rgb(picture))
    monkeypatch.setattr(image_limits, "LARGE", 150 * 200 - 1)
    monkeypatch.setattr(image_files, "TILE", 64)
    sizes: list[int] = []
    real = image_files._opaque
    monkeypatch.setattr(image_files, "_opaque", lambda image: sizes.append(image.width * image.height) or real(image))
    assert np.array_equal(np.asarray(image_files.to_rgb(picture)), usual)
    assert (sum(sizes), max(sizes)) == (150 * 200, 64 * 64)


def test_an_image_in_rgb_is_not_copied() -> None:
    """A photograph of 100 million pixels took 0.8 GB where it was needed whole."""
    image = Image.new("RGB", (3, 2))
    assert image_files.to_rgb(image) is image
    image.info["transparency"] = (0, 0, 0)
    assert image_files.to_rgb(image) is not image


def test_the_image_of_a_file_outlives_it(tmp_path: Path) -> None:
    gradient_file = put(tmp_path / "a.png", Image.fromarray(gradient(20, 30)))
    with image_files.open_image(gradient_file) as image:
        whole = image_files.to_rgb(image)
    assert np.array_equal(np.asarray(whole), gradient(20, 30))


def test_rotated_jpeg_comes_upright(tmp_path: Path) -> None:
    laid = Image.fromarray(gradient()).transpose(UNDO[6])
    assert laid.size == (SIZE[0], SIZE[1])  # lies on its side: width 16, height 24
    pixels = decode_image(put(tmp_path / "a.jpg", laid, exif=tags(6), quality=95), SIZE)
    assert np.abs(pixels.transpose(1, 2, 0).astype(int) - gradient()).max() <= 15


def test_rotated_jpeg_keeps_its_detail_at_unequal_sides(tmp_path: Path) -> None:
    stripes = np.zeros((512, 4096, 3), np.uint8)
    stripes[np.arange(512) % 32 < 16] = 255  # level stripes, 8 px high after halving
    upright = put(tmp_path / "upright.jpg", Image.fromarray(stripes))
    laid = put(tmp_path / "laid.jpg", Image.fromarray(stripes).transpose(UNDO[6]), exif=tags(6))
    difference = decode_image(upright, (256, 32)).astype(int) - decode_image(laid, (256, 32))
    assert np.abs(difference).max() <= 20


def test_grey(tmp_path: Path) -> None:
    assert colour(decode_image(put(tmp_path / "a.png", Image.new("L", (30, 30), 100)), SIZE)) == (100, 100, 100)


def test_black_and_white(tmp_path: Path) -> None:
    assert colour(decode_image(put(tmp_path / "a.png", Image.new("1", (30, 30), 1)), SIZE)) == (255, 255, 255)


@pytest.mark.parametrize(("alpha", "seen"), [(255, 100), (0, 255), (51, 224)])
def test_grey_with_alpha_lies_on_white(tmp_path: Path, alpha: int, seen: int) -> None:
    path = put(tmp_path / "a.png", Image.new("LA", (30, 30), (100, alpha)))
    assert colour(decode_image(path, SIZE)) == (seen, seen, seen)  # 100 a + 255 (1 - a)


@pytest.mark.parametrize(("alpha", "seen"), [(255, (200, 0, 50)), (0, (255, 255, 255)), (51, (244, 204, 214))])
def test_colour_with_alpha_lies_on_white(tmp_path: Path, alpha: int, seen: tuple[int, int, int]) -> None:
    path = put(tmp_path / "a.png", Image.new("RGBA", (30, 30), (200, 0, 50, alpha)))
    assert colour(decode_image(path, SIZE)) == seen


def palette_image() -> Image.Image:
    image = Image.new("P", (30, 30), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    return image


def test_palette(tmp_path: Path) -> None:
    assert colour(decode_image(put(tmp_path / "a.png", palette_image()), SIZE)) == (200, 100, 50)


@pytest.mark.parametrize(("clear", "seen"), [(1, (255, 255, 255)), (0, (200, 100, 50))])
def test_palette_with_transparency(tmp_path: Path, clear: int, seen: tuple[int, int, int]) -> None:
    path = put(tmp_path / "a.png", palette_image(), transparency=clear)
    with Image.open(path) as saved:
        assert saved.mode == "P"
        assert "transparency" in saved.info
    assert colour(decode_image(path, SIZE)) == seen


def test_transparent_colour_of_an_rgb_png(tmp_path: Path) -> None:
    path = put(tmp_path / "a.png", Image.new("RGB", (30, 30), (1, 2, 3)), transparency=(1, 2, 3))
    assert colour(decode_image(path, SIZE)) == (255, 255, 255)


def test_cmyk_jpeg(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jpg", Image.new("CMYK", (30, 30), (0, 255, 255, 0)), quality=95)
    with Image.open(path) as saved:
        assert saved.mode == "CMYK"
    red, green, blue = colour(decode_image(path, SIZE))
    assert red >= 250
    assert max(green, blue) <= 5


@pytest.mark.parametrize(("stored", "seen"), [(0, 0), (257 * 100, 100), (257 * 100 + 120, 100), (65535, 255)])
def test_sixteen_bit_grey_is_scaled(tmp_path: Path, stored: int, seen: int) -> None:
    path = put(tmp_path / "a.png", Image.fromarray(np.full((30, 30), stored, np.uint16)))
    with Image.open(path) as saved:
        assert saved.mode == "I;16"
    assert colour(decode_image(path, SIZE)) == (seen, seen, seen)


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_first_frame_of_an_animation(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (24, 16), colour) for colour in ((200, 10, 10), (10, 200, 10))]
    path = put(tmp_path / f"a{suffix}", frames[0], save_all=True, append_images=frames[1:], lossless=True)
    assert colour(decode_image(path, SIZE)) == (200, 10, 10)


@pytest.mark.parametrize("ending", ["bmp", "gif", "tif", "webp", "png", "jpg", "avif"])
def test_formats(tmp_path: Path, ending: str) -> None:
    if f".{ending}" not in image_files.SUFFIXES:
        pytest.skip("this Pillow has no such format")
    path = tmp_path / f"a.{ending}"
    Image.fromarray(gradient(32, 32)).save(path)
    assert decode_image(path, (16, 16)).shape == (3, 16, 16)
    assert len(ImageFolder.open(path)) == 1


def test_pixels_of_unknown_range_are_refused(tmp_path: Path) -> None:
    for mode, value in (("F", 0.5), ("I", 70_000), ("I", -1)):
        Image.new(mode, (20, 20), value).save(tmp_path / "a.tif")
        with pytest.raises(ValueError, match="pixels"):
            decode_image(tmp_path / "a.tif", SIZE)
    Image.new("I", (20, 20), 257 * 128).save(tmp_path / "a.tif")
    assert (decode_image(tmp_path / "a.tif", SIZE) == 128).all()


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("cut", [b"MM\x00*\x00", b"MM\x00*", b"II*\x00\x08\x00\x00\x00\x05"])
def test_damaged_orientation_data_does_not_stop_the_folder(tmp_path: Path, cut: bytes) -> None:
    put(tmp_path / "a/fits.png")
    put(tmp_path / "a/tags.png", Image.fromarray(gradient()), exif=b"Exif\x00\x00" + cut)
    source = ImageSource.load(tmp_path, SIZE, max_broken=0.5)
    assert len(source) + len(source.broken) == 2
