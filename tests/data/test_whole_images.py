"""Crops of whole images: against Pillow's own crop and resize, their order, label maps beside them, odd files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import tilework
from small_data import write_images
from tilework.augment import Flip, Normalise, RandomResizedCrop, TwoViews, WholeCrop
from tilework.augment.two_views import COLUMN, OtherView
from tilework.core.config import resolve
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.data import ImageFolder, ImageSource, Loader, RandomCrops, WholeImages, image_limits, whole_images
from tilework.data.label_maps import LabelMaps, MapsCard, write_maps
from tilework.data.score_map import ScoreMap
from tilework.runs.build import split_crop
from tilework.store.label_maps import encode_map

CROP = (24, 16)
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Smooth, with a little noise, and different everywhere."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def write(root: Path, images: list[Image.Image], suffix: str = "png", **options: object) -> ImageFolder:
    (root / "all").mkdir(parents=True)
    for i, image in enumerate(images):
        image.save(root / f"all/{i:03d}.{suffix}", **options)
    return ImageFolder.open(root)


def pillow(image: Image.Image, box: tuple[float, ...], size: tuple[int, int] = CROP) -> np.ndarray:
    """torchvision's resized_crop of an image: cut first, then resize. box: top, left, height, width."""
    top, left, height, width = map(int, box)
    cut = image.crop((left, top, left + width, top + height))
    return np.asarray(cut.resize(size[::-1], Image.Resampling.BICUBIC))


def crops(folder: ImageFolder, size: tuple[int, int] = CROP, kept: bool = True) -> RandomCrops:
    images = WholeImages.scan(folder, (32, 32), size, 0.5)
    if not kept:
        images._whole = None
    return RandomCrops(images, ImageSource.blank(images.folder, (1, 1)), size, AREA, ASPECT)


def boxes_of(source: RandomCrops, seed: int, epoch: int, number: np.ndarray) -> list[tuple[float, ...]]:
    return list(zip(*(part.tolist() for part in source._boxes(seed, epoch, number)), strict=True))


SHAPES = [(40, 60), (60, 40), (33, 33), (9, 70), (70, 9), (1, 1), (1, 50), (5, 4), (200, 100)]


@pytest.mark.parametrize("kept", [True, False])
def test_crops_are_those_of_pillow(tmp_path: Path, kept: bool) -> None:
    images = [picture(*shape, seed=i) for i, shape in enumerate(SHAPES[:-1])]  # no more than twice the crop
    source = crops(write(tmp_path, images), kept=kept)
    number = np.arange(len(images))
    for epoch in range(4):
        batch = source.draw(7, epoch, number)
        assert batch.x.shape == (len(images), 3, *CROP)
        for image, box, x in zip(images, boxes_of(source, 7, epoch, number), batch.x, strict=True):
            assert np.array_equal(x.permute(1, 2, 0).numpy(), pillow(image, box))


def test_boxes_are_those_of_the_crop_on_the_device(tmp_path: Path) -> None:
    """The same draws and the same rule as 'random_resized_crop', on images of one size."""
    source = crops(write(tmp_path, [picture(30, 50)] * 40))
    number = np.arange(40) + 40  # second copies
    found = torch.tensor(boxes_of(source, 3, 2, number))
    batch = source.batch(number % 40).changed(x=torch.zeros(40, 3, 30, 50))
    p = RandomResizedCrop(CROP, AREA, ASPECT).sample(Draws(3, 2, torch.from_numpy(number)), batch)
    height, width = p[:, 1, 1] * 30, p[:, 0, 0] * 50
    top, left = (p[:, 1, 2] + 1) * 15 - height / 2, (p[:, 0, 2] + 1) * 25 - width / 2
    assert torch.allclose(found, torch.stack([top, left, height, width], 1), atol=1e-3)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_rotated_files_are_cut_upright(tmp_path: Path, turn: int, suffix: str) -> None:
    """Pillow's exif_transpose first, then its crop; large enough for a file to be decoded at half its size."""
    exif = Image.Exif()
    exif[0x0112] = turn
    folder = write(tmp_path, [picture(160, 280)], suffix, exif=exif, **({"quality": 95} if suffix == "jpg" else {}))
    with Image.open(folder.paths[0]) as file:
        upright = ImageOps.exif_transpose(file).convert("RGB")
    source = crops(folder, kept=False)
    assert source.images.sides.tolist() == [[upright.height, upright.width]]
    for epoch in range(6):
        x = source.draw(0, epoch, np.arange(1)).x[0].permute(1, 2, 0).numpy().astype(float)
        wanted = pillow(upright, boxes_of(source, 0, epoch, np.arange(1))[0]).astype(float)
        assert np.sqrt(((x - wanted) ** 2).mean()) < 2.0


def test_large_files_are_decoded_no_finer_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, [picture(480, 640)], "jpg", quality=95)
    seen: list[tuple[int, int]] = []
    real = whole_images._enclose
    monkeypatch.setattr(whole_images, "_enclose", lambda b, s, held: (seen.append(held), real(b, s, held))[1])
    with Image.open(folder.paths[0]) as file:
        full = file.convert("RGB")
    for box in ((0.0, 0.0, 480.0, 640.0), (100.0, 50.0, 101.0, 333.0), (7.0, 9.0, 24.0, 16.0)):
        x = whole_images.cut_file(folder.paths[0], (480, 640), box, CROP).astype(float)
        assert np.sqrt(((x - pillow(full, box)) ** 2).mean()) < 2.0
    assert seen == [(60, 80), (240, 320), (480, 640)]  # an eighth; a half: 36 of 101 rows; all


def test_large_crops_are_averaged_before_they_are_resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were copied whole. Oracle: the same crop where it does not count as large."""
    file, sides, box = tmp_path / "a.png", (600, 900), (20.5, 100.25, 500.0, 640.5)
    rows, columns = np.mgrid[:600, :900]
    smooth = np.stack([rows / 3, columns / 4, 128 + 100 * np.sin(rows / 40) * np.cos(columns / 50)], -1)
    Image.fromarray(smooth.astype(np.uint8)).save(file)
    usual = whole_images.cut_file(file, sides, box, (32, 40))
    cropped: list[object] = []
    monkeypatch.setattr(Image.Image, "crop", lambda *told: cropped.append(told))
    monkeypatch.setattr(image_limits, "LARGE", 500 * 640)
    found = whole_images.cut_file(file, sides, box, (32, 40))
    assert not cropped
    assert np.abs(found.astype(int) - usual).max() <= 2


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    """As the middle squares do; grey stays grey."""
    image = picture(40, 40).convert("L")
    image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257) if mode == "I;16" else image.convert(mode)
    folder = write(tmp_path, [image], "jpg" if mode == "CMYK" else "png")
    for kept in (True, False):
        x = crops(folder, kept=kept).draw(0, 0, np.arange(1)).x
        assert x.dtype == torch.uint8
        assert (x.float().std(1) < 3).all()
    rule = whole_images.cut_file(folder.paths[0], (40, 40), (0.0, 0.0, 40.0, 40.0), (32, 32))
    assert np.array_equal(rule.transpose(2, 0, 1), ImageSource.load(tmp_path, (32, 32)).batch(np.arange(1)).x[0])


def test_order_is_a_function_of_seed_epoch_and_sample(tmp_path: Path) -> None:
    folder = write(tmp_path, [picture(*shape, seed=i) for i, shape in enumerate(SHAPES * 2)])
    source, again = crops(folder), crops(folder)
    whole = list(Loader(source, 6, seed=5).run(0, 9))  # three epochs of three steps
    for start in (1, 4, 8):  # as after an interruption
        for one, other in zip(whole[start:], Loader(again, 6, seed=5).run(start, 9), strict=True):
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.index, other.index)
    for rank in (0, 1, 2):
        for one, part in zip(whole, Loader(again, 6, seed=5, rank=rank, world=3).run(0, 9), strict=True):
            assert torch.equal(one.x[2 * rank : 2 * rank + 2], part.x)
            assert torch.equal(one.target.ids[2 * rank : 2 * rank + 2], part.target.ids)
    wide = np.array([0, 0 + len(source)])  # two copies of a sample
    first = source.draw(5, 0, wide)
    assert first.index.tolist() == wide.tolist()
    assert not torch.equal(first.x[0], first.x[1])
    assert not torch.equal(first.x[0], source.draw(5, 1, wide).x[0])
    assert not torch.equal(first.x[0], source.draw(6, 0, wide).x[0])


def test_kept_images_are_small_and_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, [picture(300, 200), picture(40, 60), picture(100, 48)], "jpg")
    source = crops(folder).images
    assert source._whole is not None
    assert [image.shape for image in source._whole] == [(72, 48, 3), (40, 60, 3), (100, 48, 3)]
    assert source.sides.tolist() == [[300, 200], [40, 60], [100, 48]]
    monkeypatch.setattr(whole_images, "KEEP_BYTES", 20_000)
    assert crops(folder).images._whole is None
    kept, read = (crops(folder, kept=flag) for flag in (True, False))
    for epoch in range(5):  # boxes are the same; pixels nearly, as far as what is kept is fine enough
        x, y = (one.draw(0, epoch, np.arange(3)).x.float() for one in (kept, read))
        assert (x - y).pow(2).mean().sqrt() < 3


def test_broken_files_are_set_aside(tmp_path: Path) -> None:
    folder = write(tmp_path, [picture(40, 30, i) for i in range(4)])
    folder.paths[1].write_bytes(folder.paths[1].read_bytes()[:200])
    source = crops(folder)
    assert [one.path for one in source.images.broken] == ["all/001.png"]
    assert (len(source), source.images.sides.shape) == (3, (3, 2))
    assert source.images.folder.keys == ("all/000.png", "all/002.png", "all/003.png")
    with pytest.raises(InputError, match=r"1 of 4 images in .* cannot be read"):
        WholeImages.scan(folder, (32, 32), CROP, 0.1)


# label maps


@pytest.mark.parametrize(("height", "width"), [(48, 96), (96, 48), (64, 64)])
def test_labels_lie_where_the_colours_are(tmp_path: Path, height: int, width: int) -> None:
    """The middle square is painted in the colours of its map's classes, the rest of the image green: no label there."""
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    paint = np.zeros((height, width, 3), np.uint8)
    paint[..., 1] = 255
    quarters = np.array([[0, 1], [2, 3]])
    values = np.kron(quarters, np.ones((side // 2, side // 2), int)) * 60 + 30
    paint[top : top + side, left : left + side] = np.stack([values, 0 * values, 0 * values], -1)
    folder = write(tmp_path / "images", [Image.fromarray(paint)] * 12)
    card = MapsCard(("all", "b", "c", "d"), (side, side), 1, "paint", side)
    fine = np.kron(quarters, np.ones((side // 2, side // 2), int))[..., None]
    write_maps(tmp_path / "maps", card, folder.keys, [[encode_map(fine, np.ones(fine.shape)) for _ in folder.keys]])
    folder = ImageFolder(folder.root, folder.paths, folder.labels, card.classes)
    images = WholeImages.scan(folder, (32, 32), (32, 32))
    labelled = LabelMaps.open(tmp_path / "maps").attach(ImageSource.blank(images.folder, (1, 1)), "images")
    source = RandomCrops(images, labelled, (32, 32), AREA, ASPECT)
    outside = inside = 0
    for epoch in range(4):
        batch = source.draw(0, epoch, np.arange(12))
        column = batch.columns["label_map"]
        assert isinstance(column, ScoreMap)
        target = column.target(8, 8)
        found = torch.zeros(12, 64, 4).scatter_add_(2, target.ids, target.weight)
        cells = batch.x.unfold(2, 4, 4).unfold(3, 4, 4).flatten(4).flatten(2, 3)  # (B, 3, 64, 16)
        for i in range(12):
            for token in range(64):
                red, green = cells[i, 0, token].int(), cells[i, 1, token]
                if (green > 250).all():
                    outside += 1
                    assert found[i, token].sum() < 0.15
                elif (green < 5).all() and red.max() - red.min() < 2:
                    inside += 1
                    label = round((red.float().mean().item() - 30) / 60)
                    assert found[i, token, label] > 0.85  # a fine edge may lie beside it
    assert inside > 500
    assert (outside > 100) == (height != width)
    squares = source.batch(np.arange(2))
    assert squares.x.shape == (2, 3, 32, 32)
    assert "label_map" in squares.columns


# runs

SMALL = ["fit.epochs=0", "fit.steps=4", "fit.batch=8", "fit.log_every=1", "fit.evaluate_every=0", "model.width=32"]
SMALL += ["model.depth=1", "model.heads=2"]


def whole_run(recipe: str, *more: str) -> tilework.runs.Run:
    run = resolve(tilework.recipes.recipes[recipe].run, None, [*SMALL, *more])
    return resolve(run, None, ["augment.0.name=whole_crop"])


def logged(out: Path) -> list[float]:
    return [line["loss"] for line in map(json.loads, (out / "log.jsonl").read_text().splitlines()) if "norm" in line]


def test_run_on_whole_images_goes_on_where_it_stopped(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 3, 8, side=40)
    run = whole_run("tl_align_cpu")
    assert isinstance(run.augment[0], WholeCrop)
    tilework.fit(run, images, images, tmp_path / "a", "cpu", quiet=True)
    half = resolve(run, None, ["fit.save_every=2", "fit.keep=9"])
    tilework.fit(half, images, images, tmp_path / "b", "cpu", quiet=True)
    whole = logged(tmp_path / "a")
    assert len(whole) == 4
    assert logged(tmp_path / "b") == whole
    shutil.rmtree(tmp_path / "b/checkpoints/step-00000004")
    (tmp_path / "b/checkpoints/latest").write_text("step-00000002")
    tilework.fit(half, images, images, tmp_path / "b", "cpu", quiet=True)
    assert logged(tmp_path / "b") == whole
    squares = resolve(run, None, ["augment.0.name=random_resized_crop"])
    tilework.fit(squares, images, images, tmp_path / "c", "cpu", quiet=True)
    assert logged(tmp_path / "c") != whole


def test_run_with_label_maps_on_whole_images(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 3, 8, side=40)
    keys, classes = ImageFolder.open(images).keys, ("class0", "class1", "class2")
    ids, scores = np.zeros((4, 4, 1), np.int64), np.ones((4, 4, 1))
    write_maps(
        tmp_path / "maps", MapsCard(classes, (4, 4), 1, "x", 128), keys, [[encode_map(ids, scores) for _ in keys]]
    )
    run = whole_run("lv_labels_cpu", f"maps={tmp_path / 'maps'}")
    tilework.fit(run, images, images, tmp_path / "a", "cpu", quiet=True)
    assert np.isfinite(logged(tmp_path / "a")).all()


def test_two_views_are_two_crops(tmp_path: Path) -> None:
    """Each view is what the steps after the crop make of its own box of the whole image."""
    folder = write(tmp_path / "images", [picture(40, 70, i) for i in range(4)])
    images = WholeImages.scan(folder, (32, 32), CROP)
    source = RandomCrops(images, ImageSource.blank(folder, (1, 1)), CROP, AREA, ASPECT, (COLUMN, OtherView))
    batch, number = source.draw(2, 1, np.arange(4)), np.arange(4)
    out = TwoViews((Flip(0.0), Normalise())).build()
    made = out.apply(batch, out.sample(Draws(2, 1, batch.index), batch))
    other = made.columns[COLUMN]
    assert isinstance(other, OtherView)
    for x, seed in ((made.x, 2), (other.x, ~2)):
        cut = [pillow(picture(40, 70, i), box) for i, box in enumerate(boxes_of(source, seed, 1, number))]
        plain = batch.changed(x=torch.from_numpy(np.stack(cut)).permute(0, 3, 1, 2), columns={})
        assert torch.allclose(x, Normalise().apply(plain, None).x, atol=1e-5)
    assert not torch.equal(made.x, other.x)


def test_moco_on_whole_images(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 3, 8, side=40)
    small = ["objective.hidden=32", "objective.outputs=16"]
    run = resolve(tilework.recipes.recipes["good_moco_cpu"].run, None, [*SMALL, *small])
    run = resolve(run, None, ["augment.0.views.0.name=whole_crop"])
    assert isinstance(split_crop(run)[0], WholeCrop)
    tilework.fit(run, images, None, tmp_path / "a", "cpu", quiet=True)
    assert np.isfinite(logged(tmp_path / "a")).all()


def test_crop_that_is_not_first_is_refused(tmp_path: Path) -> None:
    run = resolve(whole_run("tl_align_cpu"), None, [])
    later = tilework.runs.Run(run.model, run.objective, (Flip(), *run.augment), run.evaluation)
    with pytest.raises(ConfigError, match="'whole_crop' is not the first augmentation"):
        split_crop(later)
    with pytest.raises(ConfigError, match="'whole_crop' is not the first augmentation"):
        split_crop(tilework.runs.Run(run.model, run.objective, (Flip(), TwoViews((WholeCrop(),))), run.evaluation))
    assert split_crop(tilework.runs.Run(run.model, run.objective, (), run.evaluation)) == (None, ())


def test_token_store_is_refused(tmp_path: Path, store: Path) -> None:
    with pytest.raises(ConfigError, match=r"trains on images, but .* is a token store"):
        tilework.fit(whole_run("tl_align_cpu"), store, None, tmp_path / "a", "cpu", quiet=True)
