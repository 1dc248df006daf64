"""What frozen features know: a linear classifier and the nearest neighbours (He et al., 2022; Wu et al., 2018).

N samples | D width | K classes
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import InputError
from tilework.evaluation.features import Features

DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)  # of the linear probe's weights, chosen on a tenth of the training samples


class Probe(Features):
    """Accuracy of a linear classifier and of neighbours that learnt from the features of other data."""

    def __init__(self, train: Features, neighbours: int = 20) -> None:
        super().__init__()
        self.train, self.neighbours = train, neighbours

    def compute(self) -> dict[str, float]:
        """Both accuracies, and what they were found with."""
        train, val = self.train.pair(), self.pair()
        linear, decay = linear_accuracy(train, val)
        return {
            "linear": linear,
            "knn": knn_accuracy(train, val, self.neighbours),
            "weight_decay": decay,
            "neighbours": self.neighbours,
            **super().compute(),
        }


def knn_accuracy(
    train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor], k: int = 20, temperature: float = 0.07
) -> float:
    """Share of samples that their k most similar training samples name right, each voting exp(cosine / temperature)."""
    if k < 1:
        raise InputError(f"{k} neighbours cannot vote", "ask for one at least")
    (x, labels), (y, truth) = train, val
    x, y = (F.normalize(z - train[0].mean(0), dim=1) for z in (x, y))
    votes = torch.zeros(len(y), int(labels.max()) + 1, device=x.device)
    for start in range(0, len(y), 1024):
        near, index = (y[start : start + 1024] @ x.T).topk(min(k, len(x)), 1)  # (1024, k)
        votes[start : start + 1024].scatter_add_(1, labels[index], ((near - 1) / temperature).exp())
    return float((votes.argmax(1) == truth).float().mean())


def linear_accuracy(train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Share that a linear classifier on standardised features names right, and the weight decay it was trained with."""
    (x, labels), (y, truth) = train, val
    mean, deviation = x.mean(0), x.std(0).clamp(min=1e-6)
    x, y = (x - mean) / deviation, (y - mean) / deviation
    held = torch.arange(len(x), device=x.device) % 10 == 9
    scores = {}
    for decay in DECAYS if held.any() and not held.all() else DECAYS[:1]:
        layer = _fit_linear(x[~held], labels[~held], decay)
        scores[decay] = _hits(layer, x[held], labels[held]) if held.any() else 0.0
    best = max(scores, key=lambda decay: scores[decay])
    return _hits(_fit_linear(x, labels, best), y, truth), best


def _fit_linear(x: Tensor, labels: Tensor, decay: float) -> nn.Linear:
    """Softmax regression by L-BFGS, from zero."""
    layer = nn.Linear(x.shape[1], int(labels.max()) + 1, device=x.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    solver = torch.optim.LBFGS(layer.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        loss = F.cross_entropy(layer(x), labels) + decay * layer.weight.square().sum()
        loss.backward()
        return float(loss.detach())

    with torch.enable_grad():
        solver.step(closure)
    return layer


@torch.no_grad()
def _hits(layer: nn.Linear, x: Tensor, labels: Tensor) -> float:
    return float((layer(x).argmax(1) == labels).float().mean())
