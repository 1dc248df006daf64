"""Scores of examples: against a loop over visits; training is not disturbed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tilework.augment import CutMix, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.models import Output
from tilework.objectives import Classify, ClassifyScored


class Table(nn.Module):
    """Logits by the first pixel of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(10, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor, mix: object = None) -> Output:
        logits = self.logits[x[:, 0, 0, 0].long()]
        return Output(logits, x.flatten(1)[:, None], x, (1, 1))


def visit(index: list[int]) -> Batch:
    numbers = torch.tensor(index)
    x = (numbers % 10).float().view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    return Batch(x, Target.hard(numbers % 3), numbers)


def test_scores_are_the_mean_probability_of_the_class_over_visits() -> None:
    objective = ClassifyScored(Table(), 0.1, samples=10)
    seen: dict[int, list[float]] = {}
    for index in ([0, 1, 2], [2, 1, 9], [12, 0, 4]):  # 12: a copy of sample 2
        batch = visit(index)
        objective(batch, Draws(0, 0, batch.index))
        for i in index:
            p = objective.model.logits.detach()[i % 10].softmax(0)[i % 3]
            seen.setdefault(i % 10, []).append(float(p))
        with torch.no_grad():
            objective.model.logits += 0.3 * torch.randn(10, 3)
    scores = objective.scores()
    for i in range(10):
        if i in seen:
            assert float(scores[i]) == pytest.approx(sum(seen[i]) / len(seen[i]), abs=1e-6)
        else:
            assert scores[i].isnan()


def test_mixed_samples_count_for_nothing() -> None:
    objective = ClassifyScored(Table(), 0.1, samples=10)
    batch = visit(list(range(8)))
    mixed = apply_all([CutMix()], batch, Draws(0, 0, batch.index))
    objective(mixed, Draws(0, 0, batch.index))
    whole = mixed.target.weight[:, 0] == 1
    assert torch.equal(objective.visits[:8] > 0, whole)


def test_loss_and_gradient_are_those_of_plain_classification() -> None:
    batch = visit([3, 4, 5])
    plain, scored = Classify(Table(), 0.1), ClassifyScored(Table(), 0.1, samples=10)
    for objective in (plain, scored):
        objective(batch, Draws(0, 0, batch.index))["loss"].backward()
    assert torch.equal(plain.model.logits.grad, scored.model.logits.grad)
    assert {name for name, _ in scored.named_parameters()} == {name for name, _ in plain.named_parameters()}


def test_needs_the_number_of_samples() -> None:
    with pytest.raises(ConfigError, match="samples"):
        ClassifyScored(Table(), 0.1, samples=0)
