"""FAB, targeted: the nearest wrong image, by projections onto linearised boundaries (Croce and Hein, 2020b; alg. 1).

B batch | n = 3 H W values of an image
"""

from __future__ import annotations

import torch
from torch import Tensor

from tilework.evaluation.apgd import TINY, Ask, Attacked, Norm, correct, length

MOST, BEYOND, BACK = 0.1, 1.05, 0.9  # alpha_max, eta and beta of the paper


def to_plane(t: Tensor, w: Tensor, b: Tensor, norm: Norm) -> Tensor:
    """The shortest d with w (t + d) = b and t + d in [0, 1]; all the way to the box where there is none (eqs. 3, 4).

    t, w: (B, n); b: (B,). With moves min(m, r_i) or min(m |w_i|, r_i) in the direction that leads to the plane, w d
    grows with m in straight pieces that end where a value reaches the box: sort the ends, find the piece.
    """
    gap = (w * t).sum(1) - b
    towards = -torch.where(gap >= 0, 1.0, -1.0)[:, None] * w.sign()  # (B, n)
    room = torch.where(towards > 0, 1 - t, t) * (w != 0)
    slope = w.abs() if norm == "linf" else w.square()
    end = torch.where(w != 0, room / (1.0 if norm == "linf" else w.abs() + TINY), 0.0)
    order = end.argsort(1)
    ends, slopes = end.gather(1, order), slope.gather(1, order)
    full = (slopes * ends).cumsum(1)  # of those that have reached the box
    rest = slopes.flip(1).cumsum(1).flip(1) - slopes  # of those that have not
    reached = full + ends * rest  # w d at each end, rising
    needed = gap.abs()[:, None]
    piece = torch.searchsorted(reached, needed).clamp(max=t.shape[1] - 1)
    before = torch.where(piece > 0, full.gather(1, (piece - 1).clamp(min=0)), 0.0)
    growing = rest.gather(1, piece) + slopes.gather(1, piece)
    move = (needed - before) / (growing + TINY)
    move = torch.where(needed > reached[:, -1:], torch.inf, move)
    return towards * torch.minimum(room, move if norm == "linf" else move * w.abs().clamp(min=TINY))


def fab(
    ask: Ask,
    x: Tensor,
    y: Tensor,
    eps: float,
    rank: int,
    steps: int = 100,
    norm: Norm = "linf",
    stop: bool = True,
) -> Attacked:
    """Towards the class that is at `rank` among the answers (2: the second), for images that are right.

    stop: leave an image as soon as it is wrong within eps; otherwise look for the nearest one to the end.
    """
    with torch.no_grad():
        goal = ask(x).sort(1).indices[:, -rank]
    number = torch.arange(len(x), device=x.device)
    images, nearest = x.clone(), torch.full((len(x),), torch.inf, device=x.device)
    flat = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    a = x.clone()
    for step in range(steps):
        if not len(number):
            break
        own, clean, aim = y[number], x[number], goal[number]
        with torch.enable_grad():
            a.requires_grad_()
            logits = ask(a)
            ahead = (logits.gather(1, aim[:, None]) - logits.gather(1, own[:, None]))[:, 0]
            (w,) = torch.autograd.grad(ahead.sum(), a)
        a, ahead, w = a.detach(), ahead.detach(), w.nan_to_num().flatten(1)
        if not step:
            flat = w.abs().amax(1) == 0
        b = (w * a.flatten(1)).sum(1) - ahead
        here, there = (to_plane(point.flatten(1), w, b, norm).view(x[number].shape) for point in (a, clean))
        size, other = (length(d, norm).clamp(min=1e-8) for d in (here, there))
        share = (size / (size + other)).clamp(max=MOST)
        a = ((a + BEYOND * here) * (1 - share) + (clean + BEYOND * there) * share).clamp(0, 1)
        with torch.no_grad():
            wrong = ~correct(ask(a), own)
        far = length(a - clean, norm).flatten()
        closer = wrong & (far < nearest[number])
        images[number] = torch.where(closer.view(-1, 1, 1, 1), a, images[number])
        nearest[number] = torch.where(closer, far, nearest[number])
        a = torch.where(wrong.view(-1, 1, 1, 1), clean + (a - clean) * BACK, a)
        if stop:
            left = nearest[number] > eps
            number, a = number[left], a[left]
    stands = nearest > eps
    return Attacked(torch.where(stands.view(-1, 1, 1, 1), x, images), stands, flat)
