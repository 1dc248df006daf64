"""How far the patch embedding of a small ViT moves in its first steps, by its share of the learning rate.

    python benchmarks/patch_rate.py IMAGES [--steps 30] [--lr 5e-4]

IMAGES: a folder with a sub-folder per class, of which 26 images each are read. Prints the change of the embedding's
output on 64 images, as a share of its size.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F

from tilework.augment import Normalise
from tilework.data.image_files import decode_image
from tilework.layers.stems import PatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.train.optim import build_optimiser
from tilework.train.settings import OptimConfig

EACH, SIDE = 26, 112


def images(root: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised pixels (N, 3, H, W) and class numbers."""
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    files = [(i, file) for i, folder in enumerate(folders) for file in sorted(folder.iterdir())[:EACH]]
    pixels = torch.stack([torch.from_numpy(decode_image(file, (SIDE, SIDE)).copy()) for _, file in files])
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (Normalise().mean, Normalise().std))
    return (pixels / 255 - mean) / std, torch.tensor([i for i, _ in files])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--lr", type=float, default=5e-4)
    args = parser.parse_args()
    x, labels = images(args.images)
    for scale in (1.0, 0.1):
        torch.manual_seed(0)
        config = VitConfig(width=96, depth=4, heads=3, pool="mean", stem=PatchStemConfig(16))
        model = config.build(3, (SIDE, SIDE), int(labels.max()) + 1)
        optimiser = build_optimiser(ClassifyConfig().build(model, None), OptimConfig(lr=args.lr, stem_scale=scale))
        for group in optimiser.param_groups:
            group["lr"] = args.lr * group["scale"]
        with torch.no_grad():
            before = model(x[:64]).stem
        for _ in range(args.steps):
            drawn = torch.randperm(len(x))[:64]
            F.cross_entropy(model(x[drawn]).logits, labels[drawn]).backward()
            optimiser.step()
            optimiser.zero_grad()
        with torch.no_grad():
            moved = (model(x[:64]).stem - before).square().mean().sqrt() / before.square().mean().sqrt()
        print(f"{scale:4g} of the rate: the patch embedding's output changes by {100 * moved:.0f} % of its size")


if __name__ == "__main__":
    main()
