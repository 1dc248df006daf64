"""Boxes, random patches and blocks: whole patches, exact labels, shapes and shares as drawn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilework.augment import Augment, BlockMix, PatchCutMix, RandomMix, apply_all
from tilework.augment.mixing import sample_beta
from tilework.augment.patch_mixing import PatchMixing
from tilework.core.batch import Batch, Target
from tilework.core.config import decode
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws

KINDS = (PatchCutMix, RandomMix, BlockMix)


def pasted(mixing: PatchMixing, count: int, grid: tuple[int, int] = (14, 14)) -> Tensor:
    return mixing.pasted(Draws(0, 0, torch.arange(count)), grid)


def pieces(mask: Tensor) -> int:
    """Connected parts of a mask, by sides; (h, w)."""
    left, count = {tuple(place) for place in mask.nonzero().tolist()}, 0
    while left:
        count, edge = count + 1, [left.pop()]
        while edge:
            row, column = edge.pop()
            for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
                if near in left:
                    left.remove(near)
                    edge.append(near)
    return count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("patch", [1, 4])
def test_patches_are_whole_and_labels_exact(kind: type[PatchMixing], patch: int) -> None:
    x = torch.arange(40.0).view(40, 1, 1, 1).repeat(1, 2, 24, 32)  # each sample is its number
    batch = Batch(x, Target.hard(torch.arange(40)), torch.arange(40))
    out = apply_all([kind(patch)], batch, Draws(0, 0, batch.index))
    assert out.mix is not None
    own = out.mix.at(24 // patch, 32 // patch)
    assert set(own.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(own.repeat_interleave(patch, 1).repeat_interleave(patch, 2), out.mix.own)
    foreign = (out.x[:, 0] != x[:, 0]).float().mean((1, 2))
    assert torch.allclose(out.target.weight[:, 1], foreign, atol=1e-6)
    assert torch.equal(out.target.ids[:, 1], out.mix.partner)
    for i in range(40):
        assert set(out.x[i].unique().tolist()) <= {float(i), float(out.mix.partner[i])}


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_every_size(kind: type[PatchMixing]) -> None:
    areas = pasted(kind(), 2000).mean((1, 2))
    assert areas.min() < 0.05
    assert areas.max() > 0.8
    assert 0.25 < areas.mean() < 0.55


@pytest.mark.parametrize("kind", KINDS)
def test_probability(kind: type[PatchMixing]) -> None:
    draws = Draws(0, 0, torch.arange(2000))
    assert (kind(1, probability=0.0).own(draws, (14, 14)) == 1).all()
    half, always = kind(1, probability=0.5).own(draws, (14, 14)), kind(1).own(draws, (14, 14))
    touched, could = ((own == 0).flatten(1).any(1) for own in (half, always))
    assert (touched.sum() / could.sum()).item() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(half[touched], always[touched])


def test_random_patches_are_uniform() -> None:
    masks = pasted(RandomMix(), 4000, (4, 6))
    assert torch.allclose(masks.mean(0), masks.mean() * torch.ones(4, 6), atol=0.04)
    near, far = ((masks[:, 0, 0] * masks[:, i, j]).mean().item() for i, j in ((0, 1), (3, 5)))
    assert near == pytest.approx(far, abs=0.04), "neighbours are not preferred"


def test_blocks_are_few_and_large() -> None:
    blocks, scattered, box = (pasted(kind(), 200) for kind in (BlockMix, RandomMix, PatchCutMix))
    counts = [sum(map(pieces, masks)) / 200 for masks in (box, blocks, scattered)]
    assert counts[0] <= 1
    assert 1 < counts[1] < 2.5
    assert counts[2] > 10
    some = blocks[blocks.sum((1, 2)) > 0]
    assert some.sum((1, 2)).min() >= 12, "no block is smaller than BEiT's, but for rounding"


def test_blocks_do_not_exceed_their_share() -> None:
    wanted = sample_beta(Draws(0, 0, torch.arange(1000)), "block_mix", 1.0)
    areas = pasted(BlockMix(), 1000).mean((1, 2))
    assert (areas <= wanted).all()
    assert (wanted - areas).mean() < 0.15


def test_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not divide into patches of 16"):
        PatchCutMix(16).own(Draws(0, 0, torch.arange(2)), (24, 32))
    with pytest.raises(ConfigError, match="at least 1"):
        decode(Augment, {"name": "patch_cutmix", "patch": 0})


def test_even_boxes_are_those_of_the_published_code() -> None:
    """Sides int(g sqrt(area)), cut by half of that, rounded down, on both sides of a patch; against a loop."""
    draws = Draws(3, 1, torch.arange(3000))
    found = 1 - PatchCutMix(2, even=True).own(draws, (28, 20))[:, ::2, ::2]  # (B, 14, 10)
    u = draws.uniform("cutmix", 4)
    for i in range(60):
        side, wanted = float(u[i, 1].sqrt()), torch.zeros(14, 10)
        spans = []
        for length, at in ((14, u[i, 2]), (10, u[i, 3])):
            half, middle = int(length * side) // 2, int(at * length)
            spans.append(slice(max(0, middle - half), middle + half))
        wanted[spans[0], spans[1]] = 1
        assert torch.equal(found[i], wanted)
    square = 1 - PatchCutMix(16, even=True).own(draws, (224, 224))
    assert float(square.mean()) == pytest.approx(0.272, abs=0.012)  # 40,000 boxes of the authors' rule
    assert float(1 - PatchCutMix(16).own(draws, (224, 224)).mean()) == pytest.approx(0.32, abs=0.012)
