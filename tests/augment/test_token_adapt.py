"""TokenAdapt as an augmentation: against plain upsampling and pooling, against crop and CutMix of tokens; its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import CutMix, CutMixOrMixup, Mixup, RandomResizedCrop, TokenAdapt, apply_all
from tilework.augment.affine import Geometry, warp
from tilework.augment.adapter import load_adapter, save_adapter
from tilework.core.batch import Batch, Mix, Target
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError
from tilework.core.rng import Draws
from tilework.layers.token_adapt import TokenAdaptNetwork

WEIGHTS, SETTINGS = "weights.safetensors", "token_adapt.json"
CODEBOOK = torch.randn(20, 5, generator=torch.Generator().manual_seed(9))
STILL = Geometry(crop=0.0, flip=0.0, turn=0.0)
UNMIXED = CutMixOrMixup(CutMix(0.0), Mixup(0.0))


@dataclass(frozen=True)
class SpyColumn:
    """A column that notes what it was told."""

    told: list[Any] = field(default_factory=list)

    def warp(self, affine: Tensor, grid: tuple[int, int]) -> SpyColumn:
        return SpyColumn([*self.told, affine, grid])

    def permute(self, source: Tensor) -> SpyColumn:
        raise NotImplementedError

    def mix(self, mix: Mix) -> SpyColumn:
        return SpyColumn([*self.told, mix])

    def to(self, device: torch.device) -> SpyColumn:
        return self

    def rows(self, which: slice) -> SpyColumn:
        return self


def make_ids(count: int, side: int = 8) -> Tensor:
    return torch.randint(20, (count, side, side), generator=torch.Generator().manual_seed(count))


def make_batch(count: int = 8, side: int = 8) -> Batch:
    x = CODEBOOK[make_ids(count, side)].permute(0, 3, 1, 2)
    return Batch(x, Target.hard(torch.arange(count) + 100), torch.arange(count) * 7)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = TokenAdaptNetwork(5, width=16, heads=2)
    network.fit_codes(CODEBOOK)
    save_adapter(tmp_path / "adapter", network, CODEBOOK, {"name": "small", "sha256": "0f"})
    return tmp_path / "adapter"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """f repeats each code vector and g averages, so that what happens between them can be worked out."""
    monkeypatch.setattr(TokenAdaptNetwork, "f", lambda self, z: z.repeat_interleave(2, 2).repeat_interleave(2, 3))
    monkeypatch.setattr(TokenAdaptNetwork, "g", lambda self, s: F.avg_pool2d(s, 2))


def bound(path: Path, **settings: Any) -> TokenAdapt:
    return TokenAdapt(**{"path": str(path), "size": (8, 8), **settings}).bind(CODEBOOK)


def run(augment: TokenAdapt, batch: Batch, seed: int = 0) -> Batch:
    return apply_all([augment], batch, Draws(seed, 0, batch.index))


def same(one: Batch, other: Batch) -> None:
    assert torch.allclose(one.x, other.x, atol=1e-5)
    assert torch.equal(one.target.ids, other.target.ids)
    assert torch.allclose(one.target.weight, other.target.weight)


# through the network


@pytest.mark.usefixtures("plain")
def test_without_geometry_and_mixing_codes_come_back(saved: Path) -> None:
    batch = make_batch()
    out = run(bound(saved, share=1.0, geometry=STILL, mixing=UNMIXED), batch)
    assert torch.equal(out.x, batch.x)
    assert torch.equal(out.target.weight, torch.tensor([1.0, 0.0]).expand(8, 2))


@pytest.mark.usefixtures("plain")
def test_flip_is_a_flip_of_the_grid(saved: Path) -> None:
    batch = make_batch()
    out = run(bound(saved, share=1.0, geometry=replace(STILL, flip=1.0), mixing=UNMIXED), batch)
    assert torch.equal(out.x, batch.x.flip(-1))


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("size", [(8, 8), (6, 7)])
def test_everything_at_once_equals_a_loop(saved: Path, size: tuple[int, int]) -> None:
    """Place by place: warped maps mixed by their shares, the mean of four, the least distance."""
    batch, augment = make_batch(), bound(saved, share=1.0, size=size, geometry=Geometry(turn=0.8))
    p = augment.sample(Draws(0, 0, batch.index), batch)
    out = augment.apply(batch, p)
    large = batch.x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    moved = warp(large, p.affine, (2 * size[0], 2 * size[1]))
    assert (p.own < 1).flatten(1).any(1).all(), "every sample is mixed"
    for i in range(8):
        for row in range(size[0]):
            for column in range(size[1]):
                four = slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2)
                own, mine, other = p.own[i][four], moved[i][(..., *four)], moved[i - 1][(..., *four)]
                vector = (own * mine + (1 - own) * other).mean((1, 2))
                code = int((CODEBOOK - vector).square().sum(1).argmin())
                assert torch.equal(out.x[i, :, row, column], CODEBOOK[code])


def test_what_comes_back_are_codes_of_the_store(saved: Path) -> None:
    few = CODEBOOK[[11, 2, 3, 17]]
    augment = TokenAdapt(path=str(saved), size=(6, 7), share=0.5).bind(few)
    out = run(augment, make_batch())
    vectors = out.x[:4].permute(0, 2, 3, 1).flatten(0, 2)
    assert (vectors[:, None] == few).all(-1).any(-1).all()
    assert len(vectors.unique(dim=0)) > 1
    assert out.x.shape == (8, 5, 6, 7)


def test_nothing_is_learnt_through_it(saved: Path) -> None:
    augment = bound(saved)
    assert augment.network is not None
    assert not augment.network.training
    assert not any(p.requires_grad for p in augment.network.parameters())
    batch = make_batch()
    assert not run(augment, batch.changed(x=batch.x.clone().requires_grad_())).x.requires_grad


def test_the_same_draws_give_the_same_codes(saved: Path) -> None:
    first, again, other = (run(bound(saved), make_batch(), seed) for seed in (0, 0, 1))
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)


# as tokens


@pytest.mark.parametrize("cutmix", [0.0, 0.5, 1.0])
def test_no_share_is_a_crop_and_cutmix_of_tokens(saved: Path, cutmix: float) -> None:
    batch, draws = make_batch(12), Draws(2, 0, make_batch(12).index)
    out = bound(saved, share=0.0, size=(6, 7), area=(0.3, 0.9), cutmix=cutmix)
    expected = apply_all([RandomResizedCrop((6, 7), (0.3, 0.9)), CutMix(cutmix)], batch, draws)
    same(apply_all([out], batch, draws), expected)
    assert (expected.target.weight[:, 0] < 1).any() == (cutmix > 0)


@pytest.mark.parametrize(("share", "count"), [(0.5, 5), (0.3, 3), (0.0, 0), (1.0, 10)])
def test_the_two_parts_of_a_batch_know_nothing_of_each_other(saved: Path, share: float, count: int) -> None:
    batch = make_batch(10)
    out = run(bound(saved, share=share), batch)
    assert out.mix is not None
    assert sorted(out.mix.partner[:count].tolist()) == list(range(count))
    assert sorted(out.mix.partner[count:].tolist()) == list(range(count, 10))
    for part, alone in ((slice(count), 1.0), (slice(count, None), 0.0)):
        if len(batch.x[part]):
            half = Batch(out.x[part], Target(out.target.ids[part], out.target.weight[part]), out.index[part])
            same(half, run(bound(saved, share=alone), batch.rows(part)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_batches(saved: Path, count: int) -> None:
    out = run(bound(saved), make_batch(count))
    assert out.x.shape == (count, 5, 8, 8)
    assert torch.allclose(out.target.weight.sum(1), torch.ones(count))


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
    augment = TokenAdapt(path=str(saved), size=(8, 8))
    with pytest.raises(ConfigError, match=r"call bind\(codebook\) first"):
        run(augment, make_batch())
    for nothing in (None, torch.zeros(20, 0)):
        with pytest.raises(ConfigError, match="needs code vectors"):
            augment.bind(nothing)


def test_another_cut_of_the_codebook_is_fine_but_no_other_codebook(saved: Path) -> None:
    augment = TokenAdapt(path=str(saved))
    for rows in ([0], [19, 3, 7], list(range(20))):
        assert torch.equal(augment.bind(CODEBOOK[rows]).codebook, CODEBOOK[rows])  # type: ignore[arg-type]
    augment.bind(CODEBOOK * (1 + 1e-7))  # unit vectors come out a bit different on another device
    one_off = CODEBOOK.clone()
    one_off[4, 2] += 0.01
    for other in (CODEBOOK + 1, one_off, torch.cat([CODEBOOK, CODEBOOK[:1] * 2]), CODEBOOK[:, :4]):
        with pytest.raises(ConfigError, match=f"{saved} was trained for another tokenizer"):
            augment.bind(other)


# files


def edit(path: Path, **changes: Any) -> None:
    settings = json.loads((path / SETTINGS).read_text())
    (path / SETTINGS).write_text(json.dumps({**settings, **changes}))


def put_weights(path: Path, data: bytes) -> None:
    """Other weights with the right hash."""
    (path / WEIGHTS).write_bytes(data)
    edit(path, sha256=hashlib.sha256(data).hexdigest())


def refused(path: Path) -> None:
    with pytest.raises(DamageError) as caught:
        load_adapter(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_round_trip(tmp_path: Path) -> None:
    network = TokenAdaptNetwork(5, width=24, heads=3)
    network.fit_codes(CODEBOOK)
    save_adapter(tmp_path / "deep/adapter", network, CODEBOOK, {"name": "small", "sha256": "0f"})
    loaded, codebook = load_adapter(tmp_path / "deep/adapter")
    assert torch.equal(codebook, CODEBOOK)
    assert loaded.state_dict().keys() == network.state_dict().keys()
    for name, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    z = make_batch(2).x
    assert torch.equal(loaded.g(loaded.f(z)), network.eval().g(network.f(z)))
    assert sorted(path.name for path in (tmp_path / "deep/adapter").iterdir()) == [SETTINGS, WEIGHTS]
    settings = json.loads((tmp_path / "deep/adapter" / SETTINGS).read_text())
    assert settings["tokenizer"] == {"name": "small", "sha256": "0f"}
    with pytest.raises(OutputError, match="exists"):
        save_adapter(tmp_path / "deep/adapter", network, CODEBOOK, {})


def test_missing_directory_says_how_to_train_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no TokenAdapt in .*nowhere.*tilework train token_adapt"):
        TokenAdapt(path=str(tmp_path / "nowhere")).bind(CODEBOOK)


def test_missing_weights(saved: Path) -> None:
    (saved / WEIGHTS).unlink()
    refused(saved)


@pytest.mark.parametrize("place", [0, 8, 300, -1])
def test_flipped_bit_in_the_weights(saved: Path, place: int) -> None:
    data = bytearray((saved / WEIGHTS).read_bytes())
    data[place] ^= 1
    (saved / WEIGHTS).write_bytes(bytes(data))
    refused(saved)


@pytest.mark.parametrize("data", [b"", b"not weights at all", b"\xff" * 64])
def test_weights_that_are_no_safetensors(saved: Path, data: bytes) -> None:
    put_weights(saved, data)
    refused(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("codebook"),
        lambda t: t.pop("mean"),
        lambda t: t.pop("inlet.weight"),
        lambda t: t.update(extra=torch.zeros(1)),
        lambda t: t.update(mean=torch.zeros(6)),
        lambda t: t.update(codebook=torch.zeros(20)),
        lambda t: t.update(codebook=torch.zeros(20, 6)),
    ],
)
def test_weights_of_another_network(saved: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load((saved / WEIGHTS).read_bytes())
    change(tensors)
    put_weights(saved, save(tensors))
    refused(saved)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '"text"', "{}", "\x00\x01", '{"version": 1}', pytest.param("[" * 10**5, id="deep")],
)
def test_settings_that_are_no_settings(saved: Path, text: str) -> None:
    (saved / SETTINGS).write_text(text)
    refused(saved)


def test_settings_that_are_no_text(saved: Path) -> None:
    (saved / SETTINGS).write_bytes(b"\xff\xfe\x80")
    refused(saved)


@pytest.mark.parametrize("size", [0, -16, 1 << 12, 1 << 40, 1e30, float("inf"), "wide", None, [16], 17, 32])
@pytest.mark.parametrize("name", ["code_dim", "width", "heads"])
def test_sizes_that_do_not_fit_or_are_none(saved: Path, name: str, size: object) -> None:
    edit(saved, **{name: size})
    refused(saved)


def test_other_version(saved: Path) -> None:
    edit(saved, version=2)
    with pytest.raises(DamageError, match="version 2, not 1"):
        load_adapter(saved)
