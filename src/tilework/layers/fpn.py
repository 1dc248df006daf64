"""Feature pyramid: maps of all strides with the same number of channels (Lin et al., 2017), as mmdetection has it.

B batch | D_i, h_i, w_i width and grid of a stage | D channels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F


class Fpn(nn.Module):
    """1x1 convolutions, sums from coarse to fine (nearest), 3x3 convolutions; no norm. Then coarser levels.

    extra: how many; kind: "conv", 3x3 of stride 2, the first of the last *stage* (RetinaNet), or "pool", every second
    position of the last level (R-CNN).
    """

    def __init__(self, widths: Sequence[int], channels: int, extra: int, kind: Literal["conv", "pool"]) -> None:
        super().__init__()
        self.lateral_convs = nn.ModuleList(nn.Conv2d(width, channels, 1) for width in widths)
        self.fpn_convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in widths)
        given = [widths[-1], *[channels] * extra]
        self.extra_convs = nn.ModuleList(
            nn.Conv2d(given[i], channels, 3, stride=2, padding=1) for i in range(extra if kind == "conv" else 0)
        )
        self.pools = extra if kind == "pool" else 0
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.get_parameter("bias"))

    def forward(self, stages: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Stages: (B, D_i, h_i, w_i), fine to coarse; returns (B, D, h_i, w_i), then the coarser ones."""
        maps = [lateral(x) for lateral, x in zip(self.lateral_convs, stages, strict=True)]
        for i in range(len(maps) - 1, 0, -1):
            maps[i - 1] = maps[i - 1] + F.interpolate(maps[i], maps[i - 1].shape[2:], mode="nearest")
        levels = [conv(x) for conv, x in zip(self.fpn_convs, maps, strict=True)]
        coarse = stages[-1]
        for conv in self.extra_convs:
            coarse = conv(coarse)
            levels.append(coarse)
        for _ in range(self.pools):
            levels.append(levels[-1][:, :, ::2, ::2])
        return tuple(levels)
