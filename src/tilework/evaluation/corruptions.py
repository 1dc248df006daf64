"""Common corruptions of photographs (ImageNet-C, Hendrycks and Dietterich, 2019): 15 and 4 more, at five severities.

Bytes to bytes, on the host, as images are decoded: models on any device see the same ones. What is random is drawn from
(seed, image, name, severity), then applied by a pure function. Lengths in pixels are meant for images of 224 px and are
scaled to others. Motion blur follows ImageMagick's algorithm, which ImageNet-C calls; frost needs textures that are not
ours to ship.

B batch | H, W pixels | S side of a plasma map | n pixels that glass blur visits
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import ceil, cos, exp, radians, sin
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tilework.core.errors import ConfigError, InputError
from tilework.core.registry import nearest
from tilework.core.rng import Draws
from tilework.data.images import SUFFIXES, open_image, to_rgb
from tilework.evaluation.noise import Noise, seeds_of

SIDE = 224  # pixels that lengths are meant for
AT_ONCE, PLANES = 1 << 19, 1 << 16  # values of images, and of single planes, that are worked on together: a cache full
FROST_HINT = "add --frost DIR, or pip install imagecorruptions-imaug"
BLOCK = 32  # rows or columns of a blur that are made by one product
GREY = (0.299, 0.587, 0.114)
WATER, MUD = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)
ALEXNET = {  # error of AlexNet over the severities, by which mCE is scaled: the 15 that count, in their order
    "gaussian_noise": 0.886428, "shot_noise": 0.894468, "impulse_noise": 0.922640, "defocus_blur": 0.819880,
    "glass_blur": 0.826268, "motion_blur": 0.785948, "zoom_blur": 0.798360, "snow": 0.866816, "frost": 0.826572,
    "fog": 0.819324, "brightness": 0.564592, "contrast": 0.853204, "elastic_transform": 0.646056,
    "pixelate": 0.717840, "jpeg_compression": 0.606500,
}  # fmt: skip


@dataclass(frozen=True)
class Corruption:
    """One kind. Both functions take bytes x: (B, 3, H, W), settings of a severity, and the scale of lengths."""

    severities: tuple[Any, ...]
    apply: Callable[[Tensor, Any, Any, float], Tensor]  # (x, settings, drawn, scale): bytes, or numbers about [0, 1]
    draw: Callable[[Noise, Tensor, Any, float], Any] = lambda noise, x, c, scale: None
    together: int = 0  # images that are worked on together; 0: as many as a cache holds


def corrupt(
    x: Tensor, name: str, severity: int, draws: Draws, native: bool = False, frost: Path | None = None
) -> Tensor:
    """Corrupted images. x: (B, 3, H, W) uint8 on the host.

    native: lengths are not scaled to the size of the images. frost: folder of textures, for the corruption so named.
    """
    kind, scale = CORRUPTIONS[name], 1.0 if native else min(x.shape[-2:]) / SIDE
    settings = kind.severities[severity - 1]
    seeds = seeds_of(draws, f"corrupt/{name}/{severity}")
    step = kind.together or max(1, AT_ONCE // x[0].numel())
    parts = []
    for start in range(0, len(x), step):
        part = x[start : start + step]
        drawn = kind.draw(Noise(seeds[start : start + step], frost), part, settings, scale)
        parts.append(to_bytes(kind.apply(part, settings, drawn, scale)))
    return torch.cat(parts)


def to_bytes(y: Tensor) -> Tensor:
    """Numbers to bytes, rounded down as ImageNet-C does; bytes stay. y is changed: memory costs more than work."""
    return y if y.dtype == torch.uint8 else y.mul_(255).add_(1e-3).clamp_(0, 255).to(torch.uint8)


def check(names: tuple[str, ...], severities: tuple[int, ...], textures: bool) -> None:
    """Refuse unknown names and severities, and frost without textures."""
    for name in names:
        if name not in CORRUPTIONS:
            raise ConfigError(f"unknown corruption '{name}'", nearest(name, CORRUPTIONS))
    if wrong := [s for s in severities if not 1 <= s <= 5]:
        raise ConfigError(f"severity {wrong[0]}", "1 to 5 are defined")
    if "frost" in names and not textures:
        raise ConfigError("corruption 'frost' needs textures", FROST_HINT)


def mean_corruption_error(errors: dict[str, float]) -> float:
    """mCE: error of each of the 15 corruptions, its mean over severities, relative to AlexNet's; their mean.

    Of ImageNet-1k at 224 px only.
    """
    return sum(errors[name] / base for name, base in ALEXNET.items()) / len(ALEXNET)


# noise


def _normal(noise: Noise, x: Tensor, c: Any, scale: float) -> Tensor:
    return noise.normal(*x.shape[1:])


@lru_cache(maxsize=8)
def _alias_tables(c: float) -> tuple[Tensor, Tensor]:
    """Of the Poisson distribution of each byte's light, for one draw per number (Walker, 1977): (256, n) both."""
    count = int(c + 10 * c**0.5) + 12
    own, other = np.ones((256, count)), np.tile(np.arange(count), (256, 1))
    for byte in range(256):
        rate = byte / 255 * c
        p = [exp(-rate)]
        for k in range(1, count):
            p.append(p[-1] * rate / k)
        share = np.array(p) / sum(p) * count
        small, large = list(np.flatnonzero(share < 1)), list(np.flatnonzero(share >= 1))
        while small and large:
            low, high = small.pop(), large[-1]
            own[byte, low], other[byte, low] = share[low], high
            share[high] -= 1 - share[low]
            if share[high] < 1:
                small.append(large.pop())
    return torch.from_numpy(own).float(), torch.from_numpy(other).float()


def _shots(noise: Noise, x: Tensor, c: float, scale: float) -> Tensor:
    """Counts of light, Poisson(x c / 255), like x."""
    own, other = _alias_tables(c)
    place = noise.uniform(*x.shape[1:]).mul_(own.shape[1])
    cell = place.floor()
    entry = (x.int() * own.shape[1]).add_(cell.int()).flatten()
    kept = place.sub_(cell).flatten() < own.flatten().index_select(0, entry)
    return torch.where(kept, cell.flatten(), other.flatten().index_select(0, entry)).view(x.shape)


def _impulse(x: Tensor, share: float, u: Tensor, scale: float) -> Tensor:
    """u: like x, whole numbers below 65,536."""
    least = round(share * 65536)
    return x.masked_fill(u < least, 0).masked_fill_(u < least // 2, 255)


# blurs


@lru_cache(maxsize=64)
def _blur_blocks(sd: float, side: int, mode: str, truncate: float) -> list[tuple[slice, slice, Tensor]]:
    """A Gaussian of one axis as parts of a banded matrix: pixels that are made, those they need, and weights.

    mode: what lies beyond the edge: the edge again (edge) or the mirrored image (symmetric).
    """
    radius = int(truncate * sd + 0.5)
    taps = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sd) ** 2)
    places = np.pad(np.arange(side), radius, mode=mode)  # type: ignore[call-overload]
    matrix = np.zeros((side, side))
    for i, tap in enumerate(taps / taps.sum()):
        np.add.at(matrix, (np.arange(side), places[i : i + side]), tap)
    made = [slice(start, min(start + BLOCK, side)) for start in range(0, side, BLOCK)]
    needed = [slice(max(0, part.start - radius), min(side, part.stop + radius)) for part in made]
    return [(m, n, torch.from_numpy(matrix[m, n]).float()) for m, n in zip(made, needed, strict=True)]


def gaussian(x: Tensor, sd: float, mode: str = "edge", truncate: float = 4.0) -> Tensor:
    """x: (..., H, W) blurred along both axes."""
    if sd < 1e-3:
        return x
    height, width = x.shape[-2:]
    planes = x.reshape(-1, height, width)
    once, twice = torch.empty_like(planes), torch.empty_like(planes)
    for made, needed, weights in _blur_blocks(sd, height, mode, truncate):
        torch.matmul(weights, planes[:, needed], out=once[:, made])
    for made, needed, weights in _blur_blocks(sd, width, mode, truncate):
        twice[:, :, made] = once[:, :, needed] @ weights.T
    return twice.view(x.shape)


def _weighted_shifts(padded: Tensor, taps: list[tuple[float, int, int]], size: tuple[int, int]) -> Tensor:
    """Sum of shifted images. padded: (C, H', W'); taps: weight, top and left of what is added; returns (C, H, W)."""
    out = torch.zeros(len(padded), *size)
    for weight, top, left in taps:
        out.add_(padded[:, top : top + size[0], left : left + size[1]], alpha=weight)
    return out


@lru_cache(maxsize=32)
def disk(radius: float, sd: float) -> Tensor:
    """A disk, antialiased: what a point becomes when it is out of focus. (k, k)"""
    half = max(8, ceil(radius))
    places = torch.arange(-half, half + 1)
    inside = (places[:, None] ** 2 + places**2 <= radius**2).float()
    reach = 1 if radius <= 8 else 2
    taps = torch.tensor([exp(-0.5 * (i / sd) ** 2) for i in range(-reach, reach + 1)])
    taps = taps / taps.sum()
    padded = F.pad((inside / inside.sum())[None, None], (reach,) * 4, mode="reflect")
    return F.conv2d(F.conv2d(padded, taps.view(1, 1, 1, -1)), taps.view(1, 1, -1, 1))[0, 0]


def _defocus(x: Tensor, c: tuple[float, float], p: None, scale: float) -> Tensor:
    kernel = disk(c[0] * scale, c[1])
    padded = F.pad(x / 255, (len(kernel) // 2,) * 4, mode="reflect").flatten(0, 1)
    some = max(1, PLANES // padded[0].numel())
    return torch.cat([_symmetric(planes, kernel) for planes in padded.split(some)]).view(x.shape)


def _symmetric(padded: Tensor, kernel: Tensor) -> Tensor:
    """Filter with a kernel that is the same upside down and mirrored. padded: (P, H', W'); returns (P, H, W)."""
    half = len(kernel) // 2
    height, width = (side - 2 * half for side in padded.shape[1:])
    quarter = kernel[half:, half:].tolist()
    above = [padded[:, half - i : half - i + height] for i in range(half + 1)]
    rows = [above[0], *(above[i] + padded[:, half + i : half + i + height] for i in range(1, half + 1))]
    out = torch.zeros(len(padded), height, width)
    for j in range(half + 1):
        column = torch.zeros_like(rows[0])
        for row, weights in zip(rows, quarter, strict=True):
            if weights[j]:
                column.add_(row, alpha=weights[j])
        for left in {half - j, half + j}:
            out += column[..., left : left + width]
    return out


def _angles(low: float, high: float) -> Callable[[Noise, Tensor, Any, float], Tensor]:
    return lambda noise, x, c, scale: noise.uniform(low=low, high=high)


def motion(x: Tensor, radius: float, sd: float, angle: Tensor) -> Tensor:
    """Blurred in one direction: half a Gaussian of 2 r + 1 steps, as ImageMagick. x: (B, C, H, W); angle: (B,) in °."""
    count = 2 * ceil(radius) + 1
    weights = [exp(-0.5 * (i / sd) ** 2) for i in range(count)]
    padded, size = F.pad(x, (count,) * 4, mode="replicate"), (x.shape[2], x.shape[3])
    out = []
    for image, degrees in zip(padded, angle.tolist(), strict=True):
        down, right = sin(radians(degrees)), cos(radians(degrees))
        steps = ((w / sum(weights), ceil(i * down - 0.5), ceil(i * right - 0.5)) for i, w in enumerate(weights))
        out.append(_weighted_shifts(image, [(w, count + top, count + left) for w, top, left in steps], size))
    return torch.stack(out)


def clipped_zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of images enlarged to their size, linearly between its outermost pixels. x: (B, C, H, W)."""
    inner = [ceil(side / factor) for side in x.shape[2:]]
    top, left = ((side - cut) // 2 for side, cut in zip(x.shape[2:], inner, strict=True))
    middle = x[..., top : top + inner[0], left : left + inner[1]]
    larger = [round(cut * factor) for cut in inner]
    grown = F.interpolate(middle, larger, mode="bilinear", align_corners=True)
    top, left = ((out - side) // 2 for side, out in zip(x.shape[2:], larger, strict=True))
    return grown[..., top : top + x.shape[2], left : left + x.shape[3]]


def _zoom(x: Tensor, c: tuple[float, float], p: None, scale: float) -> Tensor:
    y = (x / 255).contiguous(memory_format=torch.channels_last)  # interpolates three times as fast
    factors = np.arange(1, *c).tolist()
    total = y.clone()
    for factor in factors:
        total += clipped_zoom(y, factor) if factor > 1 else y
    return total.div_(len(factors) + 1).contiguous()


def _reach(c: tuple[float, int, int], scale: float) -> int:
    return max(1, round(c[1] * scale))


def _moves(noise: Noise, x: Tensor, c: tuple[float, int, int], scale: float) -> Tensor:
    """Which pixel of a square of 2 reach x 2 reach, by rows, takes the place of each visited one, (B, rounds, n)."""
    reach = _reach(c, scale)
    visits = max(0, x.shape[2] - 2 * reach) * max(0, x.shape[3] - 2 * reach)
    return noise.small_integers(4 * reach**2, c[2], visits)


def _glass(x: Tensor, c: tuple[float, int, int], moves: Tensor, scale: float) -> Tensor:
    blurred = to_bytes(gaussian(x / 255, c[0] * scale))
    return gaussian(displace(blurred, moves, _reach(c, scale)) / 255, c[0] * scale)


def displace(x: Tensor, moves: Tensor, reach: int) -> Tensor:
    """Every pixel replaced by a near one, from the lower right, in sequence. x: (B, 3, H, W) uint8; moves: as drawn.

    ImageNet-C means to swap both, but its assignment reads what it has just written. Moves that touch no common pixel
    change places freely: pixels whose (2 reach + 1) * row + column agree, a slanted line, are replaced at once, and a
    round begins (2 reach + 1)^2 lines after the one before. The result is that of the sequence.
    """
    batch, _, height, width = x.shape
    rounds, apart = moves.shape[1], 2 * reach + 1
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    at = (rows[:, None] * width + columns).ravel()  # visited in this order, (n,)
    line = ((rows[:1] - rows)[:, None] * apart + (columns[:1] - columns)).ravel()
    line = (line + apart**2 * np.arange(rounds)[:, None]).ravel()  # (rounds n,)
    order = np.argsort(line, kind="stable")
    down, right = np.divmod(np.arange(4 * reach**2), 2 * reach)
    shifts = (((down - reach) * width + right - reach) * batch).astype(np.int32)
    shift = np.ascontiguousarray(shifts.take(moves.flatten(1).numpy()[:, order].T))  # (rounds n, B)
    packed = np.zeros((height * width, batch, 4), np.uint8)
    packed[..., :3] = x.flatten(2).permute(2, 0, 1).numpy()
    values = packed.view(np.int32)[..., 0]  # (H W, B): a pixel of all images lies together
    flat, visited, images = values.reshape(-1), np.tile(at, rounds)[order], np.arange(batch)
    start = 0
    for end in np.cumsum(np.bincount(line)).tolist():
        these = visited[start:end]
        values[these] = flat.take((these * batch)[:, None] + images + shift[start:end])
        start = end
    return torch.from_numpy(packed[..., :3]).permute(1, 2, 0).contiguous().view(x.shape)


# weather


def _snowing(noise: Noise, x: Tensor, c: tuple[float, ...], scale: float) -> tuple[Tensor, Tensor]:
    return noise.normal(1, *x.shape[2:]), noise.uniform(low=-135, high=-45)


def _snow(x: Tensor, c: tuple[float, ...], p: tuple[Tensor, Tensor], scale: float) -> Tensor:
    mean, sd, zoom, threshold, radius, blur, share = c
    flakes = clipped_zoom(mean + sd * p[0], max(1.0, zoom * scale))
    flakes = flakes.masked_fill(flakes < threshold, 0).clamp_(0, 1)
    flakes = motion(flakes, radius * scale, blur * scale, p[1]).mul_(255).round_().div_(255)
    y = x / 255
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
    y = x / 255
    most = y.amax((1, 2, 3), keepdim=True)
    layer = c[0] * plasma(u, c[1])[:, None, : x.shape[2], : x.shape[3]]
    return y.add_(layer).mul_(most / (most + c[0]))


# light and colour


def _brightness(x: Tensor, c: float, p: None, scale: float) -> Tensor:
    """V of HSV raised: hue and saturation stay, so channels keep their ratios; black becomes grey."""
    y = x / 255
    value = y.amax(1, keepdim=True)
    brighter = (value + c).clamp_(max=1)
    return torch.where(value > 0, y * (brighter / value), brighter)


def _saturate(x: Tensor, c: tuple[float, float], p: None, scale: float) -> Tensor:
    """S of HSV changed: the distance of channels from the largest; grey has hue 0, red."""
    y = x / 255
    value, least = y.amax(1, keepdim=True), y.amin(1, keepdim=True)
    spread = value - least
    saturation = torch.where(value > 0, spread / value, 0.0)
    wanted = (saturation * c[0] + c[1]).clamp_(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0]).view(3, 1, 1)
    return value * (1 - wanted * torch.where(spread > 0, (value - y) / spread, red))


def _contrast(x: Tensor, c: float, p: None, scale: float) -> Tensor:
    y = x / 255
    mean = y.mean((2, 3), keepdim=True)
    return torch.lerp(mean, y, c)


# geometry and compression


def _stretching(noise: Noise, x: Tensor, c: Any, scale: float) -> tuple[Tensor, Tensor]:
    return noise.uniform(3, 2, low=-1, high=1), noise.uniform(2, *x.shape[2:], low=-1, high=1)


def _elastic(x: Tensor, c: tuple[float, float, float], p: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """An affine map that moves three points, then a smooth field of moves. p: (B, 3, 2), (B, 2, H, W)."""
    alpha, sd, reach = (244 * value * scale for value in c)
    height, width = x.shape[2:]
    middle, third = torch.tensor([height // 2, width // 2]), min(height, width) // 3
    before = middle + third * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])  # x, y
    after = F.pad(before + reach * p[0], (0, 1), value=1.0)  # (B, 3, 3)
    affine = torch.linalg.solve(after, before.expand(len(x), 3, 2))  # (B, 3, 2), output to input
    across, down = torch.arange(width).float(), torch.arange(height).float()[:, None]
    moved = [across * a[:, :1, None] + down * a[:, 1:2, None] + a[:, 2:, None] for a in affine.unbind(2)]
    at = torch.stack([m * (2 / (side - 1)) - 1 for m, side in zip(moved, (width, height), strict=True)], -1)
    y = F.grid_sample(x / 255, at, padding_mode="reflection", align_corners=True)
    field = gaussian(p[1], sd, "symmetric", 3.0) * alpha  # across, down
    moved = [across + field[:, 0], down + field[:, 1]]
    at = torch.stack([m * (2 / side) + (1 / side - 1) for m, side in zip(moved, (width, height), strict=True)], -1)
    return F.grid_sample(y, at, padding_mode="reflection", align_corners=False)


def _each(x: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    """Every image through Pillow."""
    out = np.empty(x.shape, np.uint8)
    for planes, made in zip(x.numpy(), out, strict=True):
        picture = change(Image.merge("RGB", [Image.fromarray(plane) for plane in planes]))
        made[:] = [np.asarray(plane) for plane in picture.split()]
    return torch.from_numpy(out)


def _pixelate(x: Tensor, c: float, p: None, scale: float) -> Tensor:
    def change(image: Image.Image) -> Image.Image:
        small = image.resize((max(1, int(image.width * c)), max(1, int(image.height * c))), Image.Resampling.BOX)
        return small.resize(image.size, Image.Resampling.NEAREST)

    return _each(x, change)


def _jpeg(x: Tensor, quality: int, p: None, scale: float) -> Tensor:
    def change(image: Image.Image) -> Image.Image:
        data = io.BytesIO()
        image.save(data, "JPEG", quality=quality)
        return Image.open(data)

    return _each(x, change)


# spatter


def _liquid(noise: Noise, x: Tensor, c: Any, scale: float) -> Tensor:
    return noise.normal(*x.shape[2:])


def _spatter(x: Tensor, c: tuple[float, float, float, float, float, str], p: Tensor, scale: float) -> Tensor:
    mean, sd, blur, threshold, strength, kind = c
    layer = gaussian(mean + sd * p, blur * scale)
    layer = layer.masked_fill(layer < threshold, 0)
    y = x / 255
    if kind == "mud":
        cover = gaussian((layer > threshold).float(), strength * scale)
        cover = cover.masked_fill(cover < 0.8, 0)[:, None]
        return y * (1 - cover) + cover * torch.tensor(MUD).view(3, 1, 1)
    layer = (layer * 255).floor().remainder(256)
    shade = _box(edge_distance(edges(layer, 50, 150))).floor()
    shade = _box(_relief(_equalise(shade))).round()
    cover = layer * shade
    cover = cover / cover.amax((1, 2), keepdim=True).clamp(min=1e-12) * strength
    return y.add_(cover[:, None] * torch.tensor(WATER).view(3, 1, 1))


def _filter(x: Tensor, kernel: tuple[tuple[float, ...], ...], mode: str = "reflect") -> Tensor:
    """x: (B, H, W), by a kernel of 3x3."""
    padded = F.pad(x[:, None], (1, 1, 1, 1), mode=mode)[:, 0]
    taps = [(kernel[i][j], i, j) for i in range(3) for j in range(3) if kernel[i][j]]
    return _weighted_shifts(padded, taps, (x.shape[1], x.shape[2]))


def _box(x: Tensor) -> Tensor:
    return _filter(x, ((1 / 9,) * 3,) * 3)


def _relief(x: Tensor) -> Tensor:
    return _filter(x, ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))).clamp_(0, 255)


def _equalise(x: Tensor) -> Tensor:
    """Histogram equalisation of each image. x: (B, H, W), whole numbers of a byte."""
    images = x.flatten(1).long()
    rows = torch.arange(len(x))[:, None] * 256
    counts = torch.bincount((images + rows).flatten(), minlength=256 * len(x)).view(-1, 256)
    total = counts.cumsum(1)
    least = counts.gather(1, (counts > 0).int().argmax(1, keepdim=True))  # of the darkest
    table = ((total - least) * (255 / (images.shape[1] - least).clamp(min=1))).round()
    return table.gather(1, images).view(x.shape)


def edges(x: Tensor, low: float, high: float) -> Tensor:
    """Edges that are thin and strong, or joined to strong ones (Canny, 1986). x: (B, H, W); returns it as bool."""
    across = _filter(x, ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1)), "replicate")
    down = _filter(x, ((-1, -2, -1), (0, 0, 0), (1, 2, 1)), "replicate")
    wide, tall = across.abs(), down.abs()
    size = wide + tall
    padded = F.pad(size, (1, 1, 1, 1))
    height, width = x.shape[1:]

    def beside(dy: int, dx: int) -> Tensor:
        return padded[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    flat, steep = tall < wide * 0.41421356, tall > wide * 2.41421356
    rising = (across < 0) != (down < 0)
    falls = (size > beside(-1, -1)) & (size > beside(1, 1))
    climbs = (size > beside(-1, 1)) & (size > beside(1, -1))
    level = (size > beside(0, -1)) & (size >= beside(0, 1))
    upright = (size > beside(-1, 0)) & (size >= beside(1, 0))
    slanted = torch.where(rising, climbs, falls)
    thin = torch.where(flat, level, torch.where(steep, upright, slanted)) & (size > low)
    found = thin & (size > high)
    while True:
        wider = F.pad(found, (1, 1, 1, 1))
        wider = wider[:, :-2] | wider[:, 1:-1] | wider[:, 2:]
        wider = (wider[..., :-2] | wider[..., 1:-1] | wider[..., 2:]) & thin
        if torch.equal(wider, found):
            return found
        found = wider


FARTHEST = 20  # pixels from an edge, as far as it is looked for


@lru_cache(maxsize=1)
def _chamfer() -> Tensor:
    """Length of the shortest way by steps to (1, 0), (1, 1) and (2, 1) (Borgefors, 1986), (21, 22)."""
    rows, columns = torch.meshgrid(torch.arange(FARTHEST + 1.0), torch.arange(FARTHEST + 2.0), indexing="ij")
    more, less = torch.maximum(rows, columns), torch.minimum(rows, columns)
    straight = 2.1969 * less + (more - 2 * less)
    slanted = 2.1969 * (more - less) + 1.4 * (2 * less - more)
    return torch.where(2 * less <= more, straight, slanted).clamp_(max=FARTHEST)


def edge_distance(edge: Tensor) -> Tensor:
    """Distance to the nearest edge, at most 20. edge: (B, H, W) bool."""
    beside = torch.where(edge, 0, FARTHEST + 1).int()  # distance in the same row
    for step in (1, 2, 4, 8, 16):
        nearer = beside.clone()
        torch.minimum(nearer[..., step:], beside[..., :-step] + step, out=nearer[..., step:])
        torch.minimum(nearer[..., :-step], beside[..., step:] + step, out=nearer[..., :-step])
        beside = nearer
    padded = F.pad(beside, (0, 0, FARTHEST, FARTHEST), value=FARTHEST + 1)
    found = torch.full(edge.shape, float(FARTHEST))
    for away, lengths in enumerate(_chamfer()):
        if found.max() <= away:
            break
        above, below = (padded[:, start : start + edge.shape[1]] for start in (FARTHEST - away, FARTHEST + away))
        nearer = torch.minimum(above, below)
        found = torch.minimum(found, lengths.index_select(0, nearer.flatten()).view(found.shape))
    return found


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(
        (0.08, 0.12, 0.18, 0.26, 0.38), lambda x, sd, n, scale: (x / 255).add_(n, alpha=sd), _normal
    ),
    "shot_noise": Corruption((60, 25, 12, 5, 3), lambda x, c, counts, scale: counts / c, _shots),
    "impulse_noise": Corruption(
        (0.03, 0.06, 0.09, 0.17, 0.27), _impulse, lambda noise, x, c, scale: noise.small_integers(65536, *x.shape[1:])
    ),
    "defocus_blur": Corruption(((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)), _defocus),
    "glass_blur": Corruption(
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)), _glass, _moves, together=16
    ),
    "motion_blur": Corruption(
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        lambda x, c, angle, scale: motion(x / 255, c[0] * scale, c[1] * scale, angle),
        _angles(-45, 45),
    ),
    "zoom_blur": Corruption(((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)), _zoom),
    "snow": Corruption(
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
        _snow,
        _snowing,
    ),
    "frost": Corruption(
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
        lambda x, c, ice, scale: (x * (c[0] / 255)).add_(ice, alpha=c[1] / 255),
        _freezing,
    ),
    "fog": Corruption(((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)), _fog, _fogging),
    "brightness": Corruption((0.1, 0.2, 0.3, 0.4, 0.5), _brightness),
    "contrast": Corruption((0.4, 0.3, 0.2, 0.1, 0.05), _contrast),
    "elastic_transform": Corruption(
        ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
        _elastic,
        _stretching,
    ),
    "pixelate": Corruption((0.6, 0.5, 0.4, 0.3, 0.25), _pixelate),
    "jpeg_compression": Corruption((25, 18, 15, 10, 7), _jpeg),
    "speckle_noise": Corruption(  # from here on not in mCE
        (0.15, 0.2, 0.35, 0.45, 0.6), lambda x, sd, n, scale: (x / 255).mul_(n.mul_(sd).add_(1)), _normal
    ),
    "gaussian_blur": Corruption((1, 2, 3, 4, 6), lambda x, sd, p, scale: gaussian(x / 255, sd * scale)),
    "spatter": Corruption(
        (
            (0.65, 0.3, 4, 0.69, 0.6, "water"),
            (0.65, 0.3, 3, 0.68, 0.6, "water"),
            (0.65, 0.3, 2, 0.68, 0.5, "water"),
            (0.65, 0.3, 1, 0.65, 1.5, "mud"),
            (0.67, 0.4, 1, 0.65, 1.5, "mud"),
        ),
        _spatter,
        _liquid,
        together=8,
    ),
    "saturate": Corruption(((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)), _saturate),
}
EXTRA = tuple(name for name in CORRUPTIONS if name not in ALEXNET)
