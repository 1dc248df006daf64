"""Bytes and speed of the store's codecs beside the paper's coding, all in one run on one core.

    python benchmarks/store.py [--images DIR | --store STORE] [--commavq FILE.npy] [--json]

--images trains the demo's tokenizer on a class folder and tokenizes it; --store takes a store as it is. Bytes count
everything but labels and keys: records, index, checksums, tables, manifest. Speeds are medians of 15 rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from tilework.store import Store, StoreWriter, choose_codec, codecs
from tilework.store.escape_gzip import escape, pack

NAMES = ("packed", "rans", "rans-context", "pairwise")
ROUNDS = 15


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


def rate(work: Callable[[], object], images: int, rounds: int = ROUNDS) -> list[float]:
    """Images per second: lower quartile, median, upper quartile."""
    work()
    rates = []
    for _ in range(rounds):
        begun = perf_counter()
        work()
        rates.append(images / (perf_counter() - begun))
    return [round(float(q)) for q in np.percentile(rates, [25, 50, 75])]


def speeds() -> dict[str, dict[str, list[float]]]:
    """1,024-token images of 391 codes."""
    rng = np.random.default_rng(0)
    ids = rng.choice(391, (4096, 1024), p=rng.dirichlet(np.full(391, 2.0))).astype(np.int32)
    encode, decode = {}, {}
    for name in NAMES:
        few = ids[:256] if name == "pairwise" else ids
        rounds = 3 if name == "pairwise" else ROUNDS
        codec = codecs[name].fit(ids[:1024] if name == "pairwise" else ids, 391, 32)
        records, sizes = codec.encode(few)
        data, starts = np.frombuffer(records, np.uint8), np.cumsum(sizes) - sizes
        assert (codec.decode(data, starts, sizes) == few).all()
        key = name.replace("-", "_")
        encode[key] = rate(lambda c=codec, f=few: c.encode(f), len(few), rounds)
        decode[key] = rate(lambda c=codec, d=data, a=starts, z=sizes: c.decode(d, a, z), len(few), rounds)
    symbols, offsets = escape(ids[:512])
    listed = symbols.tolist(), offsets.tolist()
    decode["algorithm2_python"] = rate(lambda: algorithm2(*listed), 512)
    return {"encode_images_per_s": encode, "decode_images_per_s": decode}


def tokenized(images: Path, folder: Path) -> Path:
    """A store of the images, by the demo's tokenizer trained on them."""
    from tilework.data import ImageSource
    from tilework.recipes import recipes, train
    from tilework.tokenizers import load_tokenizer, save_tokenizer
    from tilework.tokenizers.tokenize import tokenize

    run = recipes["demo_tokenizer"]()
    run = replace(run, fit=replace(run.fit, steps=1000))
    trained = train(run, images, None, folder / "run", quiet=True).model
    save_tokenizer(folder / "tokenizer", trained, run.model, run.size)  # type: ignore[arg-type]
    tokenizer, card = load_tokenizer(folder / "tokenizer")
    tokenize(
        ImageSource.load(images, card.size), tokenizer, card, folder / "x.tok", torch.device("cpu"), codec="packed"
    )
    return folder / "x.tok"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--commavq", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.images or options.store:
            store = Store(options.store or tokenized(options.images, Path(folder)))
            ids = store.batch(np.arange(len(store))).reshape(len(store), -1)
            results["real"] = compare(ids, store.grid, store.vocabulary)
    if options.commavq:
        ids = np.load(options.commavq, allow_pickle=False).astype(np.int32)
        results["commavq"] = compare(ids, (8, 16), 1024)
    results["synthetic"] = speeds()
    print(json.dumps(results, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
