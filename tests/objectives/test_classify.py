"""Classification against torch's own cross-entropy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tilework.augment import Normalise
from tilework.core.batch import Target
from tilework.core.distributed import World
from tilework.core.errors import InputError
from tilework.data import ImageSource
from tilework.evaluation import validate
from tilework.layers.stems import PatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, soft_cross_entropy


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


def test_validation_uses_the_model_given(images: Path) -> None:
    """Averaged weights are judged, not those of the objective; the loss is not smoothed."""
    config = VitConfig(width=8, depth=1, heads=2, stem=PatchStemConfig(4))
    objective = ClassifyConfig(smoothing=0.1).build(config.build(3, (8, 8), 3))
    other, source = config.build(3, (8, 8), 3).eval(), ImageSource.load(images, (8, 8))
    world = World(0, 1, torch.device("cpu"))
    found = validate(ClassifyConfig.task, objective, other, source, (Normalise(),), world, batch=5)
    whole = source.batch(np.arange(len(source)))
    with torch.no_grad():
        logits = other(Normalise().apply(whole, None).x).logits
    labels = whole.target.ids[:, 0]
    assert list(found) == ["loss", "top1"]  # top5 of three classes says nothing
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert found["top1"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_one_class_is_refused() -> None:
    with pytest.raises(InputError, match="one class only"):
        ClassifyConfig().check(("cat",), 10)
