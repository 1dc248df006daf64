"""TokenAdapt as an augmentation: against plain upsampling and pooling, against crop, colour and CutMix of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import CutMix, CutMixOrMixup, LikePixels, Mixup, TokenAdapt, TokenColour, TokenCrop, apply_all
from tilework.augment.adapter import Adapter, save_adapter
from tilework.augment.affine import Geometry, warp
from tilework.augment.color_adapt import adapt_colour
from tilework.core.batch import Batch, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.layers.token_adapt import TokenAdaptNetwork

CODEBOOK = torch.randn(20, 5, generator=torch.Generator().manual_seed(9))
TABLE = torch.randn(20, 5, generator=torch.Generator().manual_seed(10))  # learnt vectors in its place
STILL = Geometry(crop=0.0, flip=0.0, turn=0.0)
UNMIXED = CutMixOrMixup(CutMix(0.0), Mixup(0.0))
QUIET, ADAPTED, NOISY = TokenColour(0.0, 0.0), TokenColour(0.0, 1.0), TokenColour(1.0, 0.0)


@dataclass(frozen=True)
class SpyColumn:
    """A column that notes what it was told."""

    told: list[Any] = field(default_factory=list)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> SpyColumn:
        return SpyColumn([*self.told, affine, grid])

    def permute(self, source: Tensor) -> SpyColumn:
        raise NotImplementedError

    def mix(self, mix: Mix) -> SpyColumn:
        return SpyColumn([*self.told, mix])

    def to(self, device: torch.device) -> SpyColumn:
        return self

    def rows(self, which: slice) -> SpyColumn:
        return self


def make_batch(count: int = 8, side: int = 8, codes: int = 20) -> Batch:
    g = torch.Generator().manual_seed(count)
    ids = torch.randint(codes, (count, side, side), generator=g, dtype=torch.int32)
    return Batch(ids, Target.hard(torch.arange(count) + 100), torch.arange(count) * 7)


def look_up(ids: Tensor, table: Tensor = CODEBOOK) -> Tensor:
    return table[ids.long()].permute(0, 3, 1, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path, network = tmp_path_factory.mktemp("files") / "adapter", TokenAdaptNetwork(5, width=16, heads=2)
    network.fit_codes(CODEBOOK)
    save_adapter(path, network, CODEBOOK, {"name": "small", "sha256": "0f"})
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


def bound(path: Path, codebook: Tensor = CODEBOOK, table: Tensor | None = None, **settings: Any) -> LikePixels:
    return TokenAdapt(**{"adapter": str(path), "size": (8, 8), **settings}).build(Codebook.of(codebook, table))


def run(augment: LikePixels, batch: Batch, seed: int = 0) -> Batch:
    torch.manual_seed(seed)  # noise comes from torch's generator
    return apply_all([augment], batch, Draws(seed, 0, batch.index))


def same(one: Batch, other: Batch) -> None:
    assert torch.allclose(one.x, other.x, atol=1e-5)
    assert torch.equal(one.target.ids, other.target.ids)
    assert torch.allclose(one.target.weight, other.target.weight)


# through the network: the first half of a batch


@pytest.mark.usefixtures("plain")
def test_without_geometry_and_mixing_codes_come_back(saved: Path) -> None:
    batch = make_batch()
    out = run(bound(saved, geometry=STILL, mixing=UNMIXED), batch)
    assert torch.equal(out.x[:4], look_up(batch.x)[:4])
    assert torch.equal(out.target.weight[:4], torch.tensor([1.0, 0.0]).expand(4, 2))


@pytest.mark.usefixtures("plain")
def test_flip_is_a_flip_of_the_grid(saved: Path) -> None:
    batch = make_batch()
    out = run(bound(saved, geometry=replace(STILL, flip=1.0), mixing=UNMIXED), batch)
    assert torch.equal(out.x[:4], look_up(batch.x).flip(-1)[:4])


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("colour", [QUIET, TokenColour(0.4, 0.4)])
@pytest.mark.parametrize("size", [(8, 8), (6, 7)])
def test_everything_at_once_equals_a_loop(saved: Path, size: tuple[int, int], colour: TokenColour) -> None:
    """By position: vectors in other colours, warped maps mixed by shares, the mean of four, the least distance."""
    batch, augment = make_batch(20), bound(saved, size=size, geometry=Geometry(turn=0.8), colour=colour)
    torch.manual_seed(0)
    p = augment.sample(Draws(0, 0, batch.index), batch)
    out = augment.apply(batch, p)
    z = look_up(batch.x[:10])
    coloured = z.clone()
    for i in p.colours[0].adapted.nonzero()[:, 0].tolist():
        coloured[i] = adapt_colour(z[i : i + 1], z[(i + 9) % 10][None])[0]
    for i, noise in zip(p.colours[0].noise.rows.tolist(), p.colours[0].noise.values, strict=True):
        coloured[i] += noise
    assert (coloured != z).any() == (colour != QUIET)
    large = coloured.repeat_interleave(2, 2).repeat_interleave(2, 3)
    moved = warp(large, p.affine, (2 * size[0], 2 * size[1]))
    assert (p.own[:10] < 1).flatten(1).any(1).sum() > 7, "nearly every sample is mixed"
    for i in range(10):
        for row in range(size[0]):
            for column in range(size[1]):
                four = slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2)
                own, mine, other = p.own[i][four], moved[i][(..., *four)], moved[(i + 9) % 10][(..., *four)]
                vector = (own * mine + (1 - own) * other).mean((1, 2))
                code = int((CODEBOOK - vector).square().sum(1).argmin())
                assert torch.equal(out.x[i, :, row, column], CODEBOOK[code])


def test_what_comes_back_are_codes_of_the_store(saved: Path) -> None:
    few = CODEBOOK[[11, 2, 3, 17]]
    out = run(bound(saved, few, size=(6, 7)), make_batch(codes=4))
    vectors = out.x[:4].permute(0, 2, 3, 1).flatten(0, 2)
    assert (vectors[:, None] == few).all(-1).any(-1).all()
    assert len(vectors.unique(dim=0)) > 1
    assert out.x.shape == (8, 5, 6, 7)


def test_long_numbers_will_do(saved: Path) -> None:
    batch = make_batch()
    assert torch.equal(run(bound(saved), batch.changed(x=batch.x.long())).x, run(bound(saved), batch).x)


def test_nothing_is_learnt_through_it(saved: Path) -> None:
    augment = bound(saved, table=TABLE)
    assert isinstance(augment.move, Adapter)
    assert not augment.move.network.training
    assert not any(p.requires_grad for p in augment.move.network.parameters())
    assert not run(augment, make_batch()).x.requires_grad


@pytest.mark.parametrize("colour", [QUIET, TokenColour()])
def test_the_same_draws_give_the_same_vectors(saved: Path, colour: TokenColour) -> None:
    first, again, other = (run(bound(saved, colour=colour), make_batch(), seed) for seed in (0, 0, 1))
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)


# as tokens: the rest


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("table", [None, TABLE])
@pytest.mark.parametrize("colour", [QUIET, ADAPTED, NOISY, TokenColour(0.4, 0.4)])
@pytest.mark.parametrize("cutmix", [CutMix(0.0), CutMix(0.5), CutMix(1.0, alpha=0.4)])
def test_no_share_is_crop_colour_and_cutmix_of_tokens(
    saved: Path, cutmix: CutMix, colour: TokenColour, table: Tensor | None, standardise: bool
) -> None:
    batch, draws, size, area = make_batch(12), Draws(2, 0, make_batch(12).index), (6, 7), (0.3, 0.9)
    whole = bound(
        saved,
        table=table,
        share=0.0,
        size=size,
        area=area,
        cutmix=cutmix,
        colour=colour,
        standardise=standardise,
    )
    steps = [TokenCrop(size, area, standardise=standardise).build(Codebook.of(CODEBOOK, table)), colour, cutmix]
    torch.manual_seed(5)
    expected = apply_all(steps, batch, draws)
    torch.manual_seed(5)
    same(apply_all([whole], batch, draws), expected)
    assert (expected.target.weight[:, 0] < 1).any() == (cutmix.probability > 0)


@pytest.mark.parametrize(("share", "count"), [(0.5, 5), (0.3, 3), (0.0, 0), (0.9, 9)])
def test_the_two_parts_of_a_batch_know_nothing_of_each_other(saved: Path, share: float, count: int) -> None:
    """Other codes in one part change nothing in the other; colours and mixtures come from the same part."""
    batch, augment = make_batch(10), bound(saved, share=share, colour=ADAPTED)
    p = augment.sample(Draws(0, 0, batch.index), batch)
    out = augment.apply(batch, p)
    assert out.mix is not None
    assert sorted(out.mix.partner[:count].tolist()) == list(range(count))
    assert sorted(out.mix.partner[count:].tolist()) == list(range(count, 10))
    for part in (slice(count), slice(count, None)):
        ids = (batch.x + 1) % 20
        ids[part] = batch.x[part]
        assert torch.equal(augment.apply(batch.changed(x=ids), p).x[part], out.x[part])


def test_the_rest_is_a_batch_of_its_own(saved: Path) -> None:
    batch = make_batch(10)
    out, alone = run(bound(saved), batch), run(bound(saved, share=0.0), batch.rows(slice(5, None)))
    same(out.rows(slice(5, None)), alone)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_batches(saved: Path, count: int) -> None:
    out = run(bound(saved, colour=TokenColour()), make_batch(count))
    assert out.x.shape == (count, 5, 8, 8)
    assert out.x.isfinite().all()
    assert torch.allclose(out.target.weight.sum(1), torch.ones(count))


# colour


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("colour", [ADAPTED, NOISY])
def test_colours_change_before_samples_are_mixed(saved: Path, colour: TokenColour) -> None:
    """Colour, then mix, by hand for both halves; the other order gives something else."""
    whole = (1.0, 1.0)
    augment = bound(saved, geometry=STILL, area=whole, cutmix=CutMix(alpha=0.8), colour=colour)
    batch = make_batch(12)
    torch.manual_seed(0)
    p = augment.sample(Draws(0, 0, batch.index), batch)
    p = replace(p, box=torch.eye(2, 3).repeat(6, 1, 1))
    out = augment.apply(batch, p).x
    for part, colours in zip((slice(6), slice(6, None)), p.colours, strict=True):
        z, own = look_up(batch.x[part]), F.avg_pool2d(p.own[part], 2)[:, None]
        right, wrong = (
            own * colour.change(z, colours) + (1 - own) * colour.change(z, colours).roll(1, 0),
            colour.change(own * z + (1 - own) * z.roll(1, 0), colours),
        )
        if part == slice(6):  # through the network, which quantises
            right, wrong = (
                look_up(torch.cdist(y.permute(0, 2, 3, 1).flatten(1, 2), CODEBOOK).argmin(-1).view(6, 8, 8))
                for y in (right, wrong)
            )
        assert (out[part] - right).abs().amax(1).gt(1e-4).float().mean() < 0.005, "but for ties"
        assert (out[part] - wrong).abs().amax(1).gt(1e-4).float().mean() > 0.05


# vectors that the model sees


def codes_of(x: Tensor, table: Tensor) -> Tensor:
    """The code of each place, whose vectors must be exactly those of a table. x: (B, C, H, W)."""
    equal = (x.permute(0, 2, 3, 1)[..., None, :] == table).all(-1)
    assert equal.any(-1).all()
    return equal.float().argmax(-1)


@pytest.mark.parametrize("standardise", [False, True])
def test_the_network_sees_the_codebook_and_the_model_a_table(saved: Path, standardise: bool) -> None:
    settings = {"colour": TokenColour(0.3, 0.3), "standardise": standardise}
    batch = make_batch(10)
    one, two = run(bound(saved, **settings), batch), run(bound(saved, table=TABLE, **settings), batch)
    mean, deviation = CODEBOOK.mean(0), (CODEBOOK - CODEBOOK.mean(0)).square().mean(0).sqrt()
    usual = (CODEBOOK - mean) / deviation if standardise else CODEBOOK
    exact = "donot_use_mm_for_euclid_dist"
    nearest = torch.cdist(one.x[:5].permute(0, 2, 3, 1).flatten(0, 2), usual, compute_mode=exact)
    assert nearest.amin(1).max() < 1e-3, "vectors of codes, standardised or not"
    codes = codes_of(two.x[:5], TABLE)  # a table is never standardised
    assert torch.equal(nearest.argmin(1).view_as(codes), codes)
    assert len(codes.unique()) > 3


@pytest.mark.parametrize("standardise", [False, True])
def test_standardising_does_not_change_the_codes(saved: Path, standardise: bool) -> None:
    """Of adapted samples; the others are crops of the standardised codebook."""
    batch = make_batch()
    augment = bound(saved, standardise=standardise)
    table = augment.table
    assert table is not None
    assert torch.equal(augment.vectors, CODEBOOK)
    assert table.std(0, correction=0).allclose(torch.ones(5)) == standardise
    raw = codes_of(run(bound(saved), batch).x[:4], CODEBOOK)
    assert torch.equal(codes_of(run(augment, batch).x[:4], table), raw)


# labels and columns


def test_labels_are_shared_like_the_places(saved: Path) -> None:
    batch = make_batch(40)
    out = run(bound(saved), batch)
    assert out.mix is not None
    assert out.mix.own.shape == (40, 16, 16)
    for i in range(40):
        mine, other = 100 + i, 100 + int(out.mix.partner[i])
        assert out.target.ids[i].tolist() == [mine, other]
        assert out.target.weight[i, 0] == pytest.approx(out.mix.own[i].mean().item())
    assert torch.allclose(out.target.weight.sum(1), torch.ones(40))
    by_area = out.mix.own.unflatten(2, (8, 2)).unflatten(1, (8, 2)).mean((2, 4))
    assert torch.allclose(out.mix.at(8, 8), by_area)
    mixed_up = (out.mix.own[:20] > 0) & (out.mix.own[:20] < 1)
    assert 0 < mixed_up.flatten(1).any(1).sum() < 20, "mixup and CutMix, through the network"
    assert set(out.mix.at(8, 8)[20:].unique().tolist()) <= {0.0, 1.0}, "whole codes, as tokens"


def test_columns_follow_their_samples(saved: Path) -> None:
    batch, augment = make_batch().changed(columns={"spy": SpyColumn()}), bound(saved, size=(6, 7))
    p = augment.sample(Draws(0, 0, batch.index), batch)
    out = augment.apply(batch, p)
    affine, grid, mix = out.columns["spy"].told  # type: ignore[attr-defined]
    assert torch.equal(affine, torch.cat([p.affine, p.box]))
    assert grid == (6, 7)
    assert mix is out.mix


# settings


@pytest.mark.parametrize("share", [-0.5, 1.5, float("nan")])
def test_impossible_shares_are_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        decode(TokenAdapt, {**encode(TokenAdapt()), "share": share})


def test_it_needs_code_vectors(saved: Path) -> None:
    augment = TokenAdapt(adapter=str(saved), size=(8, 8))
    for nothing in (None, Codebook.of(torch.zeros(20, 0))):
        with pytest.raises(ConfigError, match=r"needs (a codebook|code vectors)"):
            augment.build(nothing)


def test_it_needs_a_trained_network_for_these_codes(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a trained TokenAdapt: give --adapter"):
        TokenAdapt().build(Codebook.of(CODEBOOK))
    with pytest.raises(InputError, match=r"no TokenAdapt in .*tilework train token_adapt"):
        TokenAdapt(adapter=str(tmp_path / "nowhere")).build(Codebook.of(CODEBOOK))
    with pytest.raises(ConfigError, match=f"{saved} knows other codes than the data"):
        TokenAdapt(adapter=str(saved)).build(Codebook.of(CODEBOOK + 1))


@pytest.mark.parametrize(("share", "count"), [(1.0, 6), (0.99, 6), (0.5, 0)])
def test_empty_halves(saved: Path, share: float, count: int) -> None:
    batch = make_batch(count)
    out = apply_all([bound(saved, share=share)], batch, Draws(0, 0, batch.index))
    assert out.x.shape == (count, 5, 8, 8)
    twice = make_batch(12)
    half = apply_all([bound(saved, share=0.5)], twice, Draws(0, 0, twice.index))
    whole = apply_all([bound(saved, share=1.0)], twice.rows(slice(6)), Draws(0, 0, twice.index[:6]))
    assert torch.equal(half.x[:6], whole.x)
    assert torch.equal(half.target.weight[:6], whole.target.weight)


@pytest.mark.parametrize("table", [None, TABLE])
def test_codes_instead_of_vectors_are_the_nearest_of_the_tokenizers(saved: Path, table: Tensor | None) -> None:
    """The first part by its vectors, the rest by the least distance; a learnt table changes neither."""
    settings = {"size": (6, 7), "colour": TokenColour(0.3, 0.3)}
    batch = make_batch(12)
    vectors = run(bound(saved, **settings), batch)
    codes = run(bound(saved, table=table, standardise=table is not None, requantise=True, **settings), batch)
    assert codes.x.shape == (12, 6, 7)
    assert codes.x.dtype == batch.x.dtype
    assert torch.equal(codes.x[:6], codes_of(vectors.x[:6], CODEBOOK).to(batch.x.dtype))
    distance = torch.cdist(vectors.x[6:].permute(0, 2, 3, 1).flatten(0, 2), CODEBOOK)
    chosen = distance.gather(1, codes.x[6:].long().flatten()[:, None])[:, 0]
    torch.testing.assert_close(chosen, distance.amin(1), atol=1e-3, rtol=1e-3)
    assert torch.equal(codes.target.ids, vectors.target.ids)
    assert torch.equal(codes.target.weight, vectors.target.weight)


@pytest.mark.parametrize("scale", [0.05, 1.0, 40.0])
@pytest.mark.parametrize("table", [None, TABLE])
@pytest.mark.parametrize("standardise", [False, True])
def test_noise_of_both_parts_has_twice_the_variance_of_the_vectors_beside_it(
    monkeypatch: pytest.MonkeyPatch, scale: float, table: Tensor | None, standardise: bool
) -> None:
    """Of the tokenizer's vectors for what goes through the network, of the model's for the rest."""
    monkeypatch.setattr(TokenAdapt, "mover", lambda *_: lambda z, *_: z[:, 0].long())
    book = Codebook.of(CODEBOOK * scale, table)
    augment = TokenAdapt(size=(8, 8), colour=NOISY, standardise=standardise).build(book)
    batch = make_batch(800)
    torch.manual_seed(0)
    p = augment.sample(Draws(0, 0, batch.index), batch)
    for colours, vectors in zip(p.colours, (book.vectors, book.table(standardise)), strict=True):
        assert colours.noise.values.var() / vectors.var(0).mean() == pytest.approx(2.0, abs=0.1)
