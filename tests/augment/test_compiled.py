"""Compiled crop and edits of codes against the torch paths, which other tests hold to published code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilework.augment import TokenCrop, TokenEda
from tilework.augment.mixing import mix_maps
from tilework.augment.token_crop import crop_codes
from tilework.augment.token_eda import sample_squares
from tilework.core.batch import Batch, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.rng import Draws

pytest.importorskip("numba")
K, C = 37, 5
CODEBOOK = torch.randn(K, C, generator=torch.Generator().manual_seed(1))


def batch_of(count: int, grid: tuple[int, int]) -> Batch:
    ids = torch.randint(0, K, (count, *grid), dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    return Batch(ids, Target.hard(torch.zeros(count, dtype=torch.int64)), torch.arange(count))


def both(monkeypatch: pytest.MonkeyPatch, call: object) -> tuple[Tensor, Tensor]:
    monkeypatch.setenv("TILEWORK_KERNELS", "0")
    slow = call()  # type: ignore[operator]
    monkeypatch.setenv("TILEWORK_KERNELS", "1")
    return slow, call()  # type: ignore[operator]


@pytest.mark.parametrize("grid", [(32, 32), (20, 13), (3, 4)])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_crops_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, grid: tuple[int, int], threads: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    batch = batch_of(40, grid)
    step = TokenCrop((7, 9)).build(Codebook.of(CODEBOOK.numpy()))
    p = step.sample(Draws(1, 0, batch.index), batch)
    slow, fast = both(monkeypatch, lambda: step.apply(batch, p).x)
    assert torch.allclose(slow, fast, atol=2e-5)
    assert slow.stride() == fast.stride()


@pytest.mark.parametrize("map_", [[[-1, 0, 0], [0, 1, 0]], [[0.5, 0, 0.9], [0, 2.5, 0]], [[0, 0, 5], [0, 0, 5]]])
def test_maps_that_leave_the_image_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, map_: list[list[float]]) -> None:
    ids, affine = batch_of(2, (8, 8)).x, torch.tensor([map_, map_], dtype=torch.float32)
    slow, fast = both(monkeypatch, lambda: crop_codes(ids, CODEBOOK, affine, (5, 5)))
    assert torch.allclose(slow, fast, atol=2e-5)


@pytest.mark.parametrize("config", [TokenEda(), TokenEda(synonym=1.0, swap=0.0), TokenEda(synonym=0, swap=1, side=0.5)])
def test_edits_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, config: TokenEda) -> None:
    batch = batch_of(60, (9, 12))
    step = config.build(Codebook.of(CODEBOOK.numpy()))
    torch.manual_seed(0)
    p = step.sample(Draws(3, 1, batch.index), batch)
    slow, fast = both(monkeypatch, lambda: step.apply(batch, p).x)
    assert torch.equal(slow, fast)
    assert not torch.equal(fast, batch.x)


@pytest.mark.parametrize("code", [-1, K])
def test_a_code_that_is_not_in_the_table_is_refused(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", "1")
    batch = batch_of(3, (8, 8))
    batch.x[1, 2, 3] = code
    for config in (TokenCrop((5, 5)), TokenEda()):
        step = config.build(Codebook.of(CODEBOOK.numpy()))
        with pytest.raises(IndexError, match=r"outside 0\.\.36"):
            step.apply(batch, step.sample(Draws(0, 0, batch.index), batch))


def test_a_table_that_is_learnt_keeps_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", "1")
    table = CODEBOOK.clone().requires_grad_()
    affine = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
    crop_codes(batch_of(1, (8, 8)).x, table, affine, (5, 5)).sum().backward()
    assert table.grad is not None
    assert table.grad.abs().sum() > 0


@pytest.mark.parametrize("grid", [(9, 12), (32, 32), (3, 3)])
def test_corners_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, grid: tuple[int, int]) -> None:
    u = torch.rand(500, 3, generator=torch.Generator().manual_seed(0))
    side = torch.arange(500) % (min(grid) // 2 + 1)
    slow, fast = both(monkeypatch, lambda: sample_squares(u, side, grid))
    assert torch.equal(slow.side, fast.side)
    kept = slow.side > 0
    assert torch.equal(slow.first[kept], fast.first[kept])
    assert torch.equal(slow.second[kept], fast.second[kept])


@pytest.mark.parametrize("share", ["box", "mixup"])
def test_maps_are_mixed_as_without_kernels(share: str) -> None:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(5, 3, 4, 6, generator=g).contiguous(memory_format=torch.channels_last)
    own = torch.rand(5, 4, 6, generator=g)
    p = Mix(torch.tensor([4, 2, 2, 0, 1]), own if share == "mixup" else (own > 0.4).float())
    before, out = x.clone(), mix_maps(x, p)
    torch.testing.assert_close(out, p.apply(x), rtol=0, atol=0 if share == "box" else 1e-6)
    assert out.stride() == x.stride()
    assert torch.equal(x, before), "not in place"
    wide = mix_maps(x[..., :2], p)  # whose share lies on another grid, in memory that is not its own
    torch.testing.assert_close(wide, p.apply(x[..., :2]))


def test_maps_with_gradients_are_mixed_by_torch() -> None:
    x = torch.randn(2, 3, 4, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    mix_maps(x, Mix(torch.tensor([1, 0]), torch.full((2, 4, 6), 0.25))).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones_like(x))


def test_synonyms_are_drawn_for_the_samples_that_get_some() -> None:
    batch = batch_of(400, (6, 7))
    step = TokenEda(synonym=0.5, swap=0).build(Codebook.of(CODEBOOK))
    torch.manual_seed(0)
    p = step.sample(Draws(0, 0, batch.index), batch)
    edited = p.factor < 1e6
    assert (p.dense[~edited] == 1).all()
    drawn = p.dense[edited]
    assert 0 <= drawn.min() <= drawn.max() < 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.01)
