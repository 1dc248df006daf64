"""Top-k hits and their means against slow loops."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch

from small_evaluation import CLASSES, Answers, ask
from tilework.core.batch import Target
from tilework.evaluation import Accuracy
from tilework.evaluation.accuracy import topk_hits


def test_topk() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert topk_hits(logits, torch.tensor([1, 2]), 1).tolist() == [0, 0]
    assert topk_hits(logits, torch.tensor([1, 2]), 2).tolist() == [1, 0]
    assert topk_hits(logits, torch.tensor([1, 2]), 5).tolist() == [1, 1]


def test_figures_are_a_slow_loop() -> None:
    source, one = Answers(50), Accuracy()
    for part in np.array_split(np.arange(50), 7):
        batch = source.batch(part)
        one.update(batch, ask(batch))
    loss, hits = 0.0, {1: 0, 5: 0}
    for logits, label in zip(source.logits.tolist(), source.labels.tolist(), strict=True):
        loss += log(sum(map(exp, logits))) - logits[label]
        for k in hits:
            hits[k] += label in sorted(range(CLASSES), key=lambda c: -logits[c])[:k]
    found = one.compute()
    assert list(found) == ["loss", "top1", "top5"]
    assert found == pytest.approx({"loss": loss / 50, "top1": hits[1] / 50, "top5": hits[5] / 50}, rel=1e-6)


def test_a_soft_label_counts_by_its_first_class() -> None:
    batch = Answers(2).batch(np.arange(2))
    target = Target(torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    one, log_p = Accuracy(), ask(batch).logits.log_softmax(1)
    one.update(batch.changed(target=target), ask(batch))
    wanted = -(0.75 * log_p[0, 0] + 0.25 * log_p[0, 1] + 0.5 * log_p[1, 2] + 0.5 * log_p[1, 3]) / 2
    assert one.compute()["loss"] == pytest.approx(wanted.item(), rel=1e-6)
