"""Necks: the maps of a network without stages at four strides, for heads that expect a pyramid (mmsegmentation).

B batch | D width | h, w grid of the tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError

NeckName = Literal["none", "multilevel", "multilevel_norm"]
SCALES = (4.0, 2.0, 1.0, 0.5)


class MultilevelNeck(nn.Module):
    """Every map through a 1x1 convolution, resized by its factor, then a 3x3 one; no norm, no activation.

    norm: of the last map before that, as the last norm of a ViT.
    """

    def __init__(self, widths: Sequence[int], scales: Sequence[float] = SCALES, norm: bool = False) -> None:
        super().__init__()
        if len(widths) != len(scales):
            raise ConfigError(f"a neck of {len(scales)} scales for {len(widths)} maps", "set model.neck=none")
        self.scales = tuple(scales)
        self.last_norm = nn.LayerNorm(widths[-1], eps=1e-6) if norm else None
        self.lateral_convs = nn.ModuleList(nn.Conv2d(width, width, 1) for width in widths)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in widths)
        for layer in (*self.lateral_convs, *self.convs):
            nn.init.xavier_uniform_(layer.get_parameter("weight"))
            nn.init.zeros_(layer.get_parameter("bias"))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps: (B, D, h, w) each; returns (B, D, 4 h, 4 w) to (B, D, h/2, w/2)."""
        maps = list(maps)
        if self.last_norm is not None:
            maps[-1] = self.last_norm(maps[-1].movedim(1, -1)).movedim(-1, 1)
        found = []
        for x, scale, lateral, conv in zip(maps, self.scales, self.lateral_convs, self.convs, strict=True):
            x = lateral(x)
            if scale != 1:  # by the factor, not to a size: they differ where a side is odd
                x = F.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False)
            found.append(conv(x))
        return found
