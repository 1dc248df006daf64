"""Class masks that follow their images: a class for every pixel, looked up once, where the loss or a measure needs it.

B batch | H, W pixels of the largest mask | h, w grid of a look-up | M classes named per target | K classes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tilework.core.batch import Mix, Target
from tilework.core.errors import ConfigError
from tilework.data.placement import Placement

VOID = 255  # pixels without a class; so at most 255 classes
LOOK = 32  # positions on a side of a look-up that judges a box


@dataclass(frozen=True)
class ClassMask:
    """Masks at their stored sizes, each at the upper left of a common one, and where the input lies on them.

    Outside of a mask, and of every map that the input was cut from, all is void, whatever fills the pixels there.
    """

    ids: Tensor  # (B, H, W) uint8; VOID beyond a mask's own size
    place: Placement
    mixed: Mix | None = None

    @staticmethod
    def of(masks: Sequence[np.ndarray], affine: Tensor | None = None) -> ClassMask:
        """Masks of any sizes, (h, w) uint8 each. affine: (B, 2, 3) from the input to the image; None: it is whole."""
        sides = torch.tensor([mask.shape for mask in masks], dtype=torch.float32).view(-1, 2)
        height, width = (max((mask.shape[i] for mask in masks), default=1) for i in (0, 1))
        ids = np.full((len(masks), height, width), VOID, np.uint8)
        for row, mask in zip(ids, masks, strict=True):
            row[: mask.shape[0], : mask.shape[1]] = mask
        place = Placement.whole(sides) if affine is None else Placement(sides, affine)
        return ClassMask(torch.from_numpy(ids), place)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> ClassMask:
        """Crop, flip or turn: maps are composed, nothing is looked up yet."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be moved", "put crops and flips before mixing")
        return replace(self, place=self.place.warp(affine))

    def permute(self, source: Tensor) -> ClassMask:
        """Parts of the mask follow the positions of the input. source: (B, h, w) flat positions."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be permuted", "put swaps before mixing")
        (h, w), (height, width) = source.shape[1:], self.ids.shape[1:]
        down, across = -(-height // h), -(-width // w)  # pixels of a position, at least
        seen = self.at(h * down, w * across).unflatten(2, (w, across)).unflatten(1, (h, down))  # (B, h, down, w, ..)
        parts = seen.transpose(2, 3).flatten(1, 2)  # (B, h w, down, across)
        image = torch.arange(len(source), device=source.device)[:, None]
        moved = parts[image, source.flatten(1).long()].unflatten(1, (h, w)).transpose(2, 3).flatten(3).flatten(1, 2)
        sides = torch.tensor([h * down, w * across], dtype=torch.float32, device=moved.device).expand(len(moved), 2)
        return ClassMask(moved, Placement.whole(sides))

    def mix(self, mix: Mix) -> ClassMask:
        """Follow a mixture of samples."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be mixed again", "leave one of them out")
        return replace(self, mixed=mix)

    def to(self, device: torch.device) -> ClassMask:
        """The same masks on a device."""
        ids = self.ids.to(device, non_blocking=True)
        return ClassMask(ids, self.place.to(device), None if self.mixed is None else self.mixed.to(device))

    def rows(self, which: slice) -> ClassMask:
        """Some of the samples."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be split", "split before mixing")
        return ClassMask(self.ids[which], self.place.rows(which))

    def at(self, height: int, width: int) -> Tensor:
        """Class of every position of the input on a grid, by the nearest pixel, (B, h, w) uint8."""
        row, column, known = self.place.look(height, width)
        flat = (row * self.ids.shape[2] + column).long().where(known, 0)
        found = self.ids.flatten(1).gather(1, flat.flatten(1)).view_as(flat)
        return found.masked_fill(~known, VOID)

    def inside(self, height: int, width: int) -> Tensor:
        """Whether every position of the input on a grid shows the image, (B, h, w)."""
        return self.place.look(height, width)[2]

    def target(self, height: int, width: int) -> Target:
        """Labels of every position, (B, h w, M); void ones have no weight."""
        ids = self.at(height, width).flatten(1).long()  # (B, h w)
        known = ids != VOID
        target = Target(ids.where(known, 0)[..., None], known.float()[..., None])
        return target if self.mixed is None else target.mix(self.mixed.partner, self.mixed.at(height, width).flatten(1))

    def frame(self) -> tuple[Tensor, Tensor]:
        """Height and width of each image, (B, 2), and the map from the image to the input, (B, 2, 3)."""
        return self.place.frame()

    def largest_share(self, affine: Tensor) -> Tensor:
        """Share of the most frequent class among the labelled pixels of a box of the input, (B,), on a coarse grid."""
        ids = self.warp(affine, (LOOK, LOOK)).at(LOOK, LOOK).flatten(1).long()
        counts = torch.zeros(len(ids), VOID + 1, device=ids.device).scatter_add_(1, ids, torch.ones_like(ids).float())
        return counts[:, :VOID].amax(1) / counts[:, :VOID].sum(1).clamp(min=1)

    def places(self, row: int) -> Tensor:
        """Where the pixels of a sample's mask lie on the input, x before y, (1, h, w, 2): for `grid_sample`.

        Beyond -1 and 1 the input does not show them.
        """
        return self.place.places(row)

    def of_row(self, row: int) -> Tensor:
        """The mask of a sample as it is stored, (h, w) uint8."""
        height, width = (int(side) for side in self.place.sides[row].tolist())
        return self.ids[row, :height, :width]
