"""MoCo v3: the loss by its formula, the slow encoder, two views, and a run of it."""

from __future__ import annotations

import json
import subprocess
import sys
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
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
from tilework.objectives.moco import GlobalBatchNorm, info_nce
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


def test_momentum_rises_to_one_by_half_a_cosine() -> None:
    """Oracle: `adjust_moco_momentum` of the published code, 1 - 0.5 (1 + cos(pi epoch / epochs)) (1 - m)."""
    config = MocoConfig()
    for step in (0, 25, 50, 100):
        wanted = 1 - 0.5 * (1 + cos(pi * step / 100)) * (1 - 0.99)
        assert config.momentum_at(step, 100) == pytest.approx(wanted)
    assert [config.momentum_at(step, 0) for step in (0, 50)] == [0.99, 0.99]  # not known how long
    assert MocoConfig(rise="none").momentum_at(50, 100) == pytest.approx(0.99)
    with pytest.raises(ValueError, match="no rise 'linear'"):
        MocoConfig(rise="linear")


def test_slow_encoder_follows_once_per_step_however_many_parts_the_batch_has() -> None:
    torch.manual_seed(0)
    objective, part = SMALL.build(VIT.build(3, (32, 32), 0)), batch()
    slow, fast = (model.patch_embed.proj.weight for model in (objective.slow_model, objective.model))
    with torch.no_grad():
        fast.add_(1)
        wanted = slow.clone()
        for step in range(3):
            for _ in range(4):  # parts
                objective(part, Draws(0, 0, part.index, step, steps=3))
            wanted = wanted.lerp(fast, 0.01 * (1 + cos(pi * step / 3)) / 2)
            torch.testing.assert_close(slow, wanted)


def norm_in_process(rank: int, address: str, x: Tensor, weight: Tensor, found: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    norm, mine = GlobalBatchNorm(3), x[4 * rank : 4 * rank + 4].clone().requires_grad_()
    y = norm(mine)
    (y * weight[4 * rank : 4 * rank + 4]).sum().backward()
    found[rank] = (y.detach(), mine.grad, norm.running_mean, norm.running_var, int(norm.num_batches_tracked))
    torch.distributed.destroy_process_group()


def test_batch_norm_over_processes_is_batch_norm_over_their_batches_together(tmp_path: Path) -> None:
    """Oracle: `nn.BatchNorm1d` in one process; outputs, gradients and running statistics."""
    torch.manual_seed(0)
    x, weight = 5 + torch.randn(8, 3), torch.randn(8, 3)
    norm, whole = torch.nn.BatchNorm1d(3), x.clone().requires_grad_()
    y = norm(whole)
    (y * weight).sum().backward()
    with torch.multiprocessing.Manager() as manager:
        found = manager.dict()
        arguments = (f"file://{tmp_path / 'meet'}", x, weight, found)
        torch.multiprocessing.start_processes(norm_in_process, arguments, nprocs=2, start_method="fork")
        parts = [found[rank] for rank in (0, 1)]
    torch.testing.assert_close(torch.cat([p[0] for p in parts]), y.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat([p[1] for p in parts]), whole.grad, atol=1e-5, rtol=1e-4)
    for _, _, mean, variance, count in parts:
        torch.testing.assert_close(mean, norm.running_mean)
        torch.testing.assert_close(variance, norm.running_var)
        assert count == 1


def test_two_processes_learn_as_one(images: Path, tmp_path: Path) -> None:
    """Loss and gradient of the first steps: keys and statistics are those of the whole batch."""
    settings = "model.width=16 model.depth=1 model.heads=2 objective.hidden=32 objective.outputs=8 fit.batch=8"
    words = ["train", "good_moco_cpu", *settings.split(), "fit.steps=3", "fit.log_every=1", "fit.ema=0"]
    found = []
    for launcher in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]):
        out = tmp_path / str(len(found))
        command = [sys.executable, *launcher, "-m", "tilework", *words, "--data", str(images), "--out", str(out)]
        done = subprocess.run([*command, "--device", "cpu"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        found.append([(line["loss"], line["norm"]) for line in lines if "norm" in line])
    assert len(found[0]) == 3
    for one, two in zip(*found, strict=True):
        assert one == pytest.approx(two, rel=1e-3)


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
