"""Bytes and speed of the store's codecs beside the paper's coding, all in one run on one core.

    python benchmarks/store.py [--images DIR | --store STORE] [--commavq FILE.npy] [--json]

--images trains the demo's tokenizer on a class folder and tokenizes it; --store takes a store as it is. --commavq is an
array of video codes, looked for beside the images if not given. Bytes count everything but labels and keys: records,
index, checksums, tables, manifest. Speeds are medians of 15 rounds (pairwise: 5) in which all take turns; ratios are
medians of the rounds' ratios with their quartiles.
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
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from tilework.data import Loader, TokenSource
from tilework.store import Store, StoreWriter, choose_codec, codecs
from tilework.store.escape_gzip import escape, pack

NAMES = ("packed", "rans", "rans-context", "pairwise")
ROUNDS = 15
IMAGES = 100_000  # of the store that the loader and verify read
COMMAVQ = "commavq_example_tokens.npy"


def entropy_bytes(ids: np.ndarray) -> float:
    p = np.bincount(ids.ravel()) / ids.size
    return float(-(p[p > 0] * np.log2(p[p > 0])).sum() * ids.shape[1] / 8)


def stored_bytes(ids: np.ndarray, grid: tuple[int, int], vocabulary: int, name: str) -> float:
    """Per image, of a store written for the purpose, without codebook, labels and keys."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tok"
        with StoreWriter(path, np.zeros((vocabulary, 1)), ["a"], codec=name) as writer:
            writer.add(ids.reshape(-1, *grid), np.zeros(len(ids), int), [""] * len(ids))
        store = Store(path)
        some = np.random.default_rng(0).permutation(len(ids))[:64]
        assert (store.batch(some).reshape(len(some), -1) == ids[some]).all()
        return (store.sizes["tokens"] + store.sizes["manifest"]) / len(ids)


def compare(ids: np.ndarray, grid: tuple[int, int], vocabulary: int) -> dict[str, dict[str, float] | str]:
    """Bytes per image of every codec on the same tokens. ids: (B, T)."""
    sizes = {"escape_gzip": len(pack(escape(ids)[0])) / len(ids), "entropy_order0": entropy_bytes(ids)}
    sizes |= {name.replace("-", "_"): stored_bytes(ids, grid, vocabulary, name) for name in NAMES}
    ratios = {name: size / sizes["escape_gzip"] for name, size in sizes.items()}
    return {"bytes_per_image": sizes, "ratio": ratios, "auto": choose_codec("auto", ids, vocabulary, grid[1])[0]}


def algorithm2(symbols: list[int], offsets: list[int]) -> list[list[int]]:
    """The paper's decoding as published: a Python loop over symbols (slips mended)."""
    images = []
    for first, end in pairwise(offsets):
        image, k = [], first
        while k < end:
            if symbols[k] == 255:
                image.append(255 + symbols[k + 1])
                k += 2
            else:
                image.append(symbols[k])
                k += 1
        images.append(image)
    return images


def interleaved(works: dict[str, tuple[Callable[[], object], float]], rounds: int) -> dict[str, np.ndarray]:
    """Amount per second of each work, measured in turns so that all meet the same machine. works: call and amount."""
    for call, _ in works.values():
        call()
    rates: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, (call, amount) in works.items():
            begun = perf_counter()
            call()
            rates[name].append(amount / (perf_counter() - begun))
    return {name: np.array(values) for name, values in rates.items()}


def quartiles(values: np.ndarray) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [float(f"{q:.4g}") for q in np.percentile(values, [25, 50, 75])]


def speeds(folder: Path) -> dict[str, object]:
    """1,024-token images of 391 codes: bulk coding, the shuffled loader, verify."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(391, 2.0))
    ids = rng.choice(391, (4096, 1024), p=p).astype(np.int32)
    encode: dict[str, tuple[Callable[[], object], float]] = {}
    decode: dict[str, tuple[Callable[[], object], float]] = {}
    slow: dict[str, tuple[Callable[[], object], float]] = {}
    for name in NAMES:
        few = ids[:256] if name == "pairwise" else ids
        codec = codecs[name].fit(ids[:1024] if name == "pairwise" else ids, 391, 32)
        records, sizes = codec.encode(few)
        data, starts = np.frombuffer(records, np.uint8), np.cumsum(sizes) - sizes
        assert (codec.decode(data, starts, sizes) == few).all()
        key = name.replace("-", "_")
        (slow if name == "pairwise" else encode)[f"{key}"] = (lambda c=codec, f=few: c.encode(f), len(few))
        call = (lambda c=codec, d=data, a=starts, z=sizes: c.decode(d, a, z), len(few))
        (slow if name == "pairwise" else decode)["pairwise_decode" if name == "pairwise" else key] = call
    symbols, offsets = escape(ids[:512])
    listed = symbols.tolist(), offsets.tolist()
    decode["algorithm2_python"] = (lambda: algorithm2(*listed), 512)
    into, out = interleaved(encode, ROUNDS), interleaved(decode, ROUNDS)
    few_rounds = interleaved(slow, 5)
    into["pairwise"], out["pairwise"] = few_rounds["pairwise"], few_rounds["pairwise_decode"]

    path = folder / "large.tok"
    with StoreWriter(path, np.zeros((391, 1)), ["a"], codec="rans") as writer:
        for start in range(0, IMAGES, 4096):
            count = min(4096, IMAGES - start)
            some = rng.choice(391, (count, 32, 32), p=p)
            writer.add(some, np.zeros(count, int), [""] * count)
    store = Store(path)
    loader = Loader(TokenSource(store), batch=256)
    batches, step = 32, [0]

    def load() -> None:
        for _ in loader.run(step[0], step[0] + batches):
            pass
        step[0] += batches

    size = sum(store.sizes.values()) / 1e6
    works = {"bulk": decode["rans"], "loader": (load, batches * 256), "verify": (lambda: store.verify(threads=1), size)}
    loaded = interleaved(works, ROUNDS)
    assert not store.verify()
    return {
        "encode_images_per_s": {name: round(float(np.median(r))) for name, r in into.items()},
        "decode_images_per_s": {name: round(float(np.median(r))) for name, r in out.items()},
        "loader_images_per_s": round(float(np.median(loaded["loader"]))),
        "verify_mb_per_s": round(float(np.median(loaded["verify"]))),
        "quartiles": {
            "rans_to_algorithm2": quartiles(out["rans"] / out["algorithm2_python"]),
            "rans_context_to_algorithm2": quartiles(out["rans_context"] / out["algorithm2_python"]),
            "pairwise_decode_images_per_s": quartiles(out["pairwise"]),
            "loader_to_bulk": quartiles(loaded["loader"] / loaded["bulk"]),
            "verify_mb_per_s": quartiles(loaded["verify"]),
        },
    }


def tokenized(images: Path, folder: Path) -> Path:
    """A store of the images, by the demo's tokenizer trained on them."""
    from tilework.data import ImageFolder
    from tilework.recipes import recipes
    from tilework.runs import train
    from tilework.tokenizers import load_tokenizer, save_tokenizer
    from tilework.tokenizers.image_codes import Tokenizing
    from tilework.tokenizers.tokenize import tokenize

    if (images / "train").is_dir():
        images = images / "train"
    run = recipes["demo_tokenizer"].run
    run = replace(run, fit=replace(run.fit, steps=1000))
    trained = train(run, images, None, folder / "run", quiet=True).model
    save_tokenizer(folder / "tokenizer", trained, run.model, run.size)  # type: ignore[arg-type]
    tokenizer, card = load_tokenizer(folder / "tokenizer")
    job = Tokenizing(tokenizer, card, torch.device("cpu"))
    tokenize(ImageFolder.open(images), job, folder / "x.tok", codec="packed")
    return folder / "x.tok"


def find_commavq(start: Path | None) -> Path | None:
    """The file of video codes in a folder above the images."""
    above = [] if start is None else [start.resolve(), *start.resolve().parents]
    return next((place / COMMAVQ for place in above if (place / COMMAVQ).is_file()), None)


def table(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """The results for people."""
    for name in ("real", "commavq"):
        if name in results:
            print(f"{name}: bytes per image, and of escape + gzip (auto takes {results[name]['auto']})")
            for codec, size in results[name]["bytes_per_image"].items():
                print(f"  {codec:<18}{size:9.1f}{results[name]['ratio'][codec]:8.3f}")
    fast = results["synthetic"]
    print("1,024 codes out of 391, one core: images per second")
    for codec, rate in fast["decode_images_per_s"].items():
        print(f"  {codec:<18}in {fast['encode_images_per_s'].get(codec, 0):8,}  out {rate:8,}")
    print(f"  shuffled loader {fast['loader_images_per_s']:,}; verify {fast['verify_mb_per_s']:,} MB/s")
    for name, (low, middle, high) in fast["quartiles"].items():
        print(f"  {name}: {middle:g} ({low:g} to {high:g})")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--commavq", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, decoding thread included
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.images or options.store:
            store = Store(options.store or tokenized(options.images, Path(folder)))
            ids = store.batch(np.arange(len(store))).reshape(len(store), -1)
            results["real"] = compare(ids, (store.grid[0], store.grid[-1]), store.vocabulary)
        if commavq := options.commavq or find_commavq(options.images or options.store):
            ids = np.load(commavq, allow_pickle=False).astype(np.int32)
            results["commavq"] = compare(ids.reshape(len(ids), -1), (8, 16), 1024)
        results["synthetic"] = speeds(Path(folder))
    if options.json:
        print(json.dumps(results))
    else:
        table(results)


if __name__ == "__main__":
    main()
