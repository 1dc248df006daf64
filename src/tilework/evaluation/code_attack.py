"""Attacks on codes themselves: a few of them swapped, guided by gradients (HotFlip, Ebrahimi et al., 2018; eq. 10).

Not a threat to pixels: it is storage and transport that must be protected, and a checksum detects accident, not intent.
B batch | N = h w codes of an image | K codes | C code dim | m pairs that are tried
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.rng import Draws
from tilework.evaluation.apgd import correct


def swap_codes(
    ask: Callable[[Tensor], Tensor],
    table: Tensor,
    ids: Tensor,
    y: Tensor,
    most: int,
    allowed: Tensor | None = None,
    tries: int = 8,
) -> tuple[Tensor, Tensor]:
    """Greedy swaps, each position at most once; images that are wrong are left.

    ask: code maps (B, C, h, w) to logits; ids: (B, h, w); most: swaps of an image; allowed: (K, k) codes that may take
    the place of each, None: any; tries: pairs of the highest gain, of which the one of the highest loss is taken.
    Returns the codes, (B, h, w), and the number of swaps after which each image was wrong, (B,); most + 1: never.
    """
    height, width = ids.shape[1:]
    now, length = ids.flatten(1).clone(), height * width
    needed = torch.full((len(ids),), most + 1, device=ids.device)
    free = torch.ones(now.shape, dtype=torch.bool, device=ids.device)

    def answer(codes: Tensor) -> Tensor:
        return ask(F.embedding(codes.long(), table).view(len(codes), height, width, -1).permute(0, 3, 1, 2))

    with torch.no_grad():
        needed[~correct(answer(now), y)] = 0
    for count in range(1, most + 1):
        left = (needed > most).nonzero()[:, 0]
        if not len(left):
            break
        codes, labels = now[left].long(), y[left]
        with torch.enable_grad():
            vectors = F.embedding(codes, table).requires_grad_()  # (b, N, C)
            logits = ask(vectors.view(len(left), height, width, -1).permute(0, 3, 1, 2))
            (slope,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), vectors)
        own = (slope * vectors.detach()).sum(-1, keepdim=True)
        if allowed is None:
            gain = (slope @ table.T - own).scatter(2, codes[..., None], -torch.inf)  # (b, N, K)
        else:
            gain = torch.einsum("bnc,bnkc->bnk", slope, F.embedding(allowed[codes].long(), table)) - own
        gain = gain.masked_fill(~free[left][..., None], -torch.inf).flatten(1)
        pairs = gain.topk(min(tries, gain.shape[1])).indices  # (b, m)
        position, choice = pairs // (gain.shape[1] // length), pairs % (gain.shape[1] // length)
        code = (
            choice
            if allowed is None
            else allowed[codes.gather(1, position)].gather(2, choice[..., None])[..., 0].long()
        )
        trial = codes[:, None].expand(-1, pairs.shape[1], -1).scatter(2, position[..., None], code[..., None])
        with torch.no_grad():
            answers = answer(trial.flatten(0, 1))
            loss = F.cross_entropy(answers, labels.repeat_interleave(pairs.shape[1]), reduction="none").view(
                pairs.shape
            )
            loss = loss.masked_fill(~gain.gather(1, pairs).isfinite(), -torch.inf)
            best = loss.argmax(1, keepdim=True)
            now[left] = trial.gather(1, best[..., None].expand(-1, 1, length))[:, 0].to(now.dtype)
            free[left] = free[left].scatter(1, position.gather(1, best), False)
            right = correct(answers, labels.repeat_interleave(pairs.shape[1])).view(pairs.shape).gather(1, best)[:, 0]
        needed[left[~right]] = count
    return now.view(ids.shape), needed


def random_codes(ids: Tensor, count: int, codes: int, draws: Draws, allowed: Tensor | None = None) -> Tensor:
    """The floor: as many swaps at random positions, of any code or of one of those allowed. ids: (B, h, w)."""
    flat = ids.flatten(1).long()
    order = draws.uniform(f"codes/positions/{count}", flat.shape[1]).to(ids.device).argsort(1)[:, :count]
    if allowed is None:
        other = draws.integers(f"codes/any/{count}", codes - 1, count).to(ids.device)
        old = flat.gather(1, order)
        new = other + (other >= old)  # never the same
    else:
        which = draws.integers(f"codes/near/{count}", allowed.shape[1], count).to(ids.device)
        new = allowed[flat.gather(1, order)].gather(2, which[..., None])[..., 0].long()
    return flat.scatter(1, order, new).view(ids.shape).to(ids.dtype)
