"""RoIAlign: the mean of bilinear samples in every bin of a box (He et al., 2017), aligned by half a pixel.

torchvision's operator does it where it can be imported and runs on the device; else `grid_sample`, image by image.
B batch | C channels | h, w grid of a level | N boxes | s side of what is read | p points of a bin's side
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.layers.boxes import area
from tilework.layers.nms import native

POINTS = 2
FINEST = 14  # strides of the finest level: boxes up to twice as large are read there


def roi_align(x: Tensor, boxes: Tensor, image: Tensor, stride: float, side: int, points: int = POINTS) -> Tensor:
    """Features of boxes, (N, C, s, s). x: (B, C, h, w); boxes: (N, 4) in input positions; image: (N,) their samples."""
    if operator := native_roi_align(x.device.type):
        rows = torch.cat([image[:, None].to(boxes), boxes], 1)
        return operator(x, rows.to(x.dtype), side, 1 / stride, points, True)
    return sampled(x, boxes, image, stride, side, points)


def sampled(x: Tensor, boxes: Tensor, image: Tensor, stride: float, side: int, points: int = POINTS) -> Tensor:
    """The same by `grid_sample`; points more than a position beyond the map count as zero."""
    found = x.new_zeros(len(boxes), x.shape[1], side, side)
    if not len(boxes):
        return found
    height, width = x.shape[2:]
    low, high = boxes.float()[:, :2] / stride - 0.5, boxes.float()[:, 2:] / stride - 0.5
    steps = (torch.arange(side * points, device=x.device) + 0.5) / (side * points)
    at = low[:, None] + (high - low)[:, None] * steps[:, None]  # (N, s p, 2) x, y as positions of the map
    sides = torch.tensor([width, height], device=x.device)
    inside = ((at >= -1) & (at <= sides)).float()
    places = (2 * at.clamp(min=0) + 1) / sides - 1
    grid = torch.stack(torch.broadcast_tensors(places[:, None, :, 0], places[:, :, None, 1]), -1)  # (N, s p, s p, 2)
    weight = inside[:, None, :, 0] * inside[:, :, None, 1]  # (N, s p, s p)
    parts, rows = [], []
    for number in range(len(x)):
        row = (image == number).nonzero()[:, 0]
        if len(row):
            read = F.grid_sample(  # (1, C, n s p, s p)
                x[number : number + 1].float(), grid[row].flatten(0, 1)[None], padding_mode="border",
                align_corners=False,
            )  # fmt: skip
            read = read[0].unflatten(1, (len(row), -1)).transpose(0, 1) * weight[row][:, None]
            parts.append(F.avg_pool2d(read, points))
            rows.append(row)
    return found.index_copy(0, torch.cat(rows), torch.cat(parts).to(found.dtype))


def level_of(boxes: Tensor, finest: float, levels: int) -> Tensor:
    """The level that a box is read from by its size, (N,) (Lin et al., 2017): 224 px of a stride of 4 is the third."""
    size = area(boxes.float()).clamp(min=0).sqrt() / (FINEST * finest)
    return (size + 1e-6).log2().floor().clamp(0, levels - 1).long()


def read_pyramid(
    maps: Sequence[Tensor], strides: Sequence[float], boxes: Tensor, image: Tensor, side: int, points: int = POINTS
) -> Tensor:
    """Features of boxes from the levels that their sizes ask for, (N, C, s, s)."""
    level = level_of(boxes, strides[0], len(maps))
    found = maps[0].new_zeros(len(boxes), maps[0].shape[1], side, side)
    for number, (x, stride) in enumerate(zip(maps, strides, strict=True)):
        row = (level == number).nonzero()[:, 0]
        found = found.index_copy(0, row, roi_align(x, boxes[row], image[row], stride, side, points).to(found.dtype))
    return found


@lru_cache
def native_roi_align(device: str) -> Any:
    """torchvision's operator, if it runs on a kind of device."""
    return native("roi_align", device, (torch.zeros(1, 1, 2, 2), torch.zeros(1, 5), 1, 1.0, 1, True))
