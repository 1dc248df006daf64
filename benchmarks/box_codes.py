"""How many images it takes to fit codes: python benchmarks/box_codes.py IMAGES VAL [--counts 34 85 204] [--codes 512]

Of a balanced part of IMAGES, the accuracy on VAL of a linear classifier (L-BFGS, its weight decay chosen on a tenth of
the part) on the network's pooled features, on the mean of code vectors with the codes of the package, and with codes
fitted to the part. docs/choosing.md has the figures.

N images | h, w code grid | D channels | C code dim
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tilework.data import ImageFolder, ImageSource
from tilework.data.loader import in_order
from tilework.evaluation.probe import linear_accuracy
from tilework.tokenizers.box import load_box
from tilework.tokenizers.teacher_codes import TeacherCodes, fit_codes


@torch.inference_mode()
def maps(tokenizer: TeacherCodes, folder: ImageFolder, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """(N, h, w, D) and labels (N,)."""
    source = ImageSource.read(folder, size)
    found = [tokenizer.map(batch.x / 255).half() for batch in in_order(source, 32)]
    return torch.cat(found), torch.from_numpy(source.labels)


@torch.inference_mode()
def means(tokenizer: TeacherCodes, found: Tensor) -> Tensor:
    """Of code vectors. found: (N, h, w, D); returns (N, C)."""
    projected = (((part.float() - tokenizer.centre) @ tokenizer.directions.T) for part in found.split(256))
    return torch.cat([tokenizer.vectors(tokenizer.nearest(part)).mean((1, 2)) for part in projected])


def balanced(labels: Tensor, count: int) -> Tensor:
    """Numbers of as many images of each class, at random."""
    order, most = np.random.default_rng(0).permutation(len(labels)), max(1, count // int(labels.max() + 1))
    each = [order[labels.numpy()[order] == label][:most] for label in range(int(labels.max()) + 1)]
    return torch.from_numpy(np.concatenate(each))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("val", type=Path)
    parser.add_argument("--counts", type=int, nargs="+", default=[34, 85, 204, 425, 1088])
    parser.add_argument("--codes", type=int, nargs="+", default=[128, 256, 512])
    words = parser.parse_args()
    box, card = load_box()
    folder = ImageFolder.open(words.images)
    x, labels = maps(box, folder, card.size)
    judged, truth = maps(box, ImageFolder.open(words.val, folder.classes), card.size)
    for count in words.counts:
        part = balanced(labels, count)
        seen, names = x[part], labels[part]

        def accuracy(train: Tensor, val: Tensor, names: Tensor = names) -> float:
            return round(100 * linear_accuracy((train, names), (val, truth))[0], 1)

        found = {"images": len(part), "pooled": accuracy(seen.float().mean((1, 2)), judged.float().mean((1, 2)))}
        found["package"] = accuracy(means(box, seen), means(box, judged))
        for codes in words.codes:
            fitted = replace(box.config, codes=codes).build(3, card.size, 0)
            for name in ("centre", "directions"):
                fitted.get_buffer(name).copy_(box.get_buffer(name))
            fit_codes(fitted, (seen.float() - box.centre) @ box.directions.T)
            found[f"fitted_{codes}"] = accuracy(means(fitted, seen), means(fitted, judged))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
