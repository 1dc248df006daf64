"""Information accessibility and token similarity."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tilework.augment import Normalise
from tilework.data import ImageSource
from tilework.evaluation.information import information, token_similarity
from tilework.layers.stems import PatchStemConfig


def test_similarity_is_the_mean_over_pairs() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 2, 3)
    for image, found in zip(x.flatten(2), token_similarity(x), strict=True):
        cosines = [F.cosine_similarity(image[:, i], image[:, j], dim=0) for i, j in permutations(range(6), 2)]
        assert found.item() == pytest.approx(torch.stack(cosines).mean().item(), abs=1e-6)
    assert token_similarity(torch.ones(1, 4, 3, 3)).item() == pytest.approx(1)


def test_a_stem_that_says_nothing_is_worse_and_stays_as_it_was(images: Path) -> None:
    source = ImageSource.load(images, (32, 32), None, 0.0)
    steps = ((Normalise(),), (Normalise(),))
    torch.manual_seed(0)
    stem, deaf = (PatchStemConfig(8).build(3, (32, 32), 48) for _ in range(2))
    torch.nn.init.zeros_(deaf.proj.weight)
    before = stem.proj.weight.clone()
    found = [information(s, source, source, steps, torch.device("cpu"), epochs=3, batch=12) for s in (stem, deaf)]
    assert found[0].mse < found[1].mse
    assert found[1].similarity == pytest.approx(1, abs=1e-4)
    assert found[0].parameters == 3 * 64 * 48 + 48
    assert torch.equal(stem.proj.weight, before)
