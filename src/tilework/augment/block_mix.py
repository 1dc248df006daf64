"""Block-wise mixing: a few rectangles of patches come from another image, as BEiT hides them (TL-Align, section B).

B batch | h, w grid of patches
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from tilework.augment.augment import Augment
from tilework.augment.mixing import sample_beta
from tilework.augment.patch_mixing import PatchMixing
from tilework.core.bounds import check_positive, check_shares
from tilework.core.rng import Draws

BLOCKS = 10  # that are tried


@Augment.choices.add("block_mix")
@dataclass(frozen=True)
class BlockMix(PatchMixing):
    """Blocks are pasted one after another; one that would paste more than the share asks for is left out.

    least: area of a block, of the whole (BEiT: 16 of 196 patches); aspect: of its sides, up to the inverse.
    """

    least: float = 16 / 196
    aspect: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self, "least")
        check_positive(self, "aspect")

    def pasted(self, draws: Draws, grid: tuple[int, int]) -> Tensor:
        """One inside the blocks."""
        wanted = sample_beta(draws, "block_mix", self.alpha) * grid[0] * grid[1]  # (B,)
        u = draws.uniform("block_mix", 4 * BLOCKS).unflatten(1, (BLOCKS, 4))  # area, aspect, position
        at = [torch.arange(side, device=u.device) for side in grid]
        pasted = torch.zeros(len(u), *grid, device=u.device)
        least = self.least * grid[0] * grid[1]
        for area, aspect, *position in (block.unbind(1) for block in u.unbind(1)):
            room = (wanted - pasted.sum((1, 2))).clamp(min=least)
            area = least + area * (room - least)
            stretch = torch.exp(log(self.aspect) * (1 - 2 * aspect) / 2)  # square root of the aspect
            axes = []
            for i, side in enumerate((area.sqrt() * stretch, area.sqrt() / stretch)):
                length = side.round().clamp(1, grid[i])
                low = (position[i] * (grid[i] - length + 1)).floor()[:, None]
                axes.append(((at[i] >= low) & (at[i] < low + length[:, None])).float())
            joined = torch.maximum(pasted, axes[0][:, :, None] * axes[1][:, None, :])
            fits = joined.sum((1, 2)) <= wanted
            pasted = torch.where(fits[:, None, None], joined, pasted)
        return pasted
