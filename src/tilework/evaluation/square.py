"""Square attack: random squares that are kept where they help; no gradient (Andriushchenko et al., 2020; alg. 1-3).

The published code draws one square for a whole batch; here every image has its own, by (seed, image, query), so that
neither batch nor order matters. The size of squares follows AutoAttack: the queries at which it shrinks are absolute.
B batch | C channels | H, W pixels | s side of a square
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from tilework.core.rng import Draws
from tilework.evaluation.apgd import TINY, Ask, Attacked, Norm, correct, length

SHRINKS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries after which the area halves
AREA = 0.8


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """Logit of the class less the highest other one, (B,); what is not finite is wrong."""
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return (own - others).nan_to_num(-1.0)


def side_at(query: int, height: int, width: int, area: float = AREA) -> float:
    """Side of the square at a query, before it is rounded."""
    return sqrt(area / 2 ** sum(query > shrink for shrink in SHRINKS) * height * width)


@torch.no_grad()
def square(
    ask: Ask, x: Tensor, y: Tensor, eps: float, draws: Draws, queries: int = 5000, norm: Norm = "linf"
) -> Attacked:
    """x: (B, 3, H, W) in [0, 1]; y: (B,). draws: of these images."""
    index = draws.index.to(x.device)
    start = _stripes(x, eps, draws) if norm == "linf" else _tiles(x, eps, draws)
    images, least = start.clone(), margin(ask(start), y)
    for query in range(queries):
        left = (least > 0).nonzero()[:, 0]
        if not len(left):
            break
        own = Draws(draws.seed, draws.epoch, index[left].cpu())
        u = own.uniform(f"square/{query}", 4 + 2 * x.shape[1]).to(x.device)  # (b, 10)
        change = _move_square if norm == "linf" else _move_tile
        tried = change(x[left], images[left], eps, u, query)
        found = margin(ask(tried), y[left])
        better = found < least[left]
        images[left] = torch.where(better.view(-1, 1, 1, 1), tried, images[left])
        least[left] = torch.minimum(found, least[left])
    return Attacked(images, correct(ask(images), y), torch.zeros_like(y, dtype=torch.bool))


def _signs(u: Tensor) -> Tensor:
    return torch.where(u < 0.5, -1.0, 1.0)


def _windows(u: Tensor, side: int, height: int, width: int) -> Tensor:
    """Pixels of a square at a random place in each image, (b, s s), by their number. u: (b, 2)."""
    top, left = (u[:, 0] * (height - side)).long(), (u[:, 1] * (width - side)).long()
    inside = torch.arange(side, device=u.device)
    return ((top[:, None] + inside)[:, :, None] * width + (left[:, None] + inside)[:, None]).flatten(1)


def _stripes(x: Tensor, eps: float, draws: Draws) -> Tensor:
    batch, channels, _, width = x.shape
    u = draws.uniform("square/start", channels * width).to(x.device)
    return (x + eps * _signs(u).view(batch, channels, 1, width)).clamp(0, 1)


def _move_square(x: Tensor, a: Tensor, eps: float, u: Tensor, query: int) -> Tensor:
    channels, height, width = x.shape[1:]
    side = min(max(round(side_at(query, height, width)), 1), height, width)
    pixels = _windows(u[:, :2], side, height, width)[:, None].expand(-1, channels, -1)
    away = (a - x).flatten(2)
    moved = away.gather(2, pixels) + 2 * eps * _signs(u[:, 4 : 4 + channels])[..., None]
    away = away.scatter(2, pixels, moved.clamp(-eps, eps))
    return (x + away.view(x.shape)).clamp(0, 1)


def _bump(height: int, width: int) -> Tensor:
    """Rectangles around the middle, the inner ones higher, (height, width)."""
    out = torch.zeros(height, width)
    top, left = height // 2, width // 2
    for ring in range(max(top, left) + 1):
        rows = slice(max(top - ring, 0), min(top + ring + 1, height))
        out[rows, max(left - ring, 0) : min(left + ring + 1, width)] += 1 / (ring + 1) ** 2
    return out / out.square().sum().sqrt()


def _tile(side: int) -> Tensor:
    """A bump above a hollow, of length 1, (s, s)."""
    half = side // 2
    parts = [_bump(half, side), -_bump(side - half, side)] if half else [_bump(side, side)]
    both = torch.cat(parts)
    return both / both.square().sum().sqrt()


def _turned(tile: Tensor, turn: Tensor) -> Tensor:
    """The tile, or on its side where `turn`, (b, 1, s, s)."""
    return torch.where(turn[:, None, None], tile.T, tile)[:, None]


def _tiles(x: Tensor, eps: float, draws: Draws) -> Tensor:
    """Five by five tiles of random signs and directions, of length eps together."""
    batch, channels, height, width = x.shape
    side = max(min(height, width) // 5, 1)
    tile, away = _tile(side).to(x.device), torch.zeros_like(x)
    tops, lefts = ((whole - whole // side * side) // 2 for whole in (height, width))
    count = (height // side) * (width // side)
    u = draws.uniform("square/start", count * (1 + channels)).to(x.device).view(batch, count, 1 + channels)
    for number in range(count):
        row, column = divmod(number, width // side)
        top, left = tops + row * side, lefts + column * side
        signs = _signs(u[:, number, 1:])[..., None, None]
        away[..., top : top + side, left : left + side] = _turned(tile, u[:, number, 0] < 0.5) * signs
    return (x + away / (length(away, "l2") + TINY) * eps).clamp(0, 1)


def _move_tile(x: Tensor, a: Tensor, eps: float, u: Tensor, query: int) -> Tensor:
    """A window takes over the length of another one, which becomes clean, and grows by what is left of eps."""
    channels, height, width = x.shape[1:]
    side = max(round(side_at(query, height, width)), 3)
    side = min(side + (side % 2 == 0), height, width)
    away = (a - x).flatten(2)  # (b, C, H W)
    one, two = (_windows(u[:, i : i + 2], side, height, width)[:, None].expand(-1, channels, -1) for i in (0, 2))
    window = away.gather(2, one)
    marked = torch.zeros_like(away).scatter(2, one, 1.0).scatter(2, two, 1.0)
    both = (away * marked).square().sum(2, keepdim=True)  # in the two windows, each channel
    unused = (eps**2 - away.square().sum((1, 2), keepdim=True)).clamp(min=0)
    signs = _signs(u[:, 4 : 4 + channels])[..., None]
    fresh = _turned(_tile(side).to(x.device), u[:, 4 + channels] < 0.5).flatten(2) * signs
    fresh = fresh + window / (TINY + window.square().sum(2, keepdim=True).sqrt())
    fresh = fresh / (TINY + fresh.square().sum(2, keepdim=True).sqrt()) * (unused / channels + both).sqrt()
    away = away.scatter(2, two, 0.0).scatter(2, one, fresh).view(x.shape)
    return (x + away / (length(away, "l2") + TINY) * eps).clamp(0, 1)
