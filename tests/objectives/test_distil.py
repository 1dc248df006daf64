"""Vector-quantised distillation: the loss against its formula, gradients, the weights of map and pixels, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.objectives import Distil, DistilConfig, ReconstructConfig
from tilework.tokenizers import TeacherCodesConfig, VitVqConfig, save_tokenizer

SETTINGS = {"width": 16, "depth": 1, "heads": 2}


@pytest.fixture
def teacher(tmp_path: Path) -> str:
    torch.manual_seed(0)
    config = TeacherCodesConfig(size=(64, 64), code_dim=4, codes=4, stage=0)
    save_tokenizer(tmp_path / "teacher", config.build(3, (64, 64), 0), config, (64, 64))
    return str(tmp_path / "teacher")


def objective(teacher: str, **settings: object) -> Distil:
    torch.manual_seed(0)
    model = VitVqConfig(patch=8, codes=6, code_dim=4, width=16, depth=1, heads=2, cosine=True).build(3, (32, 32), 0)
    return DistilConfig(teacher=teacher, **{**SETTINGS, **settings}).build(model)


def batch() -> Batch:
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return Batch(x, Target.hard(torch.zeros(4, dtype=torch.int64)), torch.arange(4))


def test_the_loss_is_one_minus_the_mean_cosine(teacher: str) -> None:
    one, x = objective(teacher, warm_steps=1), batch().x
    found = one(batch(), Draws(0, 0, torch.arange(4), 0))
    wanted = one.map(x)
    given = one.restored(one.model.features(x), (wanted.shape[2], wanted.shape[3]))
    expected = (given * wanted).sum(1) / given.norm(dim=1) / wanted.norm(dim=1)  # the formula written out
    torch.testing.assert_close(found["cosine"], expected.mean().detach())
    torch.testing.assert_close(found["loss"], 1 - expected.mean())


def test_gradients_reach_the_encoder_and_codes_but_no_teacher(teacher: str) -> None:
    one = objective(teacher)
    one(batch(), Draws(0, 0, torch.arange(4), 0))["loss"].backward()
    assert one.model.embed.weight.grad.abs().sum() == 0  # type: ignore[union-attr]  # its last layer starts at zero
    assert one.model.straight_in.weight.grad.abs().sum() > 0  # type: ignore[union-attr]
    assert one.model.quantiser.table.grad.abs().sum() > 0  # type: ignore[union-attr]
    assert not any("teacher" in name for name, _ in one.named_parameters())


def test_pixels_beside_the_map(teacher: str) -> None:
    alone, both = objective(teacher), objective(teacher, pixel=2.0)
    draws = Draws(0, 0, torch.arange(4), 0)
    torch.manual_seed(3)
    first = alone(batch(), draws)
    torch.manual_seed(3)
    second = both(batch(), draws)
    torch.testing.assert_close(second["loss"], first["loss"] + 2 * second["mse"], rtol=1e-4, atol=1e-4)
    assert set(both.score(both.model, batch())) == {"mse", "psnr", "cosine"}
    assert set(alone.score(alone.model, batch())) == {"cosine"}
    assert alone.pictures(alone.model, batch()) == {}


def test_it_learns(teacher: str) -> None:
    one = objective(teacher)
    solver, losses = torch.optim.AdamW(one.parameters(), 3e-3), []
    for step in range(25):
        loss = one(batch(), Draws(0, 0, torch.arange(4), step))["loss"]
        solver.zero_grad()
        loss.backward()
        solver.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


def test_the_teacher_may_see_larger_images(teacher: str) -> None:
    small, large = objective(teacher), objective(teacher, teacher_scale=2.0)
    x = batch().x
    assert large.map(x).shape[2] == 2 * small.map(x).shape[2]
    up = F.interpolate(x, (64, 64), mode="bilinear", antialias=True, align_corners=False)
    torch.testing.assert_close(large.map(x), small.map(up), rtol=1e-4, atol=1e-4)


def test_bad_input(teacher: str, tmp_path: Path) -> None:
    config = VitVqConfig(patch=8, codes=6, code_dim=4, width=16, depth=1, heads=2)
    save_tokenizer(tmp_path / "plain", config.build(3, (32, 32), 0), config, (32, 32))
    with pytest.raises(ConfigError, match="is a VitVq, without a teacher's map"):
        objective(str(tmp_path / "plain"))
    with pytest.raises(ConfigError, match=r"feature=0, pixel=0, teacher_scale=1"):
        DistilConfig(feature=0.0).check((), 10)
    frozen = TeacherCodesConfig(size=(64, 64), code_dim=4, codes=4).build(3, (64, 64), 0)
    with pytest.raises(ConfigError, match="a TeacherCodes has nothing to train"):
        ReconstructConfig().build(frozen)
