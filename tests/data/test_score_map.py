"""Label maps follow crops, flips, swaps and mixtures; the known faults of public code are excluded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tilework.augment import CentreCrop, CutMix, Flip, MixToken, RandomResizedCrop, TokenEda, apply_all
from tilework.augment.crop import box_affine
from tilework.core.affine import follow
from tilework.core.batch import Batch, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.score_map import ScoreMap

MIRROR = torch.tensor([[[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])


def make(batch: int = 2, rows: int = 6, columns: int = 6, k: int = 3, classes: int = 50, seed: int = 0) -> ScoreMap:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(batch, rows, columns, k, generator=generator).sort(-1, descending=True).values
    ids = torch.rand(batch, rows, columns, classes, generator=generator).argsort(-1)[..., :k]
    return ScoreMap(ids, scores / scores.sum(-1, keepdim=True) * 0.9)


def by_row(rows: int = 8) -> ScoreMap:
    """The class of every place is its row."""
    ids = torch.arange(rows).view(1, rows, 1, 1).expand(1, rows, rows, 1)
    return ScoreMap(ids, torch.ones(1, rows, rows, 1))


def dense(target: Target, classes: int = 50) -> Tensor:
    """(B, N, classes)."""
    return torch.zeros(*target.ids.shape[:2], classes).scatter_add_(2, target.ids, target.weight)


def box(top: float, left: float, height: float, width: float, batch: int = 1) -> Tensor:
    return box_affine(*(torch.full((batch,), float(value)) for value in (top, left, height, width)))


def slow(maps: ScoreMap, height: int, width: int, classes: int = 50) -> Tensor:
    """Bilinear look-up of full score vectors, point by point, averaged over each token, then normalised."""
    batch, rows, columns = maps.ids.shape[:3]
    full = torch.zeros(batch, rows, columns, classes).scatter_add_(3, maps.ids, maps.scores)
    affine = torch.eye(2, 3).repeat(batch, 1, 1) if maps.affine is None else maps.affine
    p, q = max(1, round(rows / height)), max(1, round(columns / width))
    out = torch.zeros(batch, height * width, classes)
    for b in range(batch):
        for i in range(height * p):
            for j in range(width * q):
                at = torch.tensor([(2 * j + 1) / (width * q) - 1, (2 * i + 1) / (height * p) - 1, 1.0])
                x, y = (affine[b] @ at).tolist()
                x = min(max((x + 1) * columns / 2 - 0.5, 0), columns - 1)
                y = min(max((y + 1) * rows / 2 - 0.5, 0), rows - 1)
                x0, y0 = min(int(x), columns - 1), min(int(y), rows - 1)
                x1, y1 = min(x0 + 1, columns - 1), min(y0 + 1, rows - 1)
                value = (1 - (y - y0)) * ((1 - (x - x0)) * full[b, y0, x0] + (x - x0) * full[b, y0, x1])
                value = value + (y - y0) * ((1 - (x - x0)) * full[b, y1, x0] + (x - x0) * full[b, y1, x1])
                out[b, (i // p) * width + j // q] += value
    return out / out.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("rows", "columns", "height", "width"), [(6, 6, 6, 6), (6, 9, 4, 5), (7, 7, 3, 2), (2, 1, 4, 4)]
)
def test_equals_the_slow_formula(rows: int, columns: int, height: int, width: int) -> None:
    affine = torch.cat([box(0.1, 0.2, 0.7, 0.5), box(0.0, 0.4, 0.3, 0.6)])
    turn = torch.tensor([[[0.8, -0.3, 0.1], [0.3, 0.9, -0.2]]])
    maps = make(rows=rows, columns=columns).warp(follow(affine, turn.expand(2, 2, 3)), (9, 9))
    target = maps.target(height, width)
    assert torch.allclose(dense(target), slow(maps, height, width), atol=1e-5)
    assert (target.weight.sum(-1) - 1).abs().max() <= 1e-6


def test_the_whole_image_at_the_size_of_the_map_is_the_map() -> None:
    maps = make()
    full = torch.zeros(2, 36, 50).scatter_add_(2, maps.ids.flatten(1, 2), maps.scores.flatten(1, 2))
    for one in (maps, maps.warp(box(0, 0, 1, 1, 2), (6, 6))):
        assert torch.allclose(dense(one.target(6, 6)), full / full.sum(-1, keepdim=True), atol=1e-6)


def test_the_upper_half_has_only_upper_rows() -> None:
    """Not the left half: boxes are not transposed."""
    target = by_row().warp(box(0.0, 0.0, 0.5, 1.0), (8, 8)).target(4, 4)
    assert target.ids[target.weight > 0].max() <= 4  # a bilinear point at the edge of row 3 may touch row 4
    rows = (dense(target)[0] * torch.arange(50)).sum(-1).view(4, 4)
    assert torch.allclose(rows, torch.tensor([0.125, 1.0, 2.0, 3.0])[:, None].expand(4, 4), atol=1e-5)
    left = by_row().warp(box(0.0, 0.0, 1.0, 0.5), (8, 8)).target(8, 4)
    assert set(left.ids[left.weight > 0].tolist()) == set(range(8))


def test_flips_turn_columns_around_and_back() -> None:
    maps = make(1)
    once = maps.warp(MIRROR, (6, 6)).target(6, 6)
    there = dense(once).view(6, 6, 50)
    assert torch.allclose(there.flip(1), dense(maps.target(6, 6)).view(6, 6, 50), atol=1e-6)
    twice = maps.warp(MIRROR, (6, 6)).warp(MIRROR, (6, 6)).target(6, 6)
    assert torch.allclose(dense(twice), dense(maps.target(6, 6)), atol=1e-6)


def test_a_batch_of_one_is_a_row_of_a_batch_of_two() -> None:
    two = make().warp(torch.cat([box(0.1, 0.2, 0.5, 0.5), box(0, 0, 1, 1)]), (6, 6))
    one = two.rows(slice(0, 1)).target(3, 3)
    assert torch.equal(one.ids, two.target(3, 3).ids[:1])
    assert torch.equal(one.weight, two.target(3, 3).weight[:1])


def test_large_numbers_of_classes_survive() -> None:
    maps = ScoreMap(torch.tensor([70_001, 2**31 + 5]).view(1, 1, 2, 1), torch.ones(1, 1, 2, 1))
    target = maps.warp(MIRROR, (1, 2)).target(1, 2)
    assert [target.ids[0, i][target.weight[0, i] > 0.5].tolist() for i in (0, 1)] == [[2**31 + 5], [70_001]]


def test_places_without_scores_are_no_division_by_zero() -> None:
    maps = ScoreMap(torch.zeros(1, 2, 2, 3, dtype=torch.long), torch.zeros(1, 2, 2, 3))
    assert maps.target(2, 2).weight.isfinite().all()


def pixels(maps: ScoreMap, side: int = 12) -> Batch:
    count = len(maps.ids)
    x = torch.zeros(count, 3, side, side)
    return Batch(x, Target.hard(torch.arange(count)), torch.arange(count), {"label_map": maps})


def test_crop_and_flip_of_a_pipeline_move_the_map() -> None:
    """An image whose pixels hold their own coordinates, and a map of the same places."""
    side = 12
    ids = torch.arange(side * side).view(1, side, side, 1)
    image = ids[..., 0].float()[:, None].expand(1, 3, side, side)
    batch = Batch(
        image, Target.hard(torch.zeros(1).long()), torch.tensor([3]), {"m": ScoreMap(ids, torch.ones(ids.shape))}
    )
    for steps in ([CentreCrop((6, 6))], [Flip(1.0)], [CentreCrop((6, 6)), Flip(1.0)]):
        out = apply_all(steps, batch, Draws(0, 0, batch.index))
        height, width = out.x.shape[2:]
        moved = out.columns["m"].target(height, width)  # type: ignore[attr-defined]
        best = moved.ids.gather(2, moved.weight.argmax(2, keepdim=True))[..., 0]
        assert torch.equal(best.view(1, height, width).float(), out.x[:, 0])


def test_random_crops_look_at_the_same_place_as_the_image() -> None:
    side, count = 16, 20
    ramp = torch.arange(side).float()[None, None, :, None].expand(count, 3, side, side)
    maps = by_row(side)
    maps = ScoreMap(maps.ids.expand(count, -1, -1, -1), maps.scores.expand(count, -1, -1, -1))
    batch = Batch(ramp, Target.hard(torch.arange(count)), torch.arange(count), {"m": maps})
    out = apply_all([RandomResizedCrop((8, 8), area=(0.3, 1.0))], batch, Draws(0, 0, batch.index))
    rows = (dense(out.columns["m"].target(8, 8)) * torch.arange(50)).sum(-1).view(count, 8, 8)  # type: ignore[attr-defined]
    inner = slice(1, -1)  # bicubic overshoots at the edge of a box, bilinear does not
    assert (rows[:, inner] - out.x[:, 0, inner]).abs().max() < 0.35


def test_swapped_codes_take_their_labels_along() -> None:
    codebook = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(64).view(1, 8, 8) % 9
    maps = ScoreMap(torch.arange(64).view(1, 8, 8, 1), torch.ones(1, 8, 8, 1))
    batch = Batch(ids.int(), Target.hard(torch.zeros(1).long()), torch.tensor([5]), {"m": maps})
    out = apply_all([TokenEda(synonym=0, swap=1).build(Codebook.of(codebook))], batch, Draws(1, 0, batch.index))
    target = out.columns["m"].target(8, 8)  # type: ignore[attr-defined]
    best = target.ids.gather(2, target.weight.argmax(2, keepdim=True))[0, :, 0]
    assert torch.equal(best % 9, out.x.flatten().long()), "label and code came from the same place"
    assert not torch.equal(best, torch.arange(64))


def test_cutmix_boxes_bring_their_labels() -> None:
    maps = make(2)
    out = apply_all([CutMix()], pixels(maps), Draws(0, 0, torch.arange(2)))
    target = dense(out.columns["label_map"].target(6, 6))  # type: ignore[attr-defined]
    assert out.mix is not None
    own = out.mix.at(6, 6).flatten(1)[..., None]
    plain = dense(maps.target(6, 6))
    assert torch.allclose(target, own * plain + (1 - own) * plain.flip(0), atol=1e-5)
    assert 0 < own.mean() < 1


@pytest.mark.parametrize("seed", range(6))
def test_mix_token_is_one_box_of_tokens_for_all(seed: int) -> None:
    batch = pixels(make(5))
    out = apply_all([MixToken((6, 6))], batch, Draws(seed, 0, batch.index, step=seed))
    assert out.mix is not None
    assert out.mix.after_stem
    assert torch.equal(out.x, batch.x)
    assert torch.equal(out.mix.own, out.mix.own[:1].expand(5, 6, 6))
    box = out.mix.own[0] == 0
    rows, columns = box.any(1).nonzero()[:, 0], box.any(0).nonzero()[:, 0]
    assert box.sum() == len(rows) * len(columns), "a box"
    assert out.target.weight[:, 0].tolist() == pytest.approx([1 - len(rows) * len(columns) / 36] * 5)
    assert out.mix.partner.tolist() == [4, 3, 2, 1, 0]


def test_mix_token_sizes_follow_the_share() -> None:
    """Sides int(g sqrt(1 - lambda)) rounded down to even by halving: the mean uncut area is that of a slow loop."""
    batch = pixels(make(2))
    areas = [
        float((MixToken((14, 14)).sample(Draws(0, 0, batch.index, step=i), batch).own[0] == 0).float().mean())
        for i in range(600)
    ]
    rng, expected = np.random.default_rng(0), []
    for _ in range(20_000):
        length, cx, cy = int(14 * rng.random() ** 0.5), rng.integers(14), rng.integers(14)
        sides = [min(14, c + length // 2) - max(0, c - length // 2) for c in (cx, cy)]
        expected.append(sides[0] * sides[1] / 196)
    assert np.mean(areas) == pytest.approx(np.mean(expected), abs=0.03)
    assert MixToken((14, 14), probability=0.0).sample(Draws(0, 0, batch.index), batch).own.min() == 1


def test_what_follows_a_mixture_is_refused() -> None:
    mixed = make().mix(Mix(torch.tensor([1, 0]), torch.ones(2, 6, 6)))
    with pytest.raises(ConfigError, match="before mixing"):
        mixed.warp(MIRROR.expand(2, 2, 3), (6, 6))
    with pytest.raises(ConfigError, match="before mixing"):
        mixed.permute(torch.zeros(2, 6, 6, dtype=torch.long))
    with pytest.raises(ConfigError, match="mixed again"):
        mixed.mix(Mix(torch.tensor([1, 0]), torch.ones(2, 6, 6)))
    with pytest.raises(ConfigError, match="split"):
        mixed.rows(slice(1))


def test_to_keeps_everything() -> None:
    maps = replace(make(), affine=MIRROR.expand(2, 2, 3))
    there = maps.to(torch.device("cpu"))
    assert torch.equal(there.target(3, 3).weight, maps.target(3, 3).weight)
