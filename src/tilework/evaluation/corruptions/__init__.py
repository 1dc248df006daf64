"""Common corruptions of photographs (ImageNet-C, Hendrycks and Dietterich, 2019): 15 and 4 more, at five severities.

Bytes to bytes, on the host, as images are decoded: models on any device see the same ones. What is random is drawn from
(seed, image, name, severity), then applied by a pure function. Lengths in pixels are meant for images of 224 px and are
scaled to others.

B batch | H, W pixels
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tilework.core.errors import ConfigError
from tilework.core.registry import nearest
from tilework.core.rng import Draws
from tilework.evaluation.corruptions import blur, colour, digital, noise, weather
from tilework.evaluation.corruptions.glass import GLASS
from tilework.evaluation.corruptions.kind import Corruption, to_bytes
from tilework.evaluation.corruptions.spatter import SPATTER
from tilework.evaluation.corruptions.weather import FROST_HINT, frost_folder
from tilework.evaluation.noise import Noise, seeds_of

__all__ = [
    "ALEXNET",
    "CORRUPTIONS",
    "EXTRA",
    "FROST_HINT",
    "SIDE",
    "Corruption",
    "check",
    "corrupt",
    "frost_folder",
    "mean_corruption_error",
    "to_bytes",
]

SIDE = 224  # pixels that lengths are meant for
AT_ONCE = 1 << 19  # values of images that are worked on together: a cache full
ALEXNET = {  # error of AlexNet over the severities, by which mCE is scaled: the 15 that count, in their order
    "gaussian_noise": 0.886428, "shot_noise": 0.894468, "impulse_noise": 0.922640, "defocus_blur": 0.819880,
    "glass_blur": 0.826268, "motion_blur": 0.785948, "zoom_blur": 0.798360, "snow": 0.866816, "frost": 0.826572,
    "fog": 0.819324, "brightness": 0.564592, "contrast": 0.853204, "elastic_transform": 0.646056,
    "pixelate": 0.717840, "jpeg_compression": 0.606500,
}  # fmt: skip
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": noise.GAUSSIAN,
    "shot_noise": noise.SHOT,
    "impulse_noise": noise.IMPULSE,
    "defocus_blur": blur.DEFOCUS,
    "glass_blur": GLASS,
    "motion_blur": blur.MOTION,
    "zoom_blur": blur.ZOOM,
    "snow": weather.SNOW,
    "frost": weather.FROST,
    "fog": weather.FOG,
    "brightness": colour.BRIGHTNESS,
    "contrast": colour.CONTRAST,
    "elastic_transform": digital.ELASTIC,
    "pixelate": digital.PIXELATE,
    "jpeg_compression": digital.JPEG,
    "speckle_noise": noise.SPECKLE,  # from here on not in mCE
    "gaussian_blur": blur.GAUSSIAN,
    "spatter": SPATTER,
    "saturate": colour.SATURATE,
}
EXTRA = tuple(name for name in CORRUPTIONS if name not in ALEXNET)


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
