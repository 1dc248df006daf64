"""Stacks of codes: streams as a slow coder writes them from the description of the format; the store around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilework.core.errors import DamageError, InputError
from tilework.store import Packed, RansStack, Store, StoreWriter, choose_codec, merge
from tilework.store.choose import STACKED

PLACES, KINDS, CODES = 12, 7, 9


def stacks(images: int = 40, seed: int = 0) -> np.ndarray:
    """Places whose kinds differ: the second varies slowly over the places, the fourth is rare, others are fixed."""
    rng = np.random.default_rng(seed)
    ids = np.full((images, PLACES, KINDS), 4)
    ids[..., 1] = np.clip(4 + rng.integers(-1, 2, (images, PLACES)).cumsum(1), 0, CODES - 1)
    ids[..., 3] += rng.random((images, PLACES)) < 0.2
    ids[..., 6] = 7
    return ids.reshape(images, -1)


def slow_record(codec: RansStack, ids: np.ndarray) -> bytes:
    """One image: Python's own integers, symbol by symbol, as docs/format.md says."""
    tables, classes = codec.tables(), codec.classes
    order, common = tables["order"].tolist(), tables["common"].tolist()
    heads = KINDS.bit_length() + 1
    first = [heads + sum(int(classes[k].max()) + 1 for k in range(kind)) for kind in range(KINDS)]
    said: list[tuple[int, int]] = []  # table, symbol
    before, last = common, 0
    for stack in ids.reshape(PLACES, KINDS)[:, order].tolist():
        uncommon = [kind for kind in range(KINDS) if stack[kind] != common[kind]]
        extent = max(uncommon) + 1 if uncommon else 0
        said.append((last.bit_length(), extent))
        said += [(first[kind] + int(classes[kind][before[kind]]), stack[kind]) for kind in range(extent)]
        before, last = stack, extent
    x, words = 1 << 16, []
    for table, symbol in reversed(said):
        frequencies = codec.frequencies[table].tolist()
        while x >= frequencies[symbol] << (32 - 14):
            words.append(x & 0xFFFF)
            x >>= 16
        x = (x // frequencies[symbol] << 14) + x % frequencies[symbol] + sum(frequencies[:symbol])
    return x.to_bytes(4, "little") + b"".join(word.to_bytes(2, "little") for word in reversed(words))


def test_every_record_is_the_slow_coder_s() -> None:
    ids = stacks()
    codec = RansStack.fit(ids[:30], CODES, KINDS)
    assert codec.classes.max() > 0  # the kind that varies slowly is told by the place before
    records, sizes = codec.encode(ids)
    assert records == b"".join(slow_record(codec, image) for image in ids)
    assert sizes.mean() < 0.3 * Packed(PLACES * KINDS, CODES).size


def test_it_is_chosen_and_comes_back_from_a_store(tmp_path: Path) -> None:
    ids = stacks(600)
    assert choose_codec("auto", ids, CODES, KINDS, 10_000, STACKED)[0] == "rans-stack"
    grid = ids.reshape(-1, 3, 4, KINDS)
    codebook = np.arange(CODES * KINDS, dtype=np.float32).reshape(CODES, KINDS)
    for name, part in (("a", grid[:300]), ("b", grid[300:])):
        with StoreWriter(tmp_path / f"{name}.tok", codebook, ["x"], cut=True) as writer:
            writer.add(part, np.zeros(300, int), [f"{name}{i}" for i in range(300)])
    merge(tmp_path / "c.tok", [Store(tmp_path / "a.tok"), Store(tmp_path / "b.tok")])
    store = Store(tmp_path / "c.tok")
    assert (store.manifest.codec, store.grid) == ("rans-stack", (3, 4, KINDS))
    np.testing.assert_array_equal(store.used[store.batch(np.arange(600))], grid)
    assert store.verify(deep=True) == []


def test_portions_do_not_change_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = stacks()
    for codec, module in ((RansStack.fit(ids, CODES, KINDS), "rans_stack"), (Packed.fit(ids, CODES), "packed")):
        whole, sizes = codec.encode(ids)
        monkeypatch.setattr(f"tilework.store.{module}.TOGETHER", 3 * PLACES * KINDS)
        parts, again = codec.encode(ids)
        assert parts == whole
        np.testing.assert_array_equal(sizes, again)
        found = codec.decode(np.frombuffer(parts, np.uint8), np.cumsum(sizes) - sizes, sizes)
        np.testing.assert_array_equal(found, ids)


def test_hostile_tables_are_refused() -> None:
    tables = RansStack.fit(stacks(), CODES, KINDS).tables()
    one = np.uint8(1)
    for wrong in (
        {},
        {**tables, "order": tables["order"][:-1]},
        {**tables, "order": np.zeros_like(tables["order"])},
        {**tables, "common": tables["common"] + np.uint16(CODES)},
        {**tables, "common": tables["common"].astype(np.int32)},
        {**tables, "classes": tables["classes"][:-1]},
        {**tables, "classes": tables["frequencies"]},
        {**tables, "frequencies": tables["frequencies"][:-2]},
        {**tables, "frequencies": tables["frequencies"].astype(np.float32)},
        {**tables, "frequencies": np.append(tables["frequencies"][:-1], tables["frequencies"][-1] ^ one)},
    ):
        with pytest.raises(DamageError, match="malformed"):
            RansStack.load(wrong, PLACES * KINDS, CODES, KINDS)
    with pytest.raises(DamageError, match="malformed"):
        RansStack.load(tables, PLACES * KINDS + 1, CODES, KINDS)


def test_what_is_too_large_for_tables_is_refused() -> None:
    with pytest.raises(InputError, match="use codec 'packed'"):
        RansStack.fit(np.zeros((2, 8), int), 1 << 13, 4)
    assert choose_codec("auto", np.zeros((2, 8), int), 1 << 13, 4, among=STACKED)[0] == "packed"
