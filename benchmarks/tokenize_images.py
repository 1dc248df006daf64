"""Speed of `tokenize` beside what its two halves allow, codes by batch size, and quality beside k-means on patches.

    python benchmarks/tokenize_images.py --images DIR [--tokenizer DIR|box] [--count 6144] [--rounds 15] [--json]

DIR holds class folders, or train/ and val/ with class folders. Without --tokenizer the recipe `small_tokenizer` is
trained on it first (about 15 minutes on two cores). decode_alone and encoder_alone use all cores, each taking whole
batches, or torch's own threads if that is faster; bound is the rate if both shared the cores without waiting for each
other, 1 / (1 / decode + 1 / encode). Rounds of the three take turns; the ratio is the median of the rounds' with
quartiles. box: the tokenizer of the package, its pooled codes fitted to the images. Quality is measured of tokenizers
that decode: k-means clusters raw patches of the training images with the tokenizer's grid and vocabulary.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch.nn import functional as F

from tilework.core.errors import InputError
from tilework.data import ImageFolder, ImageSource, decode_image
from tilework.evaluation.reconstruction import psnr, reconstruction
from tilework.tokenizers import Tokenizer, box, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.kmeans import kmeans, squared_distances
from tilework.tokenizers.tokenize import tokenize
from tilework.tokenizers.tokenizer import Card

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH = 64
PATCHES = 60_000  # that k-means sees


def speeds(
    tokenizer: Tokenizer, card: Card, folder: ImageFolder, place: Path, count: int, rounds: int
) -> dict[str, object]:
    """Images per second of the whole and of its halves."""
    some = folder.take(np.linspace(0, len(folder) - 1, count).astype(np.int64))
    pixels = torch.from_numpy(np.stack([decode_image(path, card.size) for path in some.paths]))
    batches = list(pixels.split(BATCH))
    threads = torch.get_num_threads()

    def timed(work: Callable[[], object]) -> float:
        begun = perf_counter()
        work()
        return count / (perf_counter() - begun)

    def encode(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return tokenizer.encode(batch.to(DEVICE) / 255).cpu()

    def by_core(work: Callable[[object], object], items: list[object]) -> None:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, items))
        torch.set_num_threads(threads)

    def together() -> None:
        for batch in batches:
            encode(batch)

    number = iter(range(10**6))
    rates: dict[str, list[float]] = {"tokenize": [], "encoder_alone": [], "decode_alone": [], "bound": []}
    for turn in range(rounds + 1):
        decoded = timed(lambda: by_core(lambda path: decode_image(path, card.size), list(some.paths)))
        encoded = max(timed(lambda: by_core(encode, list(batches))), timed(together))
        whole = timed(
            lambda: tokenize(some, Tokenizing(tokenizer, card, DEVICE, batch=BATCH), place / f"{next(number)}.tok")
        )
        if turn:  # the first round warms up
            bound = 1 / (1 / decoded + 1 / encoded) if DEVICE.type == "cpu" else encoded
            for name, rate in zip(rates, (whole, encoded, decoded, bound), strict=True):
                rates[name].append(rate)
    ratio = np.array(rates["tokenize"]) / np.array(rates["bound"])
    return {
        "images_per_s": {name: round(float(np.median(values)), 1) for name, values in rates.items()},
        "tokenize_to_bound": [round(float(q), 3) for q in np.percentile(ratio, [25, 50, 75])],
    }


def mismatches(tokenizer: Tokenizer, source: ImageSource, count: int = 512) -> dict[str, float]:
    """Share of codes that differ when the same images come in other batches."""
    x = source.batch(np.linspace(0, len(source) - 1, count).astype(np.int64)).x.to(DEVICE) / 255
    codes = {size: torch.cat([tokenizer.encode(part) for part in x.split(size)]) for size in (1, 7, 64)}
    return {f"{size}_vs_64": float((codes[size] != codes[64]).double().mean()) for size in (1, 7)}


def kmeans_psnr(tokenizer: Tokenizer, train: ImageSource, val: ImageSource) -> float:
    """Patches replaced by the nearest of as many centres as the tokenizer has codes."""
    patch, codes = tokenizer.patch, len(tokenizer.codebook)

    def patches(x: torch.Tensor) -> torch.Tensor:
        return F.unfold(x, patch, stride=patch).transpose(1, 2)  # (B, N, 3 p p)

    torch.manual_seed(0)
    some = np.linspace(0, len(train) - 1, min(1000, len(train))).astype(np.int64)
    seen = patches(train.batch(some).x / 255).flatten(0, 1)
    centres = kmeans(seen[torch.randperm(len(seen))[:PATCHES]], codes, 20)
    scores = []
    for start in range(0, len(val), 64):
        x = val.batch(np.arange(start, min(start + 64, len(val)))).x / 255
        cut = patches(x)
        nearest = squared_distances(cut.flatten(0, 1), centres).argmin(1)
        restored = F.fold(centres[nearest].view(cut.shape).transpose(1, 2), x.shape[-2:], patch, stride=patch)
        scores.append(psnr(restored, x))
    return float(torch.cat(scores).mean())


def trained(images: Path, folder: Path) -> Path:
    """The recipe `small_tokenizer` on the images."""
    from tilework.recipes import recipes
    from tilework.runs import train

    run = recipes["small_tokenizer"].run
    model = train(run, images, None, folder / "run", quiet=True).model
    assert isinstance(model, Tokenizer)
    save_tokenizer(folder / "tokenizer", model, run.model, run.size)
    return folder / "tokenizer"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--count", type=int, default=6144, help="images that are timed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    train_images, val_images = (
        options.images / part if (options.images / part).is_dir() else options.images for part in ("train", "val")
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            images = ImageFolder.open(train_images)
            if str(options.tokenizer) == box.NAME:
                tokenizer, card = box.fitted_box(images, DEVICE)
            else:
                tokenizer, card = load_tokenizer(options.tokenizer or trained(train_images, Path(folder)))
            tokenizer.to(DEVICE)
            results = speeds(tokenizer, card, images, Path(folder), options.count, options.rounds)
        if not tokenizer.decodes:
            print(json.dumps(results))
            return
        val = ImageSource.load(val_images, card.size)
        train = ImageSource.load(train_images, card.size)
    except InputError as error:
        raise SystemExit(f"benchmarks/tokenize_images.py: {error}") from error
    results["mismatch"] = mismatches(tokenizer, val)
    measured = reconstruction(tokenizer, val, DEVICE)
    results["psnr"] = {"tokenizer": measured.psnr, "kmeans": kmeans_psnr(tokenizer, train, val)}
    results |= {"ssim": measured.ssim, "code_usage": measured.code_usage, "codes": measured.codes}
    results |= {"grid": list(measured.grid), "images": measured.images}
    if options.json:
        print(json.dumps(results))
    else:
        print("\n".join(f"{name:<18}{value}" for name, value in results.items()))


if __name__ == "__main__":
    main()
