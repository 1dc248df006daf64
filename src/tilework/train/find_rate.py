"""Learning-rate range test (Smith, Cyclical learning rates, 2017, section 3.3): the rate rises until the loss does."""

from __future__ import annotations

from dataclasses import dataclass

from tilework.core.errors import TrainingError
from tilework.train.fit import Fit, Job

LOWEST, HIGHEST = 1e-6, 1.0
SMOOTH = 0.9  # of the moving average of losses
ENDS = 4.0  # times the lowest loss, at which the test ends


@dataclass(frozen=True)
class Rates:
    """Smoothed losses by rate, and the rate to use: a tenth of the one with the lowest loss."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def lowest(self) -> float:
        """The rate with the lowest loss."""
        return self.rates[self.losses.index(min(self.losses))]

    @property
    def suggested(self) -> float:
        """A peak rate for a run, with two digits."""
        return float(f"{self.lowest / 10:.1e}")


class _Rising(Fit):
    """The loop with a rate that grows by the same factor at every step."""

    count = 100

    def _set_rate(self, step: int) -> float:
        rate = LOWEST * (HIGHEST / LOWEST) ** (step / (self.count - 1))
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["scale"]
        return rate / self.config.optim.lr if self.config.optim.lr else 0.0


def find_rate(job: Job, steps: int = 100) -> Rates:
    """Train for a few steps with a rising rate; nothing is kept."""
    loop = _Rising(job)
    loop.count = max(2, steps)
    rates: list[float] = []
    losses: list[float] = []
    mean = 0.0
    for step, batch in enumerate(loop.loader.run(0, loop.count)):
        loop._step(step, batch)
        loss = float(loop.pending.pop()[1]["loss"])
        mean = SMOOTH * mean + (1 - SMOOTH) * loss
        smooth = mean / (1 - SMOOTH ** (step + 1))
        if loss != loss or (losses and smooth > ENDS * min(losses)):
            break
        rates.append(loop.optimiser.param_groups[0]["lr"] / (loop.optimiser.param_groups[0]["scale"] or 1))
        losses.append(smooth)
    if not losses:
        raise TrainingError("the loss is not a number at the lowest rate", "check data and augmentation")
    return Rates(tuple(rates), tuple(losses))
