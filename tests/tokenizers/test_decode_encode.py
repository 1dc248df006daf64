"""Decode, augment, encode: codes that survive come back, the whole way against single steps by hand, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tilework.augment import CutMix, CutMixOrMixup, LikePixels, Mixup, TokenCrop, apply_all
from tilework.augment.affine import Geometry, warp
from tilework.augment.augment import CPU
from tilework.core.batch import Batch, Mix, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.tokenizers import DecodeEncode, Tokenizer, VitVq, VitVqConfig, VqganConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.decode_encode import ThroughPixels, mixed

CODES, CODE_DIM, PATCH = 12, 3, 4
CUT = [7, 2, 11, 0, 5, 9]  # codes of the store, by their number in the tokenizer
STILL = Geometry(crop=0.0, flip=0.0, turn=0.0)
UNMIXED = CutMixOrMixup(CutMix(0.0), Mixup(0.0))


def write_tokenizer(path: Path, colours: bool, cosine: bool = False) -> Path:
    """Colours: each code is one, a patch has the code nearest to its mean. Else random, its blocks wide awake."""
    torch.manual_seed(0)
    config = VitVqConfig(PATCH, CODES, CODE_DIM, width=8, depth=1, heads=2, cosine=cosine)
    one = config.build(3, (32, 32), 0)
    with torch.no_grad():
        if colours:
            one.straight_in.weight.copy_(torch.eye(3)[..., None, None].expand(3, 3, PATCH, PATCH) / PATCH**2)
            one.straight_in.bias.zero_()  # type: ignore[union-attr]
            one.straight_out.weight.copy_(torch.eye(3).repeat_interleave(PATCH**2, 0))
            one.straight_out.bias.zero_()
            one.quantiser.table.uniform_(0, 1)
        else:
            one.to_code[1].weight.normal_()  # type: ignore[operator]
            one.to_pixels[1].weight.normal_()  # type: ignore[operator]
    save_tokenizer(path, one, config, (32, 32))
    return path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokenizers")
    write_tokenizer(root / "colours", colours=True)
    write_tokenizer(root / "unit", colours=True, cosine=True)
    write_tokenizer(root / "random", colours=False)
    return root


def codebook_of(path: Path, cut: list[int] = CUT) -> Tensor:
    return load_tokenizer(path)[0].codebook.detach()[cut]


def make_batch(count: int = 12, codes: int = len(CUT), side: int = 8) -> Batch:
    g = torch.Generator().manual_seed(count)
    ids = torch.randint(codes, (count, side, side), generator=g, dtype=torch.int32)
    return Batch(ids, Target.hard(torch.arange(count) + 100), torch.arange(count) * 7)


def look_up(ids: Tensor, table: Tensor) -> Tensor:
    return table[ids.long()].permute(0, 3, 1, 2)


def bound(path: Path, table: Tensor | None = None, **settings: Any) -> LikePixels:
    return DecodeEncode(**{"tokenizer": str(path), "size": (8, 8), **settings}).build(
        Codebook.of(codebook_of(path), table)
    )


def run(augment: LikePixels, batch: Batch) -> Batch:
    return apply_all([augment], batch, Draws(0, 0, batch.index))


# codes that survive decoding and encoding


@pytest.mark.parametrize("name", ["colours", "unit"])
def test_without_geometry_and_mixing_codes_come_back(kept: Path, name: str) -> None:
    batch = make_batch()
    out = run(bound(kept / name, geometry=STILL, mixing=UNMIXED), batch)
    assert torch.equal(out.x[:6], look_up(batch.x, codebook_of(kept / name))[:6])
    assert torch.equal(out.target.weight[:6], torch.tensor([1.0, 0.0]).expand(6, 2))


@pytest.mark.parametrize("name", ["colours", "unit"])
def test_flip_is_a_flip_of_the_grid(kept: Path, name: str) -> None:
    batch = make_batch()
    out = run(bound(kept / name, geometry=replace(STILL, flip=1.0), mixing=UNMIXED), batch)
    assert torch.equal(out.x[:6], look_up(batch.x, codebook_of(kept / name)).flip(-1)[:6])


def test_the_model_sees_a_table_and_the_tokenizer_the_codebook(kept: Path) -> None:
    batch, table = make_batch(), torch.randn(len(CUT), CODE_DIM, generator=torch.Generator().manual_seed(1))
    out = run(bound(kept / "colours", table, geometry=STILL, mixing=UNMIXED), batch)
    assert torch.equal(out.x[:6], look_up(batch.x, table)[:6])


# the whole way


@pytest.mark.parametrize("name", ["colours", "unit", "random"])
@pytest.mark.parametrize("size", [(8, 8), (6, 7)])
def test_equals_decode_warp_mix_and_encode_by_hand(kept: Path, size: tuple[int, int], name: str) -> None:
    """Sample by sample, with the tokenizer's own decode; the nearest of the store's codes by a loop."""
    batch, augment = make_batch(), bound(kept / name, size=size, geometry=Geometry(turn=0.8))
    p = augment.sample(Draws(0, 0, batch.index), batch)
    out = augment.apply(batch, p)
    tokenizer, codebook = load_tokenizer(kept / name)[0], codebook_of(kept / name)
    numbers = torch.tensor(CUT)[batch.x.long()]
    fine = (PATCH * size[0], PATCH * size[1])
    pictures = [warp(tokenizer.decode(numbers[i : i + 1]), p.affine[i : i + 1], fine)[0] for i in range(6)]
    shares = p.own.repeat_interleave(PATCH // 2, 1).repeat_interleave(PATCH // 2, 2)
    assert (p.own[:6] < 1).flatten(1).any(1).sum() > 3
    for i in range(6):
        picture = shares[i] * pictures[i] + (1 - shares[i]) * pictures[i - 1 if i else 5]
        features = tokenizer.features(picture[None])[0].detach()  # (h, w, C)
        for row in range(size[0]):
            for column in range(size[1]):
                distances = (codebook - features[row, column]).square().sum(1)
                found = (codebook == out.x[i, :, row, column]).all(1).nonzero().item()
                assert distances[int(found)] <= distances.min() + 1e-5
    assert len(out.x[:6].permute(0, 2, 3, 1).flatten(0, 2).unique(dim=0)) > 1


@pytest.mark.parametrize("name", ["colours", "unit", "random"])
def test_codes_of_pictures_are_the_tokenizers(kept: Path, name: str) -> None:
    tokenizer = load_tokenizer(kept / name)[0]
    pictures = torch.rand(4, 3, 32, 24, generator=torch.Generator().manual_seed(0))
    move = DecodeEncode(tokenizer=str(kept / name)).mover(Codebook.of(tokenizer.codebook.detach()), CPU)
    assert isinstance(move, ThroughPixels)
    found = move.codes(pictures)
    assert torch.equal(found, tokenizer.encode(pictures))
    assert len(found.unique()) > 3


@pytest.mark.parametrize("patch", [2, 4, 6])
def test_boxes_end_where_they_do_on_the_coarser_grid(patch: int) -> None:
    g = torch.Generator().manual_seed(patch)
    pictures, partner = torch.rand(3, 3, 4 * patch, 5 * patch, generator=g), torch.tensor([1, 2, 0])
    own = torch.rand(3, 8, 10, generator=g).round()
    out = mixed(pictures, Mix(partner, own))
    for i in range(3):
        for row in range(4 * patch):
            for column in range(5 * patch):
                mine = own[i, 2 * row // patch, 2 * column // patch] == 1
                assert torch.equal(out[i, :, row, column], pictures[i if mine else partner[i], :, row, column])
    assert mixed(pictures, None) is pictures


def test_no_share_is_a_crop_and_cutmix_of_tokens(kept: Path) -> None:
    batch, path = make_batch(), kept / "random"
    out = run(bound(path, share=0.0, size=(6, 7)), batch)
    steps = [TokenCrop((6, 7)).build(Codebook.of(codebook_of(path))), CutMix()]
    assert torch.allclose(out.x, apply_all(steps, batch, Draws(0, 0, batch.index)).x, atol=1e-5)


def test_nothing_is_learnt_through_it(kept: Path) -> None:
    augment = bound(kept / "random")
    assert isinstance(augment.move, ThroughPixels)
    assert not augment.move.tokenizer.training
    assert not any(p.requires_grad for p in augment.move.tokenizer.parameters())
    assert not run(augment, make_batch()).x.requires_grad


# refusals


def test_other_tokenizers_are_refused(kept: Path) -> None:
    codebook = codebook_of(kept / "colours")
    DecodeEncode(tokenizer=str(kept / "colours")).build(Codebook.of(codebook.flip(0)))  # another cut
    for other in (codebook + 1, codebook[:, :2], codebook_of(kept / "random")):
        with pytest.raises(ConfigError, match=f"{kept / 'colours'} has other codes than the data"):
            DecodeEncode(tokenizer=str(kept / "colours")).build(Codebook.of(other))


@pytest.mark.parametrize("name", ["", "nowhere"])
def test_a_missing_tokenizer_is_refused(kept: Path, tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name) if name else ""
    with pytest.raises(InputError, match="no tokenizer in"):
        DecodeEncode(tokenizer=path).build(Codebook.of(codebook_of(kept / "colours")))


@pytest.mark.parametrize("nothing", [None, Codebook.of(torch.zeros(20, 0))])
def test_it_needs_code_vectors(kept: Path, nothing: Codebook | None) -> None:
    augment = DecodeEncode(tokenizer=str(kept / "colours"), size=(8, 8))
    with pytest.raises(ConfigError, match=r"'decode_encode' needs (a codebook|code vectors)"):
        augment.build(nothing)


@pytest.mark.parametrize("count", [1, 8])
def test_a_tokenizer_without_decoder_is_refused(kept: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Also by the one sample that tells before training what the model will get."""
    monkeypatch.setattr(VitVq, "pixels", Tokenizer.pixels)
    with pytest.raises(ConfigError, match=r"has no decoder.*give a tokenizer that has one"):
        run(bound(kept / "colours"), make_batch(count))


@pytest.mark.parametrize("latent", [6, 8])
def test_codes_of_a_gumbel_quantiser(tmp_path: Path, latent: int) -> None:
    torch.manual_seed(0)
    config = VqganConfig(32, (1, 1), 1, (), latent=latent, codes=12, code_dim=6, gumbel=True)
    tokenizer = config.build(3, (16, 16), 0).eval()
    save_tokenizer(tmp_path / "g", tokenizer, config, (16, 16))
    pixels = torch.rand(4, 3, 16, 16)
    move = DecodeEncode(tokenizer=str(tmp_path / "g")).mover(
        Codebook.of(tokenizer.codebook.detach()), torch.device("cpu")
    )
    assert isinstance(move, ThroughPixels)
    assert torch.equal(move.codes(pixels), tokenizer.encode(pixels))
    few = DecodeEncode(tokenizer=str(tmp_path / "g")).mover(
        Codebook.of(tokenizer.codebook.detach()[[7, 2, 11]]), torch.device("cpu")
    )
    logits = tokenizer.quantiser._logits(tokenizer.features(pixels))
    assert torch.equal(few.codes(pixels), logits[..., [7, 2, 11]].argmax(-1))  # type: ignore[attr-defined]
