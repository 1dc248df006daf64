"""Random grey images (torchvision's RandomGrayscale; MoCo v3).

B batch | H, W pixels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tilework.augment.augment import Augment, Stateless
from tilework.augment.rand_augment import grey, on_chosen, whole_bytes
from tilework.core.batch import Batch, Stage
from tilework.core.bounds import check_shares
from tilework.core.rng import Draws


@Augment.choices.add("greyscale")
@dataclass(frozen=True)
class Greyscale(Stateless[Tensor]):
    """All three channels become the grey one, with Pillow's bytes; comes before 'normalise'."""

    stages: ClassVar[tuple[Stage, ...]] = ("pixels",)
    probability: float = 0.2

    def __post_init__(self) -> None:
        check_shares(self, "probability")

    def sample(self, draws: Draws, batch: Batch) -> Tensor:
        """Which samples become grey, (B,)."""
        return draws.uniform("greyscale")[:, 0] < self.probability

    def apply(self, batch: Batch, p: Tensor) -> Batch:
        """x: (B, 3, H, W) bytes, or floats in [0, 255] that become whole numbers."""
        x = on_chosen(whole_bytes(batch.x), p, lambda x: grey(x.float()).to(x.dtype).expand_as(x))
        return batch.changed(x=x.to(batch.x.dtype))
