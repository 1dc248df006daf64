"""Targets, mixtures and batches against formulas written the slow way.

B batch | C channels | H, W grid | N places | M classes named per target
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tilework.core.batch import Batch, Mix, Target

B, CLASSES = 5, 4


@dataclass(frozen=True)
class Values:
    """The smallest column: one number per sample."""

    values: Tensor  # (B,)

    def to(self, device: torch.device) -> Values:
        return Values(self.values.to(device))

    def rows(self, which: slice) -> Values:
        return Values(self.values[which])


def dense(target: Target) -> Tensor:
    """Weights as a table over all classes, one entry at a time."""
    ids, weight = target.ids.reshape(-1, target.ids.shape[-1]), target.weight.reshape(-1, target.ids.shape[-1])
    table = torch.zeros(len(ids), CLASSES)
    for row in range(len(ids)):
        for place in range(ids.shape[1]):
            table[row, ids[row, place]] += weight[row, place]
    return table.reshape(*target.ids.shape[:-1], CLASSES)


def batch(mix: Mix | None = None) -> Batch:
    return Batch(
        x=torch.arange(B * 6).reshape(B, 2, 3),
        target=Target.hard(torch.arange(B) % CLASSES),
        index=torch.arange(B) + 100,
        columns={"values": Values(torch.arange(B) * 10)},  # type: ignore[dict-item]
        mix=mix,
    )


@pytest.mark.parametrize("shape", [(B,), (B, 7)])
def test_hard_target_is_one_hot(shape: tuple[int, ...]) -> None:
    labels = torch.randint(0, CLASSES, shape, generator=torch.Generator().manual_seed(0))
    target = Target.hard(labels)
    assert target.ids.shape == target.weight.shape == (*shape, 1)
    assert torch.equal(dense(target), torch.nn.functional.one_hot(labels, CLASSES).float())


@pytest.mark.parametrize("shape", [(B,), (B, 7)])
def test_mix_is_the_mean_of_one_hot_rows(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES, shape, generator=generator)
    partner, share = torch.tensor([1, 0, 4, 2, 2]), torch.rand(shape, generator=generator)
    rows = torch.nn.functional.one_hot(labels, CLASSES).float()
    mixed = dense(Target.hard(labels).mix(partner, share))
    for b in range(B):
        own = share[b, ..., None]
        torch.testing.assert_close(mixed[b], own * rows[b] + (1 - own) * rows[partner[b]])


def test_mixing_twice_still_sums_to_one() -> None:
    generator = torch.Generator().manual_seed(2)
    target = Target.hard(torch.arange(B) % CLASSES)
    once = target.mix(torch.tensor([4, 3, 2, 1, 0]), torch.rand(B, generator=generator))
    partner, share = torch.tensor([2, 2, 0, 1, 3]), torch.rand(B, generator=generator)
    twice = once.mix(partner, share)
    assert twice.ids.shape == (B, 4)
    torch.testing.assert_close(twice.weight.sum(-1), torch.ones(B))
    torch.testing.assert_close(dense(twice), share[:, None] * dense(once) + (1 - share)[:, None] * dense(once)[partner])


def test_target_mix_is_out_of_place() -> None:
    target = Target.hard(torch.arange(B) % CLASSES)
    target.mix(torch.arange(B).flip(0), torch.full((B,), 0.3))
    assert torch.equal(target.ids[:, 0], torch.arange(B) % CLASSES)
    assert torch.equal(target.weight, torch.ones(B, 1))


def test_mix_at_its_own_grid_is_itself() -> None:
    own = torch.rand(B, 4, 6)
    assert Mix(torch.arange(B), own).at(4, 6) is own


def test_mix_at_a_coarser_grid_is_the_mean_of_each_area() -> None:
    own = torch.rand(B, 4, 6, generator=torch.Generator().manual_seed(3))
    coarse = Mix(torch.arange(B), own).at(2, 2)
    for row in range(2):
        for column in range(2):
            area = own[:, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
            torch.testing.assert_close(coarse[:, row, column], area.mean((1, 2)))


def test_mix_at_a_finer_grid_repeats() -> None:
    own = torch.rand(B, 2, 3, generator=torch.Generator().manual_seed(4))
    fine = Mix(torch.arange(B), own).at(4, 6)
    torch.testing.assert_close(fine, own.repeat_interleave(2, 1).repeat_interleave(2, 2))


def test_mix_keeps_the_mean_share_on_a_grid_that_divides() -> None:
    own = (torch.rand(B, 8, 8, generator=torch.Generator().manual_seed(5)) < 0.4).float()
    mix = Mix(torch.arange(B), own)
    for side in (1, 2, 4):
        torch.testing.assert_close(mix.at(side, side).mean((1, 2)), own.mean((1, 2)))


@pytest.mark.parametrize("scale", [1, 2])
def test_mix_apply_is_the_slow_formula(scale: int) -> None:
    generator = torch.Generator().manual_seed(6)
    own, partner = torch.rand(B, 2, 3, generator=generator), torch.tensor([3, 3, 0, 1, 4])
    x = torch.randn(B, 2, 2 * scale, 3 * scale, generator=generator)
    before, mixed = x.clone(), Mix(partner, own).apply(x)
    for b in range(B):
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                share = own[b, row // scale, column // scale]
                expected = share * x[b, :, row, column] + (1 - share) * x[partner[b], :, row, column]
                torch.testing.assert_close(mixed[b, :, row, column], expected)
    assert torch.equal(x, before)


def test_mix_apply_keeps_the_dtype() -> None:
    x = torch.randn(B, 2, 4, 4, dtype=torch.bfloat16)
    assert Mix(torch.arange(B), torch.rand(B, 2, 2)).apply(x).dtype == torch.bfloat16


def test_mix_with_oneself_changes_nothing() -> None:
    x = torch.randn(B, 3, 4, 4)
    torch.testing.assert_close(Mix(torch.arange(B), torch.rand(B, 4, 4)).apply(x), x)


def test_batch_rows_takes_every_part() -> None:
    whole, part = batch(), batch().rows(slice(1, 4))
    assert torch.equal(part.x, whole.x[1:4])
    assert torch.equal(part.target.ids, whole.target.ids[1:4])
    assert torch.equal(part.target.weight, whole.target.weight[1:4])
    assert part.index.tolist() == [101, 102, 103]
    assert part.columns["values"].values.tolist() == [10, 20, 30]  # type: ignore[attr-defined]


def test_batch_to_moves_every_part() -> None:
    there = batch().to(torch.device("meta"))
    tensors = [there.x, there.target.ids, there.target.weight, there.index, there.columns["values"].values]  # type: ignore[attr-defined]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_batch_to_moves_the_mixture() -> None:
    there = batch(Mix(torch.arange(B), torch.rand(B, 2, 3), after_stem=True)).to(torch.device("meta"))
    assert there.mix is not None
    assert there.mix.after_stem
    assert (there.mix.partner.device.type, there.mix.own.device.type) == ("meta", "meta")


def test_batch_to_keeps_the_values() -> None:
    here = batch().to(torch.device("cpu"))
    assert torch.equal(here.x, batch().x)
    assert torch.equal(here.index, batch().index)


def test_changed_replaces_only_what_is_named() -> None:
    whole = batch()
    other = whole.changed(x=whole.x + 1)
    assert torch.equal(other.x, whole.x + 1)
    assert other.target is whole.target
    assert torch.equal(whole.x, batch().x)


def test_reweigh_gives_each_source_another_share() -> None:
    labels = Target(torch.tensor([[0, 1], [2, 3], [1, 0]]), torch.tensor([[0.7, 0.3], [1.0, 0.0], [0.5, 0.5]]))
    partner, area = torch.tensor([2, 0, 1]), torch.tensor([0.25, 1.0, 0.5])
    share = torch.tensor([[0.6, 0.4], [1.0, 0.0], [0.0, 1.0]])
    assert torch.allclose(
        dense(labels.mix(partner, area).reweigh(share)), dense(labels.mix(partner, share[:, 0])), atol=1e-6
    )


def test_reweigh_three_sources() -> None:
    ids, area = torch.tensor([[0, 1, 2]]), torch.tensor([[0.2, 0.3, 0.5]])
    share = torch.tensor([[0.1, 0.1, 0.8]])
    assert torch.allclose(Target(ids, area).reweigh(share).weight, share)
