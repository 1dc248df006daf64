"""A folder of images, corrupted: to see whether a model that is trained on corrupted images copes with them.

python benchmarks/corrupted_copy.py IMAGES OUT [--name gaussian_blur] [--severity 3] [--size 128]

Images are cut to squares of --size first, as for tokenizing, and kept as PNG files under their own names. With
--tokenizer DIR it also prints the share of codes that the corruption changes.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its names would hide those of other modules

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tilework.core.rng import Draws
from tilework.data import ImageSource
from tilework.evaluation.corruptions import CORRUPTIONS, corrupt
from tilework.tokenizers.zoo import create_tokenizer

BATCH = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", choices=sorted(CORRUPTIONS), default="gaussian_blur")
    parser.add_argument("--severity", type=int, choices=range(1, 6), default=3)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--tokenizer", type=Path)
    args = parser.parse_args()
    source = ImageSource.load(args.images, (args.size, args.size))
    tokenizer = create_tokenizer(args.tokenizer) if args.tokenizer else None
    changed = []
    for numbers in np.array_split(np.arange(len(source)), -(-len(source) // BATCH)):
        x = source.batch(numbers).x  # (B, 3, S, S) bytes
        y = corrupt(x, args.name, args.severity, Draws(0, 0, torch.from_numpy(numbers)), False, None)
        for number, image in zip(numbers, y, strict=True):
            file = (args.out / source.folder.key(int(number))).with_suffix(".png")
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
        if tokenizer is not None:
            changed.append((tokenizer.encode(x / 255) != tokenizer.encode(y / 255)).double().mean().item())
    print(f"{len(source)} images in {args.out}: {args.name}, severity {args.severity}")
    if changed:
        print(f"codes changed: {np.mean(changed):.1%}")


if __name__ == "__main__":
    main()
