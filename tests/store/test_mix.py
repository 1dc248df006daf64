"""Codec `mix`: round trips, golden bytes by a slow coder, gains where neighbours or records repeat, hostile tables."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core import compiled
from tilework.core.errors import DamageError, InputError
from tilework.store import Mix, Rans, RansContext, Store, StoreWriter, choose_codec, codecs
from tilework.store.mix import CHANCES, Network, walks
from tilework.store.mix_fit import _chances, _tree
from tilework.store.reader import chains

TREE = np.array([[1, 2], [-1, -2], [-3, 3], [-4, -5]], np.int32)  # codes 0 to 4


def fixed(block: int = 1, version: int = 2) -> Mix:
    """A network of whole numbers, so that learning plays no part."""
    vectors = ((np.arange(6 * 2) * 37 % 201) - 100).reshape(6, 2).astype(np.int8)
    network = Network(
        tree=TREE,
        places=np.array([[0, -1], [-1, 0], [-1, 1]], np.int8),
        vectors=vectors if version == 2 else np.zeros((6, 0), np.int8),
        turns=((np.arange(3 * 2 * 4) * 29 % 181) - 90).reshape(3, 2, 4).astype(np.int8)[:, : 2 * (version == 2)],
        fall=6 if version == 2 else 0,
        bias=np.array([5, -60, 0, 33], np.int32),
        v=((np.arange(4 * 4) * 23 % 141) - 70).reshape(4, 4).astype(np.int8),
        c=np.array([100, -5000, 0, 700], np.int32),
        table=np.linspace(100, 65000, CHANCES).astype(np.uint16),
        same=np.linspace(20000, 60000, 16).astype(np.uint16),
        shift=4,
        block=block,
        explicit=((np.arange(3 * 6 * 4) * 37 % 201) - 100).reshape(3, 6, 4).astype(np.int8) if version == 1 else None,
    )
    return Mix.load(Mix(network, 3, 6).tables(), 6, 5, 3)


def slow_unit(net: Network, q: int, code: int, j: int) -> int:
    """What a neighbour's code does to a hidden unit, by docs/format.md in Python's own integers."""
    if net.explicit is not None:
        return int(net.explicit[q, code, j])
    whole = sum(int(a) * int(b) for a, b in zip(net.vectors[code], net.turns[q, :, j], strict=True))
    return max(-127, min(127, (whole + 2**net.fall // 2) // 2**net.fall))


def codes_below(node: int) -> set[int]:
    return {-1 - node} if node < 0 else codes_below(int(TREE[node, 0])) | codes_below(int(TREE[node, 1]))


def slow_record(codec: Mix, row: list[int], before: list[int] | None) -> bytes:
    """docs/format.md in Python's own integers."""
    net, decisions = codec.network, []
    for t, code in enumerate(row):
        y, x = divmod(t, 3)
        if before is not None:
            near = [(y, x - 1), (y - 1, x), (y - 1, x - 1), (y - 1, x + 1)]
            inside = [(b, r * 3 + k) for b, (r, k) in enumerate(near) if r >= 0 and 0 <= k < 3]
            p = int(net.same[sum(1 << b for b, i in inside if row[i] == before[i])])
            decisions.append((p, 0) if code == before[t] else ((1 << 16) - p, p))
            if code == before[t]:
                continue
        hidden = [int(n) for n in net.bias]
        for q, (down, right) in enumerate(net.places.tolist()):
            there = y + down >= 0 and 0 <= x + right < 3
            other = row[(y + down) * 3 + x + right] if there else 5
            hidden = [h + slow_unit(net, q, other, j) for j, h in enumerate(hidden)]
        hidden = [max(-127, min(127, h)) for h in hidden]
        node = 0
        while node >= 0:
            z = int(net.c[node]) + sum(h * int(w) for h, w in zip(hidden, net.v[node], strict=True))
            p = int(net.table[max(0, min(CHANCES - 1, (z >> net.shift) + CHANCES // 2))])
            left = int(TREE[node, 0])
            answer = code not in codes_below(left)
            decisions.append((p, 0) if answer else ((1 << 16) - p, p))
            node = int(TREE[node, int(answer)])
    state, words = 1 << 16, []
    for f, start in reversed(decisions):
        if state >= f << 16:
            words.append(state & 0xFFFF)
            state >>= 16
        state = (state // f << 16) + state % f + start
    return state.to_bytes(4, "little") + b"".join(word.to_bytes(2, "little") for word in reversed(words))


GOLDEN = {1: "3a3cec0416ff44005fc99d0075a3", 2: "9fc50703e82b120029e80d009d83"}


@pytest.mark.parametrize("kernels", ["0", "1"])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("block", [1, 2, 4])
def test_records_are_those_of_the_slow_coder(
    monkeypatch: pytest.MonkeyPatch, kernels: str, block: int, version: int
) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", kernels)
    codec = fixed(block, version)
    ids = np.random.default_rng(0).integers(0, 5, (9, 6))
    ids[1::2, :4] = ids[:-1:2, :4]  # much as in the record before
    records, sizes = codec.encode(ids)
    ends = np.cumsum(sizes)
    for i, row in enumerate(ids.tolist()):
        expected = slow_record(codec, row, ids[i - 1].tolist() if i % block else None)
        assert records[ends[i] - sizes[i] : ends[i]] == expected
    np.testing.assert_array_equal(codec.decode(np.frombuffer(records, np.uint8), ends - sizes, sizes), ids)


@pytest.mark.parametrize("version", [1, 2])
def test_golden_bytes(version: int) -> None:
    ids = np.array([[4, 0, 3, 3, 1, 2], [0, 0, 0, 0, 0, 0]])
    assert fixed(version=version).encode(ids)[0].hex() == GOLDEN[version]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_trees_have_every_code_once(vocabulary: int, seed: int) -> None:
    ids = np.random.default_rng(seed).geometric(0.2, (5, 12)).clip(1, vocabulary) - 1
    nodes, answers = walks(_tree(ids, vocabulary, 4))
    ways = {tuple(zip(n[n >= 0], a[n >= 0], strict=True)) for n, a in zip(nodes.tolist(), answers.tolist(), strict=True)
            for n, a in [(np.array(n), np.array(a))]}  # fmt: skip
    assert len(ways) == vocabulary
    assert nodes.shape[1] <= max(1, int(np.ceil(np.log2(vocabulary)))) + 3


@pytest.mark.parametrize(
    "tree",
    [
        [[1, 2], [-1, -2], [-3, 3], [-4, -4]],  # a code twice
        [[1, 1], [-1, -2], [-3, 3], [-4, -5]],  # a node twice
        [[1, 2], [-1, -2], [-3, 2], [-4, -5]],  # a circle
        [[1, 9], [-1, -2], [-3, 3], [-4, -5]],  # nowhere
        [[1, 2], [-1, -2], [-3, 3], [-4, -9]],  # no such code
    ],
)
def test_what_is_no_tree_is_refused(tree: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"leads nowhere|led to twice"):
        walks(np.array(tree, np.int32))


def deflated(values: np.ndarray) -> np.ndarray:
    return np.frombuffer(zlib.compress(values.tobytes(), 9), np.uint8)


WRONG: list[tuple[int, dict[str, np.ndarray]]] = [
    (1, {"sizes": np.array([3, 4, 4, 3], np.int32)}),  # a block of three
    (1, {"sizes": np.array([3, 4, 40, 1], np.int32)}),
    (1, {"sizes": np.array([3, 65, 4, 1], np.int32)}),
    (1, {"sizes": np.array([17, 4, 4, 1], np.int32)}),
    (1, {"sizes": np.array([3, 4, 4], np.int32)}),
    (1, {"sizes": np.array([3, 4, 4, 1, 2, 6], np.int32)}),  # of the other version
    (1, {"u": deflated(np.full(3 * 6 * 4, -128, np.int8))}),
    (1, {"u": deflated(np.zeros(3 * 6 * 4 + 1, np.int8))}),
    (2, {"u": deflated(np.zeros(3 * 6 * 4, np.int8))}),  # of both versions
    (2, {"sizes": np.array([3, 4, 4, 3, 2, 6], np.int32)}),
    (2, {"sizes": np.array([3, 4, 4, 1, 65, 6], np.int32)}),
    (2, {"sizes": np.array([3, 4, 4, 1, 2, 13], np.int32)}),
    (2, {"sizes": np.array([3, 4, 4, 1, -2, 6], np.int32)}),
    (2, {"sizes": np.array([3, 4, 4, 1], np.int32)}),
    (2, {"vectors": deflated(np.full(6 * 2, -128, np.int8))}),
    (2, {"vectors": deflated(np.zeros(6 * 2 - 1, np.int8))}),
    (2, {"turns": deflated(np.full(3 * 2 * 4, -128, np.int8))}),
    (2, {"turns": deflated(np.zeros(3 * 2 * 4 + 1, np.int8))}),
    (2, {"places": deflated(np.array([[0, -1], [-1, 0], [0, 0]], np.int8))}),  # itself
    (2, {"places": deflated(np.array([[0, -1], [-1, 0], [1, 0]], np.int8))}),  # not known yet
    (2, {"places": deflated(np.array([[0, -1], [-1, 0], [-9, 0]], np.int8))}),
    (2, {"c": deflated(np.full(4, 1 << 23, np.int32))}),
    (2, {"table": deflated(np.zeros(CHANCES, np.uint16))}),
    (2, {"same": deflated(np.zeros(16, np.uint16))}),
    (2, {"tree": deflated(np.zeros((4, 2), np.int16))}),
    (2, {"v": np.zeros(9, np.uint8)}),
    (2, {"more": np.zeros(1, np.uint8)}),
]


@pytest.mark.parametrize(("version", "wrong"), WRONG)
def test_hostile_tables_are_refused(version: int, wrong: dict[str, np.ndarray]) -> None:
    with pytest.raises(DamageError, match="malformed"):
        Mix.load({**fixed(version=version).tables(), **wrong}, 6, 5, 3)


def neighbourly(images: int = 600, vocabulary: int = 40) -> np.ndarray:
    """Codes that mostly follow their left or upper neighbour."""
    rng = np.random.default_rng(0)
    grid = rng.integers(0, vocabulary, (images, 12, 12))
    for y in range(12):
        for x in range(12):
            draw = rng.random(images)
            if x:
                grid[:, y, x] = np.where(draw < 0.5, (grid[:, y, x - 1] + 1) % vocabulary, grid[:, y, x])
            if y:
                grid[:, y, x] = np.where(draw > 0.7, grid[:, y - 1, x], grid[:, y, x])
    return grid.reshape(images, -1)


def video(frames: int = 640) -> np.ndarray:
    """Frames in which one code in three changes."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 60, (frames, 48))
    for i in range(1, frames):
        ids[i] = np.where(rng.random(48) < 0.67, ids[i - 1], ids[i])
    return ids


def test_neighbours_help_more_than_clusters() -> None:
    pytest.importorskip("numba")
    ids = neighbourly()
    context, mix = (c.encode(ids)[1].mean() for c in (RansContext.fit(ids, 40, 12), Mix.fit(ids, 40, 12)))
    assert mix < 0.95 * context


def test_records_that_repeat_are_told_by_the_one_before() -> None:
    pytest.importorskip("numba")
    ids = video()
    codec = Mix.fit(ids, 60, 8)
    assert codec.block == 16
    assert codec.encode(ids)[1].mean() < 0.6 * Rans.fit(ids, 60).encode(ids)[1].mean()


def test_codes_without_any_order_get_no_network() -> None:
    pytest.importorskip("numba")
    ids = np.random.default_rng(0).choice(30, (3000, 100), p=np.random.default_rng(1).dirichlet(np.full(30, 0.5)))
    codec = Mix.fit(ids, 30, 10)
    assert (len(codec.network.bias), codec.block) == (0, 1)
    assert codec.encode(ids)[1].mean() < Rans.fit(ids, 30).encode(ids)[1].mean() + 1


def test_auto_takes_it_where_it_is_smallest_and_kernels_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    ids = neighbourly(1200)
    assert choose_codec("auto", ids, 40, 12)[0] == "mix"
    assert choose_codec("auto", ids[:600], 40, 12)[0] == "rans-context"  # too few to learn from
    monkeypatch.setenv("TILEWORK_KERNELS", "0")
    assert choose_codec("auto", ids, 40, 12)[0] == "rans-context"
    with pytest.raises(InputError, match=r"compiled kernels.*tilework\[fast\]"):
        choose_codec("mix", ids, 40, 12)
    assert compiled.in_use() == "numpy (TILEWORK_KERNELS=0)"


def test_too_large_a_vocabulary_is_refused() -> None:
    with pytest.raises(InputError, match="use codec 'rans'"):
        Mix.fit(np.zeros((2, 4), int), 9000, 2)


@pytest.mark.parametrize("kernels", ["0", "1"])
def test_any_record_of_a_store_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    pytest.importorskip("numba")
    ids = video(100).reshape(100, 6, 8)
    with StoreWriter(tmp_path / "x.tok", np.zeros((60, 1)), ["a"], codec="mix", shard_images=37) as writer:
        for start in range(0, 100, 9):  # parts that are no multiples of a block
            writer.add(ids[start : start + 9], [0] * len(ids[start : start + 9]), [""] * len(ids[start : start + 9]))
    monkeypatch.setenv("TILEWORK_KERNELS", kernels)
    store = Store(tmp_path / "x.tok")
    assert store._codec.block == 16  # type: ignore[attr-defined]
    index = np.random.default_rng(0).integers(0, 100, 60)
    np.testing.assert_array_equal(store.batch(index), ids[index])
    np.testing.assert_array_equal(store[99], ids[99])
    assert not store.verify(deep=True)
    shard = tmp_path / "x.tok/shards/00001.tiles"
    data = bytearray(shard.read_bytes())
    data[53] ^= 1  # record 37 of the store, on which 38 to 47 build
    shard.write_bytes(data)
    store = Store(tmp_path / "x.tok")
    with pytest.raises(DamageError, match=r"one of records 0 to 15 of shard 00001\.tiles is damaged"):
        store.batch(np.array([40]))
    np.testing.assert_array_equal(store.batch(np.array([36, 70])), ids[[36, 70]])


def test_chains_hold_what_records_build_upon() -> None:
    needed, chain, wanted = chains(np.array([5, 9, 4, 5]), 4)
    assert needed.tolist() == [4, 5, 8, 9]
    assert chain.tolist() == [0, 1, 0, 1]
    assert wanted.tolist() == [1, 3, 0, 1]


def test_chances_are_those_of_the_logistic_function() -> None:
    nats = (np.arange(CHANCES) - CHANCES // 2 + 0.5) / 64
    assert np.abs(_chances() / 65536 - 1 / (1 + np.exp(-nats))).max() < 1e-3


def test_hostile_records_give_our_own_error_or_codes_of_the_vocabulary() -> None:
    rng = np.random.default_rng(0)
    codec = replace_block(fixed(), 2)
    ids = rng.integers(0, 5, (8, 6))
    records, sizes = codec.encode(ids)
    data, starts = np.frombuffer(records, np.uint8), np.cumsum(sizes) - sizes
    noticed = 0
    for _ in range(300):
        wrong = data.copy()
        wrong[rng.integers(len(wrong))] ^= np.uint8(1 << rng.integers(8))
        try:
            assert 0 <= codec.decode(wrong, starts, sizes).max() < 5
        except DamageError:
            noticed += 1
    assert noticed > 280


def replace_block(codec: Mix, block: int) -> Mix:
    return Mix(replace(codec.network, block=block), 3, 6)


def test_the_choice_is_measured_on_images_that_were_not_fitted_to() -> None:
    """Tables of neighbours know a sample of independent codes by heart, and pay for it on every other image."""
    names = ("packed", "rans", "rans-context")
    ids = np.random.default_rng(0).integers(0, 100, (192, 900))
    assert choose_codec("auto", ids, 100, 30, 10_000_000, names)[0] == "rans"
    best = {name: codecs[name].fit(ids, 100, 30).encode(ids)[1].sum() for name in names}
    assert min(best, key=lambda name: best[name]) == "rans-context", "on the sample itself"
