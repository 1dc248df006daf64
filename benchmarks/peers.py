"""Bytes and reading speed of a store's codecs beside what people would take instead, on the same tokens, one core.

    python benchmarks/peers.py STORE_OR_NPY [--columns N] [--rounds 15] [--images N] [--slow] [--json]

Ours: every codec with compiled kernels and without (TILEWORK_KERNELS=0), read through `Store.batch`: found, copied,
checked and decoded. Peers: zstd -19 with a trained dictionary, one frame with checksum per record in one file; Parquet
with zstd and page checksums; a memory-mapped uint16 array. zstd needs the package zstandard, Parquet pyarrow; a peer
whose package is missing is left out. Bytes per image count tokens, index, checksums and tables (dictionary), not labels
and keys. `random` reads 256 images at random, `sequential` the next 1,024; all take turns, in seconds of the processor,
medians with quartiles. Every output is compared with the tokens. --slow adds pairwise.
"""

from __future__ import annotations

import os
import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np

from tilework.store import Store, StoreWriter
from tilework.store.escape_gzip import escape, pack

CODECS = ("packed", "rans", "rans-context", "mix")
Reader = Callable[[np.ndarray], np.ndarray]


def ours(ids: np.ndarray, columns: int, vocabulary: int, codec: str, folder: Path) -> tuple[float, Reader]:
    """Bytes per image and a reader. ids: (B, T)."""
    path = folder / f"{codec}.tok"
    with StoreWriter(path, np.zeros((vocabulary, 1)), ["a"], codec=codec) as writer:
        grid = ids.reshape(len(ids), -1, columns)
        writer.add(grid, np.zeros(len(ids), int), [""] * len(ids))
    store = Store(path)
    return store.sizes["tokens"] / len(ids), lambda index: store.batch(index).reshape(len(index), -1)


def zstd(ids: np.ndarray, folder: Path) -> tuple[float, Reader]:
    """One frame per record, a dictionary of 112 kB at most, offsets of 4 bytes in memory."""
    import zstandard

    rows = [row.astype("<u2").tobytes() for row in ids]
    dictionary = zstandard.train_dictionary(min(112_640, 16 * len(rows)), rows[:: max(1, len(rows) // 8192)])
    packer = zstandard.ZstdCompressor(level=19, dict_data=dictionary, write_checksum=True, write_content_size=True)
    frames = [packer.compress(row) for row in rows]
    ends = np.cumsum([len(frame) for frame in frames])
    starts, data = (ends - [len(frame) for frame in frames]).tolist(), b"".join(frames)
    (folder / "frames").write_bytes(data)
    unpacker = zstandard.ZstdDecompressor(dict_data=dictionary)
    mapped, last, length = memoryview(data), ends.tolist(), ids.shape[1]

    def read(index: np.ndarray) -> np.ndarray:
        out = b"".join([unpacker.decompress(mapped[starts[i] : last[i]]) for i in index.tolist()])
        return np.frombuffer(out, "<u2").reshape(len(index), length)

    return (len(data) + 2 * len(rows) + len(dictionary.as_bytes())) / len(rows), read


def parquet(ids: np.ndarray, folder: Path) -> tuple[float, Reader]:
    """A column of fixed lists, zstd, page checksums; rows taken by groups of 1,024."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    flat = pa.array(ids.astype(np.uint16).ravel())
    table = pa.table({"ids": pa.FixedSizeListArray.from_arrays(flat, ids.shape[1])})
    file = folder / "ids.parquet"
    pq.write_table(table, file, compression="zstd", compression_level=19, row_group_size=1024, write_page_checksum=True)
    opened = pq.ParquetFile(file, page_checksum_verification=True)

    def read(index: np.ndarray) -> np.ndarray:
        groups, place = np.unique(index // 1024, return_inverse=True)
        found = opened.read_row_groups(groups.tolist())["ids"].combine_chunks().flatten().to_numpy()
        return found.reshape(-1, ids.shape[1])[place * 1024 + index % 1024]

    return file.stat().st_size / len(ids), read


def memmap(ids: np.ndarray, folder: Path) -> tuple[float, Reader]:
    """No compression, no checksums."""
    np.save(folder / "ids.npy", ids.astype(np.uint16))
    mapped = np.load(folder / "ids.npy", mmap_mode="r")
    return 2.0 * ids.shape[1], lambda index: mapped[index]


def measure(
    ids: np.ndarray, readers: dict[str, Reader], count: int, rounds: int, ordered: bool
) -> dict[str, list[float]]:
    """Images per second, of each the quartiles, and of each ratio to `zstd` if it is there."""
    rng, seconds = np.random.default_rng(0), {name: [] for name in readers}
    count = min(count, len(ids))
    for turn in range(rounds + 2):
        index = (np.arange(count) + turn * count) % len(ids) if ordered else rng.integers(0, len(ids), count)
        for name, read in readers.items():
            os.environ["TILEWORK_KERNELS"] = "0" if name.endswith("(numpy)") else "1"
            begun = process_time()
            out = read(index)
            seconds[name].append(process_time() - begun)
            assert (out == ids[index]).all(), name
    rates = {name: count / np.array(times[2:]) for name, times in seconds.items()}  # two rounds warm up
    found = {name: [round(float(q)) for q in np.percentile(rate, [25, 50, 75])] for name, rate in rates.items()}
    ratios: dict[str, list[float]] = {}
    for name, rate in rates.items():
        for other in ("zstd", f"{name} (numpy)"):
            if other in rates and other != name:
                ratios[f"{name} / {other}"] = [
                    round(float(q), 2) for q in np.percentile(rate / rates[other], [25, 50, 75])
                ]
    return found | {f"ratio {name}": ratio for name, ratio in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--images", type=int, default=0)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.tokens.suffix == ".npy":
        ids = np.load(options.tokens, allow_pickle=False).astype(np.int32)
        ids, columns, vocabulary = ids.reshape(len(ids), -1), options.columns, int(ids.max()) + 1
    else:
        store = Store(options.tokens)
        columns, vocabulary = store.grid[-1], store.vocabulary
        ids = store.batch(np.arange(len(store))).reshape(len(store), -1)
    ids = ids[: options.images or None]
    os.environ["TILEWORK_KERNELS"] = "1"
    sizes = {"escape + gzip, whole file": len(pack(escape(ids)[0])) / len(ids)}
    readers: dict[str, Reader] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for codec in CODECS + (("pairwise",) if options.slow else ()):
            sizes[codec], read = ours(ids, columns, vocabulary, codec, folder)
            readers[codec] = readers[f"{codec} (numpy)"] = read
        for peer, make in {"zstd": zstd, "parquet": parquet, "memmap": memmap}.items():
            try:
                sizes[peer], readers[peer] = make(ids, folder)
            except ImportError as error:
                print(f"{peer} is left out: {error}", file=sys.stderr)
        result = {
            "bytes_per_image": {name: round(size, 2) for name, size in sizes.items()},
            "random_256": measure(ids, readers, 256, options.rounds, False),
            "sequential_1024": measure(ids, readers, 1024, options.rounds, True),
        }
    if options.json:
        print(json.dumps(result))
        return
    gzip = next(iter(sizes.values()))
    for name, size in sizes.items():
        print(f"{name:<28}{size:9.1f} B{size / gzip:7.3f}")
    for kind in ("random_256", "sequential_1024"):
        print(f"{kind}, images per second: lower quartile, median, upper quartile")
        for name, row in result[kind].items():
            print(f"  {name:<40}" + "".join(f"{q:>13,}" for q in row))


if __name__ == "__main__":
    main()
