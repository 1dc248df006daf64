"""Photometric distortion beside colorsys and its own formula, pixel by pixel; probabilities."""

from __future__ import annotations

import colorsys

import torch

from tilework.augment import Photometric
from tilework.augment.photometric import Distortion, shift_colours
from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws


def make_batch(count: int = 6) -> Batch:
    index = torch.arange(count)
    x = torch.randint(0, 256, (count, 3, 4, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    x[0, :, 0, 0] = 77  # grey: no hue
    x[0, :, 0, 1] = 0
    return Batch(x, Target.hard(index * 0), index)


def test_hue_and_saturation_are_those_of_colorsys() -> None:
    x = make_batch().x.float()
    saturation, hue = torch.linspace(0.5, 1.5, 6).view(-1, 1, 1, 1), torch.linspace(-0.1, 0.1, 6).view(-1, 1, 1, 1)
    found = shift_colours(x, saturation, hue)
    for i in range(len(x)):
        for row in range(4):
            for column in range(5):
                h, s, v = colorsys.rgb_to_hsv(*(x[i, :, row, column] / 255).tolist())
                wanted = colorsys.hsv_to_rgb((h + hue[i].item()) % 1, min(1.0, s * saturation[i].item()), v)
                assert torch.allclose(found[i, :, row, column] / 255, torch.tensor(wanted), atol=1e-5)


def test_neutral_draws_change_nothing_and_the_order_is_kept() -> None:
    batch = make_batch(2)
    one, zero, no = torch.ones(2), torch.zeros(2), torch.tensor([False, True])
    same = Photometric().apply(batch, Distortion(zero, one, no, one, zero)).x
    assert torch.allclose(same, batch.x.float(), atol=1e-3)
    p = Distortion(zero + 20, one * 1.5, no, one, zero + 0.1)
    found = Photometric().apply(batch, p).x
    lifted = (batch.x.float() + 20).clamp(0, 255)
    last = (shift_colours(lifted[:1], torch.tensor(1.0), torch.tensor(0.1)) * 1.5).clamp(0, 255)
    first = shift_colours((lifted[1:] * 1.5).clamp(0, 255), torch.tensor(1.0), torch.tensor(0.1))
    assert torch.allclose(found, torch.cat([last, first]), atol=1e-3)


def test_each_change_has_half_a_chance_within_its_range() -> None:
    batch = make_batch(1).changed(x=torch.zeros(4000, 3, 1, 1), index=torch.arange(4000))
    p = Photometric().sample(Draws(0, 0, batch.index), batch)
    for value, neutral, low, high in (
        (p.brightness, 0.0, -32, 32),
        (p.contrast, 1.0, 0.5, 1.5),
        (p.saturation, 1.0, 0.5, 1.5),
        (p.hue, 0.0, -0.1, 0.1),
    ):
        assert abs((value == neutral).float().mean() - 0.5) < 0.03
        assert low <= value.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < value.max() <= high
    assert abs(p.first.float().mean() - 0.5) < 0.03
