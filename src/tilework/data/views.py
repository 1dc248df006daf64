"""Several random crops of one image, each at the size of a tokenizer's input (SeiT, ImageNet-1k-5M).

B images | V views | H, W pixels | T tries of a box
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from tilework.core.affine import TRIES, random_boxes
from tilework.core.rng import uniform
from tilework.data.image_files import File, open_image, to_rgb

ASPECT = (3 / 4, 4 / 3)


def sample_crops(seed: int, index: np.ndarray, views: int) -> np.ndarray:
    """Numbers in [0, 1) that each crop's box is drawn by. index: (B,); returns (B, V, 4 T) float32, T tries."""
    return uniform(seed, 0, index, "views", 4 * TRIES * views).reshape(len(index), views, 4 * TRIES)


def decode_views(
    path: File, size: tuple[int, int], draws: np.ndarray, area: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Crops of an image and their boxes, drawn again where they do not fit. draws: (V, 4 T) of `sample_crops`.

    Returns (V, 3, H, W) uint8, and (V, 4) left, top, right, bottom as shares of the upright image.
    """
    with open_image(path) as image:
        upright = to_rgb(image)
    width, height = upright.size
    rows, columns = (torch.full((len(draws),), side, dtype=torch.float64) for side in (height, width))
    found = random_boxes(torch.from_numpy(draws).double(), rows, columns, area, ASPECT)
    pictures, boxes = [], []
    for top, left, high, wide in torch.stack(found, 1).tolist():
        box = (left, top, left + wide, top + high)
        cut = upright.resize((size[1], size[0]), Image.Resampling.BICUBIC, box)
        pictures.append(np.asarray(cut).transpose(2, 0, 1))
        boxes.append([box[0] / width, box[1] / height, box[2] / width, box[3] / height])
    return np.stack(pictures), np.array(boxes, np.float32)
