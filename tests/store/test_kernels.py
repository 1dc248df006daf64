"""Compiled kernels of the store against numpy: the same bytes, the same codes, the same refusals.

Oracles: the numpy paths of the codecs (themselves held to slow coders in test_rans.py) and google_crc32c.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilework.core.errors import DamageError
from tilework.store import Store, StoreWriter, codecs
from tilework.store.codec import Codec
from tilework.store.mix import grouped, walks

pytest.importorskip("numba")
NAMES = ["packed", "rans", "rans-context", "rans-stack", "pairwise", "mix"]


def with_kernels(use: bool, call: Callable[[], Any]) -> Any:
    """A call with kernels or without; a refusal is a result too."""
    before = os.environ.get("TILEWORK_KERNELS")
    os.environ["TILEWORK_KERNELS"] = "1" if use else "0"
    try:
        return call()
    except DamageError as error:
        return type(error)
    finally:
        if before is None:
            del os.environ["TILEWORK_KERNELS"]
        else:
            os.environ["TILEWORK_KERNELS"] = before


def fitted(name: str, rng: np.random.Generator, images: int = 9) -> tuple[Codec, np.ndarray]:
    """A codec of random size, and codes that it takes."""
    largest = {"packed": 1 << 20, "rans": 1 << 15}.get(name, 60)
    vocabulary = int(rng.integers(1, largest + 1))
    rows, columns = (int(n) for n in rng.integers(1, 7, 2))
    ids = np.minimum(rng.geometric(rng.uniform(0.01, 0.9), (images, rows * columns)) - 1, vocabulary - 1)
    return codecs[name].fit(ids[: max(1, images // 2)], vocabulary, columns), ids


def records_of(codec: Codec, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    records, sizes = codec.encode(ids)
    return np.frombuffer(records, np.uint8), np.cumsum(sizes) - sizes, sizes


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_both_ways_give_the_same_bytes_and_codes(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codec, ids = with_kernels(name == "mix", lambda: fitted(name, rng, int(rng.integers(1, 20))))
    slow, fast = (with_kernels(use, lambda: codec.encode(ids)) for use in (False, True))
    assert slow[0] == fast[0]
    assert slow[1].tolist() == fast[1].tolist()
    data, starts, sizes = records_of(codec, ids)
    some = rng.integers(0, len(ids), rng.integers(0, 12)) if getattr(codec, "block", 1) == 1 else np.arange(len(ids))
    found = with_kernels(True, lambda: codec.decode(data, starts[some], sizes[some]))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, ids[some])


@pytest.mark.parametrize("name", NAMES)
def test_damaged_records_are_refused_alike(name: str) -> None:
    rng = np.random.default_rng(0)
    codec, ids = with_kernels(name == "mix", lambda: fitted(name, rng))
    data, starts, sizes = records_of(codec, ids)
    for _ in range(60):
        wrong = data.copy()
        wrong[rng.integers(len(wrong))] ^= np.uint8(1 << rng.integers(8))
        cut = np.maximum(0, sizes - 2 * rng.integers(0, 2, len(sizes)))
        slow, fast = (with_kernels(use, lambda d=wrong, s=cut: codec.decode(d, starts, s)) for use in (False, True))
        assert (slow is DamageError) == (fast is DamageError)
        if slow is not DamageError:
            np.testing.assert_array_equal(slow, fast)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("move", [-(1 << 40), -1, 1, 1 << 40])
def test_records_outside_the_data_are_refused(name: str, move: int) -> None:
    codec, ids = with_kernels(name == "mix", lambda: fitted(name, np.random.default_rng(3)))
    data, starts, sizes = records_of(codec, ids)
    assert with_kernels(True, lambda: codec.decode(data, starts + move, sizes)) is DamageError


def test_checksums_are_those_of_another_library() -> None:
    from tilework.store.kernels import checksum, checksums

    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, 4000, np.uint8)
    for size in [*range(40), 1000, 3999]:
        start = int(rng.integers(0, 4001 - size))
        assert checksum(data, start, size) == google_crc32c.value(data[start : start + size].tobytes())
    starts, sizes, out = np.array([5, 0]), np.array([0, 9]), np.empty(2, np.uint32)
    checksums(data, starts, sizes, out)
    assert out.tolist() == [0, google_crc32c.value(data[:9].tobytes())]


@pytest.mark.parametrize("codec", ["packed", "rans", "rans-context"])
def test_a_store_is_the_same_file_and_its_damage_is_seen_alike(tmp_path: Path, codec: str) -> None:
    ids = np.random.default_rng(0).integers(0, 50, (90, 6, 5))

    def write(name: str) -> Path:
        with StoreWriter(tmp_path / name, np.zeros((50, 1)), ["a"], codec=codec, shard_images=40) as writer:
            writer.add(ids, [0] * 90, [""] * 90)
        return tmp_path / name

    slow, fast = with_kernels(False, lambda: write("slow.tok")), with_kernels(True, lambda: write("fast.tok"))
    for file in sorted(path.relative_to(slow) for path in slow.rglob("*") if path.is_file()):
        assert (slow / file).read_bytes() == (fast / file).read_bytes()
    index = np.random.default_rng(1).integers(0, 90, 200)
    np.testing.assert_array_equal(with_kernels(True, lambda: Store(fast).batch(index)), ids[index])
    shard = fast / "shards/00001.tiles"
    data = bytearray(shard.read_bytes())
    data[60] ^= 4
    shard.write_bytes(data)
    messages = []
    for use in (False, True):
        with pytest.raises(DamageError, match=r"records? \d+.* of shard 00001\.tiles is damaged") as caught:
            refused(use, lambda: Store(fast).batch(np.arange(90)))
        messages.append(str(caught.value))
        assert with_kernels(use, lambda: Store(fast).verify())
    assert messages[0] == messages[1]


def refused(use: bool, call: Callable[[], Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWORK_KERNELS", "1" if use else "0")
        call()


def test_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 300, (700, 400))
    codec = codecs["rans"].fit(ids, 300, 20)
    monkeypatch.setenv("TILEWORK_KERNELS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    data, starts, sizes = records_of(codec, ids)
    np.testing.assert_array_equal(codec.decode(data, starts, sizes), ids)


@pytest.mark.slow
def test_forged_stores_read_nothing_out_of_bounds(tmp_path: Path) -> None:
    """100,000 forged pairs of tables and records, with kernels compiled to check every index."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "TILEWORK_KERNELS": "1"}
    file = Path(__file__).with_name("forge_records.py")
    done = subprocess.run([sys.executable, file, "100000"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "100000 forged" in done.stdout


def test_a_processor_without_the_instruction_uses_tables(tmp_path: Path) -> None:
    """Code for a plain processor has no CRC32C instruction: asking for it would end the process."""
    script = "from tilework.store.kernels.checksum import check, has_instruction\ncheck()\nprint(has_instruction())\n"
    environment = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr[-2000:]


def test_coarse_tables_are_as_kernels_read_them() -> None:
    from tilework.store import lanes
    from tilework.store.kernels import context

    assert (lanes.COARSE, lanes.AHEAD) == (context.COARSE, context.AHEAD)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_groups_of_nodes_lead_where_the_tree_leads(seed: int) -> None:
    """Codes are walked to along both, and every score is that of the tree's node."""
    rng = np.random.default_rng(seed)
    codes, units = int(rng.integers(1, 40)), int(rng.integers(0, 7))
    leaves = (-1 - rng.permutation(codes)).tolist()
    tree = np.zeros((codes - 1, 2), np.int32)
    for node in range(codes - 2, -1, -1):  # join any two, from the back: parents stand before their children
        tree[node] = [leaves.pop(int(rng.integers(len(leaves)))) for _ in range(2)]
        leaves.append(node)
    v, c = rng.integers(-9, 9, (codes - 1, units)).astype(np.float32), rng.integers(-9, 9, codes - 1).astype(np.float32)
    weights, first, ways = grouped(tree, v, c)
    hidden = rng.integers(-9, 9, weights.shape[1]).astype(np.float32)
    hidden[units:] = 3  # what fills up has no weight
    nodes, answers = walks(tree)
    for code in range(codes):
        go, group = 8 if codes > 1 else -1 - code, 0
        for node, answer in zip(nodes[code].tolist(), answers[code].tolist(), strict=True):
            if node < 0:
                break
            group, go = (go - 8, 0) if go >= 8 else (group, go)
            score = first[group, go] + hidden @ weights[group, :, go]
            assert score == c[node] + hidden[:units] @ v[node]
            go = int(ways[group, go, answer])
        assert go == -1 - code
