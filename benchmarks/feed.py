"""From stored tokens to what the model takes: the published path, one written by hand, and ours; one core.

    python benchmarks/feed.py [--images N] [--batch B] [--codec NAME] [--json]

32x32 grids of 391 codes with 32 dimensions, random crops to 28x28. Published: what SeiT's published code does for
each sample (escaped bytes decoded, Token-EDA, one-hot map, crop and bicubic resize of 391 channels), then the codebook
product for the batch. By hand: what a good engineer writes in torch: uint16 codes in a memory-mapped file, Token-EDA of
a whole batch, look-up, crop and resize as two batched matrix products. Ours: shuffled batches of a store through the
loader, Token-EDA, Token-RRC; with compiled kernels, and without. Rounds of all take turns, in seconds of the processor,
all threads together; ratios are medians of the rounds' with quartiles. max_difference compares outputs for the same
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
from pathlib import Path
from time import process_time

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import TokenCrop, TokenEda, apply_all
from tilework.augment.crop import warp_axes
from tilework.augment.token_eda import Edits, replace_synonyms, sample_squares, swap_source
from tilework.core.affine import box_affine, random_boxes
from tilework.core.batch import Batch
from tilework.core.memory import keep_freed_memory
from tilework.core.rng import Draws
from tilework.data import Loader, TokenSource
from tilework.store import Store, StoreWriter
from tilework.store.escape_gzip import escape

K, C, GRID, CROP = 391, 32, 32, 28
ESCAPE = 255
ROUNDS = 15


def make_store(place: Path, images: int, codec: str) -> Store:
    """Codes with the entropy of real ones: 391 codes, some far more frequent than others."""
    rng = np.random.default_rng(0)
    weights = rng.gamma(2.0, size=K)
    ids = rng.choice(K, (images, GRID, GRID), p=weights / weights.sum())
    codebook = rng.normal(size=(K, C)).astype(np.float32)
    with StoreWriter(place, codebook, [str(i) for i in range(1000)], codec=codec) as writer:
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


# by hand: whole batches


class ByHand:
    """Codes of a memory-mapped file, edited, looked up and cropped in batches."""

    def __init__(self, file: Path, store: Store, codebook: Tensor) -> None:
        ids = store.batch(np.arange(len(store)))
        np.save(file, ids.astype(np.uint16))
        self.ids, self.table = np.load(file, mmap_mode="r"), codebook
        itself = torch.arange(K, dtype=torch.int32)[:, None]
        self.synonyms = torch.cat([torch.from_numpy(store.synonyms()), itself], 1)

    def epoch(self, batch: int) -> Tensor:
        """The last batch of a shuffled epoch."""
        order = torch.randperm(len(self.ids)).numpy()
        for start in range(0, len(order) - batch + 1, batch):
            out = self.batch(order[start : start + batch])
        return out

    def batch(self, index: np.ndarray) -> Tensor:
        """Random edits and crops. index: (B,)."""
        u, dense, boxes = torch.rand(len(index), 5), torch.rand(len(index), GRID, GRID), torch.rand(len(index), 40)
        share = ((u[:, 0] < 0.25) * 0.25)[:, None, None]
        synonym = (dense * (5 / share.clamp(min=1e-12))).clamp_(max=5).int()
        side = (u[:, 1] * (0.25 * GRID)).long() * ((u[:, 0] >= 0.25) & (u[:, 0] < 0.5))
        source = swap_source(sample_squares(u[:, 2:], side, (GRID, GRID)), (GRID, GRID), GRID // 4)
        sides = torch.full((len(index),), float(GRID))
        box = random_boxes(boxes, sides, sides, (0.08, 1.0), (3 / 4, 4 / 3))
        return self.apply(index, synonym, source, box_affine(*(part / GRID for part in box)))

    def apply(self, index: np.ndarray, synonym: Tensor, source: Tensor, affine: Tensor) -> Tensor:
        """(B, C, 28, 28)."""
        ids = torch.from_numpy(self.ids[index].astype(np.int32))
        ids = replace_synonyms(ids, self.synonyms, synonym).flatten(1).gather(1, source).view_as(ids)
        return warp_axes(F.embedding(ids, self.table).permute(0, 3, 1, 2), affine, (CROP, CROP))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--codec", default="rans")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder) / "x.tok", options.images, options.codec)
        source = TokenSource(store)
        codebook = source.codebook
        assert codebook is not None
        eda, crop = TokenEda().build(codebook), TokenCrop((CROP, CROP)).build(codebook)
        loader = Loader(source, options.batch)
        symbols, offsets = escape(store.batch(np.arange(len(store))).reshape(len(store), -1))
        synonyms = {k: [int(s) for s in row] for k, row in enumerate(store.synonyms())}
        table = torch.from_numpy(codebook.vectors)
        hand = ByHand(Path(folder) / "ids.npy", store, table)

        first = next(iter(loader.run(0, 1)))
        draws = Draws(0, 0, first.index)
        torch.manual_seed(0)
        p = eda.sample(draws, first)
        edited = eda.apply(first, p)
        affine = crop.sample(draws, edited)
        ours = crop.apply(edited, affine).x
        moved = swap_source(p.squares, (GRID, GRID), GRID // 4)
        difference = {
            "published": float((ours - reference(symbols, offsets, table, synonyms, first, p, affine)).abs().max()),
            "by_hand": float((ours - hand.apply(first.index.numpy(), p.synonym, moved, affine)).abs().max()),
        }

        steps, few = loader.steps, 16  # batches of an epoch, samples of the published path, in a round
        rates: dict[str, list[float]] = {"published": [], "by_hand": [], "numpy_and_torch": [], "tilework": []}
        for turn in range(ROUNDS + 1):
            for name, row in rates.items():
                os.environ["TILEWORK_KERNELS"] = "0" if name == "numpy_and_torch" else "1"
                begun, count = process_time(), steps * options.batch
                if name == "published":
                    some, count = first.rows(slice(0, few)), few
                    drawn = Draws(0, turn, some.index)
                    edits = eda.sample(drawn, some)
                    reference(symbols, offsets, table, synonyms, some, edits, crop.sample(drawn, some))
                elif name == "by_hand":
                    out = hand.epoch(options.batch)
                else:
                    for batch in loader.run(turn * steps, (turn + 1) * steps):
                        out = apply_all([eda, crop], batch, Draws(0, turn, batch.index)).x
                if turn:  # the first round warms up
                    row.append(count / (process_time() - begun))
                assert name == "published" or out.shape == (options.batch, C, CROP, CROP)
    ratios = {name: np.percentile(np.array(rates["tilework"]) / row, [25, 50, 75]) for name, row in rates.items()}
    result = {
        "images_per_s": {name: round(float(np.median(values)), 1) for name, values in rates.items()},
        "ratio": {name: [round(float(q), 2) for q in ratio] for name, ratio in ratios.items() if name != "tilework"},
        "max_difference": difference,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    speeds = ", ".join(f"{name} {rate:,.0f}" for name, rate in result["images_per_s"].items())
    print(f"images per second on one core: {speeds}")
    for name, (low, middle, high) in result["ratio"].items():
        print(f"tilework / {name}: {middle:.3g} (quartiles {low:.3g} to {high:.3g})")
    print(f"largest difference: published {difference['published']:.1e}, by hand {difference['by_hand']:.1e}")


if __name__ == "__main__":
    main()
