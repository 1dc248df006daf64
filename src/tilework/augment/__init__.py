"""Augmentations: parameters are sampled per sample, then applied by a pure function, batched on the device."""

from tilework.augment.augment import Augment, apply_all, check_chain
from tilework.augment.crop import CentreCrop, RandomResizedCrop
from tilework.augment.embed import Embed
from tilework.augment.flip import Flip
from tilework.augment.mixing import CutMix
from tilework.augment.normalise import Normalise

__all__ = [
    "Augment",
    "CentreCrop",
    "CutMix",
    "Embed",
    "Flip",
    "Normalise",
    "RandomResizedCrop",
    "apply_all",
    "check_chain",
]
