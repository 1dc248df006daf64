"""MoCo v3: the loss by its formula, the slow encoder, two views, and a run of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tilework.augment import Flip, Normalise, RandomResizedCrop, TwoViews, apply_all
from tilework.augment.two_views import OtherView
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.layers.stem_frozen import FrozenStemConfig
from tilework.layers.stems import PatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import MocoConfig
from tilework.objectives.moco import info_nce
from tilework.runs import Run, probe_run, train
from tilework.train import FitConfig

VIT = VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8))
SMALL = MocoConfig(hidden=32, outputs=8)
VIEWS = TwoViews((RandomResizedCrop((32, 32)), Flip())).build()


def batch() -> Batch:
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    plain = Batch(x, Target.hard(torch.arange(4)), torch.arange(4))
    return apply_all([VIEWS], plain, Draws(0, 0, plain.index))


def test_loss_is_its_formula() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 5, 3)
    total = 0.0
    for i in range(5):
        near = [F.cosine_similarity(query[i], key[j], dim=0) / 0.2 for j in range(5)]
        total += -(near[i].exp() / sum(n.exp() for n in near)).log()
    torch.testing.assert_close(info_nce(query, key, 0.2), 2 * 0.2 * total / 5)


def test_both_ways_are_added_and_only_the_fast_encoder_learns() -> None:
    torch.manual_seed(0)
    objective, part = SMALL.build(VIT.build(3, (32, 32), 0)), batch()
    other = part.columns["other_view"]
    assert isinstance(other, OtherView)
    loss = objective(part, Draws(0, 0, part.index))["loss"]
    parts = [
        info_nce(
            objective.predictor(objective.projector(objective.model(x).logits)),
            objective.slow_projector(objective.slow_model(y).logits),
            0.2,
        )
        for x, y in ((part.x, other.x), (other.x, part.x))
    ]
    torch.testing.assert_close(loss, parts[0] + parts[1])
    loss.backward()
    slow = {name for name, p in objective.named_parameters() if name.startswith("slow_")}
    assert slow == {name for name, p in objective.named_parameters() if p.grad is None}
    assert not any(name.startswith("slow") for name in objective.model.state_dict())


def test_slow_encoder_follows_in_training_only() -> None:
    torch.manual_seed(0)
    objective, part = SMALL.build(VIT.build(3, (32, 32), 0)), batch()
    before = objective.slow_model.patch_embed.proj.weight.clone()
    with torch.no_grad():
        objective.model.patch_embed.proj.weight.add_(1)
        objective.eval()(part, Draws(0, 0, part.index))
        assert torch.equal(objective.slow_model.patch_embed.proj.weight, before)
        objective.train()(part, Draws(0, 0, part.index))
    torch.testing.assert_close(objective.slow_model.patch_embed.proj.weight, before + 0.01)


def test_views_are_drawn_apart_and_the_same_again() -> None:
    one, again = batch(), batch()
    other = one.columns["other_view"]
    assert isinstance(other, OtherView)
    assert torch.equal(one.x, again.x)
    assert not torch.equal(one.x, other.x)
    assert torch.equal(other.rows(slice(1, 3)).x, other.x[1:3])
    with pytest.raises(ConfigError, match="follows 'two_views'"):
        apply_all([Flip(1.0)], one, Draws(0, 0, one.index))


def test_one_view_is_refused() -> None:
    objective, part = SMALL.build(VIT.build(3, (32, 32), 0)), batch().changed(columns={})
    with pytest.raises(ConfigError, match="one view only"):
        objective(part, Draws(0, 0, part.index))


def test_a_frozen_stem_is_pretrained_and_probed(images: Path, tmp_path: Path) -> None:
    model = VitConfig(width=16, depth=1, heads=2, stem=FrozenStemConfig(PatchStemConfig(8)))
    views = TwoViews((RandomResizedCrop((32, 32)), Flip(), Normalise()))
    fit = FitConfig(epochs=0, steps=2, batch=6, log_every=1)
    run = Run(model, SMALL, (views,), (Normalise(),), size=(32, 32), fit=fit)
    train(run, images, images, tmp_path / "run", quiet=True)
    assert 0 <= probe_run(tmp_path / "run", images, images, neighbours=3)["linear"] <= 1
