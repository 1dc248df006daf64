"""Entropy coding for archives: log-linear in the exact codes of four decoded neighbours, low rank.

score(s) = b[s] + sum_i u_i[neighbour_i] . v[s] over left, above, above-left, above-right. Fitted by gradient descent on
a sample, quantised to 8-bit integers. Decoding is exact everywhere: products of small integers are exact in float32
whatever the order of summation, and frequencies come from an integer table of exponentials kept with the store.

B images | T = H W tokens per image | K codes | R rank | Q = 4 neighbours
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import in_parts, kernels
from tilework.core.errors import DamageError, InputError
from tilework.store.codec import KERNELS, check_codes, codecs
from tilework.store.lanes import WORTH_A_THREAD, LaneDecoder, check_sizes, decode_compiled, encode_lanes

PRECISION = 16
LARGEST_VOCABULARY = 1 << 13
LARGEST_RANK = 64
STEPS_PER_NAT = 64  # of the table of exponentials
EXPONENTIALS = 16 * STEPS_PER_NAT
LARGEST_SHIFT = 12
LARGEST_BIAS = 1 << 22
CHUNK = 1 << 12  # tokens of an encoding step, and of a gradient
LANES = 256
PRICE = 64  # of a code, in those of other codecs


class Pairwise:
    """Entropy coding conditioned on the four decoded neighbours."""

    def __init__(
        self, u: np.ndarray, v: np.ndarray, bias: np.ndarray, shift: int, table: np.ndarray, columns: int, length: int
    ) -> None:
        self.u, self.v, self.bias = u.astype(np.float32), v.astype(np.float32), bias.astype(np.float32)
        self.shift, self.table = shift, table.astype(np.uint32)  # (EXPONENTIALS,)
        self.columns, self.length, self.vocabulary = columns, length, len(v)
        self._ones = np.arange(1, len(v) + 1, dtype=np.uint32)
        one = np.zeros((4, len(v) + 1, 1), np.float32)
        one[0] = 1  # a last channel that carries the bias through the product
        self._u = np.concatenate([self.u, one], 2)  # (Q, K + 1, R + 1)
        self._v = np.ascontiguousarray(np.concatenate([self.v, self.bias[:, None]], 1).T)  # (R + 1, K)

    @staticmethod
    def fit(ids: np.ndarray, vocabulary: int, columns: int) -> Pairwise:
        """Learn from a sample; the rank grows with the data. ids: (B, T)."""
        if vocabulary > LARGEST_VOCABULARY:
            raise InputError(f"a vocabulary of {vocabulary} is too large for pairwise tables", "use codec 'rans'")
        rank = int(np.clip(ids.size // (150 * vocabulary), 2, LARGEST_RANK))
        u, v, bias = _learn(ids, vocabulary, columns, rank)
        # whole numbers per nat: a power of two times the steps of the table, so that a shift finds the entry
        most = 127 / max(float(np.abs(u).max()), 1e-3), 127 / max(float(np.abs(v).max()), 1e-3)
        shift = min(LARGEST_SHIFT, max(0, int(np.log2(most[0] * most[1] / STEPS_PER_NAT))))
        unit = STEPS_PER_NAT << shift
        shrink = np.sqrt(unit / (most[0] * most[1]))
        whole = np.round(bias * unit).clip(-LARGEST_BIAS, LARGEST_BIAS)
        table = np.round(65535 * np.exp(-np.arange(EXPONENTIALS) / STEPS_PER_NAT))
        u, v = (np.round(x * m * shrink).clip(-127, 127) for x, m in zip((u, v), most, strict=True))
        return Pairwise(u, v, whole, shift, table, columns, ids.shape[1])

    @staticmethod
    def load(tables: dict[str, np.ndarray], length: int, vocabulary: int, columns: int) -> Pairwise:
        """The codec that wrote a store; refuses malformed tables."""
        rank = tables["v"].shape[-1] if "v" in tables and tables["v"].ndim else 0
        expected = {
            "u": ((4, vocabulary + 1, rank), np.dtype(np.int8)),
            "v": ((vocabulary, rank), np.dtype(np.int8)),
            "bias": ((vocabulary,), np.dtype(np.int32)),
            "shift": ((1,), np.dtype(np.int32)),
            "table": ((EXPONENTIALS,), np.dtype(np.uint16)),
        }
        found = {name: (table.shape, table.dtype) for name, table in tables.items()}
        right = found == expected and 1 <= rank <= LARGEST_RANK and vocabulary <= LARGEST_VOCABULARY
        right = right and 0 <= tables["shift"][0] <= LARGEST_SHIFT and tables["table"][0] == 65535
        if not right or np.abs(tables["bias"].astype(np.int64)).max() > LARGEST_BIAS:
            raise DamageError("the pairwise tables of the store are malformed", "restore tables.safetensors")
        u, v, bias, shift, table = (tables[name] for name in expected)
        return Pairwise(u, v, bias, int(shift[0]), table, columns, length)

    def tables(self) -> dict[str, np.ndarray]:
        """Integers: neighbour vectors, code vectors, biases, and the exponentials."""
        return {
            "u": self.u.astype(np.int8),
            "v": self.v.astype(np.int8),
            "bias": self.bias.astype(np.int32),
            "shift": np.array([self.shift], np.int32),
            "table": self.table.astype(np.uint16),
        }

    def _ends(self, neighbours: list[np.ndarray]) -> np.ndarray:
        """One past the last slot of every code. neighbours: Q of (P,); returns (P, K) uint32, the last 2^PRECISION."""
        hidden = self._u[0].take(neighbours[0], 0)  # (P, R + 1)
        for i in range(1, 4):
            hidden += self._u[i].take(neighbours[i], 0)
        score = hidden @ self._v  # exact: whole numbers below 2^24
        np.subtract(score.max(1, keepdims=True), score, out=score)
        behind = score.astype(np.int32)
        behind >>= self.shift  # steps of 1 / STEPS_PER_NAT behind the best code
        mass = self.table.take(behind, mode="clip")  # (P, K), the best has 2^16 - 1
        factor = np.uint32(((1 << PRECISION) - self.vocabulary) << 14) // mass.sum(1, dtype=np.uint32)
        mass *= factor[:, None]
        mass >>= np.uint32(14)
        ends = mass.cumsum(1, dtype=np.uint32)
        ends += self._ones  # every code has a slot
        ends[:, -1] = 1 << PRECISION  # what rounding left over goes to the last code
        return ends

    def encode(self, ids: np.ndarray) -> tuple[bytes, np.ndarray]:
        """ids: (B, T). Returns the records and their sizes."""
        check_codes(ids, self.vocabulary)
        if fast := kernels(KERNELS, ids.size * PRICE):
            coded: np.ndarray = np.empty((2, *ids.shape), np.uint32)
            model = self._u, self._v, self.shift, self.table, self.columns

            def code(rows: slice) -> int:
                return fast.code_pairwise(ids[rows], *model, *coded[:, rows])

            in_parts(code, len(ids), WORTH_A_THREAD // (PRICE * self.length))
            return encode_lanes(np.ascontiguousarray(coded[0].T), np.ascontiguousarray(coded[1].T), PRECISION)
        around = [n.ravel() for n in _neighbours(ids, self.columns, self.vocabulary)]
        flat = ids.ravel()
        frequency: np.ndarray = np.empty(ids.size, np.uint32)
        start: np.ndarray = np.empty(ids.size, np.uint32)
        for first in range(0, ids.size, CHUNK):
            part = slice(first, first + CHUNK)
            frequency[part], start[part] = _at(self._ends([n[part] for n in around]), flat[part])
        frequency, start = (np.ascontiguousarray(part.reshape(ids.shape).T) for part in (frequency, start))  # (T, B)
        return encode_lanes(frequency, start, PRECISION)

    def decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Returns (B, T) int32. Lanes go in blocks that fit the cache."""
        check_sizes(sizes, self.length)
        if fast := kernels(KERNELS, len(starts) * self.length * PRICE):
            out = np.empty((len(starts), self.length), np.int32)
            model = self._u, self._v, self.shift, self.table, self.columns
            decode_compiled(fast.decode_pairwise, data, starts, sizes, model, out)
            return out
        blocks = range(0, max(1, len(starts)), LANES)
        return np.concatenate([self._decode(data, starts[b : b + LANES], sizes[b : b + LANES]) for b in blocks])

    def _decode(self, data: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        lanes = LaneDecoder(data, starts, sizes, PRECISION, self.length)
        columns = self.columns
        ids = np.empty((self.length, len(starts)), np.int32)
        outside = np.full(len(starts), self.vocabulary, np.int32)
        for step in range(self.length):
            x, above = step % columns, step >= columns
            around = [
                ids[step - 1] if x else outside,
                ids[step - columns] if above else outside,
                ids[step - columns - 1] if above and x else outside,
                ids[step - columns + 1] if above and x < columns - 1 else outside,
            ]
            ends, slot = self._ends(around), lanes.slot()
            ids[step] = (ends > slot[:, None]).argmax(1)
            frequency, start = _at(ends, ids[step])
            lanes.advance(frequency, slot - start)
        lanes.finish()
        return np.ascontiguousarray(ids.T)


def _at(ends: np.ndarray, symbol: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frequency and first slot of one code per row. ends: (P, K); symbol: (P,)."""
    rows = np.arange(len(ends))
    start = np.where(symbol > 0, ends[rows, symbol - 1], np.uint32(0))
    return ends[rows, symbol] - start, start


def _neighbours(ids: np.ndarray, columns: int, outside: int) -> list[np.ndarray]:
    """Left, above, above-left, above-right of each code, `outside` beyond the edges. ids: (B, T); four of (B, T)."""
    grid = ids.reshape(len(ids), -1, columns)
    wide = np.pad(grid, ((0, 0), (1, 0), (1, 1)), constant_values=outside)
    shifted = [wide[:, 1:, :-2], wide[:, :-1, 1:-1], wide[:, :-1, :-2], wide[:, :-1, 2:]]
    return [part.reshape(ids.shape) for part in shifted]


def _learn(
    ids: np.ndarray, vocabulary: int, columns: int, rank: int, passes: int = 4
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Adam on the cross-entropy of each code given its neighbours, starting from the code frequencies."""
    rng = np.random.Generator(np.random.PCG64(0))
    flat = ids.ravel()
    around = np.stack([n.ravel() for n in _neighbours(ids, columns, vocabulary)])  # (Q, P)
    counts = np.bincount(flat, minlength=vocabulary) + 0.5
    parts = [
        rng.normal(0, 0.3, (4, vocabulary + 1, rank)).astype(np.float32),
        rng.normal(0, 0.3, (vocabulary, rank)).astype(np.float32),
        np.log(counts / counts.sum()).astype(np.float32),
    ]
    moments = [(np.zeros_like(p), np.zeros_like(p)) for p in parts]
    size = min(CHUNK, flat.size)
    total = max(200, passes * flat.size // size)
    for step in range(total):
        pick = rng.integers(0, flat.size, size)
        gradients = _gradients(parts, around[:, pick], flat[pick])
        rate = 0.02 * (0.5 + 0.5 * np.cos(np.pi * step / total))
        for part, (first, second), gradient in zip(parts, moments, gradients, strict=True):
            first += 0.1 * (gradient - first)
            second += 0.01 * (gradient * gradient - second)
            bias = (1 - 0.9 ** (step + 1)), (1 - 0.99 ** (step + 1))
            part -= rate * (first / bias[0]) / (np.sqrt(second / bias[1]) + 1e-8)
    return parts[0], parts[1], parts[2]


def _gradients(parts: list[np.ndarray], around: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
    """Of the mean cross-entropy, with a light pull to zero. around: (Q, P); target: (P,)."""
    u, v, bias = parts
    hidden = sum(u[i].take(around[i], 0) for i in range(4))  # (P, R)
    score = hidden @ v.T + bias
    score -= score.max(1, keepdims=True)
    np.exp(score, out=score)
    score /= score.sum(1, keepdims=True)
    score[np.arange(len(target)), target] -= 1
    score /= len(target)
    back = score @ v  # (P, R)
    du = np.zeros_like(u)
    for i in range(4):
        order = np.argsort(around[i], kind="stable")
        where = around[i][order]
        first = np.flatnonzero(np.r_[True, where[1:] != where[:-1]])
        du[i][where[first]] = np.add.reduceat(back[order], first, axis=0)
    return [du + 1e-7 * u, score.T @ hidden + 1e-7 * v, score.sum(0)]


codecs.add("pairwise")(Pairwise)
