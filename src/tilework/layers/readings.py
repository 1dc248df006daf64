"""Numbers that layers note on their way through a training step, for the log."""

from __future__ import annotations

from torch import Tensor, nn


class Watched(nn.Module):
    """A layer that notes numbers of its last training pass: detached scalars, left on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.readings: dict[str, Tensor] = {}


def readings(model: nn.Module) -> dict[str, Tensor]:
    """What the layers of a network noted, by the layer's name and the number's."""
    return {
        f"{name}.{what}": value
        for name, module in model.named_modules()
        if isinstance(module, Watched)
        for what, value in module.readings.items()
    }
