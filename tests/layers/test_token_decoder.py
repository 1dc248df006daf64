"""The decoder of masked token modelling: where visible patches go, what stands for the others, against a slow loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tilework.layers.token_decoder import TokenDecoder

WIDTH, PLACES, CODES, DIM, INNER = 6, 5, 4, 3, 8  # CODES: of a patch
FILLS = ["mask", "class"]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def decoder(fill: str = "mask", depth: int = 2) -> TokenDecoder:
    torch.manual_seed(0)
    one = TokenDecoder(WIDTH, PLACES, CODES, DIM, INNER, depth, 2, fill).requires_grad_(False)
    for parameter in (one.mask, one.pos_embed):
        if parameter is not None:
            parameter.normal_()
    return one


def shuffled(batch: int, seed: int = 0) -> Tensor:
    """Visible places, then hidden ones, (B, N)."""
    return torch.rand(batch, PLACES, generator=torch.Generator().manual_seed(seed)).argsort(1)


def location(order: Tensor) -> Tensor:
    """The inverse of each permutation, by a loop."""
    place = torch.empty_like(order)
    for sample, row in enumerate(order.tolist()):
        for rank, number in enumerate(row):
            place[sample, number] = rank
    return place


def slow(one: TokenDecoder, feature: Tensor, tokens: Tensor, order: Tensor) -> Tensor:
    """Sample by sample, patch by patch."""
    samples = []
    for sample in range(len(feature)):
        first = one.inlet(feature[sample])
        rows: list[Any] = [None] * PLACES
        for rank, number in enumerate(order[sample].tolist()):
            if rank < tokens.shape[1]:
                rows[number] = one.inlet(tokens[sample, rank])
            else:
                rows[number] = first if one.mask is None else one.mask[0, 0]
        x = torch.stack([first, *rows])[None] + one.pos_embed
        for block in one.blocks:
            x, _ = block(x)
        said = torch.stack([one.outlet(one.norm(row)).view(CODES, DIM) for row in x[0, 1:]])
        curved = said * (1 + torch.erf(said / 2**0.5)) / 2  # GELU
        centred = curved - curved.mean(-1, keepdim=True)
        samples.append(centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    return torch.stack(samples)


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("visible", range(PLACES + 1))
def test_patches_stand_in_their_places(fill: str, visible: int) -> None:
    one, order = decoder(fill).double(), shuffled(3)  # in fp32 they differ by 2e-5 on some processors
    feature, tokens = noise(3, WIDTH).double(), noise(3, visible, WIDTH, seed=1).double()
    out = one(feature, tokens, location(order))
    assert out.shape == (3, PLACES, CODES, DIM)
    torch.testing.assert_close(out, slow(one, feature, tokens, order), atol=1e-10, rtol=1e-10)


def test_the_order_of_the_visible_ones_does_not_matter() -> None:
    one, feature, tokens, order = decoder(), noise(2, WIDTH), noise(2, 3, WIDTH, seed=1), shuffled(2)
    swapped = order[:, [2, 0, 1, 4, 3]]
    out, same = one(feature, tokens, location(order)), one(feature, tokens[:, [2, 0, 1]], location(swapped))
    torch.testing.assert_close(out, same)


def test_places_are_told_apart_by_their_positions_alone() -> None:
    one, feature = decoder(), noise(1, WIDTH)
    out = one(feature, torch.empty(1, 0, WIDTH), torch.arange(PLACES)[None])
    assert len(out[0].flatten(1).unique(dim=0)) == PLACES
    one.pos_embed[:, 1:] = one.pos_embed[:, 1:2].clone()
    same = one(feature, torch.empty(1, 0, WIDTH), torch.arange(PLACES)[None])
    torch.testing.assert_close(same, same[:, :1].expand_as(same))


def test_the_class_feature_as_filling() -> None:
    """As a mask vector that is the class feature of each sample."""
    masked, classed = decoder("mask"), decoder("class")
    classed.load_state_dict({k: v for k, v in masked.state_dict().items() if k != "mask"})
    feature, tokens, place = noise(1, WIDTH), noise(1, 2, WIDTH, seed=1), location(shuffled(1))
    assert not torch.allclose(masked(feature, tokens, place), classed(feature, tokens, place), atol=1e-3)
    masked.mask = nn.Parameter(masked.inlet(feature)[:, None])
    torch.testing.assert_close(masked(feature, tokens, place), classed(feature, tokens, place))


@pytest.mark.parametrize("fill", FILLS)
def test_every_weight_is_trained_and_nothing_else_is_there(fill: str) -> None:
    one = decoder(fill).requires_grad_(True)
    one(noise(2, WIDTH), noise(2, 3, WIDTH), location(shuffled(2))).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in one.parameters())
    kinds = {name.split(".")[0] for name in one.state_dict()}
    assert kinds == {"inlet", "pos_embed", "blocks", "norm", "outlet", "code_norm"} | (
        {"mask"} if fill == "mask" else set()
    )


def test_size_of_the_paper() -> None:
    """Counted by hand: linear to 512, four blocks of 16 heads, 14x14 positions, four codes of 32, their norm."""
    with torch.device("meta"):
        one = TokenDecoder(768, 196, 4, 32, 512, 4, 16, "mask")
    block = 4 * 512 + (512 + 1) * 3 * 512 + (512 + 1) * 512 + (512 + 1) * 2048 + (2048 + 1) * 512
    wanted = (768 + 1) * 512 + 512 + 197 * 512 + 4 * block + 2 * 512 + (512 + 1) * 4 * 32 + 2 * 32
    assert sum(parameter.numel() for parameter in one.parameters()) == wanted
    assert {block.attn.heads for block in one.blocks} == {16}  # type: ignore[union-attr]


@pytest.mark.parametrize("fill", FILLS)
def test_mixed_precision(fill: str) -> None:
    one, feature, tokens, place = decoder(fill), noise(2, WIDTH), noise(2, 3, WIDTH), location(shuffled(2))
    with torch.autocast("cpu", torch.bfloat16):
        out = one(feature.bfloat16(), tokens.bfloat16(), place)
    torch.testing.assert_close(out.float(), one(feature, tokens, place), atol=0.2, rtol=0.2)
