"""Other sizes and mirror images of code maps, for inference of dense heads.

Codes of a scaled or mirrored image are others than its codes scaled or mirrored: TokenAdapt (SeiT++) says which, or
their vectors are interpolated as if they were pixels, which is naive.
B batch | C code dim | H, W code grid | h, w grid of the view
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.adapter import Adapter
from tilework.augment.embed import look_up
from tilework.augment.requantise import nearest_codes


@dataclass(frozen=True)
class CodeViews:
    """Views of codes as the network takes them."""

    prepare: Callable[[Tensor], Tensor]  # codes (B, h, w) to the input of the network, (B, C, h, w)
    adapter: Adapter | None  # None: vectors are interpolated

    def see(self, ids: Tensor, sides: tuple[int, int], mirrored: bool) -> Tensor:
        """A view of all of the map, (B, C, h, w). ids: (B, H, W)."""
        if sides == tuple(ids.shape[1:]) and not mirrored:
            return self.prepare(ids)
        if self.adapter is None:
            view = F.interpolate(self.prepare(ids), sides, mode="bicubic", align_corners=False)
            return view.flip(3) if mirrored else view
        affine = torch.eye(2, 3, device=ids.device).repeat(len(ids), 1, 1)
        affine[:, 0, 0] = -1.0 if mirrored else 1.0
        moved = self.adapter(look_up(ids, self.adapter.vectors), affine, sides)
        codes = moved if moved.ndim == 3 else nearest_codes(moved, self.adapter.vectors)
        return self.prepare(codes.to(ids.dtype))
