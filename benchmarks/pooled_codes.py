"""Rounded features of the tokenizer in the box: python benchmarks/pooled_codes.py FOLDER... [--out FILE.json]

Cross-validation over all images of the folders (the same classes in each). The row to beat is the linear probe: L-BFGS
(weight decay chosen on a tenth of the training part) on the network's pooled float32 features of the middle square.
Beside it, for one look at an image and for five (`tilework tokenize --codes pooled` and `corners`): the probe on floats
and on rounded features, and `linear_cpu` (mixup) trained on a store of the codes. Means and deviations are those of the
training part, bytes those of its store. Differences from the first row are tested image by image (McNemar).
docs/results.md has the figures.

N images | D channels
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

import tilework.recipes.every  # noqa: F401
from tilework.data import ImageFolder, ImageSource
from tilework.data.loader import in_order
from tilework.evaluation.classification import classify
from tilework.evaluation.mcnemar import mcnemar
from tilework.evaluation.probe import linear_hits
from tilework.recipes import run_of
from tilework.runs import train
from tilework.runs.trained import Trained
from tilework.store import Store, StoreWriter
from tilework.tokenizers.box import FRAMES, LEVELS, Form, load_box, pooled_box
from tilework.tokenizers.rounded import RoundedQuantiser, evenly_spaced

FORMS: tuple[Form, ...] = ("pooled", "corners")
PROBE = "pooled, float32, L-BFGS"


@torch.inference_mode()
def features(folder: ImageFolder, form: Form) -> tuple[Tensor, Tensor]:
    """(N, D) and labels (N,)."""
    box, card = load_box()
    tokenizer = pooled_box(box, form)
    source = ImageSource.read(folder, tokenizer.size or card.size, frame=FRAMES[form])
    found = [tokenizer.map(batch.x / 255).mean((1, 2)) for batch in in_order(source, 32)]
    return torch.cat(found), torch.from_numpy(source.labels)


def write_store(path: Path, ids: Tensor, labels: Tensor, table: Tensor) -> Store:
    """A store of codes as `tokenize` writes them. ids: (N, D); table: (K, D)."""
    classes = [str(number) for number in range(int(labels.max()) + 1)]
    with StoreWriter(path, table.numpy(), classes, used=np.arange(len(table))) as writer:
        writer.add(ids[:, None, None].int().numpy(), labels.numpy(), [str(i) for i in range(len(ids))])
    return Store(path)


def trained_hits(place: Path, train_store: Store, val_store: Store, decay: float | None) -> Tensor:
    """Which images of a store `linear_cpu` names right. decay: another weight decay than its own."""
    run = run_of("linear_cpu")
    if decay is not None:
        run = replace(run, fit=replace(run.fit, optim=replace(run.fit.optim, weight_decay=decay)))
    train(run, train_store.path, None, place, "cpu", quiet=True)
    opened = (trained := Trained.open(place)).on(val_store.path, torch.device("cpu"))
    found = classify(trained.classifier, opened.source, opened.steps, torch.device("cpu"))
    return torch.from_numpy(np.asarray(found.predicted == found.labels))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--step", type=float, default=0.85, help="deviations that a channel is rounded to")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--limit", type=int, help="so many images, drawn at random; by default all")
    parser.add_argument("--decays", type=float, nargs="*", default=[], help="further weight decays of linear_cpu")
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    classes = ImageFolder.open(words.images[0]).classes
    folders = [ImageFolder.open(path, classes) for path in words.images]
    if words.limit:
        folders = [one.take(np.sort(np.random.default_rng(0).permutation(len(one))[: words.limit])) for one in folders]
    seen, labels = {}, torch.empty(0)
    for form in FORMS:
        seen[form], labels = map(torch.cat, zip(*(features(folder, form) for folder in folders), strict=True))
    fold = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)) % words.folds
    hits: dict[str, Tensor] = {}
    sizes: dict[str, list[float]] = {}

    def count(name: str, held: Tensor, right: Tensor, size: float) -> None:
        hits.setdefault(name, torch.zeros(len(labels), dtype=torch.bool))[held] = right
        sizes.setdefault(name, []).append(size)

    for number in range(words.folds):
        train_part, held = fold != number, fold == number
        for form, x in seen.items():
            codes = RoundedQuantiser(LEVELS, x.shape[1]).requires_grad_(False)
            codes.embedding.weight.copy_(evenly_spaced(x[train_part], LEVELS, words.step))
            ids = codes.nearest(x)
            with TemporaryDirectory() as name:
                place = Path(name)
                stores = [
                    write_store(place / f"{i}.tok", ids[part], labels[part], codes.codebook)
                    for i, part in enumerate((train_part, held))
                ]
                size = stores[0].sizes["tokens"] / len(stores[0])
                for what, read, bytes_each in (("float32", x, 4.0 * x.shape[1]), ("rounded", codes.values(ids), size)):
                    probe = linear_hits((read[train_part], labels[train_part]), (read[held], labels[held]))[0]
                    count(f"{form}, {what}, L-BFGS", held, probe, bytes_each)
                for decay in (None, *words.decays):
                    right = trained_hits(place / f"run-{decay}", stores[0], stores[1], decay)
                    name_of = f"{form}, rounded, linear_cpu" + (
                        f", weight decay {decay:g}" if decay is not None else ""
                    )
                    count(name_of, held, right, size)
        print(
            f"fold {number}: " + ", ".join(f"{k} {100 * v[held].float().mean():.1f}" for k, v in hits.items()),
            flush=True,
        )
    rows = {}
    for name, right in hits.items():
        won, lost = (int((a & ~b).sum()) for a, b in ((right, hits[PROBE]), (hits[PROBE], right)))
        each = [round(100 * float(right[fold == number].float().mean()), 2) for number in range(words.folds)]
        rows[name] = {
            "bytes": round(mean(sizes[name]), 1),
            "accuracy": round(100 * float(right.float().mean()), 2),
            "won": won,
            "lost": lost,
            "p": round(mcnemar(right.numpy(), hits[PROBE].numpy()), 4),
            "folds": each,
        }
    found = {"images": len(labels), "folds": words.folds, "step": words.step, "rows": rows}
    print(json.dumps(found, indent=1))
    if words.out:
        words.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
