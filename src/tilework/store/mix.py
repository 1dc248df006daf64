"""Entropy coding by a small network of whole numbers over decoded neighbours; its answers walk down a tree of codes.

Each code is a walk down a binary tree; the network gives the chance of every turn from the exact codes of some
neighbours, each by its vector. Where records repeat, as frames of a video do, a code first says whether it is the one
of the record before; such records are coded in blocks, and a block is decoded from its start. All arithmetic is on
whole numbers that are exact in float32: the same bytes on every machine. store/mix_fit.py fits it.

B records | T codes of a record | K codes | Q neighbours | W width of a code's vector | H hidden units | D longest path
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilework.core.compiled import in_parts, kernels
from tilework.core.errors import DamageError, InputError
from tilework.store.codec import KERNELS, check_codes, codecs
from tilework.store.lanes import WORTH_A_THREAD, LaneDecoder, check_sizes, encode_lanes, within

PRECISION = 16
WHOLE = np.uint32(1 << PRECISION)
LARGEST_VOCABULARY = 1 << 13
LARGEST_HIDDEN = 64
LARGEST_WIDTH = 64
LARGEST_FALL = 12
MOST_PLACES = 16
FARTHEST = 8  # rows or columns
LARGEST_DEPTH = 32
LARGEST_BIAS = 1 << 22
LARGEST_SHIFT = 12
BLOCKS = (1, 2, 4, 8, 16)
STEPS_PER_NAT = 64
CHANCES = 24 * STEPS_PER_NAT  # entries of the table of chances, from -12 to 12 nats
CONTEXTS = 16  # of "same": which of four neighbours were the same
TOP = 127
PRICE = 16  # of a code, in those of other codecs
TOGETHER = 1 << 22  # decisions coded at once


@dataclass(frozen=True)
class Network:
    """Weights, all whole numbers."""

    tree: np.ndarray  # (K - 1, 2) int32: where the answers 0 and 1 lead: a node behind this one, or -1 - code
    places: np.ndarray  # (Q, 2) int8: rows and columns from a code to its neighbours
    vectors: np.ndarray  # (K + 1, W) int8: of each code; the last of what lies outside
    turns: np.ndarray  # (Q, W, H) int8: what the vector of each neighbour does to the hidden units
    fall: int  # bits that vectors times turns have too many
    bias: np.ndarray  # (H,) int32
    v: np.ndarray  # (K - 1, H) int8
    c: np.ndarray  # (K - 1,) int32
    table: np.ndarray  # (CHANCES,) uint16: slots of the answer 1
    same: np.ndarray  # (CONTEXTS,) uint16: slots of "as in the record before"
    shift: int
    block: int  # records of a block
    explicit: np.ndarray | None = None  # (Q, K + 1, H) int8 of a store of version 1, which has no vectors and turns

    @cached_property
    def u(self) -> np.ndarray:
        """What the code of each neighbour does to the hidden units, (Q, K + 1, H) int8."""
        if self.explicit is not None:
            return self.explicit
        whole = self.vectors.astype(np.int32) @ self.turns.astype(np.int32)
        return (whole + (1 << self.fall >> 1) >> self.fall).clip(-TOP, TOP).astype(np.int8)


class Mix:
    """Entropy coding by a network over neighbours, in blocks where records repeat."""

    def __init__(self, network: Network, columns: int, length: int) -> None:
        self.network, self.columns, self.length = network, columns, length
        self.vocabulary = len(network.tree) + 1
        self.block = network.block
        self.nodes, self.answers = walks(network.tree)
        self._weights = tuple(
            np.ascontiguousarray(part, kind)
            for part, kind in ((network.u, np.int8), (network.bias, np.int32), (network.v, "f4"), (network.c, "f4"))
        )
        self._table, self._same = network.table.astype(np.uint32), network.same.astype(np.uint32)
        self._steps = length * (self.nodes.shape[1] + 1)  # decisions of a record, at most

    @staticmethod
    def fit(ids: np.ndarray, vocabulary: int, columns: int) -> Mix:
        """Learn from a sample, which takes compiled kernels. ids: (B, T)."""
        from tilework.store.mix_fit import fitted  # takes what is here

        if vocabulary > LARGEST_VOCABULARY:
            raise InputError(f"a vocabulary of {vocabulary} is too large for codec 'mix'", "use codec 'rans'")
        if kernels(KERNELS) is None:
            raise InputError("codec 'mix' is fitted by compiled kernels", "pip install 'tilework[fast]'")
        return fitted(ids, vocabulary, columns)

    @staticmethod
    def load(tables: dict[str, np.ndarray], length: int, vocabulary: int, columns: int) -> Mix:
        """The codec that wrote a store; refuses malformed tables."""
        try:
            if vocabulary > LARGEST_VOCABULARY:
                raise ValueError("vocabulary")
            network = _checked(tables, vocabulary)
            return Mix(network, columns, length)
        except (KeyError, IndexError, ValueError, TypeError, zlib.error) as error:
            raise DamageError("the network of the store is malformed", "restore tables.safetensors") from error

    def tables(self) -> dict[str, np.ndarray]:
        """Sizes, and the weights deflated."""
        return dict(self._tables)

    @cached_property
    def _tables(self) -> dict[str, np.ndarray]:
        net = self.network
        ahead = np.where(net.tree < 0, net.tree, net.tree - np.arange(len(net.tree))[:, None])
        parts = {
            "tree": ahead.astype("<i2"),
            "places": net.places,
            "bias": net.bias.astype("<i4"),
            "v": net.v.T,
            "c": net.c.astype("<i4"),
            "table": net.table.astype("<u2"),
            "same": net.same.astype("<u2"),
        }
        if net.explicit is not None:
            sizes = [len(net.places), len(net.bias), net.shift, net.block]
            parts["u"] = np.moveaxis(net.explicit, 2, 1)  # of one unit together
        else:
            sizes = [len(net.places), len(net.bias), net.shift, net.block, net.vectors.shape[1], net.fall]
            parts |= {"vectors": net.vectors.T, "turns": net.turns}
        deflated = {name: zlib.compress(part.tobytes(), 9) for name, part in parts.items()}
        return {"sizes": np.array(sizes, np.int32)} | {
            name: np.frombuffer(part, np.uint8) for name, part in deflated.items()
        }

    def chain_of(self, records: np.ndarray) -> np.ndarray:
        """Of each record how many it builds upon. records: (B,) numbers in the store."""
        return records % self.block

    def encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """ids: (B, T), the first at the start of a block. Returns the records and their sizes."""
        check_codes(ids, self.vocabulary)
        ids = np.ascontiguousarray(ids, np.int64)
        portion = max(1, TOGETHER // (self._steps * self.block)) * self.block
        parts = [self._encode(ids[at : at + portion]) for at in range(0, len(ids), portion)]
        sizes = [sizes for _, sizes in parts] or [np.empty(0, np.int64)]
        return b"".join(records for records, _ in parts), np.concatenate(sizes)

    def _encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        chain = self.chain_of(np.arange(len(ids)))
        coded: np.ndarray = np.empty((2, len(ids), self._steps), np.uint32)
        if fast := kernels(KERNELS, ids.size * PRICE):
            most = fast.code_mix(ids, chain, self.nodes, self.answers, *self._model, *coded)
        else:
            most = self._code(ids, chain, *coded)
        return encode_lanes(coded[0, :, :most].T, coded[1, :, :most].T, PRECISION)

    @property
    def _model(self) -> tuple[np.ndarray | int, ...]:
        net = self.network
        return net.places.astype(np.int64), *self._weights, net.shift, self._table, self._same, self.columns

    @cached_property
    def _groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of kernels: the tree in groups of three turns, whose scores are computed at once."""
        return grouped(self.network.tree, *self._weights[2:])

    def _code(self, ids: np.ndarray, chain: np.ndarray, frequency: np.ndarray, start: np.ndarray) -> int:
        """Frequency and first slot of every decision. Returns the largest number of them."""
        frequency[:], start[:] = WHOLE, 0
        at, rows = np.zeros(len(ids), np.int64), np.arange(len(ids))

        def put(which: np.ndarray, p: np.ndarray, answer: np.ndarray) -> None:
            frequency[which, at[which]] = np.where(answer, p, WHOLE - p)
            start[which, at[which]] = np.where(answer, 0, p)
            at[which] += 1

        before = np.concatenate([ids[:1], ids[:-1]])
        for t in range(self.length):
            alike = (chain > 0) & (ids[:, t] == before[:, t])
            follows = rows[chain > 0]
            put(follows, self._same[_same_before(ids, before, t, self.columns)[follows]], alike[follows])
            hidden = self._hide(ids, t)
            for k in range(self.nodes.shape[1]):
                node = self.nodes[ids[:, t], k]
                which = rows[(node >= 0) & ~alike]
                put(which, self._chance(hidden[which], node[which]), self.answers[ids[which, t], k])
        return int(at.max(initial=0))

    def _hide(self, ids: np.ndarray, t: int) -> np.ndarray:
        """Hidden units, (B, H). ids: (B, T), those before t known."""
        u, bias = self._weights[:2]
        hidden = np.repeat(bias[None], len(ids), 0)
        y, x = divmod(t, self.columns)
        for q, (down, right) in enumerate(self.network.places.tolist()):
            inside = y + down >= 0 and 0 <= x + right < self.columns
            hidden += u[q][ids[:, t + down * self.columns + right]] if inside else u[q][-1]
        return hidden.clip(-TOP, TOP).astype(np.float32)

    def _chance(self, hidden: np.ndarray, node: np.ndarray) -> np.ndarray:
        """Slots of the answer 1, (B,) uint32. hidden: (B, H); node: (B,)."""
        v, c = self._weights[2:]
        z = (hidden * v[node]).sum(1) + c[node]  # exact: whole numbers below 2^24
        entry = (z.astype(np.int64) >> self.network.shift) + CHANCES // 2
        return self._table[entry.clip(0, CHANCES - 1)]

    def decode(
        self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, chain: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns (B, T) int32. chain: (B,) of `chain_of`; each row that is not 0 follows the one before it."""
        chain = self.chain_of(np.arange(len(starts))) if chain is None else chain
        if len(chain) and chain[0]:
            raise ValueError("the first record must stand alone")
        check_sizes(sizes, self._steps)
        if fast := kernels(KERNELS, len(starts) * self.length * PRICE):
            data, starts, sizes = within(data, starts, sizes)
            out = np.empty((len(starts), self.length), np.int32)
            alone = np.flatnonzero(chain == 0)

            def decode(part: slice) -> int:
                first = alone[part.start]
                rows = slice(first, alone[part.stop] if part.stop < len(alone) else len(out))
                heads = np.append(alone[part], rows.stop) - first
                places, u, bias, _, _, *others = self._model
                arguments = starts[rows], sizes[rows], heads, *self._groups, places, u, bias, *others
                return fast.decode_mix(data, *arguments, out[rows])

            least = WORTH_A_THREAD // (PRICE * self.length * self.block)
            if len(alone) and in_parts(decode, len(alone), least) >= 0:
                raise DamageError("a record does not decode to its end", "restore the shard")
            return out
        out = np.zeros((len(starts), self.length), np.int32)
        for position in range(int(chain.max(initial=0)) + 1):  # all first records of blocks, all second ones, ...
            rows = np.flatnonzero(chain == position)
            lanes = LaneDecoder(data, starts[rows], sizes[rows], PRECISION, self._steps)
            out[rows] = self._decode(lanes, out[rows - 1] if position else None, len(rows))
        return out

    def _decode(self, lanes: LaneDecoder, before: np.ndarray | None, count: int) -> np.ndarray:
        """Records side by side. before: (B, T), the records before them. Returns (B, T)."""
        ids = np.zeros((count, self.length), np.int64)
        for t in range(self.length):
            node = np.zeros(count, np.int64) if len(self.network.tree) else np.full(count, -1)
            if before is not None:
                alike = lanes.ask(self._same[_same_before(ids, before, t, self.columns)], np.ones(count, bool))
                node = np.where(alike, -1 - before[:, t], node)
            hidden = self._hide(ids, t)
            while (walking := node >= 0).any():
                at = np.maximum(node, 0)
                answer = lanes.ask(self._chance(hidden, at), walking)
                node = np.where(walking, self.network.tree[at, answer.astype(np.int64)], node)
            ids[:, t] = -1 - node
        lanes.finish()
        return ids


def _same_before(ids: np.ndarray, before: np.ndarray, t: int, columns: int) -> np.ndarray:
    """Which of four neighbours are those of the record before, as bits, (B,)."""
    x, up = t % columns, t >= columns
    there = [x > 0, up, up and x > 0, up and x < columns - 1]
    back = [1, columns, columns + 1, columns - 1]
    found = np.zeros(len(ids), np.int64)
    for bit, (inside, step) in enumerate(zip(there, back, strict=True)):
        if inside:
            found |= (ids[:, t - step] == before[:, t - step]).astype(np.int64) << bit
    return found


def walks(tree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nodes and answers on the way to each code, -1 behind its end. tree: (K - 1, 2); returns two of (K, D) int32.

    Refuses what is not a tree of all codes.
    """
    count = len(tree) + 1
    above = np.full((2, 2 * count - 1), -1)  # node and answer before a node, and behind the nodes, before a code
    target = np.where(tree < 0, len(tree) - 1 - tree, tree)
    if len(tree) and (target.max() >= 2 * count - 1 or (target <= np.arange(len(tree))[:, None]).any()):
        raise ValueError("a node leads nowhere")
    for answer in (0, 1):
        above[0, target[:, answer]], above[1, target[:, answer]] = np.arange(len(tree)), answer
    if (np.bincount(target.ravel(), minlength=2 * count - 1)[1:] != 1).any():
        raise ValueError("a node is led to twice")
    at, ways = np.arange(len(tree), 2 * count - 1), []
    while (at > 0).any() and len(tree):
        ways.append(np.where(at > 0, above[:, at], -1))
        at = np.where(at > 0, above[0, at], 0)
        if len(ways) > LARGEST_DEPTH:
            raise ValueError("depth")
    nodes, answers = (
        (np.stack(part, 1)[:, ::-1] for part in zip(*ways, strict=True)) if ways else np.full((2, 1, 1), -1)
    )
    first = np.argsort(nodes < 0, axis=1, kind="stable")  # ways begin at the left
    return tuple(np.take_along_axis(part, first, 1).astype(np.int32) for part in (nodes, answers))  # type: ignore[return-value]


def grouped(tree: np.ndarray, v: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups of up to seven nodes, a node and the two turns behind it: weights (X, H', 8), c (X, 8), ways (X, 8, 2).

    The node behind node n of a group is 2 n + 1 or 2 n + 2. ways: where answers lead: a node of the group, 8 and the
    number of another group, or -1 - code. H': H filled up to a multiple of 4.
    tree: (K - 1, 2); v: (K - 1, H); c: (K - 1,).
    """
    roots, inside = [0] if len(tree) else [], np.full((len(tree), 8), -1)  # nodes of the tree in each group
    ways = np.full((len(tree), 8, 2), -1, np.int64)
    for number, root in enumerate(roots):  # which grows
        inside[number, 0] = root
        for place in range(7):
            for answer, target in enumerate(tree[inside[number, place]].tolist() if inside[number, place] >= 0 else ()):
                behind = 2 * place + 1 + answer
                if target >= 0 and behind < 7:
                    inside[number, behind] = target
                elif target >= 0:
                    roots.append(target)
                ways[number, place, answer] = target if target < 0 else behind if behind < 7 else 7 + len(roots)
    inside = inside[: len(roots)]
    weights = np.zeros((len(roots), -(-v.shape[1] // 4) * 4, 8), np.float32)
    weights[:, : v.shape[1]] = np.where(inside[:, :, None] >= 0, v[inside], 0).transpose(0, 2, 1)
    return weights, np.where(inside >= 0, c[inside], 0).astype(np.float32), ways[: len(roots)]


def _checked(tables: dict[str, np.ndarray], vocabulary: int) -> Network:
    """The network of a store's tables; raises for what is malformed."""
    first = "u" in tables  # of a store of version 1
    if tables["sizes"].shape != ((4,) if first else (6,)) or tables["sizes"].dtype != np.int32:
        raise ValueError("sizes")
    places, hidden, shift, block, width, fall = [*tables["sizes"].tolist(), 0, 0][:6]
    if not (0 <= places <= MOST_PLACES and 0 <= hidden <= LARGEST_HIDDEN and 0 <= width <= LARGEST_WIDTH):
        raise ValueError("sizes")
    if not (0 <= shift <= LARGEST_SHIFT and 0 <= fall <= LARGEST_FALL and block in BLOCKS):
        raise ValueError("values")
    forms = {
        "tree": ((vocabulary - 1, 2), "<i2"),
        "places": ((places, 2), "i1"),
        "bias": ((hidden,), "<i4"),
        "v": ((hidden, vocabulary - 1), "i1"),
        "c": ((vocabulary - 1,), "<i4"),
        "table": ((CHANCES,), "<u2"),
        "same": ((CONTEXTS,), "<u2"),
    }
    if first:
        forms["u"] = (places, hidden, vocabulary + 1), "i1"
    else:
        forms |= {"vectors": ((width, vocabulary + 1), "i1"), "turns": ((places, width, hidden), "i1")}
    if tables.keys() != {"sizes", *forms}:
        raise ValueError("names")
    parts = {name: _inflate(tables[name], *form) for name, form in forms.items()}
    if min(part.min(initial=0) for name, part in parts.items() if part.dtype == np.int8 and name != "places") < -TOP:
        raise ValueError("values")
    ahead = parts["tree"].astype(np.int32)
    parts["tree"] = np.where(ahead < 0, ahead, ahead + np.arange(vocabulary - 1, dtype=np.int32)[:, None])
    if first:
        parts["explicit"] = np.ascontiguousarray(np.moveaxis(parts.pop("u"), 1, 2))
        parts |= {"vectors": np.zeros((vocabulary + 1, 0), np.int8), "turns": np.zeros((places, 0, hidden), np.int8)}
    else:
        parts["vectors"] = np.ascontiguousarray(parts["vectors"].T)
    parts["v"] = np.ascontiguousarray(parts["v"].T)
    down, right = parts["places"].astype(np.int64).T
    if max(np.abs([down, right]).max(initial=0), 0) > FARTHEST or ((down > 0) | ((down == 0) & (right >= 0))).any():
        raise ValueError("places")
    large = max(int(np.abs(parts[name].astype(np.int64)).max(initial=0)) for name in ("bias", "c"))
    if large > LARGEST_BIAS or min(parts["table"].min(), parts["same"].min()) < 1:
        raise ValueError("values")
    return Network(**parts, shift=shift, block=block, fall=fall)


def _inflate(values: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Inflate exactly the numbers of a shape, or raise; never allocates more."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(values.astype(np.uint8, casting="equiv").tobytes(), size + 1)
    if len(raw) != size or not unpacker.eof:
        raise ValueError("sizes")
    return np.frombuffer(raw, dtype).reshape(shape)


codecs.add("mix")(Mix)
