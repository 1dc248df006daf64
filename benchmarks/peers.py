"""Bytes and reading speed of a store's codecs beside what people would take instead, on the same tokens, one core.

    python benchmarks/peers.py STORE_OR_NPY [--peers] [--before SOURCE] [--columns N] [--codecs NAMES] [--images N]
        [--repeat N] [--rounds 15] [--slow] [--json]

Ours: every codec with compiled kernels and without (TILEWORK_KERNELS=0), read through `Store.batch`: found, checked and
decoded. --peers adds (pip install -r benchmarks/requirements.txt; one whose package is missing is left out) zstd -19
with a trained dictionary, one frame with checksum per record in one file; Parquet with zstd and page checksums; a
memory-mapped uint16 array. --before takes the sources of another version (a folder `src`, as of `git archive COMMIT`),
which writes and reads stores of its own in a process of its own. --repeat takes the tokens again until there are so
many. Bytes per image count tokens, index, checksums and tables (dictionary), not labels and keys. `random` reads 256
images at random, `sequential` the next 1,024; all take turns, in seconds of the processor, medians with quartiles.
Every output is compared with the tokens. --slow adds pairwise.
"""

from __future__ import annotations

import os
import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from tilework.store import Store, StoreWriter
from tilework.store.escape_gzip import escape, pack

CODECS = ("packed", "rans", "rans-context", "mix")
Reader = Callable[[np.ndarray], np.ndarray]


def ours(ids: np.ndarray, columns: int, vocabulary: int, codec: str, images: int, folder: Path) -> tuple[float, Reader]:
    """Bytes per image and a reader. ids: (B, T), taken again and again up to the number of images."""
    path = folder / f"{codec}.tok"
    with StoreWriter(path, np.zeros((vocabulary, 1)), ["a"], codec=codec) as writer:
        for start in range(0, images, 4096):
            some = ids[np.arange(start, min(start + 4096, images)) % len(ids)]
            writer.add(some.reshape(len(some), -1, columns), np.zeros(len(some), int), [""] * len(some))
    store = Store(path)
    return store.sizes["tokens"] / images, lambda index: store.batch(index).reshape(len(index), -1)


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


BEFORE = """
import json, os, sys
from functools import partial
from pathlib import Path
from time import process_time
import numpy as np
from tilework.store import Store, StoreWriter

file, columns, vocabulary, repeat, folder, *codecs = sys.argv[1:]
ids, stores = np.load(file, mmap_mode="r"), {}
for codec in codecs:
    path = Path(folder) / f"before-{codec}.tok"
    with StoreWriter(path, np.zeros((int(vocabulary), 1)), ["a"], codec=codec) as writer:
        for start in range(0, int(repeat), 4096):
            some = ids[np.arange(start, min(start + 4096, int(repeat))) % len(ids)]
            writer.add(some.reshape(len(some), -1, int(columns)), np.zeros(len(some), int), [""] * len(some))
    stores[codec] = Store(path)
print(json.dumps({codec: store.sizes["tokens"] / int(repeat) for codec, store in stores.items()}), flush=True)
for line in sys.stdin:
    codec, index = json.loads(line)
    index = np.array(index)
    begun = process_time()
    out = stores[codec].batch(index)
    seconds = process_time() - begun
    assert (out.reshape(len(index), -1) == ids[index % len(ids)]).all(), codec
    print(seconds, flush=True)
"""


class Before:
    """Another version in a process of its own, which times its reads itself."""

    def __init__(self, source: Path, ids: np.ndarray, columns: int, vocabulary: int, repeat: int, folder: Path) -> None:
        np.save(folder / "before.npy", ids.astype(np.int32))
        told = [str(folder / "before.npy"), str(columns), str(vocabulary), str(repeat), str(folder)]
        self._command = [sys.executable, "-c", BEFORE, *told]
        self._environment = os.environ | {"PYTHONPATH": str(source.resolve())}

    def start(self, codecs: tuple[str, ...]) -> dict[str, float]:
        """Bytes per image of its stores."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*self._command, *codecs], stdin=pipe, stdout=pipe, text=True, env=self._environment
        )
        return json.loads(self._line())

    def seconds(self, codec: str, index: np.ndarray) -> float:
        """Of the processor, for one read."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([codec, index.tolist()]) + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def end(self) -> None:
        """Close its input, at which it ends."""
        self._process.communicate()


def measure(
    ids: np.ndarray,
    images: int,
    readers: dict[str, Reader],
    before: dict[str, Callable[[np.ndarray], float]],
    count: int,
    rounds: int,
    ordered: bool,
) -> dict[str, list[float]]:
    """Images per second, of each the quartiles, and the ratios to zstd, to numpy and to the version before."""
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in (*readers, *before)}
    count = min(count, images)
    for turn in range(rounds + 2):
        index = (np.arange(count) + turn * count) % images if ordered else rng.integers(0, images, count)
        for name, read in readers.items():
            os.environ["TILEWORK_KERNELS"] = "0" if name.endswith("(numpy)") else "1"
            begun = process_time()
            out = read(index)
            seconds[name].append(process_time() - begun)
            assert (out == ids[index % len(ids)]).all(), name
            if f"{name} (before)" in before:
                seconds[f"{name} (before)"].append(before[f"{name} (before)"](index))
    rates = {name: count / np.array(times[2:]) for name, times in seconds.items()}  # two rounds warm up
    found = {name: [round(float(q)) for q in np.percentile(rate, [25, 50, 75])] for name, rate in rates.items()}
    ratios: dict[str, list[float]] = {}
    for name, rate in rates.items():
        for other in ("zstd", f"{name} (numpy)", f"{name} (before)"):
            if other in rates and other != name and not name.endswith(")"):
                ratios[f"{name} / {other}"] = [
                    round(float(q), 2) for q in np.percentile(rate / rates[other], [25, 50, 75])
                ]
    return found | {f"ratio {name}": ratio for name, ratio in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--before", type=Path, help="folder src of another version")
    parser.add_argument("--columns", type=int, default=16, help="of an array of tokens")
    parser.add_argument("--codecs", nargs="+", default=list(CODECS))
    parser.add_argument("--images", type=int, default=0, help="the first ones only")
    parser.add_argument("--repeat", type=int, default=0, help="images in all, the tokens taken again and again")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ["TILEWORK_KERNELS"] = "1"
    if options.tokens.suffix == ".npy":
        ids = np.load(options.tokens, allow_pickle=False).astype(np.int32)
        ids, columns, vocabulary = ids.reshape(len(ids), -1), options.columns, int(ids.max()) + 1
    else:
        store = Store(options.tokens)
        columns, vocabulary = store.grid[-1], store.vocabulary
        ids = store.batch(np.arange(len(store))).reshape(len(store), -1)
    ids = ids[: options.images or None]
    images = options.repeat or len(ids)
    codecs = (*options.codecs, *(("pairwise",) if options.slow else ()))
    sizes = {"escape + gzip, whole file": len(pack(escape(ids)[0])) / len(ids)}
    readers: dict[str, Reader] = {}
    before: dict[str, Callable[[np.ndarray], float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for codec in codecs:
            sizes[codec], read = ours(ids, columns, vocabulary, codec, images, folder)
            readers[codec] = readers[f"{codec} (numpy)"] = read
        if options.before:
            other = Before(options.before, ids, columns, vocabulary, images, folder)
            known = tuple(codec for codec in codecs if codec != "mix")
            sizes |= {f"{codec} (before)": size for codec, size in other.start(known).items()}
            before = {f"{codec} (before)": partial(other.seconds, codec) for codec in known}
        for peer, make in {"zstd": zstd, "parquet": parquet, "memmap": memmap}.items() if options.peers else ():
            try:
                sizes[peer], readers[peer] = make(ids[np.arange(images) % len(ids)], folder)
            except ImportError as error:
                print(f"{peer} is left out: {error}", file=sys.stderr)
        result = {
            "images": images,
            "tokens": ids.shape[1],
            "bytes_per_image": {name: round(size, 2) for name, size in sizes.items()},
            "random_256": measure(ids, images, readers, before, 256, options.rounds, False),
            "sequential_1024": measure(ids, images, readers, before, 1024, options.rounds, True),
        }
        if options.before:
            other.end()
    if options.json:
        print(json.dumps(result, indent=1))
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
