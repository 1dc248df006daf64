"""Token-RRC against the paper's way: one-hot maps, torch's bicubic resize, then the codebook product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import Embed, RandomResizedCrop, TokenCrop, apply_all
from tilework.augment.crop import warp_axes
from tilework.augment.token_crop import crop_codes
from tilework.core.affine import box_affine
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws

K, C = 50, 8
CODEBOOK = torch.randn(K, C, generator=torch.Generator().manual_seed(1))


def make_batch(count: int, grid: tuple[int, int] = (32, 32)) -> Batch:
    ids = torch.randint(0, K, (count, *grid), dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    return Batch(ids, Target.hard(torch.zeros(count, dtype=torch.int64)), torch.arange(count))


def one_hot_crop(ids: Tensor, box: tuple[int, int, int, int], size: tuple[int, int]) -> Tensor:
    """Box of whole places, cut from the one-hot map, resized by torch, multiplied by the codebook. ids: (H, W)."""
    top, left, height, width = box
    hot = F.one_hot(ids.long(), K).permute(2, 0, 1)[None].float()  # (1, K, H, W)
    cut = hot[:, :, top : top + height, left : left + width]
    resized = F.interpolate(cut, size, mode="bicubic", align_corners=False)
    return torch.einsum("bkhw,kc->bchw", resized, CODEBOOK)[0]


@pytest.mark.parametrize("size", [(28, 28), (7, 11)])
def test_whole_image_against_one_hot(size: tuple[int, int]) -> None:
    ids = make_batch(3).x
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(3, 4).unbind(1)
    out = crop_codes(ids, CODEBOOK, box_affine(*whole), size)
    expected = torch.stack([one_hot_crop(one, (0, 0, 32, 32), size) for one in ids])
    assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("grid", [(32, 32), (20, 13)])
def test_random_crops_against_one_hot(grid: tuple[int, int]) -> None:
    batch = make_batch(40, grid)
    affine = RandomResizedCrop().sample(Draws(1, 0, batch.index), batch)
    out = crop_codes(batch.x, CODEBOOK, affine, (28, 28))
    for ids, map_, found in zip(batch.x, affine, out, strict=True):
        height, width = float(map_[1, 1]) * grid[0], float(map_[0, 0]) * grid[1]
        top = (float(map_[1, 2]) + 1 - float(map_[1, 1])) / 2 * grid[0]
        left = (float(map_[0, 2]) + 1 - float(map_[0, 0])) / 2 * grid[1]
        box = [top, left, height, width]
        assert box == pytest.approx([round(n) for n in box], abs=1e-4)  # whole places
        whole = (round(top), round(left), round(height), round(width))
        assert torch.allclose(found, one_hot_crop(ids, whole, (28, 28)), atol=2e-5)


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("grid", [(32, 32), (9, 14)])
def test_equals_embed_then_crop(grid: tuple[int, int], standardise: bool) -> None:
    batch = make_batch(16, grid)
    draws = Draws(5, 2, batch.index)
    one = apply_all([TokenCrop((6, 10), standardise=standardise).build(Codebook.of(CODEBOOK))], batch, draws).x
    two = apply_all([Embed(standardise).build(Codebook.of(CODEBOOK)), RandomResizedCrop((6, 10))], batch, draws).x
    assert one.shape == (16, C, 6, 10)
    assert torch.allclose(one, two, atol=1e-5)


def test_crop_of_a_map_does_not_depend_on_its_memory_format() -> None:
    x = torch.randn(5, 4, 9, 7)
    affine = RandomResizedCrop().sample(Draws(0, 0, torch.arange(5)), make_batch(5).changed(x=x))
    there = warp_axes(x.to(memory_format=torch.channels_last), affine, (6, 8))
    assert torch.allclose(warp_axes(x, affine, (6, 8)), there, atol=1e-6)
    assert there.is_contiguous(memory_format=torch.channels_last)


def test_needs_a_codebook() -> None:
    with pytest.raises(ConfigError, match="'token_crop' needs a codebook"):
        TokenCrop().build(None)


def test_crop_of_nothing() -> None:
    batch = make_batch(0)
    assert apply_all([TokenCrop((6, 7)).build(Codebook.of(CODEBOOK))], batch, Draws(0, 0, batch.index)).x.shape == (
        0,
        CODEBOOK.shape[1],
        6,
        7,
    )
