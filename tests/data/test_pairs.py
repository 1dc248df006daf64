"""Images and masks on disk: layouts, numbers, and everything that is refused or set aside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from small_data import write_images, write_pairs
from tilework.core.batch import Batch
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.data import ImageFolder, TokenSource, image_files
from tilework.data.class_mask import VOID, ClassMask
from tilework.data.file_list import FileList
from tilework.data.masked import PairSource, find_masks, has_masks, images_without_class
from tilework.data.open_images import open_images
from tilework.data.pairs import CAMVID, VOC, Numbers, PairFolder, coloured, mask_png, open_pairs, palette
from tilework.store import Store, StoreWriter
from tilework.store.masks import encode_mask


def picture(path: Path, sides: tuple[int, int] = (6, 8), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (sides[1], sides[0])).save(path)


def mask(path: Path, values: object = 0, sides: tuple[int, int] = (6, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(sides, values, np.uint8)).save(path)


def opened(path: Path) -> PairFolder:
    found = open_pairs(path)
    assert found is not None
    return found


def test_images_and_masks_side_by_side(tmp_path: Path) -> None:
    folder = opened(write_pairs(tmp_path / "data"))
    assert folder.classes == ("ground", "disc", "box")
    assert len(folder) == 8
    found = folder.read_mask(0, (40, 56))
    assert set(np.unique(found)) <= {0, 1, 2, VOID}
    assert (found[20] == VOID).all()
    assert folder.take(np.array([3])).masks[0] == tmp_path / "data/masks/003.png"
    assert folder.mask_bytes > 0


def test_camvid_as_segnet_has_it(tmp_path: Path) -> None:
    picture(tmp_path / "train/a.png")
    mask(tmp_path / "trainannot/a.png", 11)
    folder = opened(tmp_path / "train")
    assert folder.classes == CAMVID
    assert (folder.read_mask(0) == VOID).all()


def test_ade20k_counts_from_one(tmp_path: Path) -> None:
    picture(tmp_path / "images/training/a.jpg")
    mask(tmp_path / "annotations/training/a.png", np.arange(48).reshape(6, 8) % 4)
    lines = [
        "Idx\tRatio\tTrain\tVal\tStuff\tName",
        "1\t.1\t1\t1\t1\twall",
        "2\t.1\t1\t1\t1\tbuilding, edifice",
        "3\t0\t0\t0\t0\tsky",
    ]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(lines))
    folder = opened(tmp_path / "images/training")
    assert folder.classes == ("wall", "building", "sky")
    assert folder.read_mask(0)[0, :4].tolist() == [VOID, 0, 1, 2]
    picture(tmp_path / "images/validation/b.jpg")
    with pytest.raises(InputError, match=r"holds parts \(training, validation\): give .*images/training"):
        open_pairs(tmp_path)


def test_voc_by_its_lists(tmp_path: Path) -> None:
    picture(tmp_path / "JPEGImages/a.jpg")
    picture(tmp_path / "JPEGImages/b.jpg")
    indexed = Image.new("P", (8, 6), 15)
    indexed.putpalette([0] * 768)
    (tmp_path / "SegmentationClass").mkdir()
    indexed.save(tmp_path / "SegmentationClass/a.png")
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/train.txt").write_text("a\n")
    folder = opened(tmp_path / "ImageSets/Segmentation/train.txt")
    assert folder.classes == VOC
    assert len(folder) == 1
    assert (folder.read_mask(0) == 15).all()  # a palette PNG holds class numbers too
    with pytest.raises(InputError, match=r"holds all parts of VOC: give .*train\.txt"):
        open_pairs(tmp_path)
    (tmp_path / "ImageSets/Segmentation/bad.txt").write_text("../a\n")
    with pytest.raises(InputError, match="has the name"):
        open_pairs(tmp_path / "ImageSets/Segmentation/bad.txt")


def test_a_folder_that_is_the_working_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """'.' has no name of its own, nor has '/'."""
    picture(tmp_path / "train/a.png")
    monkeypatch.chdir(tmp_path / "train")
    assert open_pairs(Path(".")) is None
    assert open_images(Path(".")).keys == ("a.png",)
    assert open_pairs(Path("/")) is None
    mask(tmp_path / "trainannot/a.png", 1)
    (tmp_path / "classes.txt").write_text("one\ntwo\n")
    folder = opened(Path("."))
    assert folder.classes == ("one", "two")
    assert (folder.keys, folder.read_mask(0, (6, 8)).tolist()) == (("a.png",), [[1] * 8] * 6)


@pytest.mark.parametrize("above", ["ImageSets", "ImageSets/Segmentation"])
def test_a_list_of_voc_by_a_short_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, above: str) -> None:
    picture(tmp_path / "JPEGImages/a.jpg")
    mask(tmp_path / "SegmentationClass/a.png", 3)
    (tmp_path / "ImageSets/Segmentation").mkdir(parents=True)
    (tmp_path / "ImageSets/Segmentation/train.txt").write_text("a\n")
    monkeypatch.chdir(tmp_path / above)
    folder = opened((tmp_path / "ImageSets/Segmentation/train.txt").relative_to(tmp_path / above))
    assert (folder.read_mask(0, (6, 8)) == 3).all()


def test_a_table_of_pairs(tmp_path: Path) -> None:
    picture(tmp_path / "x/a.png")
    mask(tmp_path / "y/b.png", 1)
    (tmp_path / "classes.txt").write_text("one\ntwo\n")
    table = tmp_path / "pairs.csv"
    table.write_text("image,mask\nx/a.png,y/b.png\n")
    assert (opened(table).read_mask(0) == 1).all()
    for text, what in (
        ("image,mask\n../a.png,y/b.png\n", "line 2 .* has the image"),
        ("image,mask\nx/a.png,/etc/passwd\n", "line 2 .* has the mask"),
        (f"image,mask\nx/a.png,{'9' * 300}\n", "line 2 .* has the mask"),
        ("image,mask\n,y/b.png\n", "line 2 .* has the image ''"),
        ("image,mask\nx/a.png,y/b.png\nx/a.png,y/b.png\n", "line 3 .* has the image"),
    ):
        table.write_text(text)
        with pytest.raises(InputError, match=what):
            open_pairs(table)
    table.write_text("path,label\nx/a.png,cat\n")
    assert open_pairs(table) is None  # a table of labels


def test_numbers_and_their_meaning() -> None:
    numbers = Numbers(("a", "b"), void=(7,), shift=-1)
    assert numbers.read(np.array([[0, 1, 2, 7, 255]])).tolist() == [[VOID, 0, 1, VOID, VOID]]
    with pytest.raises(ValueError, match=r"class 3 of a mask, and the classes are 1 to 2: name it in classes\.txt, or"):
        numbers.read(np.array([[3]]))
    with pytest.raises(ValueError, match="class 300"):
        Numbers(("a",)).read(np.array([[300]]))


@pytest.mark.parametrize("mode", ["1", "L", "I;16", "I"])
def test_large_masks_are_read_by_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Only one byte a pixel is kept of them, besides what Pillow holds."""
    values = np.random.default_rng(0).integers(0, 2, (300, 500))
    Image.fromarray(values.astype(np.uint8)).save(tmp_path / "a.png")
    drawn = Image.fromarray(values.astype(bool if mode == "1" else {"I;16": np.uint16, "I": np.int32}.get(mode, "u1")))
    assert drawn.mode == mode
    path = tmp_path / f"m.{'tif' if mode == 'I' else 'png'}"
    drawn.save(path)
    files = FileList.of(tmp_path, [tmp_path / "a.png"])
    folder = PairFolder(tmp_path, files, np.zeros(1, int), ("a", "b"), {}, (), (path,), Numbers(("a", "b")))
    sizes: list[int] = []
    real = Numbers.read
    monkeypatch.setattr(Numbers, "read", lambda self, mask: sizes.append(mask.size) or real(self, mask))
    monkeypatch.setattr(image_files, "TILE", 128)
    assert np.array_equal(folder.read_mask(0, (300, 500)), values)
    assert (sum(sizes), max(sizes)) == (values.size, 128 * 128)


def test_folders_that_say_too_little_are_refused(tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "data")
    with pytest.raises(InputError, match="other classes than training \\('ground'\\)"):
        open_pairs(root, ("a", "disc", "box"))
    with pytest.raises(InputError, match=r"other classes than training \(3, not 2\)"):
        open_pairs(root, ("ground", "disc"))
    (root / "dataset.json").write_text('{"shift": 3}')
    with pytest.raises(InputError, match="is malformed"):
        open_pairs(root)
    (root / "dataset.json").unlink()
    (root / "classes.txt").write_text("a\na\n")
    with pytest.raises(InputError, match="names a class twice"):
        open_pairs(root)
    (root / "classes.txt").unlink()
    with pytest.raises(InputError, match=r"holds masks, but no classes\.txt says what their numbers mean"):
        open_pairs(root)
    assert open_pairs(write_images(tmp_path / "classes")) is None


def test_masks_are_not_taken_for_a_class(tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "data")
    with pytest.raises(InputError, match=r"the same names .* as images and masks do, not classes"):
        ImageFolder.open(root)


def spoil(root: Path) -> None:
    """One of each: another size, a colour picture, no mask, a strange number, void everywhere, a broken image."""
    mask(root / "masks/000.png", 0, (40, 55))
    picture(root / "masks/001.png", (40, 56))
    (root / "masks/002.png").unlink()
    mask(root / "masks/003.png", 9, (40, 56))
    mask(root / "masks/004.png", 3, (40, 56))
    (root / "images/005.png").write_bytes(b"no picture")


def test_what_cannot_be_used_is_set_aside_with_its_reason(tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "data", count=12)
    spoil(root)
    source = PairSource.scan(opened(root), (24, 32), "squash", max_broken=0.5)
    reasons = {one.path.rpartition("/")[2]: one.reason for one in source.broken}
    assert sorted(reasons) == ["000.png", "001.png", "002.png", "003.png", "005.png"]
    assert "its mask has 40x55 pixels, the image 40x56" in reasons["000.png"]
    assert "a picture of mode RGB, not of class numbers" in reasons["001.png"]
    assert "no mask" in reasons["002.png"]
    assert "class 9 of a mask" in reasons["003.png"]
    assert (len(source), source.void, images_without_class(source)) == (7, 1, 1)
    with pytest.raises(InputError, match="5 of 12 images"):
        PairSource.scan(opened(root), (24, 32), "squash", max_broken=0.1)


def test_data_without_a_labelled_pixel_are_refused(tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "data", count=2)
    for number in range(2):
        mask(root / f"masks/{number:03d}.png", 3, (40, 56))
    with pytest.raises(InputError, match=r"no mask of .* has a labelled pixel"):
        PairSource.scan(opened(root), (24, 32))


def column_of(batch: Batch) -> ClassMask:
    column = batch.columns["mask"]
    assert isinstance(column, ClassMask)
    return column


def test_batches_carry_masks_at_their_own_size(tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "data")
    source = PairSource.scan(opened(root), (24, 32), "squash")
    with_masks = find_masks(root, "").attach(source, "data")
    batch = with_masks.batch(np.array([2, 0]))
    assert batch.x.shape == (2, 3, 24, 32)
    assert column_of(batch).ids.shape == (2, 40, 56)
    assert np.array_equal(column_of(batch).of_row(1).numpy(), opened(root).read_mask(0))
    assert has_masks(with_masks)
    assert with_masks.classes == ("ground", "disc", "box")
    kept, source._masks = column_of(batch).ids, None  # too many to keep: read again
    assert np.array_equal(column_of(with_masks.batch(np.array([2, 0]))).ids, kept)


def write_masked_store(path: Path, masks: list[bytes]) -> Path:
    rng = np.random.default_rng(0)
    with StoreWriter(path, rng.normal(size=(8, 4)).astype(np.float32), ["a", "b"]) as writer:
        writer.add(
            rng.integers(0, 8, (len(masks), 4, 6)), np.zeros(len(masks), int), [str(i) for i in range(len(masks))]
        )
    Store(path).add_column("mask", masks)
    return path


def test_stores_keep_masks(tmp_path: Path) -> None:
    masks = [np.random.default_rng(i).integers(0, 2, (12 + i, 18)).astype(np.uint8) for i in range(3)]
    path = write_masked_store(tmp_path / "s.tok", [encode_mask(one) for one in masks])
    source = find_masks(path, "").attach(TokenSource(Store(path)), "s.tok")
    for _ in range(2):  # decoded, then kept
        batch = source.batch(np.array([2, 1]))
        assert np.array_equal(column_of(batch).of_row(0).numpy(), masks[2])
    assert has_masks(source)
    assert Store(path).column_bytes("mask") > 0


def test_bad_masks_of_stores_are_refused(tmp_path: Path) -> None:
    path = write_masked_store(tmp_path / "s.tok", [encode_mask(np.full((4, 6), 5, np.uint8))])
    with pytest.raises(DamageError, match="names a class beyond its list"):
        find_masks(path, "").attach(TokenSource(Store(path)), "s").batch(np.array([0]))
    with StoreWriter(tmp_path / "no.tok", np.zeros((2, 4), np.float32), ["a", "b"]) as writer:
        writer.add(np.zeros((1, 4, 6), int), [0], ["x"])
    with pytest.raises(InputError, match=r"no\.tok has no masks: tokenize the images with --masks"):
        find_masks(tmp_path / "no.tok", "")
    with pytest.raises(ConfigError, match=r"the objective needs masks, and .* has none"):
        find_masks(write_images(tmp_path / "classes"), "")


def test_pairs_can_be_tokenized(tmp_path: Path) -> None:
    assert isinstance(open_images(write_pairs(tmp_path / "data")), PairFolder)


def test_colours_and_files_of_masks(tmp_path: Path) -> None:
    assert len(np.unique(palette(150), axis=0)) == 150
    ids = np.array([[0, 1], [2, VOID]], np.uint8)
    (tmp_path / "m.png").write_bytes(mask_png(ids, 3))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "m.png")), ids)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "m.png").convert("RGB")), coloured(ids, 3))
