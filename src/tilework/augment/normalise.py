"""Bytes to numbers around zero.

B batch | H, W pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tilework.augment.augment import Augment, Fixed
from tilework.core.batch import Batch, Stage


@Augment.choices.add("normalise")
@dataclass(frozen=True)
class Normalise(Fixed):
    """(x / 255 - mean) / std by colour channel; the defaults are ImageNet's."""

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def apply(self, batch: Batch, p: None) -> Batch:
        """x: (B, 3, H, W) bytes to float32."""
        mean, std = (torch.tensor(v, device=batch.x.device).view(3, 1, 1) for v in (self.mean, self.std))
        return batch.changed(x=(batch.x.float() / 255 - mean) / std)  # bytes divide slowly
