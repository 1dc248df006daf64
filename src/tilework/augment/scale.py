"""Bytes to [0, 1]: what tokenizers take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilework.augment.augment import Augment, Fixed
from tilework.core.batch import Batch, Stage


@Augment.choices.add("scale")
@dataclass(frozen=True)
class Scale(Fixed):
    """x / 255."""

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)

    def apply(self, batch: Batch, p: None) -> Batch:
        """x: (B, 3, H, W) bytes to float32."""
        return batch.changed(x=batch.x.float() / 255)  # bytes divide slowly
