"""Fitting codec `mix`: a tree of codes, a network learnt on a sample, rounded to whole numbers.

Codes whose neighbours are alike lie together in the tree, so that its first turns are easy to tell.

B records | T codes of a record | K codes | Q neighbours | H hidden units | D longest path | P codes learnt from
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np

from tilework.core.compiled import kernels
from tilework.store.codec import KERNELS
from tilework.store.mix import CHANCES, CONTEXTS, LARGEST_BIAS, LARGEST_SHIFT, STEPS_PER_NAT, TOP, Mix, Network, walks

PLACES = ((0, -1), (-1, 0), (-1, -1), (-1, 1), (0, -2), (-2, 0), (-1, -2), (-1, 2))
HIDDEN = 32
BLOCK = 16
SPARE_DEPTH = 3  # turns beyond those of a balanced tree
LEARNT = 1 << 21  # codes of a pass
PASSES = 3
RATE, LAST_RATE = 0.1, 0.002
PULL = 1e-5  # to zero
TRIED = 1 << 17  # codes after which it is seen whether neighbours tell anything
TELLING = 0.97  # of the bits without them
JUDGED = 1 << 20  # codes that are encoded to compare
REPEATING = 0.1  # share of codes as in the record before that is worth blocks
LEAST_CHANCE = 16  # slots
STEPS = (1, 8, 16)  # roundings that are tried


def fitted(ids: np.ndarray, vocabulary: int, columns: int) -> Mix:
    """The smallest on the sample, tables counted: with neighbours or without, in blocks or not. ids: (B, T)."""
    tree = _tree(ids, vocabulary, columns)
    tried = [_static(tree, np.ones(ids.shape, bool), ids, columns, 1)]
    learnt = _learn(tree, ids, vocabulary, columns) if vocabulary > 1 else None
    if learnt is not None:
        tried += [Mix(_round(tree, *learnt, 1, ids, columns, step), columns, ids.shape[1]) for step in STEPS]
    alike = np.zeros(ids.shape, bool)
    alike[1:] = ids[1:] == ids[:-1]
    alike[::BLOCK] = False
    if alike.mean() > REPEATING:
        tried.append(_static(tree, ~alike, ids, columns, BLOCK))
        if learnt is not None:
            tried += [Mix(_round(tree, *learnt, BLOCK, ids, columns, step), columns, ids.shape[1]) for step in STEPS]
    some = ids[: max(1, JUDGED // ids.shape[1] // BLOCK) * BLOCK]
    return min(tried, key=lambda codec: _bytes(codec, some) * len(ids) / len(some) + _table_bytes(codec))


def _bytes(codec: Mix, ids: np.ndarray) -> float:
    return float(codec.encode(ids)[1].sum())


def _table_bytes(codec: Mix) -> int:
    return sum(table.nbytes for table in codec.tables().values())


def neighbours(ids: np.ndarray, columns: int, outside: int) -> np.ndarray:
    """Codes at PLACES, `outside` beyond the edges. ids: (B, T); returns (B T, Q) int32."""
    grid = ids.reshape(len(ids), -1, columns)
    wide = np.pad(grid, ((0, 0), (2, 0), (2, 2)), constant_values=outside).astype(np.int32)
    height, width = grid.shape[1:]
    return np.stack([wide[:, 2 + y : 2 + y + height, 2 + x : 2 + x + width].ravel() for y, x in PLACES], 1)


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


def _learn(
    tree: np.ndarray, ids: np.ndarray, vocabulary: int, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Weights u, bias, v, c as floats; None where neighbours tell nothing."""
    fast, rng = kernels(KERNELS), np.random.Generator(np.random.PCG64(0))
    nodes, answers = walks(tree)
    near, flat = neighbours(ids, columns, vocabulary), ids.ravel().astype(np.int32)
    weights = [
        rng.normal(0, 0.1, (len(PLACES), vocabulary + 1, HIDDEN)).astype(np.float32),
        np.zeros(HIDDEN, np.float32),
        rng.normal(0, 0.3, (len(tree), HIDDEN)).astype(np.float32),
        np.zeros(len(tree), np.float32),
    ]
    squares = [np.full_like(part, 0.01) for part in weights]
    share = np.bincount(flat, minlength=vocabulary) / flat.size
    alone = -(share[share > 0] * np.log2(share[share > 0])).sum()  # bits of a code without neighbours
    total = PASSES * min(flat.size, LEARNT)
    done = 0
    while done < total:
        order = rng.permutation(flat.size)[: total - done]
        for part in np.array_split(order, -(-len(order) // TRIED)):
            rate = RATE * (1 - done / total) + LAST_RATE
            bits = fast.learn_mix(
                part, near, flat, nodes, answers, *weights, *squares, np.float32(rate), np.float32(PULL)
            )
            if done and done <= 2 * TRIED and bits > TELLING * alone * len(part):
                return None
            done += len(part)
    return weights[0], weights[1], weights[2], weights[3]


def _round(
    tree: np.ndarray, u: np.ndarray, bias: np.ndarray, v: np.ndarray, c: np.ndarray, block: int, ids: np.ndarray,
    columns: int, step: int = 1,
) -> Network:  # fmt: skip
    """Whole numbers of a network: hidden units in steps of 1 / TOP, logits of a nat / (STEPS_PER_NAT 2^shift).

    step: what the weights of neighbours are multiples of; a large one takes fewer bytes.
    """
    most = max(float(np.quantile(np.abs(v), 0.9999)), 1e-3) if v.size else 1.0
    shift = int(np.clip(np.floor(np.log2(TOP * TOP / most / STEPS_PER_NAT)), 0, LARGEST_SHIFT))
    unit = STEPS_PER_NAT << shift
    return Network(
        tree=tree,
        places=np.array(PLACES, np.int8)[: len(u)].reshape(len(u), 2),
        u=(np.round(u * TOP / step) * step).clip(-TOP, TOP).astype(np.int8),
        bias=np.round(bias * TOP).astype(np.int32),
        v=np.round(v * unit / TOP).clip(-TOP, TOP).astype(np.int8),
        c=np.round(c * unit).clip(-LARGEST_BIAS, LARGEST_BIAS).astype(np.int32),
        table=_chances(),
        same=_repeats(ids, columns, block),
        shift=shift,
        block=block,
    )


def _static(tree: np.ndarray, counted: np.ndarray, ids: np.ndarray, columns: int, block: int) -> Mix:
    """A network without neighbours: the share of each answer among the codes counted, (B, T) bool."""
    nodes, answers = walks(tree)
    mass = np.bincount(ids[counted], minlength=len(tree) + 1) + 0.01
    asked, yes = np.zeros(len(tree)), np.zeros(len(tree))
    for k in range(nodes.shape[1]):
        there = nodes[:, k] >= 0
        np.add.at(asked, nodes[there, k], mass[there])
        np.add.at(yes, nodes[there, k], (mass * answers[:, k])[there])
    share = yes / asked if len(tree) else asked
    none = np.zeros((0, len(tree) + 2, 0)), np.zeros(0), np.zeros((len(tree), 0))
    return Mix(_round(tree, *none, np.log(share / (1 - share)), block, ids, columns), columns, ids.shape[1])


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
