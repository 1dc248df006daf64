"""Geometry of codes that stay codes: cuts against a slow loop, the share that goes through TokenAdapt, columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import CodeCut, TokenCrop, TokenGeometry, apply_all
from tilework.augment.adapter import save_adapter
from tilework.augment.affine import Geometry, warp
from tilework.core.batch import Batch, Column, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.layers.token_adapt import TokenAdaptNetwork

CODEBOOK = torch.randn(20, 5, generator=torch.Generator().manual_seed(9))
STILL = Geometry(crop=0.0, flip=0.0, turn=0.0)


@dataclass(frozen=True)
class MapColumn:
    """A column that really moves its data."""

    data: Tensor  # (B, C, H, W)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> MapColumn:
        return MapColumn(warp(self.data, affine, grid))

    def permute(self, source: Tensor) -> MapColumn:
        raise NotImplementedError

    def mix(self, mix: Mix) -> MapColumn:
        raise NotImplementedError

    def to(self, device: torch.device) -> MapColumn:
        return self

    def rows(self, which: slice) -> MapColumn:
        return MapColumn(self.data[which])


def make_batch(count: int = 8, height: int = 8, width: int = 8, dtype: torch.dtype = torch.int32) -> Batch:
    """With the codes as a column too."""
    ids = torch.randint(20, (count, height, width), generator=torch.Generator().manual_seed(count))
    columns: dict[str, Column] = {"copy": MapColumn(ids[:, None].float())}
    return Batch(ids.to(dtype), Target.hard(torch.arange(count)), torch.arange(count) * 7, columns)


def draws(batch: Batch, seed: int = 0) -> Draws:
    return Draws(seed, 0, batch.index)


def copy(batch: Batch) -> Tensor:
    column = batch.columns["copy"]
    assert isinstance(column, MapColumn)
    return column.data[:, 0]


# a cut


@pytest.mark.parametrize(("height", "width", "size"), [(8, 8, (6, 6)), (7, 11, (3, 5)), (6, 9, (6, 9)), (5, 6, (1, 6))])
def test_cut_equals_a_loop(height: int, width: int, size: tuple[int, int]) -> None:
    batch, cut = make_batch(12, height, width), CodeCut(size)
    p = cut.sample(draws(batch), batch)
    out = cut.apply(batch, p)
    assert out.x.shape == (12, *size)
    for i in range(12):
        top, left = p[i].tolist()
        for row in range(size[0]):
            for column in range(size[1]):
                assert out.x[i, row, column] == batch.x[i, top + row, left + column]
    assert torch.equal(out.target.ids, batch.target.ids)
    assert torch.allclose(copy(out), out.x.float(), atol=1e-3), "columns follow"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_codes_stay_the_kind_of_numbers_they_were(dtype: torch.dtype) -> None:
    batch = make_batch(dtype=dtype)
    assert apply_all([CodeCut((3, 4))], batch, draws(batch)).x.dtype == dtype


def test_every_place_is_as_likely_as_any_other() -> None:
    batch = make_batch(6000, 6, 5)
    p = CodeCut((4, 2)).sample(draws(batch), batch)
    counts = torch.zeros(3, 4)
    for top, left in p.tolist():  # 3 x 4 places; an index outside would fail
        counts[top, left] += 1
    assert p.min() >= 0
    assert counts.div(6000).sub(1 / 12).abs().max() < 0.02


def test_cuts_depend_on_seed_and_sample() -> None:
    batch, cut = make_batch(30), CodeCut((3, 3))
    first = cut.sample(draws(batch), batch)
    assert not torch.equal(first, cut.sample(draws(batch, 1), batch))
    assert torch.equal(first[10:], cut.sample(draws(batch.rows(slice(10, None))), batch))


@pytest.mark.parametrize("size", [(9, 4), (4, 11), (9, 11)])
def test_cut_larger_than_the_grid_is_refused(size: tuple[int, int]) -> None:
    batch = make_batch(2, 8, 10)
    with pytest.raises(ConfigError, match=f"a crop of {size[0]}x{size[1]} does not fit a grid of 8x10"):
        apply_all([CodeCut(size)], batch, draws(batch))


# through the network


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path, network = tmp_path_factory.mktemp("files") / "adapter", TokenAdaptNetwork(5, width=16, heads=2)
    network.fit_codes(CODEBOOK)
    save_adapter(path, network, CODEBOOK, {})
    return path


def repeated(network: TokenAdaptNetwork, z: Tensor) -> Tensor:
    """In place of f: each code vector four times."""
    return z.repeat_interleave(2, 2).repeat_interleave(2, 3)


def averaged(network: TokenAdaptNetwork, s: Tensor, codebook: Tensor) -> Tensor:
    """In place of g: how near the mean of four places lies to each code."""
    return -(F.avg_pool2d(s, 2).permute(0, 2, 3, 1)[..., None, :] - codebook).square().sum(-1)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """f repeats and g averages, so that what happens between them can be worked out."""
    monkeypatch.setattr(TokenAdaptNetwork, "f", repeated)
    monkeypatch.setattr(TokenAdaptNetwork, "g", averaged)


def bound(path: Path, **settings: Any) -> TokenGeometry:
    return TokenGeometry(**{"adapter": str(path), "size": (6, 7), **settings}).build(Codebook.of(CODEBOOK))


@pytest.mark.usefixtures("plain")
def test_whole_share_equals_a_loop(saved: Path) -> None:
    """Position by position: the mean of four warped vectors, and the code nearest to it."""
    batch, augment = make_batch(), bound(saved, share=1.0, geometry=Geometry(turn=0.8))
    p = augment.sample(draws(batch), batch)
    out = augment.apply(batch, p)
    large = CODEBOOK[batch.x.long()].permute(0, 3, 1, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    moved = warp(large, p.affine, (12, 14))
    assert out.x.shape == (8, 6, 7)
    assert out.x.dtype == batch.x.dtype
    for i in range(8):
        for row in range(6):
            for column in range(7):
                vector = moved[i, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean((1, 2))
                assert out.x[i, row, column] == (CODEBOOK - vector).square().sum(1).argmin()


@pytest.mark.usefixtures("plain")
def test_whole_share_flips_the_grid_and_its_columns(saved: Path) -> None:
    batch = make_batch()
    out = apply_all([bound(saved, share=1.0, size=(8, 8), geometry=replace(STILL, flip=1.0))], batch, draws(batch))
    assert torch.equal(out.x, batch.x.flip(-1))
    assert torch.allclose(copy(out), out.x.float(), atol=1e-3)


def test_no_share_is_a_resized_crop_to_the_nearest_codes(saved: Path) -> None:
    batch = make_batch(9)
    step = TokenCrop((6, 7), area=(0.2, 1.0)).build(Codebook.of(CODEBOOK))
    out, crop = (apply_all([one], batch, draws(batch)) for one in (bound(saved, share=0.0), step))
    for i in range(9):
        for row in range(6):
            for column in range(7):
                distance = (CODEBOOK - crop.x[i, :, row, column]).square().sum(1)
                assert distance[out.x[i, row, column]] == pytest.approx(distance.min().item(), abs=1e-4)
    assert torch.equal(copy(out), copy(crop))


@pytest.mark.parametrize(("share", "count"), [(0.5, 5), (0.3, 3), (0.9, 9), (0.04, 0), (0.96, 10)])
def test_a_share_goes_through_the_network_and_the_rest_is_cropped(saved: Path, share: float, count: int) -> None:
    """Each part is what it would be alone, and so are its columns."""
    batch = make_batch(10)
    out = apply_all([bound(saved, share=share)], batch, draws(batch))
    assert out.x.shape == (10, 6, 7)
    for part, alone in ((slice(count), 1.0), (slice(count, None), 0.0)):
        half = batch.rows(part)
        expected = apply_all([bound(saved, share=alone)], half, draws(half))
        assert torch.equal(out.x[part], expected.x)
        assert torch.equal(copy(out)[part], copy(expected))


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_small_batches(saved: Path, count: int) -> None:
    batch = make_batch(count)
    out = apply_all([bound(saved)], batch, draws(batch))
    assert out.x.shape == (count, 6, 7)
    assert copy(out).shape == (count, 6, 7)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_codes_of_the_store_in_its_kind_of_numbers(saved: Path, dtype: torch.dtype) -> None:
    few = CODEBOOK[[11, 2, 3, 17]]
    batch = make_batch(dtype=dtype)
    batch = batch.changed(x=batch.x % 4)
    augment = TokenGeometry(adapter=str(saved), share=0.75, size=(6, 7)).build(Codebook.of(few))
    out = apply_all([augment], batch, draws(batch)).x
    assert out.dtype == dtype
    assert set(out.unique().tolist()) <= {0, 1, 2, 3}
    assert len(out[:6].unique()) > 1


def test_a_learnt_table_changes_nothing(saved: Path) -> None:
    """Codes go in and come out: how a model sees them does not matter."""
    batch, augment = make_batch(), TokenGeometry(adapter=str(saved), size=(6, 7))
    one, two = (
        apply_all([augment.build(Codebook.of(CODEBOOK, table))], batch, draws(batch))
        for table in (None, CODEBOOK.flip(0))
    )
    assert torch.equal(one.x, two.x)


# refusals


@pytest.mark.parametrize("share", [-0.5, 1.5, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        decode(TokenGeometry, {**encode(TokenGeometry()), "share": share})


def test_it_needs_a_network_and_its_codes(saved: Path, tmp_path: Path) -> None:
    for nothing in (None, Codebook.of(torch.zeros(20, 0))):
        with pytest.raises(ConfigError, match=r"needs (a codebook|code vectors)"):
            TokenGeometry(adapter=str(saved)).build(nothing)
    with pytest.raises(InputError, match=r"no TokenAdapt in .*nowhere"):
        TokenGeometry(adapter=str(tmp_path / "nowhere")).build(Codebook.of(CODEBOOK))
    with pytest.raises(ConfigError, match="knows other codes"):
        TokenGeometry(adapter=str(saved)).build(Codebook.of(CODEBOOK + 1))
