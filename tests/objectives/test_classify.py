"""Classification against torch's own cross-entropy."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tilework.core.batch import Batch, Target
from tilework.core.errors import InputError
from tilework.layers.stems import PatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, soft_cross_entropy
from tilework.objectives.objective import topk_hits


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_hard_labels_equal_torch(smoothing: float) -> None:
    logits, labels = torch.randn(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
    ours = soft_cross_entropy(logits, Target.hard(labels), smoothing)
    torch.testing.assert_close(ours, F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none"))


def test_mixed_labels_equal_the_dense_form() -> None:
    logits, labels = torch.randn(4, 7), torch.tensor([0, 4, 2, 6])
    partner, share = torch.tensor([3, 2, 1, 0]), torch.tensor([0.25, 1.0, 0.5, 0.0])
    target = Target.hard(labels).mix(partner, share)
    onehot = F.one_hot(labels, 7).float()
    dense = share[:, None] * onehot + (1 - share[:, None]) * onehot[partner]
    smooth = 0.9 * dense + 0.1 / 7
    torch.testing.assert_close(
        soft_cross_entropy(logits, target, 0.1), F.cross_entropy(logits, smooth, reduction="none")
    )


def test_dense_labels_have_a_loss_for_each_token() -> None:
    logits, labels = torch.randn(2, 9, 5), torch.randint(5, (2, 9))
    wanted = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    torch.testing.assert_close(soft_cross_entropy(logits, Target.hard(labels)), wanted)


def test_topk() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    assert topk_hits(logits, torch.tensor([1, 2]), 1).tolist() == [0, 0]
    assert topk_hits(logits, torch.tensor([1, 2]), 2).tolist() == [1, 0]
    assert topk_hits(logits, torch.tensor([1, 2]), 5).tolist() == [1, 1]


def test_scores_are_per_sample_and_use_the_model_given() -> None:
    config = VitConfig(width=8, depth=1, heads=2, stem=PatchStemConfig(4))
    objective = ClassifyConfig().build(config.build(3, (8, 8), 3))
    other = config.build(3, (8, 8), 3).eval()
    batch = Batch(torch.randn(5, 3, 8, 8), Target.hard(torch.arange(5) % 3), torch.arange(5))
    scores = objective.score(other, batch)
    assert {name: value.shape for name, value in scores.items()} == dict.fromkeys(("loss", "top1", "top5"), (5,))
    assert torch.equal(scores["top1"], (other(batch.x).logits.argmax(1) == batch.target.ids[:, 0]).float())


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="one class only"):
        ClassifyConfig().check(("cat",), 10)
