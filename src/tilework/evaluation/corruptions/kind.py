"""What a corruption is, and bytes of what it makes.

B batch | H, W pixels
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tilework.evaluation.noise import Noise

GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Corruption:
    """One kind. Both functions take bytes x: (B, 3, H, W), settings of a severity, and the scale of lengths."""

    severities: tuple[Any, ...]
    apply: Callable[[Tensor, Any, Any, float], Tensor]  # (x, settings, drawn, scale): bytes, or numbers about [0, 1]
    draw: Callable[[Noise, Tensor, Any, float], Any] = lambda noise, x, c, scale: None
    together: int = 0  # images that are worked on together; 0: as many as a cache holds


def in_unit(x: Tensor) -> Tensor:
    """Bytes to numbers in [0, 1]. The same as x / 255, which takes twenty times as long on the host."""
    return x.float().div_(255)


def to_bytes(y: Tensor) -> Tensor:
    """Numbers to bytes, rounded down as ImageNet-C does; bytes stay. y is changed: memory costs more than work."""
    return y if y.dtype == torch.uint8 else y.mul_(255).add_(1e-3).clamp_(0, 255).to(torch.uint8)
