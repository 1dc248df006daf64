"""Weather of ImageNet-C: snow, frost (whose textures are not ours to ship) and fog.

B batch | H, W pixels | S side of a plasma map
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tilework.core.errors import ConfigError, InputError
from tilework.data.image_files import SUFFIXES, open_image, to_rgb
from tilework.evaluation.corruptions.blur import clipped_zoom, motion
from tilework.evaluation.corruptions.kind import GREY, Corruption, in_unit
from tilework.evaluation.noise import Noise

FROST_HINT = "add --frost DIR, or pip install imagecorruptions-imaug"


def _snowing(noise: Noise, x: Tensor, c: tuple[float, ...], scale: float) -> tuple[Tensor, Tensor]:
    return noise.normal(1, *x.shape[2:]), noise.uniform(low=-135, high=-45)


def _snow(x: Tensor, c: tuple[float, ...], p: tuple[Tensor, Tensor], scale: float) -> Tensor:
    mean, sd, zoom, threshold, radius, blur, share = c
    flakes = clipped_zoom(mean + sd * p[0], max(1.0, zoom * scale))
    flakes = flakes.masked_fill(flakes < threshold, 0).clamp_(0, 1)
    flakes = motion(flakes, radius * scale, blur * scale, p[1]).mul_(255).round_().div_(255)
    y = in_unit(x)
    grey = y[:, :1] * GREY[0] + y[:, 1:2] * GREY[1] + y[:, 2:] * GREY[2]
    whiter = torch.maximum(y, grey.mul_(1.5).add_(0.5))
    return y.mul_(share).add_(whiter, alpha=1 - share).add_(flakes).add_(flakes.flip(2, 3))


@lru_cache(maxsize=1)
def _textures(folder: Path) -> tuple[Image.Image, ...]:
    found = []
    for path in sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES):
        with open_image(path) as image:
            found.append(to_rgb(image).copy())
    return tuple(found)


def frost_folder(given: Path | None = None) -> Path | None:
    """Where textures of frost lie: a folder that is given, or the package imagecorruptions; None: nowhere."""
    if given is not None:
        if not given.is_dir() or not any(p.suffix.lower() in SUFFIXES for p in given.iterdir()):
            raise InputError(f"no textures of frost in {given}", "give a folder of images")
        return given
    spec = find_spec("imagecorruptions")  # not imported: it needs OpenCV
    folder = Path(spec.origin).parent / "frost" if spec is not None and spec.origin else None
    return folder if folder is not None and folder.is_dir() else None


@lru_cache(maxsize=32)
def _texture(folder: Path, number: int, height: int, width: int, scale: float) -> Tensor:
    """A texture at the scale of the images and larger than they are, (3, h, w)."""
    image = _textures(folder)[number]
    factor = max(scale, 1.1 * height / image.height, 1.1 * width / image.width)
    if factor != 1:
        image = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def _freezing(noise: Noise, x: Tensor, c: Any, scale: float) -> Tensor:
    """A cut of some texture for each image, like x."""
    if noise.frost is None:
        raise ConfigError("corruption 'frost' needs textures", FROST_HINT)
    height, width = x.shape[2:]
    cuts = []
    for kind, down, right in noise.uniform(3).tolist():
        texture = _texture(noise.frost, int(kind * len(_textures(noise.frost))), height, width, scale)
        top, left = int(down * (texture.shape[1] - height)), int(right * (texture.shape[2] - width))
        cuts.append(texture[:, top : top + height, left : left + width])
    return torch.stack(cuts)


def _fogging(noise: Noise, x: Tensor, c: Any, scale: float) -> Tensor:
    side = 1 << (max(x.shape[2:]) - 1).bit_length()
    return noise.uniform(side, side, low=-1, high=1)


def plasma(u: Tensor, decay: float) -> Tensor:
    """Heights in [0, 1] by diamond-square; u: (B, S, S) in [-1, 1), how far each point is moved off its neighbours."""
    height, step, wibble = torch.zeros_like(u), u.shape[1], 100.0
    while step >= 2:
        half, amount = step // 2, wibble**2  # squared: in ImageNet-C it scales its own range
        corner = height[:, ::step, ::step]
        square = corner + corner.roll(-1, 1)
        square = square + square.roll(-1, 2)
        height[:, half::step, half::step] = torch.add(square / 4, u[:, half::step, half::step], alpha=amount)
        middle = height[:, half::step, half::step]
        across = middle + middle.roll(1, 1) + corner + corner.roll(-1, 2)
        height[:, ::step, half::step] = torch.add(across / 4, u[:, ::step, half::step], alpha=amount)
        along = middle + middle.roll(1, 2) + corner + corner.roll(-1, 1)
        height[:, half::step, ::step] = torch.add(along / 4, u[:, half::step, ::step], alpha=amount)
        step, wibble = half, wibble / decay
    height -= height.amin((1, 2), keepdim=True)
    return height.div_(height.amax((1, 2), keepdim=True).clamp(min=1e-12))


def _fog(x: Tensor, c: tuple[float, float], u: Tensor, scale: float) -> Tensor:
    y = in_unit(x)
    most = y.amax((1, 2, 3), keepdim=True)
    layer = c[0] * plasma(u, c[1])[:, None, : x.shape[2], : x.shape[3]]
    return y.add_(layer).mul_(most / (most + c[0]))


SNOW = Corruption(
    (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    _snow,
    _snowing,
)
FROST = Corruption(
    ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    lambda x, c, ice, scale: x.float().mul_(c[0] / 255).add_(ice, alpha=c[1] / 255),
    _freezing,
)
FOG = Corruption(((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)), _fog, _fogging)
