"""What frozen features know: a linear classifier and the nearest neighbours (He et al., 2022; Wu et al., 2018).

N samples | D width | K classes
"""

from __future__ import annotations

from math import cos, pi
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import InputError
from tilework.evaluation.features import Features

Solver = Literal["lbfgs", "sgd"]
# what is chosen on training samples held out: weight decay of L-BFGS; rate of SGD for 256 samples. Of equals the first
DECAYS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
RATES = (0.003, 0.03, 0.3, 3.0)
CHOSEN = {"lbfgs": "weight_decay", "sgd": "rate"}
EPOCHS, BATCH = 90, 1024  # of SGD
FEW, FOLDS = 1000, 5  # fewer samples than that are held out in turn, a fifth at a time; of more a tenth is enough


class Probe(Features):
    """Accuracy of a linear classifier and of neighbours that learnt from the features of other data."""

    def __init__(self, train: Features, neighbours: int = 20, solver: Solver = "lbfgs") -> None:
        super().__init__()
        self.train, self.neighbours, self.solver = train, neighbours, solver

    def compute(self) -> dict[str, float]:
        """Both accuracies, and what they were found with."""
        train, val = self.train.pair(), self.pair()
        linear, chosen = linear_accuracy(train, val, self.solver)
        return {
            "linear": linear,
            "knn": knn_accuracy(train, val, self.neighbours),
            CHOSEN[self.solver]: chosen,
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


def linear_accuracy(
    train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor], solver: Solver = "lbfgs"
) -> tuple[float, float]:
    """Share that a linear classifier on standardised features names right, and the weight decay or rate it had."""
    right, best = linear_hits(train, val, solver)
    return right.float().mean().item(), best


def linear_hits(
    train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor], solver: Solver = "lbfgs"
) -> tuple[Tensor, float]:
    """The same image by image: which of `val` it names right, (N,) bool."""
    fit, choices = (_fit_lbfgs, DECAYS) if solver == "lbfgs" else (_fit_sgd, RATES)
    (x, labels), (y, truth) = train, val
    if len(x) < 2 or not bool(torch.isfinite(x).all() & torch.isfinite(y).all()):
        what = "features that are no numbers" if len(x) > 1 else f"{len(x)} training samples"
        raise InputError(f"a linear classifier cannot learn from {what}", "give more images, or a run that converged")
    mean, deviation = x.mean(0), x.std(0).clamp(min=1e-6)
    x, y = (x - mean) / deviation, (y - mean) / deviation
    part = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)  # whatever their order is
    folds = [part % FOLDS == fold for fold in range(FOLDS)] if len(x) < FEW else [part % 10 == 0]
    scores = dict.fromkeys(choices, 0)
    for choice in choices if len(x) >= FOLDS else ():
        for held in folds:
            scores[choice] += int(_hits(fit(x[~held], labels[~held], choice), x[held], labels[held]).sum())
    best = max(scores, key=lambda choice: scores[choice])
    return _hits(fit(x, labels, best), y, truth), best


def _zeros(x: Tensor, labels: Tensor) -> nn.Linear:
    """A classifier to begin with."""
    layer = nn.Linear(x.shape[1], int(labels.max()) + 1, device=x.device)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _fit_lbfgs(x: Tensor, labels: Tensor, decay: float) -> nn.Linear:
    """Softmax regression with weight decay, to the end."""
    layer = _zeros(x, labels)
    solver = torch.optim.LBFGS(layer.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        loss = F.cross_entropy(layer(x), labels) + decay * layer.weight.square().sum()
        loss.backward()
        return float(loss.detach())

    with torch.enable_grad():
        solver.step(closure)
    return layer


def _fit_sgd(x: Tensor, labels: Tensor, rate: float) -> nn.Linear:
    """The same as published (MoCo v3): momentum 0.9, no decay, cosine over 90 epochs. rate: for 256 samples."""
    layer, batch = _zeros(x, labels), min(BATCH, len(x))
    solver = torch.optim.SGD(layer.parameters(), lr=rate * batch / 256, momentum=0.9)
    generator, steps = torch.Generator().manual_seed(0), EPOCHS * (len(x) // batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(solver, lambda step: (1 + cos(pi * step / steps)) / 2)
    with torch.enable_grad():
        for _ in range(EPOCHS):
            order = torch.randperm(len(x), generator=generator).to(x.device)
            for part in order[: len(x) // batch * batch].view(-1, batch):
                solver.zero_grad()
                F.cross_entropy(layer(x[part]), labels[part]).backward()
                solver.step()
                schedule.step()
    return layer


@torch.no_grad()
def _hits(layer: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
    return layer(x).argmax(1) == labels
