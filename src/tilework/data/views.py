"""Several random crops of one image, each at the size of a tokenizer's input (SeiT, ImageNet-1k-5M).

B images | V views | H, W pixels
"""

from __future__ import annotations

import numpy as np
from PIL import Image

from tilework.core.rng import uniform
from tilework.data.images import File, open_image, to_rgb

ASPECT = (3 / 4, 4 / 3)


def sample_crops(seed: int, index: np.ndarray, views: int, area: tuple[float, float]) -> np.ndarray:
    """Area, aspect and place of each crop as numbers in [0, 1). index: (B,); returns (B, V, 4) float32."""
    draws = uniform(seed, 0, index, "views", 4 * views).reshape(len(index), views, 4)
    share = area[0] + (area[1] - area[0]) * draws[..., 0]
    aspect = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** draws[..., 1]  # even in its logarithm
    return np.stack([share, aspect, draws[..., 2], draws[..., 3]], -1).astype(np.float32)


def decode_views(path: File, size: tuple[int, int], crops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Crops of an image and their boxes. crops: (V, 4) of `sample_crops`.

    Returns (V, 3, H, W) uint8, and (V, 4) left, top, right, bottom as shares of the upright image.
    """
    with open_image(path) as image:
        upright = to_rgb(image)
    width, height = upright.size
    pictures, boxes = [], []
    for share, aspect, across, down in crops.astype(np.float64).tolist():
        wide = min(width, (share * width * height * aspect) ** 0.5)
        high = min(height, share * width * height / wide)
        left, top = across * (width - wide), down * (height - high)
        box = (left, top, left + wide, top + high)
        cut = upright.resize((size[1], size[0]), Image.Resampling.BICUBIC, box)
        pictures.append(np.asarray(cut).transpose(2, 0, 1))
        boxes.append([box[0] / width, box[1] / height, box[2] / width, box[3] / height])
    return np.stack(pictures), np.array(boxes, np.float32)
