"""Auto-PGD with cross-entropy, DLR and targeted DLR (AutoAttack, Croce and Hein, 2020; algorithm 1, eqs. 6 and 7).

Images that are wrong leave the batch: what is left of it does not depend on them.
B batch | K classes | H, W pixels
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.evaluation.noise import Noise, seeds_of

Ask = Callable[[Tensor], Tensor]  # pixels (B, 3, H, W) in [0, 1] to logits (B, K)
Norm = Literal["linf", "l2"]
Loss = Literal["ce", "dlr", "dlr-targeted"]
RISES, FIRST, LESS, LEAST = 0.75, 0.22, 0.03, 0.06  # of algorithm 1: rho and the lengths of periods, of all steps
TINY = 1e-12


@dataclass(frozen=True)
class Attacked:
    """What an attack found."""

    images: Tensor  # (B, 3, H, W): wrong ones where there are any, else those of the highest loss
    stands: Tensor  # (B,) bool: no image was found that is wrong
    flat: Tensor  # (B,) bool: no gradient at the start


def correct(logits: Tensor, y: Tensor) -> Tensor:
    """Whether the answer is right, (B,); logits that are not finite are wrong."""
    return (logits.argmax(1) == y) & logits.isfinite().all(1)


def dlr(logits: Tensor, y: Tensor, target: Tensor | None = None) -> Tensor:
    """Difference of logits ratio, (B,). logits: (B, K) of 3 classes or more, 4 with a target; eqs. 6 and 7."""
    order = logits.sort(1).values
    own = logits.gather(1, y[:, None])[:, 0]
    if target is not None:
        other = logits.gather(1, target[:, None])[:, 0]
        return (other - own) / (order[:, -1] - (order[:, -3] + order[:, -4]) / 2 + TINY)
    other = torch.where(logits.argmax(1) == y, order[:, -2], order[:, -1])
    return (other - own) / (order[:, -1] - order[:, -3] + TINY)


def check_classes(loss: str, classes: int) -> None:
    """Refuse a loss that so few classes do not have."""
    least = {"dlr": 3, "dlr-targeted": 4}.get(loss, 2)
    if classes < least:
        raise ConfigError(f"loss '{loss}' with {classes} classes", f"it needs {least}: use apgd-ce or square")


def length(x: Tensor, norm: Norm) -> Tensor:
    """(B, ...) to (B, 1, 1, 1)."""
    flat = x.flatten(1)
    found = flat.abs().amax(1) if norm == "linf" else flat.square().sum(1).sqrt()
    return found.view(-1, 1, 1, 1)


def project(a: Tensor, x: Tensor, eps: float, norm: Norm) -> Tensor:
    """To the ball around x, then to [0, 1]."""
    if norm == "linf":
        return torch.minimum(torch.maximum(a, x - eps), x + eps).clamp(0, 1)
    away = a - x
    size = length(away, norm)
    return (x + away / (size + TINY) * size.clamp(max=eps)).clamp(0, 1)


def random_start(x: Tensor, eps: float, norm: Norm, draws: Draws, purpose: str) -> Tensor:
    """A point on the ball's surface, by (seed, image, purpose)."""
    noise = Noise(seeds_of(draws, purpose))
    t = noise.uniform(*x.shape[1:], low=-1, high=1) if norm == "linf" else noise.normal(*x.shape[1:])
    t = t.to(x.device)
    return (x + eps * t / (length(t, norm) + TINY)).clamp(0, 1)


@dataclass
class _Search:
    """Images that still stand, and where their search is."""

    number: Tensor  # (B,) in the batch
    x: Tensor  # images as they were
    y: Tensor
    target: Tensor | None
    a: Tensor  # where the search is
    before: Tensor  # where it was
    gradient: Tensor
    step: Tensor  # (B, 1, 1, 1)
    best: Tensor  # of the highest loss: point, gradient, loss
    best_gradient: Tensor
    best_loss: Tensor
    checked: Tensor  # best loss at the last checkpoint
    halved: Tensor  # whether the step was halved there
    loss: Tensor  # of the last step
    rises: Tensor  # steps of this period that raised the loss

    def take(self, which: Tensor) -> _Search:
        """Some of the images."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(self, **{name: part[which] for name, part in parts.items() if part is not None})


def apgd(
    ask: Ask,
    x: Tensor,
    y: Tensor,
    eps: float,
    start: Tensor,
    steps: int = 100,
    loss: Loss = "ce",
    norm: Norm = "linf",
    target: Tensor | None = None,
    stop: bool = True,
) -> Attacked:
    """One search from a start. x: (B, 3, H, W) in [0, 1]; y, target: (B,).

    stop: leave an image as soon as it is wrong; otherwise raise its loss to the end, for images that another model is
    to judge.
    """

    def look(a: Tensor, y: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        with torch.enable_grad():
            a = a.detach().requires_grad_()
            logits = ask(a)
            each = F.cross_entropy(logits, y, reduction="none") if loss == "ce" else dlr(logits, y, target)
            (gradient,) = torch.autograd.grad(each.sum(), a)
        return logits.detach(), each.detach(), gradient.nan_to_num()

    a = start.clamp(0, 1)
    logits, each, gradient = look(a, y, target)
    stands, images, flat = correct(logits, y), a.clone(), gradient.flatten(1).abs().amax(1) == 0
    zero, size = torch.zeros_like(each), torch.full((len(x), 1, 1, 1), 2 * eps, device=x.device)
    number = torch.arange(len(x), device=x.device)
    now = _Search(number, x, y, target, a, a, gradient, size, a, gradient, each, each, zero + 1, zero, zero)
    if stop:
        now = now.take(stands)
    period, since = max(int(FIRST * steps), 1), 0
    for i in range(steps):
        if not len(now.number):
            break
        towards = now.gradient.sign() if norm == "linf" else now.gradient / (length(now.gradient, norm) + TINY)
        far = project(now.a + now.step * towards, now.x, eps, norm)
        share = 0.75 if i else 1.0
        a = now.a + share * (far - now.a) + (1 - share) * (now.a - now.before)
        now.before, now.a = now.a, project(a, now.x, eps, norm)
        logits, each, now.gradient = look(now.a, now.y, now.target)
        right = correct(logits, now.y)
        images[now.number] = torch.where(right.view(-1, 1, 1, 1) & stands[now.number].view(-1, 1, 1, 1),
                                         images[now.number], now.a)  # fmt: skip
        stands[now.number] &= right
        now.rises = now.rises + (each > now.loss)
        better = each > now.best_loss
        wide = better.view(-1, 1, 1, 1)
        now.best, now.best_gradient = (
            torch.where(wide, now.a, now.best),
            torch.where(wide, now.gradient, now.best_gradient),
        )
        now.best_loss, now.loss, since = torch.where(better, each, now.best_loss), each, since + 1
        if since == period:
            stuck = (now.halved == 0) & (now.checked >= now.best_loss)
            halve = (now.rises <= RISES * period) | stuck
            wide = halve.view(-1, 1, 1, 1)
            now.step = torch.where(wide, now.step / 2, now.step)
            now.a, now.gradient = torch.where(wide, now.best, now.a), torch.where(wide, now.best_gradient, now.gradient)
            now.halved, now.checked, now.rises = halve.to(each.dtype), now.best_loss, torch.zeros_like(each)
            period, since = max(period - max(int(LESS * steps), 1), max(int(LEAST * steps), 1)), 0
        if stop and not bool(right.all()):
            now = now.take(right)
    images[now.number] = torch.where(stands[now.number].view(-1, 1, 1, 1) | (not stop), now.best, images[now.number])
    return Attacked(images, stands, flat)
