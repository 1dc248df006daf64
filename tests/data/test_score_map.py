"""Label maps follow crops, flips, swaps and mixtures; the known faults of public code are excluded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tilework.augment import CentreCrop, CutMix, Flip, MixToken, RandAugment, RandomResizedCrop, TokenEda, apply_all
from tilework.augment.rand_augment import Choice, Op
from tilework.core.affine import box_affine, follow
from tilework.core.batch import Batch, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.score_map import ScoreMap
from tilework.store.label_maps import decode_maps, encode_map

MIRROR = torch.tensor([[[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])


def make(batch: int = 2, rows: int = 6, columns: int = 6, k: int = 3, classes: int = 50, seed: int = 0) -> ScoreMap:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(batch, rows, columns, k, generator=generator).sort(-1, descending=True).values
    ids = torch.rand(batch, rows, columns, classes, generator=generator).argsort(-1)[..., :k]
    total = 0.2 + 0.8 * torch.rand(batch, rows, columns, 1, generator=generator)  # the rest is doubt
    return ScoreMap.of_scores(ids, scores / scores.sum(-1, keepdim=True) * total, classes)


def by_row(rows: int = 8) -> ScoreMap:
    """The class of every place is its row."""
    ids = torch.arange(rows).view(1, rows, 1, 1).expand(1, rows, rows, 1)
    return ScoreMap.of_scores(ids, torch.ones(1, rows, rows, 1), 50)


def dense(target: Target, classes: int = 50) -> Tensor:
    """(B, N, classes)."""
    assert target.spread is not None
    even = (target.spread.sum(-1, keepdim=True) / classes).expand(-1, -1, classes)
    return even.scatter_add(2, target.ids, target.weight)


def full(maps: ScoreMap, classes: int = 50) -> Tensor:
    """Every class of every place, (B, h, w, classes)."""
    return (maps.spread[..., None] / classes).repeat(1, 1, 1, classes).scatter_add_(3, maps.ids, maps.weight)


def box(top: float, left: float, height: float, width: float, batch: int = 1) -> Tensor:
    return box_affine(*(torch.full((batch,), float(value)) for value in (top, left, height, width)))


def slow(maps: ScoreMap, height: int, width: int, classes: int = 50) -> Tensor:
    """Bilinear look-up of full score vectors, point by point, averaged over each token."""
    batch, rows, columns = maps.ids.shape[:3]
    everything = full(maps, classes)
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
                upper = (1 - (x - x0)) * everything[b, y0, x0] + (x - x0) * everything[b, y0, x1]
                lower = (1 - (x - x0)) * everything[b, y1, x0] + (x - x0) * everything[b, y1, x1]
                out[b, (i // p) * width + j // q] += (1 - (y - y0)) * upper + (y - y0) * lower
    return out / (p * q)


# doubt


def spread_by_hand(ids: Tensor, scores: Tensor, classes: int) -> Tensor:
    """One place after another: the level to which the rest lifts all classes below it, found by halving."""
    out = torch.zeros(*ids.shape[:3], classes)
    for place in np.ndindex(*ids.shape[:3]):
        own = np.zeros(classes)
        own[ids[place].numpy()] = scores[place].numpy() / max(1.0, float(scores[place].sum()))
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if np.maximum(own, middle).sum() > 1 else (middle, high)
        out[place] = torch.from_numpy(np.maximum(own, low))
    return out


@pytest.mark.parametrize(("k", "classes"), [(1, 1), (1, 2), (3, 3), (3, 4), (3, 50), (5, 10)])
@pytest.mark.parametrize("most", [0.0, 0.08, 0.5, 1.0, 1.03])
def test_what_scores_leave_goes_to_the_other_classes(k: int, classes: int, most: float) -> None:
    """most: their sum; rounding can take it above one. All but one class are dropped at every other place."""
    generator = torch.Generator().manual_seed(k)
    ids = torch.rand(2, 3, 4, classes, generator=generator).argsort(-1)[..., :k]
    scores = torch.rand(2, 3, 4, k, generator=generator).sort(-1, descending=True).values
    scores[..., 1:][:, :, ::2] = 0
    scores = scores / scores.sum(-1, keepdim=True) * most
    maps = ScoreMap.of_scores(ids, scores, classes)
    found = full(maps, classes)
    assert torch.allclose(found, spread_by_hand(ids, scores, classes), atol=1e-6)
    assert torch.allclose(maps.target(3, 4).mass, torch.ones(2, 12), atol=1e-6)
    named = found.gather(3, ids)
    assert (found.amax(-1) <= named.amax(-1) + 1e-6).all(), "no other class gets more than a named one"


def test_scores_of_all_that_the_annotator_knows_are_kept_as_they_are() -> None:
    """No class that was left out had more than one that was kept: the rest in equal parts lies below all of them."""
    chances = (3 * torch.randn(2, 4, 4, 20, generator=torch.Generator().manual_seed(0))).softmax(-1)
    best = chances.topk(5, -1)
    found = full(ScoreMap.of_scores(best.indices, best.values, 20), 20)
    assert torch.allclose(found.gather(3, best.indices), best.values, atol=1e-6)
    others = torch.ones(2, 4, 4, 20, dtype=torch.bool).scatter(3, best.indices, False)
    rest = (1 - best.values.sum(-1, keepdim=True)).expand(-1, -1, -1, 20) / 15
    assert torch.allclose(found[others], rest[others], atol=1e-6)


@pytest.mark.parametrize("classes", [70, 1000])
def test_a_place_where_nothing_is_recognised_keeps_its_doubt(classes: int) -> None:
    """Through the record and back: 0.08 for the best class is 0.08 for it, not 1."""
    ids, scores = np.arange(5).repeat(16).reshape(5, 4, 4).transpose(1, 2, 0), np.full((4, 4, 5), 0.08)
    back, steps = decode_maps([encode_map(ids, scores * [1, 0.5, 0.3, 0.2, 0.05])])
    maps = ScoreMap.of_scores(torch.from_numpy(back).long(), torch.from_numpy(steps), classes)
    found = dense(maps.warp(box(0.1, 0.2, 0.5, 0.6), (4, 4)).target(2, 2), classes)[0]
    expected = torch.tensor([0.08, 0.04, 0.024, 0.016])
    assert (found[:, :4] - expected).abs().max() <= 1 / 126 + 1e-6
    assert (found[:, 4:] - (1 - 0.16) / (classes - 4)).abs().max() <= 4 / 126 / (classes - 4)
    assert torch.allclose(found.sum(-1), torch.ones(4), atol=1e-6)


def test_where_most_is_elsewhere_the_label_is_flat_and_never_upside_down() -> None:
    """0.08 and 0.02 for two of ten classes, 0.9 for what the data do not have: no class is spoken for or against."""
    ids = torch.arange(2).expand(1, 1, 1, 2)
    flat = ScoreMap.of_scores(ids, torch.tensor([0.08, 0.02]).expand(1, 1, 1, 2), 10)
    assert torch.allclose(full(flat, 10), torch.full((1, 1, 1, 10), 0.1))
    some = ScoreMap.of_scores(ids, torch.tensor([0.37, 0.02]).expand(1, 1, 1, 2), 10)
    assert torch.allclose(full(some, 10), torch.tensor([0.37, *[0.07] * 9]).expand(1, 1, 1, 10))


@pytest.mark.parametrize("classes", [5, 6, 10, 13, 1000])
def test_the_best_class_keeps_its_share_whatever_the_number_of_classes(classes: int) -> None:
    """The rest lies elsewhere, as a number of its own: 0.08 comes back as 0.08 beyond what all classes get alike."""
    ids, own = torch.arange(5).expand(1, 4, 4, 5), torch.tensor([0.08, 0.04, 0.024, 0.016, 0.0])
    maps = ScoreMap.of_scores(ids, own.expand(1, 4, 4, 5), classes, torch.full((1, 4, 4), 0.84))
    target = maps.warp(box(0.1, 0.2, 0.5, 0.6), (4, 4)).target(2, 2)
    found = dense(target, classes)[0]  # (4, C)
    assert torch.allclose(found[:, :5] - 0.84 / classes, own.expand(4, -1), atol=1e-6)
    assert torch.allclose(found[:, 5:], torch.full((4, classes - 5), 0.84 / classes), atol=1e-6)
    assert torch.allclose(target.mass, torch.ones(1, 4), atol=1e-6)


def test_what_the_data_know_but_do_not_name_is_not_elsewhere() -> None:
    """Of ten classes two are named; half lies elsewhere, the eight others have 0.2 together."""
    maps = ScoreMap.of_scores(
        torch.arange(2).expand(1, 1, 1, 2),
        torch.tensor([0.27, 0.03]).expand(1, 1, 1, 2),
        10,
        torch.full((1, 1, 1), 0.5),
    )
    wanted = torch.tensor([0.27, 0.03, *[0.2 / 8] * 8]) + 0.05
    assert torch.allclose(full(maps, 10)[0, 0, 0], wanted, atol=1e-6)


def test_shares_that_rounding_took_above_one_are_divided() -> None:
    ids, scores = torch.arange(2).expand(1, 1, 1, 2), torch.tensor([0.5, 0.03]).expand(1, 1, 1, 2)
    maps = ScoreMap.of_scores(ids, scores, 4, torch.full((1, 1, 1), 0.5))
    wanted = torch.tensor([0.5, 0.03, 0, 0]) / 1.03 + 0.5 / 1.03 / 4
    assert torch.allclose(full(maps, 4)[0, 0, 0], wanted, atol=1e-6)


# places


@pytest.mark.parametrize(
    ("rows", "columns", "height", "width"), [(6, 6, 6, 6), (6, 9, 4, 5), (7, 7, 3, 2), (2, 1, 4, 4)]
)
def test_equals_the_slow_formula(rows: int, columns: int, height: int, width: int) -> None:
    affine = torch.cat([box(0.1, 0.2, 0.7, 0.5), box(0.0, 0.4, 0.3, 0.6)])
    turn = torch.tensor([[[0.8, -0.3, 0.1], [0.3, 0.9, -0.2]]])
    maps = make(rows=rows, columns=columns).warp(follow(affine, turn.expand(2, 2, 3)), (9, 9))
    target = maps.target(height, width)
    assert torch.allclose(dense(target), slow(maps, height, width), atol=1e-5)
    assert (target.mass - 1).abs().max() <= 1e-6


def test_the_whole_image_at_the_size_of_the_map_is_the_map() -> None:
    maps = make()
    for one in (maps, maps.warp(box(0, 0, 1, 1, 2), (6, 6))):
        assert torch.allclose(dense(one.target(6, 6)), full(maps).flatten(1, 2), atol=1e-6)


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
    maps = ScoreMap.of_scores(torch.tensor([70_001, 2**31 + 5]).view(1, 1, 2, 1), torch.ones(1, 1, 2, 1), 2**32)
    target = maps.warp(MIRROR, (1, 2)).target(1, 2)
    assert [target.ids[0, i][target.weight[0, i] > 0.5].tolist() for i in (0, 1)] == [[2**31 + 5], [70_001]]


def test_places_without_scores_are_all_doubt() -> None:
    target = ScoreMap.of_scores(torch.zeros(1, 2, 2, 3, dtype=torch.long), torch.zeros(1, 2, 2, 3), 7).target(2, 2)
    assert torch.allclose(dense(target, 7), torch.full((1, 4, 7), 1 / 7))


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
        image,
        Target.hard(torch.zeros(1).long()),
        torch.tensor([3]),
        {"m": ScoreMap.of_scores(ids, torch.ones(ids.shape), 144)},
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
    ids = by_row(side).ids.expand(count, -1, -1, -1)
    maps = ScoreMap.of_scores(ids, torch.ones(ids.shape), 50)
    batch = Batch(ramp, Target.hard(torch.arange(count)), torch.arange(count), {"m": maps})
    out = apply_all([RandomResizedCrop((8, 8), area=(0.3, 1.0))], batch, Draws(0, 0, batch.index))
    rows = (dense(out.columns["m"].target(8, 8)) * torch.arange(50)).sum(-1).view(count, 8, 8)  # type: ignore[attr-defined]
    inner = slice(1, -1)  # bicubic overshoots at the edge of a box, bilinear does not
    assert (rows[:, inner] - out.x[:, 0, inner]).abs().max() < 0.35


def test_swapped_codes_take_their_labels_along() -> None:
    codebook = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(64).view(1, 8, 8) % 9
    maps = ScoreMap.of_scores(torch.arange(64).view(1, 8, 8, 1), torch.ones(1, 8, 8, 1), 64)
    batch = Batch(ids.int(), Target.hard(torch.zeros(1).long()), torch.tensor([5]), {"m": maps})
    out = apply_all([TokenEda(synonym=0, swap=1).build(Codebook.of(codebook))], batch, Draws(1, 0, batch.index))
    target = out.columns["m"].target(8, 8)  # type: ignore[attr-defined]
    best = target.ids.gather(2, target.weight.argmax(2, keepdim=True))[0, :, 0]
    assert torch.equal(best % 9, out.x.flatten().long()), "label and code came from the same place"
    assert not torch.equal(best, torch.arange(64))


def test_swaps_keep_doubt_and_can_be_cropped_afterwards() -> None:
    maps = make().warp(box(0.1, 0.2, 0.7, 0.5, 2), (6, 6))
    plain = dense(maps.target(6, 6))
    source = torch.rand(2, 36, generator=torch.Generator().manual_seed(3)).argsort(1)
    moved = maps.permute(source.view(2, 6, 6))
    assert torch.allclose(
        dense(moved.target(6, 6)), torch.stack([p[s] for p, s in zip(plain, source, strict=True)]), atol=1e-6
    )
    corner = moved.warp(box(0, 0, 0.5, 0.5, 2), (3, 3))
    assert torch.allclose(dense(corner.target(3, 3)), slow(corner, 3, 3), atol=1e-6)


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
    maps = make().warp(MIRROR.expand(2, 2, 3), (6, 6)).warp(shift(0.5, 2), (6, 6), filled=True)
    there = maps.to(torch.device("cpu"))
    assert torch.equal(there.target(3, 3).mass, maps.target(3, 3).mass)
    assert torch.equal(dense(there.target(3, 3)), dense(maps.target(3, 3)))


# filled places


def shift(by: float, batch: int = 1) -> Tensor:
    """The input shows what lies `by` of its width further to the right."""
    return torch.tensor([[[1.0, 0.0, 2 * by], [0.0, 1.0, 0.0]]]).repeat(batch, 1, 1)


def test_filled_places_have_no_label_and_part_of_one_counts_in_part() -> None:
    """Four columns of tokens, seen from 3/8 of the width on: two and a half are left."""
    maps = make()
    moved = maps.warp(shift(0.375, 2), (8, 8), filled=True).target(4, 4)
    mass = moved.mass.view(2, 4, 4)
    assert torch.allclose(mass, torch.tensor([1.0, 1.0, 0.5, 0.0]).expand(2, 4, 4), atol=1e-6)
    cropped = maps.warp(box(0, 0.375, 1, 0.625, 2), (8, 5)).target(4, 5)  # columns of an eighth
    whole = dense(cropped).view(2, 4, 5, 50)
    assert torch.allclose(dense(moved).view(2, 4, 4, 50)[:, :, 2], 0.5 * whole[:, :, 4], atol=1e-6), (
        "the label of what is seen"
    )
    repeated = maps.warp(shift(0.375, 2), (8, 8)).target(4, 4)
    assert torch.allclose(repeated.mass, torch.ones(2, 16), atol=1e-6), "an input whose border is repeated"
    assert torch.allclose(dense(moved).view(2, 4, 4, 50)[:, :, :2], dense(repeated).view(2, 4, 4, 50)[:, :, :2])


def test_what_a_crop_left_out_is_not_seen_by_turning_back() -> None:
    """The map goes on beyond the crop, the image does not; later steps move the filled places along."""
    crop = by_row().warp(box(0.25, 0.25, 0.5, 0.5), (8, 8))
    there = crop.warp(shift(0.5), (8, 8), filled=True)
    assert torch.equal(there.target(4, 4).mass.view(4, 4), torch.tensor([1.0, 1.0, 0.0, 0.0]).expand(4, 4))
    back = there.warp(shift(-0.5), (8, 8), filled=True).target(4, 4)
    assert torch.equal(back.mass.view(4, 4), torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(4, 4))
    assert torch.allclose(dense(back)[0, 2::4], dense(crop.target(4, 4))[0, 2::4], atol=1e-6)
    mirrored = there.warp(MIRROR, (8, 8)).target(4, 4)
    assert torch.equal(mirrored.mass.view(4, 4), torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(4, 4))


def test_rand_augment_fills_pixels_and_takes_their_labels_away() -> None:
    """White images and a black fill: a token counts by its part of pixels that are the image's."""
    count, side = 64, 32
    op = torch.tensor([[Op.ROTATE, Op.SHEAR_X], [Op.TRANSLATE_Y, Op.ROTATE], [Op.SHEAR_Y, Op.NONE], [Op.NONE, Op.NONE]])
    generator = torch.Generator().manual_seed(0)
    level, sign = torch.rand(count, 2, generator=generator), torch.rand(count, 2, generator=generator).round() * 2 - 1
    batch = pixels(make(count), side).changed(x=torch.full((count, 3, side, side), 255, dtype=torch.uint8))
    out = RandAugment(fill=(0, 0, 0)).apply(batch, Choice(op.repeat(16, 1), level, sign))
    shown = torch.nn.functional.avg_pool2d(out.x.float() / 255, 8)[:, 0].flatten(1)  # of 8x8 pixels
    mass = out.columns["label_map"].target(4, 4).mass  # type: ignore[attr-defined]
    assert (mass - shown).abs().max() < 0.15
    assert (mass - shown).abs().mean() < 0.02
    assert 0.05 < (mass < 0.5).float().mean() < 0.5
    assert torch.allclose(mass[3::4], torch.ones(16, 16), atol=1e-6)


def test_a_mixture_counts_by_what_is_labelled_of_both() -> None:
    maps = make().warp(torch.cat([shift(0.5), shift(0.0)]), (6, 6), filled=True)
    own = torch.full((2, 4, 4), 0.25)
    found = maps.mix(Mix(torch.tensor([1, 0]), own)).target(4, 4)
    plain = maps.target(4, 4)
    assert torch.allclose(dense(found), 0.25 * dense(plain) + 0.75 * dense(plain).flip(0), atol=1e-6)
    assert torch.allclose(found.mass, 0.25 * plain.mass + 0.75 * plain.mass.flip(0), atol=1e-6)
    assert torch.allclose(plain.mass[0].view(4, 4)[0], torch.tensor([1.0, 1.0, 0.0, 0.0]), atol=1e-6)
