"""The convolutional block. Oracle: its formula written out."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tilework.layers.conv_block import ConvBlock


def test_block_is_its_formula() -> None:
    torch.manual_seed(0)
    block, x = ConvBlock(8, 2), torch.randn(2, 8, 5, 6)
    y = torch.stack(
        [F.conv2d(x[:, c : c + 1], block.depthwise.weight[c : c + 1], padding=2)[:, 0] for c in range(8)], 1
    )
    y = y + block.depthwise.bias[:, None, None]
    parts = y.reshape(2, 2, -1)
    y = ((parts - parts.mean(2, keepdim=True)) / (parts.var(2, keepdim=True, correction=0) + 1e-5).sqrt()).view(x.shape)
    y = torch.einsum("oi,bihw->bohw", block.fc1.weight[:, :, 0, 0], y) + block.fc1.bias[:, None, None]
    y = y * 0.5 * (1 + torch.erf(y / 2**0.5))
    y = torch.einsum("oi,bihw->bohw", block.fc2.weight[:, :, 0, 0], y) + block.fc2.bias[:, None, None]
    torch.testing.assert_close(block(x), x + y, rtol=1e-4, atol=1e-5)


def test_it_looks_two_places_far() -> None:
    torch.manual_seed(0)
    block, x = ConvBlock(4, 1).eval(), torch.randn(1, 4, 9, 9)
    block.norm = torch.nn.Identity()  # a norm sees the whole map
    other = x.clone()
    other[:, :, 4, 4] += 1
    changed = (block(x) - block(other)).abs().amax((0, 1)) > 1e-7
    assert changed[2:7, 2:7].all()
    assert changed.sum() == 25
