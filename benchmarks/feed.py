"""From stored tokens to what the model takes: the published path and ours, one core, the same samples and edits.

    python benchmarks/feed.py [--images N] [--batch B] [--json]

32x32 grids of 391 codes with 32 dimensions, random crops to 28x28. Reference: what SeiT's published code does for
each sample (escaped bytes decoded, Token-EDA, one-hot map, crop and bicubic resize of 391 channels), then the codebook
product for the batch. Ours: shuffled batches of a store through the loader, Token-EDA, Token-RRC. Rounds of both take
turns; the ratio is the median of the rounds' with quartiles. max_difference compares the two outputs for the same
parameters.
"""

from __future__ import annotations

import os
import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the loader's thread shares it

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import TokenCrop, TokenEda, apply_all
from tilework.augment.token_eda import Edits
from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.memory import keep_freed_memory
from tilework.core.rng import Draws
from tilework.data import Loader, TokenSource
from tilework.store import Store, StoreWriter
from tilework.store.escape_gzip import escape

K, C, GRID, CROP = 391, 32, 32, 28
ESCAPE = 255
ROUNDS = 15


def make_store(place: Path, images: int) -> Store:
    """Codes with the entropy of real ones: 391 codes, some far more frequent than others."""
    rng = np.random.default_rng(0)
    weights = rng.gamma(2.0, size=K)
    ids = rng.choice(K, (images, GRID, GRID), p=weights / weights.sum())
    codebook = rng.normal(size=(K, C)).astype(np.float32)
    with StoreWriter(place, codebook, [str(i) for i in range(1000)]) as writer:
        writer.add(ids, rng.integers(0, 1000, images), [f"{i}.jpg" for i in range(images)])
    return Store(place)


# the published path, sample by sample


def decode(symbols: bytes) -> list[int]:
    """Algorithm 2 of SeiT's appendix, with the escape of the published files."""
    codes, at = [], 0
    while at < len(symbols):
        code = 0
        while symbols[at] == ESCAPE:
            code += ESCAPE
            at += 1
        codes.append(code + symbols[at])
        at += 1
    return codes


def edit(ids: np.ndarray, synonyms: dict[int, list[int]], edits: Edits, i: int) -> np.ndarray:
    """Token-EDA of one sample, by the choices in `edits`. ids: (H, W)."""
    out = ids.copy()
    chosen = edits.synonym[i].numpy()
    if (chosen < 5).any():
        for y in range(GRID):
            for x in range(GRID):
                if chosen[y, x] < 5:
                    out[y, x] = synonyms[int(ids[y, x])][int(chosen[y, x])]
    side = int(edits.squares.side[i])
    if side:
        (a, b), (c, d) = edits.squares.first[i].tolist(), edits.squares.second[i].tolist()
        out[a : a + side, b : b + side] = ids[c : c + side, d : d + side]
        out[c : c + side, d : d + side] = ids[a : a + side, b : b + side]
    return out


def one_hot_crop(ids: np.ndarray, affine: Tensor) -> Tensor:
    """One-hot map, cut to the box, resized by bicubic interpolation. Returns (K, 28, 28)."""
    (width, _, across), (_, height, down) = affine.tolist()
    top, left = round((down + 1 - height) / 2 * GRID), round((across + 1 - width) / 2 * GRID)
    high, wide = round(height * GRID), round(width * GRID)
    hot = F.one_hot(torch.from_numpy(ids).long(), K).permute(2, 0, 1).float()  # (K, H, W)
    cut = hot[None, :, top : top + high, left : left + wide]
    return F.interpolate(cut, (CROP, CROP), mode="bicubic", align_corners=False)[0]


def reference(
    symbols: np.ndarray, offsets: np.ndarray, codebook: Tensor, synonyms: dict[int, list[int]], batch: Batch, p: Edits,
    affine: Tensor,
) -> Tensor:  # fmt: skip
    """A batch by the published path. Returns (B, C, 28, 28)."""
    maps = []
    for i, index in enumerate(batch.index.tolist()):
        ids = np.array(decode(symbols[offsets[index] : offsets[index + 1]].tobytes())).reshape(GRID, GRID)
        maps.append(one_hot_crop(edit(ids, synonyms, p, i), affine[i]))
    return (torch.stack(maps).permute(0, 2, 3, 1) @ codebook).permute(0, 3, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "x.tok", options.images)
        source = TokenSource(store)
        codebook = source.codebook
        assert codebook is not None
        eda, crop = TokenEda().build(Codebook.of(codebook)), TokenCrop((CROP, CROP)).build(Codebook.of(codebook))
        loader = Loader(source, options.batch)
        symbols, offsets = escape(store.batch(np.arange(len(store))).reshape(len(store), -1))
        synonyms = {k: [int(s) for s in row] for k, row in enumerate(store.synonyms())}

        first = next(iter(loader.run(0, 1)))
        draws = Draws(0, 0, first.index)
        torch.manual_seed(0)
        p = eda.sample(draws, first)
        edited = eda.apply(first, p)
        affine = crop.sample(draws, edited)
        slow = reference(symbols, offsets, codebook, synonyms, first, p, affine)
        difference = float((crop.apply(edited, affine).x - slow).abs().max())

        steps, few = loader.steps, 16  # batches of ours, samples of the reference, in a round
        rates: dict[str, list[float]] = {"reference": [], "tilework": []}
        for turn in range(ROUNDS + 1):
            some = replace(first.rows(slice(0, few)))
            begun = perf_counter()
            drawn = Draws(0, turn, some.index)
            edits = eda.sample(drawn, some)
            reference(symbols, offsets, codebook, synonyms, some, edits, crop.sample(drawn, some))
            slow_rate = few / (perf_counter() - begun)
            begun = perf_counter()
            for batch in loader.run(turn * steps, (turn + 1) * steps):
                out = apply_all([eda, crop], batch, Draws(0, turn, batch.index))
            rate = steps * options.batch / (perf_counter() - begun)
            assert out.x.shape == (options.batch, C, CROP, CROP)
            if turn:  # the first round warms up
                rates["reference"].append(slow_rate)
                rates["tilework"].append(rate)
    low, middle, high = np.percentile(np.array(rates["tilework"]) / np.array(rates["reference"]), [25, 50, 75])
    result = {
        "images_per_s": {name: round(float(np.median(values)), 1) for name, values in rates.items()},
        "ratio": round(float(middle), 1),
        "ratio_quartiles": [round(float(low), 1), round(float(high), 1)],
        "max_difference": difference,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    speeds = ", ".join(f"{name} {rate:,.0f}" for name, rate in result["images_per_s"].items())
    print(f"images per second on one core: {speeds}")
    print(f"ratio {middle:.0f} (quartiles {low:.0f} to {high:.0f}), largest difference {difference:.1e}")


if __name__ == "__main__":
    main()
