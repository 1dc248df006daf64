"""Restylings: functions of the image that change it, and keep what they should."""

from __future__ import annotations

import pytest
import torch

from tilework.core.rng import Draws
from tilework.evaluation.restyle import RESTYLINGS, restyle


def smooth(side: int = 48) -> torch.Tensor:
    x = torch.rand(3, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    return (torch.nn.functional.interpolate(x, (side, side), mode="bicubic").clamp(0, 1) * 255).to(torch.uint8)


@pytest.mark.parametrize("name", list(RESTYLINGS))
def test_they_are_functions_of_the_image(name: str) -> None:
    x = smooth()
    made = restyle(x, name, Draws(0, 0, torch.tensor([4, 9, 2])))
    assert made.shape == x.shape
    assert made.dtype == torch.uint8
    assert not torch.equal(made, x)
    assert torch.equal(restyle(x[[2]], name, Draws(0, 0, torch.tensor([2]))), made[[2]])


def test_what_they_keep() -> None:
    x, draws = smooth(), Draws(0, 0, torch.arange(3))
    assert torch.equal(restyle(x, "shuffle", draws).flatten(2).sort().values, x.flatten(2).sort().values)
    assert ((restyle(x, "negative", draws).int() + x.int()) - 255).abs().max() <= 1
    grey = restyle(x, "grey", draws)
    assert torch.equal(grey[:, 0], grey[:, 2])
    for name, levels in (("edges", 2), ("halftone", 2), ("posterise", 6)):
        assert len(restyle(x, name, draws).unique()) <= levels


def test_paint_keeps_a_step_sharp() -> None:
    x = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    x[..., 16:] = 200
    made = restyle(x, "paint", Draws(0, 0, torch.arange(1)))
    assert (made.int() - x.int()).abs().max() <= 1
