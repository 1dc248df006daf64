"""Where the input lies on its image: what masks and boxes follow crops, flips and turns by.

B batch | h, w grid of a look-up | M points or boxes
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tilework.core.affine import box_affine, follow, inverse


@dataclass(frozen=True)
class Placement:
    """Maps from the input to images of any sizes, composed and applied once, where something is looked up."""

    sides: Tensor  # (B, 2) height and width of each image, float32
    affine: Tensor  # (B, 2, 3) from the input to the image
    frames: tuple[Tensor, ...] = ()  # (B, 2, 3) each, from the input to a map beyond whose edges nothing is known

    @staticmethod
    def whole(sides: Tensor) -> Placement:
        """The input is all of the image. sides: (B, 2)."""
        return Placement(sides, torch.eye(2, 3, device=sides.device).repeat(len(sides), 1, 1))

    def warp(self, affine: Tensor) -> Placement:
        """After a crop, flip or turn. affine: (B, 2, 3) output to input."""
        frames = (*(follow(frame, affine) for frame in self.frames), affine)
        return Placement(self.sides, follow(self.affine, affine), frames)

    def to(self, device: torch.device) -> Placement:
        """The same on a device."""
        sides, affine, *frames = (
            part.to(device, non_blocking=True) for part in (self.sides, self.affine, *self.frames)
        )
        return Placement(sides, affine, tuple(frames))

    def rows(self, which: slice) -> Placement:
        """Of some samples."""
        sides, affine, *frames = (part[which] for part in (self.sides, self.affine, *self.frames))
        return Placement(sides, affine, tuple(frames))

    def look(self, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row and column of the pixel that every position of a grid shows, and whether there is one, (B, h, w) each."""
        y, x = centres(height, self.sides.device), centres(width, self.sides.device)
        down, across = placed(self.affine, y, x)  # in [-1, 1] on the image
        rows, columns = self.sides[:, :1, None], self.sides[:, 1:, None]
        row, column = ((down + 1) * rows / 2).floor(), ((across + 1) * columns / 2).floor()
        known = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        for frame in self.frames:
            down, across = placed(frame, y, x)
            known = known & (down.abs() < 1) & (across.abs() < 1)
        return row, column, known

    def frame(self) -> tuple[Tensor, Tensor]:
        """Height and width of each image, (B, 2), and the map from the image to the input, (B, 2, 3)."""
        return self.sides, inverse(self.affine)

    def places(self, row: int) -> Tensor:
        """Where the pixels of a sample's image lie on the input, x before y, (1, h, w, 2): for `grid_sample`.

        Beyond -1 and 1 the input does not show them.
        """
        height, width = (int(side) for side in self.sides[row].tolist())
        device = self.sides.device
        down, across = placed(inverse(self.affine[row : row + 1]), centres(height, device), centres(width, device))
        return torch.stack([across, down], -1)

    def boxes_on_input(self, boxes: Tensor, height: int, width: int) -> Tensor:
        """Hulls of boxes of the image on an input of so many positions, cut at what it shows, (B, M, 4).

        boxes: (B, M, 4) edges in pixels of the image. In double precision: whole pixels stay whole, so that anchors
        that overlap an object alike still do.
        """
        found = hull(inverse(self.affine.double()), boxes.double() * 2 / _both(self.sides) - 1)
        whole = found.new_tensor([[[-1.0, -1, 1, 1]]]).expand(len(boxes), 1, 4)
        for edges in (whole, *(hull(inverse(frame.double()), whole) for frame in self.frames)):
            found = _clip(found, edges)
        return ((found + 1) * found.new_tensor([width, height, width, height]) / 2).float()

    def boxes_on_image(self, boxes: Tensor, height: int, width: int) -> Tensor:
        """The reverse: hulls on the image of boxes of the input, cut at the image's edges, (B, M, 4)."""
        input_sides = torch.tensor([width, height, width, height], dtype=torch.float64, device=boxes.device)
        found = hull(self.affine.double(), boxes.double() * 2 / input_sides - 1)
        return ((found.clamp(-1, 1) + 1) * _both(self.sides) / 2).float()

    def points_on_image(self, points: Tensor, sample: Tensor, height: int, width: int) -> Tensor:
        """Points of the input in pixels of the image, (N, ..., 2): x, y. points: (N, ..., 2); sample: (N,)."""
        shape = (len(points), *[1] * (points.ndim - 2), 2)
        at = points * (2 / points.new_tensor([width, height])) - 1
        linear, shift = self.affine[sample, :, :2], self.affine[sample, :, 2]
        moved = (at.flatten(1, -2) @ linear.transpose(1, 2)).view_as(at) + shift.view(shape)
        return (moved + 1) * self.sides[sample].flip(1).view(shape) / 2

    def extent(self, height: int, width: int) -> Tensor:
        """The part of the input that shows the image, as a box, (B, 4)."""
        whole = torch.cat([torch.zeros_like(self.sides), self.sides.flip(1)], 1)[:, None]
        return self.boxes_on_input(whole, height, width)[:, 0]


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


def placed(affine: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Where the positions of a grid lie, (B, h, w) each: down, across. affine: (B, 2, 3); y: (h,); x: (w,)."""
    rows = affine[:, :, 1:2] * y + affine[:, :, 2:]  # (B, 2, h)
    across, down = (rows[..., None] + (affine[:, :, :1] * x)[:, :, None]).unbind(1)
    return down, across


def hull(affine: Tensor, boxes: Tensor) -> Tensor:
    """The smallest boxes around moved ones: exact but for turns. affine: (B, 2, 3); boxes: (B, M, 4)."""
    middle, half = (boxes[..., :2] + boxes[..., 2:]) / 2, (boxes[..., 2:] - boxes[..., :2]) / 2
    middle = middle @ affine[:, :, :2].transpose(1, 2) + affine[:, None, :, 2]
    half = half @ affine[:, :, :2].abs().transpose(1, 2)
    return torch.cat([middle - half, middle + half], -1)


def _clip(boxes: Tensor, inside: Tensor) -> Tensor:
    low, high = inside[..., :2], inside[..., 2:]
    return torch.cat([torch.clamp(corner, low, high) for corner in boxes.split(2, -1)], -1)


def _both(sides: Tensor) -> Tensor:
    """Width, height, width, height of each image, (B, 1, 4) float64."""
    return sides.double().flip(1).repeat(1, 2)[:, None]
