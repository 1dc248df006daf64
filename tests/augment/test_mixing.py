"""CutMix and mixup: pixels and label weights agree, against a loop over pixels; shares against numpy's Beta."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from tilework.augment import CutMix, CutMixOrMixup, Mixup, PatchCutMix, apply_all
from tilework.augment.mixing import Mixing, sample_beta
from tilework.core.batch import Batch, Mix, Target
from tilework.core.rng import Draws


@dataclass(frozen=True)
class SpyColumn:
    """A column that mixes its data by a loop, and tells what it was asked."""

    data: Tensor  # (B, C, H, W)
    calls: list[str] = field(default_factory=list)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> SpyColumn:
        raise NotImplementedError

    def permute(self, source: Tensor) -> SpyColumn:
        raise NotImplementedError

    def mix(self, mix: Mix) -> SpyColumn:
        return SpyColumn(slow_mix(self.data, mix), [*self.calls, "mix"])

    def to(self, device: torch.device) -> SpyColumn:
        return self

    def rows(self, which: slice) -> SpyColumn:
        return SpyColumn(self.data[which])


def slow_mix(x: Tensor, mix: Mix) -> Tensor:
    """Pixel by pixel: the sample's own where its share is one, its partner's otherwise."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                source = i if mix.own[i, row, column] == 1 else int(mix.partner[i])
                out[i, :, row, column] = x[source, :, row, column]
    return out


def make_batch(size: int = 16, height: int = 8, width: int = 16) -> Batch:
    x = torch.randn(size, 2, height, width, generator=torch.Generator().manual_seed(0))
    return Batch(x, Target.hard(torch.arange(size) + 100), torch.arange(size), {"copy": SpyColumn(x)})


def mixed(batch: Batch, probability: float = 1.0, seed: int = 0) -> Batch:
    return apply_all([CutMix(probability)], batch, Draws(seed, 0, batch.index))


def test_pixels_equal_a_loop() -> None:
    batch = make_batch()
    out = mixed(batch)
    assert out.mix is not None
    assert torch.equal(out.x, slow_mix(batch.x, out.mix))
    assert not torch.equal(out.x, batch.x)


def test_label_weights_are_the_pasted_area_exactly() -> None:
    numbered = make_batch(64).changed(x=torch.arange(64.0).view(64, 1, 1, 1).repeat(1, 1, 8, 16), columns={})
    out = mixed(numbered)
    foreign = (out.x[:, 0] != torch.arange(64.0).view(64, 1, 1)).sum((1, 2))  # pixels that came from elsewhere
    assert torch.equal(out.target.weight[:, 1], foreign / 128)
    assert torch.equal(out.target.weight[:, 0], 1 - foreign / 128)
    assert 0 < foreign.float().mean() < 128


def test_labels_are_the_own_and_the_partners() -> None:
    batch = make_batch()
    out = mixed(batch)
    assert out.mix is not None
    assert torch.equal(out.target.ids[:, 0], batch.target.ids[:, 0])
    assert torch.equal(out.target.ids[:, 1], batch.target.ids[out.mix.partner, 0])


def test_pasted_pixels_come_from_the_partner_named_in_the_label() -> None:
    labelled = make_batch(64).changed(x=(torch.arange(64.0) + 100).view(64, 1, 1, 1).repeat(1, 1, 8, 16), columns={})
    out = mixed(labelled)
    for i in range(64):
        assert set(out.x[i].unique().tolist()) <= set(out.target.ids[i].tolist())


def test_partner_is_another_sample() -> None:
    out = mixed(make_batch(5))
    assert out.mix is not None
    assert sorted(out.mix.partner.tolist()) == list(range(5))
    assert (out.mix.partner != torch.arange(5)).all()


def test_pasted_places_form_one_box() -> None:
    mix = CutMix().sample(Draws(0, 0, torch.arange(200)), make_batch(200))
    for pasted in (mix.own == 0).long():
        rows, columns = pasted.amax(1), pasted.amax(0)
        assert torch.equal(pasted, rows[:, None] * columns)
        assert (rows.diff() == 1).sum() <= 1  # contiguous
        assert (columns.diff() == 1).sum() <= 1


def test_shares_are_zero_or_one() -> None:
    mix = CutMix().sample(Draws(0, 0, torch.arange(50)), make_batch(50))
    assert mix.own.shape == (50, 8, 16)
    assert set(mix.own.unique().tolist()) == {0.0, 1.0}
    assert not mix.after_stem


def test_boxes_of_every_size_occur() -> None:
    mix = CutMix().sample(Draws(0, 0, torch.arange(2000)), make_batch(2000, 32, 32))
    pasted = 1 - mix.own.mean((1, 2))
    assert pasted.min() < 0.01
    assert pasted.max() > 0.8
    # sides s = sqrt(u); a box of side s around a uniform centre keeps s - s^2/4 of the axis after clipping,
    # so the mean area is E[(s - s^2/4)^2] = E[u - u^1.5/2 + u^2/16] = 1/2 - 1/5 + 1/48
    assert pasted.mean().item() == pytest.approx(1 / 2 - 1 / 5 + 1 / 48, abs=0.02)


def test_probability_zero_leaves_pixels_and_weights() -> None:
    batch = make_batch()
    out = mixed(batch, probability=0.0)
    assert torch.equal(out.x, batch.x)
    assert torch.equal(out.target.weight, torch.tensor([[1.0, 0.0]]).repeat(16, 1))
    assert torch.equal(out.target.ids[:, 0], batch.target.ids[:, 0])


def test_probability_gates_samples_one_by_one() -> None:
    out = mixed(make_batch(3000, 8, 8).changed(columns={}), probability=0.4)
    assert out.mix is not None
    touched = (out.mix.own == 0).any(2).any(1).float().mean().item()
    assert touched == pytest.approx(0.4, abs=0.05)  # very small boxes round to nothing


def test_box_is_a_function_of_the_index() -> None:
    index = torch.tensor([5, 77, 3])
    batch = make_batch(3)
    together = CutMix().sample(Draws(0, 0, index), batch).own
    alone = CutMix().sample(Draws(0, 0, index[1:2]), batch.rows(slice(1, 2))).own
    assert torch.equal(together[1:2], alone)


def test_column_follows() -> None:
    out = mixed(make_batch())
    assert torch.equal(out.columns["copy"].data, out.x)
    assert out.columns["copy"].calls == ["mix"]


def test_single_sample_mixes_with_itself() -> None:
    batch = make_batch(1)
    out = mixed(batch)
    assert torch.equal(out.x, batch.x)
    assert set(out.target.ids[0].tolist()) == {100}
    assert out.target.weight.sum().item() == pytest.approx(1)


def test_bytes_mix_without_leaving_their_range() -> None:
    pixels = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batch = make_batch(16, 8, 8).changed(x=pixels, columns={})
    out = mixed(batch)
    assert out.mix is not None
    assert torch.equal(out.x, slow_mix(pixels, out.mix).float())


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 3.0])
def test_shares_are_distributed_as_beta(alpha: float) -> None:
    """Oracle: numpy's generator; the largest distance of the two distribution functions (Kolmogorov, Smirnov)."""
    ours = np.sort(sample_beta(Draws(0, 0, torch.arange(20_000)), "test", alpha).numpy())
    theirs = np.sort(np.random.default_rng(0).beta(alpha, alpha, 200_000))
    places = np.linspace(0.001, 0.999, 500)
    gap = np.abs(np.searchsorted(ours, places) / len(ours) - np.searchsorted(theirs, places) / len(theirs))
    assert gap.max() < 0.015


def test_mixup_is_a_weighted_mean_of_pixels_and_labels() -> None:
    batch = make_batch(12)
    out = apply_all([Mixup()], batch, Draws(1, 0, batch.index))
    assert out.mix is not None
    for i in range(12):
        j = (i - 1) % 12
        share = float(out.mix.own[i, 0, 0])
        assert torch.allclose(out.x[i], share * batch.x[i] + (1 - share) * batch.x[j], atol=1e-6)
        assert out.target.ids[i].tolist() == [int(batch.target.ids[i]), int(batch.target.ids[j])]
        assert out.target.weight[i].tolist() == pytest.approx([share, 1 - share], abs=1e-5)


@pytest.mark.parametrize("augment", [Mixup(0.0), CutMix(0.0)])
def test_probability_zero_leaves_all_alone(augment: Mixup | CutMix) -> None:
    batch = make_batch(12)
    out = apply_all([augment], batch, Draws(0, 0, batch.index))
    assert torch.equal(out.x, batch.x)
    assert (out.target.weight[:, 0] == 1).all()


def test_choice_between_the_two() -> None:
    batch = make_batch(1000, 16, 16)
    draws = Draws(0, 0, batch.index)
    own = CutMixOrMixup(switch=0.3).sample(draws, batch).own
    cut, mixed = CutMix().sample(draws, batch).own, Mixup().sample(draws, batch).own
    is_cut = (own == cut).flatten(1).all(1)
    assert torch.equal(own[~is_cut], mixed[~is_cut])
    assert is_cut.float().mean() == pytest.approx(0.3, abs=0.05)


# one mixture for the batch


def of_timm(x: Tensor, labels: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """timm's Mixup._mix_batch and mixup_target, written out, for the box or lambda of `own`, (H, W)."""
    x = x.clone()
    if own.unique().numel() > 1 or own[0, 0] == 0:
        rows, columns = (own == 0).nonzero(as_tuple=True)
        top, bottom, left, right = (int(v) for v in (rows[0], rows[-1] + 1, columns.min(), columns.max() + 1))
        x[:, :, top:bottom, left:right] = x.flip(0)[:, :, top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / own.numel()  # its corrected lambda
    else:
        share = float(own[0, 0])
        x = x * share + x.flip(0) * (1 - share)
    dense = torch.nn.functional.one_hot(labels).float()
    return x, dense * share + dense.flip(0) * (1 - share)


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize(
    "augment", [CutMix(per="batch"), Mixup(per="batch"), CutMixOrMixup(per="batch"), PatchCutMix(4, per="batch")]
)
def test_one_mixture_for_the_batch_is_timms(augment: Mixing, step: int) -> None:
    batch = make_batch().changed(columns={})
    out = apply_all([augment], batch, Draws(0, 0, batch.index, step))
    assert out.mix is not None
    assert torch.equal(out.mix.partner, torch.arange(15, -1, -1))
    assert (out.mix.own == out.mix.own[:1]).all()
    x, labels = of_timm(batch.x, batch.target.ids[:, 0], out.mix.own[0])
    torch.testing.assert_close(out.x, x)
    ours = torch.zeros_like(labels).scatter_add(1, out.target.ids, out.target.weight)
    torch.testing.assert_close(ours, labels, atol=1e-6, rtol=0)


def test_a_batch_is_mixed_by_its_step_alone() -> None:
    batch, augment = make_batch().changed(columns={}), CutMixOrMixup(per="batch")

    def own(step: int, index: Tensor) -> Tensor:
        mix = apply_all([augment], batch, Draws(0, 0, index, step)).mix
        assert mix is not None
        return mix.own[0]

    assert torch.equal(own(3, batch.index), own(3, batch.index + 5)), "all processes have the same"
    found = [own(step, batch.index) for step in range(200)]
    boxes = sum(bool(((one == 0) | (one == 1)).all()) for one in found)
    assert 70 < boxes < 130, "half of the batches are cut"
    whole = [apply_all([CutMix(0.25, per="batch")], batch, Draws(0, 0, batch.index, i)).x for i in range(200)]
    assert 100 < sum(torch.equal(x, batch.x) for x in whole) < 180, "the probability is one of batches"


def test_parts_of_a_choice_have_no_draw_of_their_own() -> None:
    with pytest.raises(ValueError, match="set per of cutmix_or_mixup"):
        CutMixOrMixup(CutMix(per="batch"))
