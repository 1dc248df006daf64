"""RandAugment: every operation against Pillow, frequencies and strengths, purity, columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import rand_augment
from tilework.augment.augment import Augment, apply_all, output_shape
from tilework.augment.normalise import Normalise
from tilework.augment.rand_augment import Choice, Op, RandAugment, affine_map
from tilework.core.batch import Batch, Mix, Shape, Target
from tilework.core.rng import Draws

FILL = (124, 116, 104)
OPS = [op for op in Op if op != Op.NONE]
TABLES, BLENDS, WARPS = OPS[:6], OPS[6:10], OPS[10:]


def pillow(image: Image.Image, op: Op, level: float, sign: float) -> Image.Image:
    """One operation on one image, by Pillow."""
    width, height = image.size
    if op == Op.AUTO_CONTRAST:
        return ImageOps.autocontrast(image)
    if op == Op.EQUALISE:
        return ImageOps.equalize(image)
    if op == Op.INVERT:
        return ImageOps.invert(image)
    if op == Op.POSTERISE:
        return ImageOps.posterize(image, max(1, 4 - int(level * 4)))
    if op == Op.SOLARISE:
        return ImageOps.solarize(image, 256 - int(level * 256))
    if op == Op.SOLARISE_ADD:
        return image.point([i + int(level * 110) if i < 128 else i for i in range(256)] * 3)
    if op in BLENDS:
        names = ["Color", "Contrast", "Brightness", "Sharpness"]
        return getattr(ImageEnhance, names[op - Op.COLOUR])(image).enhance(1 + sign * 0.9 * level)
    if op == Op.ROTATE:
        return image.rotate(sign * level * 30, Image.Resampling.BILINEAR, fillcolor=FILL)
    shear, shift = sign * level * 0.3, sign * level * 0.45
    matrix = {
        Op.SHEAR_X: (1, shear, 0, 0, 1, 0),
        Op.SHEAR_Y: (1, 0, 0, shear, 1, 0),
        Op.TRANSLATE_X: (1, 0, shift * width, 0, 1, 0),
        Op.TRANSLATE_Y: (1, 0, 0, 0, 1, shift * height),
    }
    if op not in matrix:
        return image
    transform = Image.Transform.AFFINE
    return image.transform(image.size, transform, matrix[op], Image.Resampling.BILINEAR, fillcolor=FILL)


def by_pillow(x: Tensor, p: Choice) -> Tensor:
    """All slots of every sample, one after the other. x: (B, 3, H, W) bytes."""
    rows = []
    for pixels, ops, levels, signs in zip(x.permute(0, 2, 3, 1).numpy(), *(t.tolist() for t in p), strict=True):
        image = Image.fromarray(pixels)
        for op, level, sign in zip(ops, levels, signs, strict=True):
            image = pillow(image, Op(op), level, sign)
        rows.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
    return torch.stack(rows)


def images(size: int = 8, height: int = 37, width: int = 53, seed: int = 0) -> Tensor:
    """Random images, each of its own range, from smooth to noisy."""
    g = torch.Generator().manual_seed(seed)
    coarse = F.interpolate(torch.rand(size, 3, 5, 5, generator=g), (height, width), mode="bilinear")
    noise = torch.rand(size, 3, height, width, generator=g)
    x = torch.lerp(coarse, noise, torch.linspace(0, 1, size).view(-1, 1, 1, 1))
    low, high = torch.rand(2, size, 3, 1, 1, generator=g) * 127
    return (low + (128 + high - low) * x).to(torch.uint8)


def make_batch(x: Tensor) -> Batch:
    return Batch(x, Target.hard(torch.zeros(len(x), dtype=torch.int64)), torch.arange(len(x)) * 7 + 3)


def choice(op: Op, levels: Tensor, sign: float = 1.0) -> Choice:
    """The same operation for all samples in one slot."""
    return Choice(torch.full((len(levels), 1), int(op)), levels[:, None], torch.full((len(levels), 1), sign))


def applied(x: Tensor, p: Choice) -> Tensor:
    return RandAugment().apply(make_batch(x), p).x


LEVELS = torch.tensor([0.0, 0.13, 0.37, 0.52, 0.78, 0.903, 0.97, 1.0])


# against Pillow


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("op", TABLES + BLENDS, ids=lambda op: op.name)
@pytest.mark.parametrize(("height", "width"), [(37, 53), (16, 16), (96, 64), (3, 5), (1, 2)])
def test_tables_and_blends_give_the_bytes_of_pillow(op: Op, height: int, width: int, sign: float) -> None:
    x, p = images(8, height, width), choice(op, LEVELS, sign)
    assert torch.equal(applied(x, p), by_pillow(x, p))


@pytest.mark.parametrize("op", TABLES + BLENDS, ids=lambda op: op.name)
@pytest.mark.parametrize("value", [0, 1, 100, 254, 255])
def test_constant_images(op: Op, value: int) -> None:
    x, p = torch.full((8, 3, 20, 20), value, dtype=torch.uint8), choice(op, LEVELS)
    assert torch.equal(applied(x, p), by_pillow(x, p))


@pytest.mark.parametrize("op", [Op.AUTO_CONTRAST, Op.EQUALISE], ids=lambda op: op.name)
def test_images_of_few_values(op: Op) -> None:
    g = torch.Generator().manual_seed(1)
    low = torch.randint(0, 250, (400, 3, 1, 1), generator=g)
    high = low + torch.randint(1, 256, low.shape, generator=g) % (256 - low).clamp(max=12)
    x = torch.where(torch.rand(400, 3, 19, 23, generator=g) < torch.rand(400, 3, 1, 1, generator=g), low, high)
    x = x.to(torch.uint8)
    p = choice(op, torch.zeros(400))
    assert torch.equal(applied(x, p), by_pillow(x, p))


def test_every_range_is_stretched_as_pillow_does() -> None:
    """Ramps from any darkest to any brightest value: where the cut to whole numbers is a matter of the last bit."""
    pairs = torch.combinations(torch.arange(256))[::37]  # (882, 2)
    ramps = torch.arange(256).expand(len(pairs), -1).clamp(pairs[:, :1], pairs[:, 1:])
    x = ramps.view(-1, 1, 16, 16).expand(-1, 3, -1, -1).to(torch.uint8)
    p = choice(Op.AUTO_CONTRAST, torch.zeros(len(x)))
    assert torch.equal(applied(x, p), by_pillow(x, p))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("op", WARPS, ids=lambda op: op.name)
@pytest.mark.parametrize(("height", "width"), [(37, 53), (64, 64), (90, 41)])
def test_warps_are_within_a_level_of_pillow(op: Op, height: int, width: int, sign: float) -> None:
    x, p = images(8, height, width), choice(op, 0.99 * LEVELS, sign)  # no border on the middle of a pixel
    apart = (applied(x, p).int() - by_pillow(x, p).int()).abs()
    assert (apart > 1).float().mean() < 1e-3  # a border pixel may fall on the other side
    assert apart.float().mean() < 0.55  # Pillow cuts off, we round


@pytest.mark.parametrize("op", WARPS, ids=lambda op: op.name)
def test_warps_fill_what_they_uncover(op: Op) -> None:
    x = torch.zeros(1, 3, 40, 40, dtype=torch.uint8)
    out = applied(x, choice(op, torch.ones(1)))
    filled = out[0, 0] == FILL[0]
    for channel, value in enumerate(FILL):
        assert torch.equal(out[0, channel], filled.to(torch.uint8) * value)  # the rest stays
    share = {Op.ROTATE: 0.18, Op.SHEAR_X: 0.15, Op.SHEAR_Y: 0.15}.get(op, 0.45)
    assert filled.float().mean().item() == pytest.approx(share, abs=0.03)


def test_slots_follow_one_another() -> None:
    batch = make_batch(images(256, 24, 24))
    augment = RandAugment(ops=3, probability=0.9)
    p = augment.sample(Draws(2, 1, batch.index), batch)
    apart = (augment.apply(batch, p).x.int() - by_pillow(batch.x, p).int()).abs()
    without_warp = (p.op < Op.ROTATE).all(1)
    assert without_warp.sum() > 30
    assert apart[without_warp].max() == 0
    single = ((p.op >= Op.ROTATE) & (p.op < Op.NONE)).any(1) & (p.op >= Op.ROTATE).all(1)  # warps and nothing else
    assert single.sum() > 3
    assert apart[single].float().mean() < 1.5


# samples without an operation, other rows


def test_none_leaves_every_byte() -> None:
    x = images()
    assert torch.equal(applied(x, choice(Op.NONE, LEVELS)), x)
    batch = make_batch(x)
    assert torch.equal(apply_all([RandAugment(probability=0.0)], batch, Draws(0, 0, batch.index)).x, x)


def test_computing_all_samples_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off the CPU every operation is computed for every sample, and kept where it was drawn."""
    batch = make_batch(images(64, 20, 28))
    some = apply_all([RandAugment(probability=0.9)], batch, Draws(0, 0, batch.index)).x
    monkeypatch.setattr(rand_augment, "can_count", lambda device: False)
    assert torch.equal(apply_all([RandAugment(probability=0.9)], batch, Draws(0, 0, batch.index)).x, some)


def test_order_and_company_do_not_matter() -> None:
    augment, batch = RandAugment(probability=0.9), make_batch(images(8))
    whole = apply_all([augment], batch, Draws(3, 2, batch.index)).x
    turned = batch.changed(x=batch.x.flip(0), index=batch.index.flip(0))
    assert torch.equal(apply_all([augment], turned, Draws(3, 2, turned.index)).x.flip(0), whole)
    for i in range(8):
        alone = batch.rows(slice(i, i + 1))
        assert torch.equal(apply_all([augment], alone, Draws(3, 2, alone.index)).x, whole[i : i + 1])
    assert not torch.equal(apply_all([augment], batch, Draws(3, 3, batch.index)).x, whole)
    assert not torch.equal(apply_all([augment], batch, Draws(4, 2, batch.index)).x, whole)


def test_input_is_left_alone() -> None:
    batch = make_batch(images(32))
    apply_all([RandAugment(probability=1.0)], batch, Draws(0, 0, batch.index))
    assert torch.equal(batch.x, images(32))


def test_floats_are_rounded_to_bytes_first() -> None:
    batch, draws = make_batch(images(32)), Draws(0, 0, make_batch(images(32)).index)
    jitter = torch.rand(batch.x.shape, generator=torch.Generator().manual_seed(0)) * 0.9 - 0.45
    out = apply_all([RandAugment()], batch.changed(x=batch.x + jitter), draws).x
    assert out.dtype == torch.float32
    assert torch.equal(out, apply_all([RandAugment()], batch, draws).x.float())
    beyond = batch.changed(x=torch.where(batch.x > 200, 300.0, batch.x.float()))  # a bicubic crop overshoots
    out = apply_all([RandAugment()], beyond, draws).x
    assert out.min() >= 0
    assert out.max() <= 255


def test_chain_with_normalise() -> None:
    chain = [Augment.choices["rand_augment"](), Normalise()]
    assert output_shape(chain, Shape("pixels", 3, (32, 32))).stage == "pixels"
    batch = make_batch(images(16))
    out = apply_all(chain, batch, Draws(0, 0, batch.index)).x
    assert out.dtype == torch.float32
    assert out.isfinite().all()


# what is drawn


def drawn(augment: RandAugment, size: int = 30_000) -> Choice:
    x = torch.zeros(1, 3, 1, 1, dtype=torch.uint8).expand(size, -1, -1, -1)
    return augment.sample(Draws(0, 0, torch.arange(size)), make_batch(x))


def test_half_of_the_slots_are_empty_and_the_rest_are_uniform() -> None:
    p = drawn(RandAugment())
    assert p.op.shape == p.level.shape == p.sign.shape == (30_000, 2)
    for slot in range(2):
        counts = p.op[:, slot].bincount(minlength=16) / 30_000
        assert counts[Op.NONE].item() == pytest.approx(0.5, abs=0.01)
        assert counts[: Op.NONE].numpy() == pytest.approx(np.full(15, 1 / 30), abs=0.005)
    both = (p.op[:, 0] == p.op[:, 1]) & (p.op[:, 0] != Op.NONE)
    assert both.float().mean().item() == pytest.approx(1 / 60, abs=0.003)  # with replacement


def test_levels_are_normal_around_the_magnitude_and_clipped() -> None:
    level = drawn(RandAugment()).level.flatten() * 10
    free = drawn(RandAugment(magnitude=5.0)).level.flatten() * 10
    assert free.mean().item() == pytest.approx(5.0, abs=0.01)
    assert free.std().item() == pytest.approx(0.5, abs=0.01)
    for z in (-1.5, -0.5, 0.0, 1.0):
        normal = (1 + math.erf(z / math.sqrt(2))) / 2
        assert (free < 5 + 0.5 * z).float().mean().item() == pytest.approx(normal, abs=0.01)
    assert level.max() == 10
    assert (level == 10).float().mean().item() == pytest.approx(0.0228, abs=0.003)  # beyond two deviations
    assert torch.equal(drawn(RandAugment(deviation=0.0), 9).level, torch.full((9, 2), 0.9))


def test_signs_are_balanced_and_independent() -> None:
    p = drawn(RandAugment())
    assert set(p.sign.unique().tolist()) == {-1.0, 1.0}
    for op in OPS:
        assert p.sign[p.op == op].mean().item() == pytest.approx(0, abs=0.1)
    columns = torch.stack([p.op.float(), p.level, p.sign], -1).flatten(1)  # (B, 2 * 3)
    assert (torch.corrcoef(columns.T) - torch.eye(6)).abs().max() < 0.03


# columns


@dataclass(frozen=True)
class MapColumn:
    """A column that follows by torch's general sampler."""

    data: Tensor

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> MapColumn:
        places = F.affine_grid(affine, [len(affine), self.data.shape[1], *grid], align_corners=False)
        return MapColumn(F.grid_sample(self.data, places, align_corners=False))

    def permute(self, source: Tensor) -> MapColumn:
        raise NotImplementedError

    def mix(self, mix: Mix) -> MapColumn:
        raise NotImplementedError

    def to(self, device: torch.device) -> MapColumn:
        return self

    def rows(self, which: slice) -> MapColumn:
        return MapColumn(self.data[which])


def test_columns_follow_the_warps_and_nothing_else() -> None:
    x = images(64, 24, 36)
    op = torch.arange(128).view(64, 2) % 16
    p = Choice(op, torch.full((64, 2), 0.5), torch.tensor([1.0, -1.0]).repeat(64, 1))
    batch = make_batch(x).changed(columns={"copy": MapColumn(x.float())})
    out = RandAugment(fill=(0, 0, 0)).apply(batch, p)
    copy = out.columns["copy"].data
    still = ((op < Op.ROTATE) | (op == Op.NONE)).all(1)
    assert torch.allclose(copy[still], x[still].float(), atol=0.01)
    moved = (op >= Op.ROTATE).all(1)
    assert moved.sum() >= 8
    assert (copy - out.x.float())[moved].abs().median() <= 1
    assert (copy - x.float())[moved].abs().median() > 5


def test_maps_of_a_square() -> None:
    """By hand: x' = x + f (y + 1), twice the shift, a turn about the centre."""
    op = torch.tensor([Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y, Op.ROTATE, Op.INVERT])
    maps = affine_map(op, torch.tensor([1.0, -1.0, 0.5, -0.5, 1.0, 1.0]), 1.0)
    root = math.sqrt(3) / 2
    expected = [
        [[1, 0.3, 0.3], [0, 1, 0]],
        [[1, 0, 0], [-0.3, 1, -0.3]],
        [[1, 0, 0.45], [0, 1, 0]],
        [[1, 0, 0], [0, 1, -0.45]],
        [[root, -0.5, 0], [0.5, root, 0]],
        [[1, 0, 0], [0, 1, 0]],
    ]
    assert torch.allclose(maps, torch.tensor(expected), atol=1e-6)
