"""Class masks that follow their images: a class for every pixel, looked up once, where the loss or a measure needs it.

B batch | H, W pixels of the largest mask | h, w grid of a look-up | M classes named per target | K classes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tilework.core.affine import box_affine, follow, inverse
from tilework.core.batch import Mix, Target
from tilework.core.errors import ConfigError

VOID = 255  # pixels without a class; so at most 255 classes
LOOK = 32  # positions on a side of a look-up that judges a box


@dataclass(frozen=True)
class ClassMask:
    """Masks at their stored sizes, each at the upper left of a common one, and where the input lies on them.

    Outside of a mask, and of every map that the input was cut from, all is void, whatever fills the pixels there.
    """

    ids: Tensor  # (B, H, W) uint8; VOID beyond a mask's own size
    sides: Tensor  # (B, 2) height and width of each, float32
    affine: Tensor  # (B, 2, 3) from the input to the mask of that size
    frames: tuple[Tensor, ...] = ()  # (B, 2, 3) each, from the input to a map beyond whose edges nothing is known
    mixed: Mix | None = None

    @staticmethod
    def of(masks: Sequence[np.ndarray], affine: Tensor | None = None) -> ClassMask:
        """Masks of any sizes, (h, w) uint8 each. affine: (B, 2, 3) from the input to the image; None: it is whole."""
        sides = torch.tensor([mask.shape for mask in masks], dtype=torch.float32).view(-1, 2)
        height, width = (max((mask.shape[i] for mask in masks), default=1) for i in (0, 1))
        ids = np.full((len(masks), height, width), VOID, np.uint8)
        for row, mask in zip(ids, masks, strict=True):
            row[: mask.shape[0], : mask.shape[1]] = mask
        whole = torch.eye(2, 3).repeat(len(masks), 1, 1) if affine is None else affine
        return ClassMask(torch.from_numpy(ids), sides, whole)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> ClassMask:
        """Crop, flip or turn: maps are composed, nothing is looked up yet."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be moved", "put crops and flips before mixing")
        frames = (*(follow(frame, affine) for frame in self.frames), affine)
        return replace(self, affine=follow(self.affine, affine), frames=frames)

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
        return ClassMask(moved, sides, torch.eye(2, 3, device=moved.device).repeat(len(moved), 1, 1))

    def mix(self, mix: Mix) -> ClassMask:
        """Follow a mixture of samples."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be mixed again", "leave one of them out")
        return replace(self, mixed=mix)

    def to(self, device: torch.device) -> ClassMask:
        """The same masks on a device."""
        ids, sides, affine, *frames = (
            part.to(device, non_blocking=True) for part in (self.ids, self.sides, self.affine, *self.frames)
        )
        return ClassMask(ids, sides, affine, tuple(frames), None if self.mixed is None else self.mixed.to(device))

    def rows(self, which: slice) -> ClassMask:
        """Some of the samples."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be split", "split before mixing")
        ids, sides, affine, *frames = (part[which] for part in (self.ids, self.sides, self.affine, *self.frames))
        return ClassMask(ids, sides, affine, tuple(frames))

    def at(self, height: int, width: int) -> Tensor:
        """Class of every position of the input on a grid, by the nearest pixel, (B, h, w) uint8."""
        row, column, known = self._look(height, width)
        flat = (row * self.ids.shape[2] + column).long().where(known, 0)
        found = self.ids.flatten(1).gather(1, flat.flatten(1)).view_as(flat)
        return found.masked_fill(~known, VOID)

    def inside(self, height: int, width: int) -> Tensor:
        """Whether every position of the input on a grid shows the image, (B, h, w)."""
        return self._look(height, width)[2]

    def _look(self, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row and column of the pixel that every position shows, and whether there is one, (B, h, w) each."""
        y, x = centres(height, self.ids.device), centres(width, self.ids.device)
        down, across = _placed(self.affine, y, x)  # in [-1, 1] on the mask
        rows, columns = self.sides[:, :1, None], self.sides[:, 1:, None]
        row, column = ((down + 1) * rows / 2).floor(), ((across + 1) * columns / 2).floor()
        known = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        for frame in self.frames:
            down, across = _placed(frame, y, x)
            known = known & (down.abs() < 1) & (across.abs() < 1)
        return row, column, known

    def target(self, height: int, width: int) -> Target:
        """Labels of every position, (B, h w, M); void ones have no weight."""
        ids = self.at(height, width).flatten(1).long()  # (B, h w)
        known = ids != VOID
        target = Target(ids.where(known, 0)[..., None], known.float()[..., None])
        return target if self.mixed is None else target.mix(self.mixed.partner, self.mixed.at(height, width).flatten(1))

    def frame(self) -> tuple[Tensor, Tensor]:
        """Height and width of each image, (B, 2), and the map from the image to the input, (B, 2, 3)."""
        return self.sides, inverse(self.affine)

    def largest_share(self, affine: Tensor) -> Tensor:
        """Share of the most frequent class among the labelled pixels of a box of the input, (B,), on a coarse grid."""
        ids = self.warp(affine, (LOOK, LOOK)).at(LOOK, LOOK).flatten(1).long()
        counts = torch.zeros(len(ids), VOID + 1, device=ids.device).scatter_add_(1, ids, torch.ones_like(ids).float())
        return counts[:, :VOID].amax(1) / counts[:, :VOID].sum(1).clamp(min=1)

    def places(self, row: int) -> Tensor:
        """Where the pixels of a sample's mask lie on the input, x before y, (1, h, w, 2): for `grid_sample`.

        Beyond -1 and 1 the input does not show them.
        """
        height, width = (int(side) for side in self.sides[row].tolist())
        device = self.ids.device
        back = inverse(self.affine[row : row + 1])
        down, across = _placed(back, centres(height, device), centres(width, device))
        return torch.stack([across, down], -1)

    def of_row(self, row: int) -> Tensor:
        """The mask of a sample as it is stored, (h, w) uint8."""
        height, width = (int(side) for side in self.sides[row].tolist())
        return self.ids[row, :height, :width]


def canvas_affine(sides: Tensor, grid: tuple[int, int], frame: str) -> Tensor:
    """Map from a canvas to the image that fills it, (B, 2, 3). sides: (B, 2) height and width of images.

    squash: all of the image on all of the canvas; cover: the middle of the image; letterbox: the image at the upper
    left of the canvas.
    """
    tall, wide = sides[:, 0] / grid[0], sides[:, 1] / grid[1]  # pixels of the image for one of the canvas
    if frame == "squash":
        step = torch.stack([tall, wide], 1)
    elif frame == "cover":
        step = torch.minimum(tall, wide)[:, None].expand(-1, 2)
    else:
        step = torch.maximum(tall, wide)[:, None].expand(-1, 2)
    height, width = step[:, 0] * grid[0] / sides[:, 0], step[:, 1] * grid[1] / sides[:, 1]  # shares of the image
    middle = 0.0 if frame == "letterbox" else 0.5
    return box_affine((1 - height) * middle, (1 - width) * middle, height, width)


def centres(count: int, device: torch.device) -> Tensor:
    """Centres of equal parts of [-1, 1], (count,)."""
    return (torch.arange(count, device=device) * 2 + 1) / count - 1


def _placed(affine: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Where the positions of a grid lie, (B, h, w) each: down, across. affine: (B, 2, 3); y: (h,); x: (w,)."""
    rows = affine[:, :, 1:2] * y + affine[:, :, 2:]  # (B, 2, h)
    across, down = (rows[..., None] + (affine[:, :, :1] * x)[:, :, None]).unbind(1)
    return down, across
