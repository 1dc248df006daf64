"""Fitting codec `mix`: a tree of codes, a network learnt on a sample, rounded to whole numbers.

Codes whose neighbours are alike lie together in the tree, so that its first turns are easy to tell.

B records | T codes of a record | K codes | Q neighbours | W width of a code's vector | H hidden units | D longest path
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from tilework.core.compiled import kernels
from tilework.store.codec import KERNELS
from tilework.store.mix import (
    CHANCES,
    CONTEXTS,
    LARGEST_BIAS,
    LARGEST_FALL,
    LARGEST_SHIFT,
    STEPS_PER_NAT,
    TOP,
    Mix,
    Network,
    walks,
)

PLACES = ((0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0), (-1, -2), (-1, 2), (-2, -1), (-2, 1), (0, -3), (-3, 0))
REACH = 3  # the farthest of them
HIDDEN = 32
WIDTH = 24  # of a code's vector
BLOCK = 16
SPARE_DEPTH = 3  # turns beyond those of a balanced tree
LEARNT = 1 << 21  # codes of a pass, at most
PASSES = 6
STEP = 1024  # codes of a step
RATE, LAST_RATE = 1e-2, 1e-4
MOMENTS = 0.9, 0.99  # of Adam (Kingma and Ba, 2015)
TRIED = 0.2  # of all steps, after which it is seen whether neighbours tell anything
TELLING = 0.99  # of the bits without them
JUDGED = 1 << 20  # codes that are encoded to compare
REPEATING = 0.1  # share of codes as in the record before that is worth blocks
LEAST_CHANCE = 16  # slots
STEPS = (1, 2, 4, 8)  # roundings that are tried


def fitted(ids: np.ndarray, vocabulary: int, columns: int) -> Mix:
    """The smallest on the sample, tables counted: with neighbours or without, in blocks or not. ids: (B, T)."""
    tree = _tree(ids, vocabulary, columns)
    tried = [_static(tree, np.ones(ids.shape, bool), ids, columns, 1)]
    learnt = _learn(tree, ids, vocabulary, columns) if vocabulary > 1 else None
    if learnt is not None:
        tried += [Mix(_round(tree, learnt, 1, ids, columns, step), columns, ids.shape[1]) for step in STEPS]
    alike = np.zeros(ids.shape, bool)
    alike[1:] = ids[1:] == ids[:-1]
    alike[::BLOCK] = False
    if alike.mean() > REPEATING:
        tried.append(_static(tree, ~alike, ids, columns, BLOCK))
        if learnt is not None:
            tried += [Mix(_round(tree, learnt, BLOCK, ids, columns, step), columns, ids.shape[1]) for step in STEPS]
    some = ids[: max(1, JUDGED // ids.shape[1] // BLOCK) * BLOCK]
    return min(tried, key=lambda codec: _bytes(codec, some) * len(ids) / len(some) + _table_bytes(codec))


def _bytes(codec: Mix, ids: np.ndarray) -> float:
    return float(codec.encode(ids)[1].sum())


def _table_bytes(codec: Mix) -> int:
    return sum(table.nbytes for table in codec.tables().values())


def neighbours(ids: np.ndarray, columns: int, outside: int) -> np.ndarray:
    """Codes at PLACES, `outside` beyond the edges. ids: (B, T); returns (B T, Q) int32."""
    grid = ids.reshape(len(ids), -1, columns)
    wide = np.pad(grid, ((0, 0), (REACH, 0), (REACH, REACH)), constant_values=outside).astype(np.int32)
    height, width = grid.shape[1:]
    return np.stack([wide[:, REACH + y :, REACH + x :][:, :height, :width].ravel() for y, x in PLACES], 1)


def _tree(ids: np.ndarray, vocabulary: int, columns: int) -> np.ndarray:
    """Codes split in two again and again along the main axis of what stands around them. Returns (K - 1, 2) int32."""
    flat = ids.reshape(len(ids), -1, columns)
    mass = np.bincount(ids.ravel(), minlength=vocabulary) + 1e-3
    features = []
    for before, code in ((flat[:, :, :-1], flat[:, :, 1:]), (flat[:, :-1], flat[:, 1:])):  # left, above
        pairs = before.astype(np.int64) * vocabulary + code
        counts = np.bincount(pairs.ravel(), minlength=vocabulary**2).reshape(vocabulary, vocabulary).astype(np.float32)
        for one in (counts, counts.T):
            prior = 0.5 * one.sum(0) / max(1.0, one.sum())  # rare codes lean towards the average
            features.append(np.sqrt((one + prior) / np.maximum(1e-9, one.sum(1, keepdims=True) + prior.sum())))
    points = np.concatenate(features, 1)  # (K, 4 K)
    products = points @ points.T  # (K, K)
    children: list[list[int]] = []

    def grow(codes: np.ndarray, depth: int) -> int:
        number = len(children)
        children.append([0, 0])
        for answer, part in enumerate(_halves(products[np.ix_(codes, codes)], mass[codes], 1 << depth - 1)):
            inside = codes[part]
            children[number][answer] = -1 - int(inside[0]) if len(inside) == 1 else grow(inside, depth - 1)
        return number

    if vocabulary > 1:
        grow(np.arange(vocabulary), ceil(log2(vocabulary)) + SPARE_DEPTH)
    return np.array(children, np.int32).reshape(-1, 2)


def _halves(products: np.ndarray, mass: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions in two halves of about equal mass, each of at most `room`. products: (n, n) of points; mass: (n,)."""
    share = mass / mass.sum()
    centred = products - (products @ share)[:, None] - (products @ share)[None] + share @ products @ share
    root = np.sqrt(share)
    axis = np.ones(len(mass)) + np.arange(len(mass)) * 1e-3
    for _ in range(24):  # power iteration: a rough axis is enough
        axis = root * (centred @ (root * axis))
        axis = axis / max(1e-12, float(np.abs(axis).max()))
    order = np.argsort(axis / root, kind="stable")
    ends = np.cumsum(share[order])
    cut = int(np.abs(ends - 0.5).argmin()) + 1
    cut = min(max(cut, 1, len(mass) - room), len(mass) - 1, room)
    return order[:cut], order[cut:]


@dataclass(frozen=True)
class Learnt:
    """Weights as floats."""

    vectors: np.ndarray  # (K + 1, W) of each code; the last of what lies outside
    turns: np.ndarray  # (Q W, H): what the vector of each neighbour does to the hidden units
    bias: np.ndarray  # (H,)
    v: np.ndarray  # (K - 1, H)
    c: np.ndarray  # (K - 1,)


def _learn(tree: np.ndarray, ids: np.ndarray, vocabulary: int, columns: int) -> Learnt | None:
    """Learn by Adam, some codes at a step; None where neighbours tell nothing."""
    fast, rng = kernels(KERNELS), np.random.Generator(np.random.PCG64(0))
    nodes, answers = walks(tree)
    near, flat = neighbours(ids, columns, vocabulary), ids.ravel().astype(np.int32)
    inputs = len(PLACES) * WIDTH
    logits = _logits(tree, np.bincount(flat, minlength=vocabulary) + 0.01)
    shapes = ((vocabulary + 1, WIDTH), (inputs, HIDDEN), (HIDDEN,), (len(tree), HIDDEN))
    spreads = 0.3, inputs**-0.5, 0.0, 0.05
    weights = [rng.normal(0, spread, shape).astype(np.float32) for shape, spread in zip(shapes, spreads, strict=True)]
    weights.append(logits.astype(np.float32))
    slopes, means, squares = ([np.zeros_like(part) for part in weights] for _ in range(3))
    vectors, turns, bias, v, c = weights
    share = np.bincount(flat, minlength=vocabulary) / flat.size
    alone = -(share[share > 0] * np.log2(share[share > 0])).sum()  # bits of a code without neighbours
    total = -(-PASSES * min(flat.size, LEARNT) // STEP)
    order = np.empty(0, np.int64)
    cost = 0.0
    for number in range(total):
        if len(order) < STEP:
            order = np.concatenate([order, rng.permutation(flat.size)])
        some, order = order[:STEP], order[STEP:]
        which, x = near[some], np.empty((len(some), inputs), np.float32)
        fast.gather_rows(vectors, which, x)
        z = x @ turns + bias
        hidden, back = z.clip(-1, 1), np.empty_like(z)
        for part in slopes:
            part[:] = 0
        cost += fast.learn_tree(hidden, flat[some], nodes, answers, v, c, slopes[3], slopes[4], back)
        back *= (np.abs(z) < 1) | (z * back > 0)  # what is cut may come back inside
        np.matmul(x.T, back, out=slopes[1])
        slopes[2] += back.sum(0)
        fast.scatter_rows(back @ turns.T, which, slopes[0])
        rate = (RATE * (1 - number / total) + LAST_RATE) * min(1.0, (number + 1) / 100)
        _adam(weights, slopes, means, squares, rate, number + 1, len(some))
        if number == int(TRIED * total) and cost > TELLING * alone * (number + 1) * STEP:
            return None
    return Learnt(vectors, turns, bias, v, c)


def _adam(
    weights: list[np.ndarray], slopes: list[np.ndarray], means: list[np.ndarray], squares: list[np.ndarray],
    rate: float, number: int, count: int,
) -> None:  # fmt: skip
    """One step; weights change in place."""
    first, second = MOMENTS
    for w, g, mean, square in zip(weights, slopes, means, squares, strict=True):
        g /= count
        mean += (1 - first) * (g - mean)
        square += (1 - second) * (g * g - square)
        w -= rate / (1 - first**number) * mean / (np.sqrt(square / (1 - second**number)) + 1e-8)


def _round(tree: np.ndarray, net: Learnt, block: int, ids: np.ndarray, columns: int, step: int = 1) -> Network:
    """Whole numbers of a network: hidden units in steps of 1 / TOP, logits of a nat / (STEPS_PER_NAT 2^shift).

    step: what the numbers of code vectors and turns are multiples of; a large one takes fewer bytes.
    """
    most = max(float(np.quantile(np.abs(net.v), 0.9999)), 1e-3) if net.v.size else 1.0
    shift = int(np.clip(np.floor(np.log2(TOP * TOP / most / STEPS_PER_NAT)), 0, LARGEST_SHIFT))
    unit = STEPS_PER_NAT << shift
    places = np.array(PLACES if net.turns.size else (), np.int8).reshape(-1, 2)
    large, turned = (max(float(np.abs(part).max(initial=0)), 1e-3) for part in (net.vectors, net.turns))
    fall = int(np.clip(np.floor(np.log2(TOP / large / turned)), 0, LARGEST_FALL))
    scale = large * (1 << fall)  # of turns, where vectors fill their range

    def whole(part: np.ndarray, scale: float, multiple: int = 1) -> np.ndarray:
        return (np.round(part * scale / multiple) * multiple).clip(-TOP, TOP).astype(np.int8)

    return Network(
        tree=tree,
        places=places,
        vectors=whole(net.vectors, TOP / large, step),
        turns=whole(net.turns, scale, step).reshape(len(places), net.vectors.shape[1], len(net.bias)),
        fall=fall,
        bias=np.round(net.bias * TOP).astype(np.int32),
        v=whole(net.v, unit / TOP),
        c=np.round(net.c * unit).clip(-LARGEST_BIAS, LARGEST_BIAS).astype(np.int32),
        table=_chances(),
        same=_repeats(ids, columns, block),
        shift=shift,
        block=block,
    )


def _logits(tree: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Logits of the answers where codes have this mass, (K - 1,). mass: (K,), positive."""
    nodes, answers = walks(tree)
    asked, yes = np.zeros(len(tree)), np.zeros(len(tree))
    for k in range(nodes.shape[1]):
        there = nodes[:, k] >= 0
        np.add.at(asked, nodes[there, k], mass[there])
        np.add.at(yes, nodes[there, k], (mass * answers[:, k])[there])
    return np.log(yes / (asked - yes)) if len(tree) else asked


def _static(tree: np.ndarray, counted: np.ndarray, ids: np.ndarray, columns: int, block: int) -> Mix:
    """A network without neighbours: the share of each answer among the codes counted, (B, T) bool."""
    logits = _logits(tree, np.bincount(ids[counted], minlength=len(tree) + 1) + 0.01)
    none = np.zeros((len(tree) + 2, 0)), np.zeros((0, 0)), np.zeros(0), np.zeros((len(tree), 0))
    return Mix(_round(tree, Learnt(*none, logits), block, ids, columns), columns, ids.shape[1])


def _chances() -> np.ndarray:
    """Slots of the answer 1 by logit, each at the middle of its step."""
    nats = (np.arange(CHANCES) - CHANCES // 2 + 0.5) / STEPS_PER_NAT
    slots = np.round((1 << 16) / (1 + np.exp(-nats)))
    return slots.clip(LEAST_CHANCE, (1 << 16) - LEAST_CHANCE).astype(np.uint16)


def _repeats(ids: np.ndarray, columns: int, block: int) -> np.ndarray:
    """Slots of "as in the record before", by which neighbours are. Returns (CONTEXTS,) uint16."""
    follows = np.flatnonzero(np.arange(len(ids)) % block)
    alike = (ids[follows] == ids[follows - 1]).reshape(len(follows), ids.shape[1] // columns, columns)
    wide = np.pad(alike, ((0, 0), (1, 0), (1, 1)))
    context = wide[:, 1:, :-2] + 2 * wide[:, :-1, 1:-1] + 4 * wide[:, :-1, :-2] + 8 * wide[:, :-1, 2:]
    seen = np.bincount(context.ravel(), minlength=CONTEXTS) + 1
    yes = np.bincount(context[alike], minlength=CONTEXTS) + 0.5
    return np.round((1 << 16) * yes / seen).clip(LEAST_CHANCE, (1 << 16) - LEAST_CHANCE).astype(np.uint16)
