"""Image folders: formats, modes, orientation, quarantine, refusals."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tilework.core.errors import BrokenImagesError, InputError
from tilework.data import ImageFolder, ImageSource, decode_image, images

SIZE = (16, 24)  # H, W
HTML = b"<!doctype html><html><body>404 Not Found</body></html>"
ORIENTATION = 0x0112
UNDO = {  # how to lay an upright picture so that the orientation tag brings it back
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def gradient(height: int = SIZE[0], width: int = SIZE[1]) -> np.ndarray:
    """Red rises to the right, green falls downwards, blue is low: no symmetry. Returns (H, W, 3) uint8."""
    red = np.broadcast_to(np.linspace(20, 230, width), (height, width))
    green = np.broadcast_to(np.linspace(240, 10, height)[:, None], (height, width))
    return np.stack([red, green, np.full_like(red, 30)], -1).astype(np.uint8)


def put(path: Path, image: Image.Image | bytes | None = None, **options: object) -> Path:
    """Save a picture, or raw bytes, making the folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(image, bytes):
        path.write_bytes(image)
    else:
        (image or Image.fromarray(gradient())).save(path, **options)
    return path


def tags(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def colour(image: np.ndarray) -> tuple[int, ...]:
    """The one colour of a decoded picture (3, H, W)."""
    flat = image.reshape(3, -1)
    assert (flat == flat[:, :1]).all()
    return tuple(flat[:, 0].tolist())


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


# decoding


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


# listing


@pytest.mark.parametrize("suffix", [".png", ".webp"])
def test_first_frame_of_an_animation(tmp_path: Path, suffix: str) -> None:
    frames = [Image.new("RGB", (24, 16), colour) for colour in ((200, 10, 10), (10, 200, 10))]
    path = put(tmp_path / f"a{suffix}", frames[0], save_all=True, append_images=frames[1:], lossless=True)
    assert colour(decode_image(path, SIZE)) == (200, 10, 10)


def test_a_file_that_may_not_be_read_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "x/a.png")
    shut = put(tmp_path / "x/b.png")
    opened = Image.open

    def guarded(path: Path, **options: object) -> Image.Image:
        if path == shut:
            raise PermissionError(13, "Permission denied")
        return opened(path, **options)

    monkeypatch.setattr(images.Image, "open", guarded)
    source = ImageSource.load(tmp_path, SIZE, max_broken=0.5)
    assert [(one.path, one.reason) for one in source.broken] == [("x/b.png", "[Errno 13] Permission denied")]


def test_folder_lists_sorted_with_labels_and_keys(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/1.JPG", "a/deep/3.webp", "a/9.jpeg"):
        put(tmp_path / name, b"x")
    folder = ImageFolder.open(tmp_path)
    assert folder.keys == ("a/9.jpeg", "a/deep/3.webp", "b/1.JPG", "b/2.png")
    assert folder.labels.tolist() == [0, 0, 1, 1]
    assert folder.classes == ("a", "b")
    assert folder.bytes == 4


def test_other_suffixes_are_counted_and_hidden_files_left_out(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/notes.txt", "b/2.png", "b/film.mov", "b/none", "b/.hidden.png", ".cache/3.png"):
        put(tmp_path / name, b"x")
    folder = ImageFolder.open(tmp_path)
    assert folder.keys == ("a/1.png", "b/2.png")
    assert folder.skipped == {".txt": 1, ".mov": 1, "without ending": 1}
    assert "3 files are not images" in folder.notes[-1]
    assert folder.classes == ("a", "b")


def test_given_classes_number_the_labels(tmp_path: Path) -> None:
    for name in ("cat/1.png", "dog/1.png"):
        put(tmp_path / name, b"x")
    folder = ImageFolder.open(tmp_path, classes=("dog", "eel", "cat"))
    assert folder.classes == ("dog", "eel", "cat")
    assert dict(zip(folder.keys, folder.labels.tolist(), strict=True)) == {"cat/1.png": 2, "dog/1.png": 0}


def test_take_keeps_paths_and_labels_together(tmp_path: Path) -> None:
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        put(tmp_path / name, b"x")
    taken = ImageFolder.open(tmp_path).take(np.array([2, 0]))
    assert taken.keys == ("b/3.png", "a/1.png")
    assert taken.labels.tolist() == [1, 0]
    assert len(taken) == 2


def test_unknown_class_is_refused_by_name(tmp_path: Path) -> None:
    put(tmp_path / "cat/1.png", b"x")
    put(tmp_path / "owl/1.png", b"x")
    with pytest.raises(InputError, match="'owl'"):
        ImageFolder.open(tmp_path, classes=("cat", "dog"))


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder .*nowhere"):
        ImageFolder.open(tmp_path / "nowhere")


def test_file_instead_of_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a file"):
        ImageFolder.open(put(tmp_path / "a.mov", b"x"))


def test_one_photograph_has_no_label(tmp_path: Path) -> None:
    folder = ImageFolder.open(put(tmp_path / "a.png"))
    assert (folder.keys, folder.classes) == (("a.png",), ("unlabelled",))
    with pytest.raises(InputError, match="has no labels"):
        ImageFolder.open(tmp_path / "a.png", classes=("cat", "dog"))


def test_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no class folders"):
        ImageFolder.open(tmp_path)


def test_images_without_class_folders_have_no_labels(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    folder = ImageFolder.open(tmp_path)
    assert folder.classes == ("unlabelled",)
    assert "1 images without labels" in folder.remarks[0]
    with pytest.raises(InputError, match="has no labels"):
        ImageFolder.open(tmp_path, classes=("cat", "dog"))


def nested(root: Path) -> Path:
    for name in ("fruit/apple/1.png", "fruit/pear/red/2.png", "fruit/pear/green/3.png", "milk/4.png", "empty/x.txt"):
        put(root / name, b"x")
    return root


def test_nested_class_folders_are_said_aloud(tmp_path: Path) -> None:
    folder = ImageFolder.open(nested(tmp_path))
    assert folder.classes == ("fruit/apple", "fruit/pear/green", "fruit/pear/red", "milk")
    assert "classes are the 4 folders that hold images, not the 2 folders of the first level" in folder.remarks[0]
    assert "1 class folders hold no images (empty)" in folder.remarks[1]
    top = ImageFolder.open(tmp_path, level="top")
    assert top.classes == ("empty", "fruit", "milk")
    assert "classes are the 2 folders of the first level" in top.remarks[0]


@pytest.mark.parametrize("classes", [("fruit", "milk"), ("fruit/apple", "fruit/pear/green", "fruit/pear/red", "milk")])
def test_known_classes_choose_the_level(tmp_path: Path, classes: tuple[str, ...]) -> None:
    folder = ImageFolder.open(nested(tmp_path), classes=classes)
    assert folder.classes == classes
    assert len(set(folder.labels.tolist())) == len(classes)


def test_a_folder_of_images_in_each_class_is_no_doubt(tmp_path: Path) -> None:
    for name in ("n01/images/1.png", "n02/images/2.png"):
        put(tmp_path / name, b"x")
    folder = ImageFolder.open(tmp_path)
    assert (folder.classes, folder.remarks) == (("n01", "n02"), ())


@pytest.mark.parametrize("ending", ["bmp", "gif", "tif", "webp", "png", "jpg", "avif"])
def test_formats(tmp_path: Path, ending: str) -> None:
    if f".{ending}" not in images.SUFFIXES:
        pytest.skip("this Pillow has no such format")
    path = tmp_path / f"a.{ending}"
    Image.fromarray(gradient(32, 32)).save(path)
    assert decode_image(path, (16, 16)).shape == (3, 16, 16)
    assert len(ImageFolder.open(path)) == 1


def test_class_folders_without_images_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "a/readme.txt", b"x")
    with pytest.raises(InputError, match="holds no images"):
        ImageFolder.open(tmp_path)


# quarantine


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


def test_too_many_pixels_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LARGEST", 30 * 30)
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


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("cut", [b"MM\x00*\x00", b"MM\x00*", b"II*\x00\x08\x00\x00\x00\x05"])
def test_damaged_orientation_data_does_not_stop_the_folder(tmp_path: Path, cut: bytes) -> None:
    put(tmp_path / "a/fits.png")
    put(tmp_path / "a/tags.png", Image.fromarray(gradient()), exif=b"Exif\x00\x00" + cut)
    source = ImageSource.load(tmp_path, SIZE, max_broken=0.5)
    assert len(source) + len(source.broken) == 2


def test_all_broken_files_are_named_alike(tmp_path: Path) -> None:
    put(tmp_path / "a/good.png")
    for i in range(1001):
        (tmp_path / f"a/{i:04d}.png").touch()
    source = ImageSource.load(tmp_path, SIZE, max_broken=1.0)
    assert [b.path for b in source.broken] == [f"a/{i:04d}.png" for i in range(1001)]


# memory


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
