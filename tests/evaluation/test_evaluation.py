"""What a classifier says of every sample, against slow loops, and the figures of validation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from small_data import write_images
from tilework.augment import Normalise
from tilework.core.distributed import World
from tilework.data import ImageFolder, ImageSource
from tilework.data.streamed_images import StreamedImages
from tilework.evaluation import Classification, classify, validate
from tilework.layers.stems import PatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import Classify, Task


def result() -> Classification:
    rng = np.random.default_rng(0)
    return Classification(
        rng.random((40, 6)).astype(np.float32), rng.integers(0, 6, 40), tuple("abcdef"), np.arange(40)
    )


def test_top_k_is_a_slow_loop() -> None:
    one = result()
    for k in (1, 2, 5, 6):
        hits = [
            label in sorted(range(6), key=lambda c: -row[c])[:k]
            for row, label in zip(one.probabilities.tolist(), one.labels.tolist(), strict=True)
        ]
        assert one.top(k) == pytest.approx(sum(hits) / 40)


def test_confusion_rows_are_true_classes() -> None:
    one = result()
    slow = np.zeros((6, 6), int)
    for true, said in zip(one.labels, one.predicted, strict=True):
        slow[true, said] += 1
    assert (one.confusion == slow).all()
    summary = one.summary()
    assert summary["top1"] == pytest.approx(np.trace(slow) / 40)
    assert summary["per_class"]["b"] == pytest.approx(slow[1, 1] / max(1, slow[1].sum()))


def test_batch_size_does_not_matter(images: Path) -> None:
    source = ImageSource.load(images, (16, 16))
    model = VitConfig(width=8, depth=1, heads=2, stem=PatchStemConfig(8)).build(3, (16, 16), 3).eval()
    objective, world = Classify(model), World(0, 1, torch.device("cpu"))
    whole = validate(Task(), objective, model, source, (Normalise(),), world, batch=100)
    parts = validate(Task(), objective, model, source, (Normalise(),), world, batch=7)
    assert parts == pytest.approx(whole, abs=1e-6)
    one = classify(model, source, (Normalise(),), world.device, batch=5)
    assert one.top(1) == pytest.approx(whole["top1"])
    assert one.labels.tolist() == source.folder.labels.tolist()


def test_rows_name_their_samples_where_some_cannot_be_decoded(tmp_path: Path) -> None:
    """A streamed folder leaves broken images out: the row after one is not the next sample."""
    folder = ImageFolder.open(write_images(tmp_path / "images", count=4))
    folder.paths[1].write_bytes(b"no image")
    source = StreamedImages.open(folder, (32, 32), 0.5, "cover", "images")
    model = VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(patch=16)).build(3, (32, 32), 3)
    found = classify(model, source, (Normalise().build(None),), torch.device("cpu"))
    assert found.numbers.tolist() == [0, *range(2, 12)]
    assert found.labels.tolist() == folder.labels[found.numbers].tolist()
