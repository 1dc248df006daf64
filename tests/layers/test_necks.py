"""Necks and pyramid pooling beside mmsegmentation's numbers and slow formulas."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from small_dense import MMSEG, fill, wave
from tilework.core.errors import ConfigError
from tilework.layers.conv_norm import ConvNorm, resized
from tilework.layers.necks import MultilevelNeck
from tilework.layers.pyramid_pooling import PyramidPooling


@pytest.mark.parametrize("grid", [(8, 8), (7, 9)])
def test_the_neck_is_that_of_mmsegmentation(grid: tuple[int, int]) -> None:
    neck = MultilevelNeck((6,) * 4)
    fill(neck)
    found = neck([wave((2, 6, *grid), i) for i in range(4)])
    some = torch.cat([x[0, :, ::3, ::3].flatten()[:8] for x in found])
    assert torch.allclose(some, torch.tensor(MMSEG[f"neck {grid[0]}"]), atol=1e-4)
    assert [x.shape[2] for x in found] == [4 * grid[0], 2 * grid[0], grid[0], grid[0] // 2]


def test_the_last_norm_is_of_channels() -> None:
    neck = MultilevelNeck((6,) * 4, norm=True)
    maps = [wave((2, 6, 4, 4), i) for i in range(4)]
    plain = MultilevelNeck((6,) * 4)
    plain.load_state_dict(neck.state_dict(), strict=False)
    normed = F.layer_norm(maps[-1].permute(0, 2, 3, 1), (6,), eps=1e-6).permute(0, 3, 1, 2)
    for a, b in zip(neck(maps), plain([*maps[:-1], normed]), strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    with pytest.raises(ConfigError, match="4 scales for 3 maps"):
        MultilevelNeck((6,) * 3)


def test_pooling_averages_parts_the_slow_way() -> None:
    pooling = PyramidPooling(3, 4, (1, 2, 3)).eval()
    fill(pooling)
    x = wave((2, 3, 6, 8), 0.3)
    joined = [x]
    for branch, p in zip(pooling.branches, (1, 2, 3), strict=True):
        cells = torch.zeros(2, 3, p, p)
        for i in range(p):
            for j in range(p):
                rows = slice(i * 6 // p, -(-(i + 1) * 6 // p))
                columns = slice(j * 8 // p, -(-(j + 1) * 8 // p))
                cells[:, :, i, j] = x[:, :, rows, columns].mean((2, 3))
        joined.append(F.interpolate(branch(cells), (6, 8), mode="bilinear", align_corners=False))
    assert torch.allclose(pooling(x), pooling.bottleneck(torch.cat(joined, 1)), atol=1e-5)


def test_one_value_of_a_channel_has_no_variance() -> None:
    with pytest.raises(ConfigError, match=r"pooling a batch of 1 leaves one: .* model\.norm=group"):
        PyramidPooling(3, 4).train()(wave((1, 3, 6, 6), 0))
    assert PyramidPooling(3, 4, norm="group").train()(wave((1, 3, 6, 6), 0)).shape == (1, 4, 6, 6)
    assert PyramidPooling(3, 4).eval()(wave((1, 3, 6, 6), 0)).shape == (1, 4, 6, 6)
    with pytest.raises(ConfigError, match="no norm 'layer'"):
        ConvNorm(2, 2, 1, "layer")  # type: ignore[arg-type]
    x = wave((1, 2, 3, 3), 0)
    assert resized(x, (3, 3)) is x
