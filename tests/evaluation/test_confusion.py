"""Counts of confused classes, and figures by class, against slow loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from small_evaluation import CLASSES, CPU, Answers, ask
from tilework.evaluation import Classification, Confusion, evaluate
from tilework.evaluation.confusion import class_accuracy, count_pairs


def test_counts_and_classes_are_a_slow_loop() -> None:
    source, one = Answers(60), Confusion(CLASSES)
    figures = evaluate(ask, source, (), [one], CPU, batch=7)
    counts = [[0] * CLASSES for _ in range(CLASSES)]
    for logits, label in zip(source.logits.tolist(), source.labels.tolist(), strict=True):
        counts[label][logits.index(max(logits))] += 1
    assert one.counts.tolist() == counts
    shares = [row[i] / sum(row) if sum(row) else 0.0 for i, row in enumerate(counts)]
    assert class_accuracy(one.counts).tolist() == pytest.approx(shares)
    assert shares[-1] == 0, "the class that does not occur"
    assert figures["accuracy"] == pytest.approx(sum(counts[i][i] for i in range(CLASSES)) / 60)
    assert figures["mean_accuracy"] == pytest.approx(sum(shares) / (CLASSES - 1)), "over classes that occur"


def test_it_is_that_of_the_classification() -> None:
    source, one = Answers(60), Confusion(CLASSES)
    evaluate(ask, source, (), [one], CPU, batch=60)
    said = Classification(
        source.logits.softmax(1).numpy(), source.labels.numpy(), source.classes, np.arange(len(source.labels))
    )
    assert (one.counts.numpy() == said.confusion).all()
    counts = one.counts.sum(1).tolist()
    found = class_accuracy(one.counts).tolist()  # of absent classes nothing is known
    assert list(said.summary()["per_class"].values()) == [x if n else None for x, n in zip(found, counts, strict=True)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 6), st.integers(0, 3)), max_size=40))
def test_labels_outside_the_classes_are_left_out(pairs: list[tuple[int, int]]) -> None:
    true, said = (torch.tensor([pair[i] for pair in pairs], dtype=torch.int64) for i in (0, 1))
    slow = np.zeros((4, 4), int)
    for a, b in pairs:
        if 0 <= a < 4:
            slow[a, b] += 1
    assert count_pairs(true, said, 4).tolist() == slow.tolist()


def test_maps_of_pixels_count_as_their_pixels() -> None:
    """As segmentation reads it: bytes with a void of 255."""
    generator = torch.Generator().manual_seed(0)
    true = torch.randint(0, 4, (3, 5, 7), generator=generator).to(torch.uint8)
    said = torch.randint(0, 3, (3, 5, 7), generator=generator)
    true[true == 3] = 255
    counts = count_pairs(true, said, 3)
    assert counts.sum() == (true < 3).sum()
    assert counts[1, 2] == ((true == 1) & (said == 2)).sum()
