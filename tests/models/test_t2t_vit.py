"""T2T-ViT: the paper's formulas written the slow way, shares against the whole label matrix, tokens, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.layers.stem_t2t import TokensToTokenConfig
from tilework.models import T2tVit, T2tVitConfig, Visible, adopt
from tilework.models.t2t_vit import published

TINY = T2tVitConfig(width=16, depth=2, heads=2, stem=TokensToTokenConfig(width=8))
SIZE, GRIDS = (32, 48), ((8, 12), (4, 6), (2, 3))


def make(attention: str = "performer", seed: int = 0, **changes: Any) -> T2tVit:
    torch.manual_seed(seed)
    stem = TokensToTokenConfig(8, attention)  # type: ignore[arg-type]
    model = T2tVitConfig(**{**vars(TINY), "stem": stem, **changes}).build(3, SIZE, 5).eval()
    with torch.no_grad():  # far from uniform
        for name, parameter in model.named_parameters():
            if name != "pos_embed":
                parameter += (0.05 if "kqv" in name else 0.2) * torch.randn_like(parameter)
    return model


def windows(grid: tuple[int, int], side: int, stride: int, padding: int) -> list[list[int | None]]:
    """Places of each window, None beyond the border."""
    found: list[list[int | None]] = []
    for top in range(-padding, grid[0] - padding - stride + 1, stride):
        for left in range(-padding, grid[1] - padding - stride + 1, stride):
            places = [(r, c) for r in range(top, top + side) for c in range(left, left + side)]
            found.append([r * grid[1] + c if 0 <= r < grid[0] and 0 <= c < grid[1] else None for r, c in places])
    return found


def slow(state: dict[str, Tensor], image: Tensor, attention: str) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, stem tokens and labels (rows of final tokens, columns of pixels) of one image (3, H, W).

    Written from the paper, independently of the model's code, with the Performer's matrix spelt out: timm has no T2T.
    """

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", torch.zeros(()))

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def random_features(x: Tensor, w: Tensor) -> Tensor:
        return torch.stack([(row * x).sum(1) - (x * x).sum(1) / 2 for row in w], 1).exp() / len(w) ** 0.5

    tokens, labels, before = image.flatten(1).T, torch.eye(SIZE[0] * SIZE[1]), SIZE
    for i, (grid, split) in enumerate(zip(GRIDS, [(7, 4, 2), (3, 2, 1), (3, 2, 1)], strict=True)):
        places = windows(before, *split)
        padded = torch.cat([tokens, torch.zeros(1, tokens.shape[1])])
        tokens = torch.stack([padded[[-1 if p is None else p for p in each]].T.flatten() for each in places])
        labels = torch.stack([labels[[p for p in each if p is not None]].mean(0) for each in places])
        before, layer = grid, f"tokens_to_token.attention{i + 1}"
        if i == 2:
            continue
        x = norm(tokens, f"{layer}.norm1")
        if attention == "performer":
            key, query, value = linear(x, f"{layer}.kqv").chunk(3, 1)
            w = state[f"{layer}.w"]
            matrix = random_features(query, w) @ random_features(key, w).T
            matrix = matrix / matrix.sum(1, keepdim=True)
            names = ("proj", "mlp.0", "mlp.2")
        else:
            query, key, value = linear(x, f"{layer}.attn.qkv").chunk(3, 1)
            matrix = (query @ key.T / x.shape[1] ** 0.5).softmax(1)
            names = ("attn.proj", "mlp.fc1", "mlp.fc2")
        tokens = value + linear(matrix @ value, f"{layer}.{names[0]}")
        hidden = F.gelu(linear(norm(tokens, f"{layer}.norm2"), f"{layer}.{names[1]}"))
        tokens, labels = tokens + linear(hidden, f"{layer}.{names[2]}"), (labels + matrix @ labels) / 2
    stem = linear(tokens, "tokens_to_token.project")
    tokens = torch.cat([state["cls_token"][0], stem]) + state["pos_embed"][0]
    labels = torch.cat([torch.full((1, labels.shape[1]), 1 / labels.shape[1]), labels])
    for i in range(TINY.depth):
        q, k, v = linear(norm(tokens, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv").chunk(3, 1)
        maps = [(a @ b.T / 8**0.5).softmax(1) for a, b in zip(q.split(8, 1), k.split(8, 1), strict=True)]
        read = torch.cat([a @ b for a, b in zip(maps, v.split(8, 1), strict=True)], 1)
        tokens = tokens + linear(read, f"blocks.{i}.attn.proj")
        labels = (labels + sum(maps) / 2 @ labels) / 2
        hidden = F.gelu(linear(norm(tokens, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1"))
        tokens = tokens + linear(hidden, f"blocks.{i}.mlp.fc2")
    return linear(norm(tokens, "norm")[0], "head"), stem, labels


@pytest.mark.parametrize("attention", ["performer", "transformer"])
def test_equals_the_paper_written_the_slow_way(attention: str) -> None:
    model, x = make(attention), torch.randn(2, 3, *SIZE)
    own = (torch.rand(2, *SIZE) < 0.6).float()
    own[:, :20, :30] = 1
    with torch.no_grad():
        out = model(x, mix=Mix(torch.tensor([1, 0]), own), track=True)
        assert torch.allclose(model(x).logits, out.logits, atol=1e-4)
    assert out.share is not None
    for i in range(2):
        logits, stem, labels = slow(model.state_dict(), x[i], attention)
        assert torch.allclose(out.stem[i].flatten(1).T, stem, atol=1e-4)
        assert torch.allclose(out.logits[i], logits, atol=1e-4)
        assert torch.allclose(labels.sum(1), torch.ones(7), atol=1e-4)
        wanted = (labels[0] @ own[i].flatten()).item()
        assert out.share[i].tolist() == pytest.approx([wanted, 1 - wanted], abs=1e-5)
        assert abs(wanted - own[i].mean()) > 1e-4  # not just the area


def test_positions_are_sines_and_cosines_along_the_sequence() -> None:
    positions = make().pos_embed
    assert not positions.requires_grad
    for place in (0, 1, 6):
        for j in range(16):
            angle = torch.tensor(place / 10000 ** (2 * (j // 2) / 16), dtype=torch.float64)
            assert positions[0, place, j].item() == pytest.approx(
                (angle.cos() if j % 2 else angle.sin()).item(), abs=1e-6
            )


def test_random_features_are_orthogonal_and_fixed() -> None:
    torch.manual_seed(0)
    layer = TINY.build(3, SIZE, 5).tokens_to_token.get_submodule("attention1")
    assert not layer.w.requires_grad
    assert torch.allclose(layer.w @ layer.w.T, 4 * torch.eye(4), atol=1e-5)


def test_places_far_from_all_keys_keep_their_share() -> None:
    """Random features of long vectors vanish; what keeps the quotient finite leaves the labels alone."""
    layer = make().tokens_to_token.get_submodule("attention1")
    with torch.no_grad():
        layer.kqv.weight.mul_(100)
        share = torch.rand(1, 5, 1)
        share = torch.cat([share, 1 - share], 2)
        _, after = layer(torch.randn(1, 5, 147), share)
    assert torch.allclose(after, share, atol=1e-5)


def test_mixture_after_the_stem_starts_from_the_tokens() -> None:
    model, x = make(), torch.randn(2, 3, *SIZE)
    own = torch.tensor([[[1.0, 0, 1], [0, 1, 1]]]).repeat(2, 1, 1)
    mix = Mix(torch.tensor([1, 0]), own, after_stem=True)
    with torch.no_grad():
        out = model(x, mix=mix, track=True)
        tokens = mix.apply(model.tokens_to_token(x)).flatten(2).mT
        tokens = torch.cat([model.cls_token.expand(2, -1, -1), tokens], 1) + model.pos_embed
        share = torch.cat([own.mean((1, 2))[:, None], own.flatten(1)], 1)[..., None]
        for block in model.blocks:
            tokens, share = block(tokens, share)
    assert out.share is not None
    assert torch.allclose(out.share[:, :1], share[:, 0], atol=1e-6)
    assert torch.allclose(out.logits, model.head(model.norm(tokens[:, 0])), atol=1e-5)


def test_hidden_tokens_change_nothing() -> None:
    model, x = make(), torch.randn(2, 3, *SIZE)
    keep = torch.tensor([[0, 5], [2, 3]])
    out = model(x, visible=Visible(keep), track=True)
    assert out.tokens.shape == (2, 2, 16)
    own = torch.zeros(2, 2, 3).flatten(1).scatter(1, keep, 1.0).view(2, 2, 3)
    other = model(x, visible=Visible(keep), mix=Mix(torch.tensor([1, 0]), own, after_stem=True))
    assert torch.allclose(out.logits, other.logits, atol=1e-5)  # hidden tokens come from another image


def test_published_queries_take_the_scale_over() -> None:
    """Products divided by the root of the width, as the authors' files want them, against our own scale."""
    model = make()
    loaded = make(seed=1)
    adopt(loaded, published(model.state_dict(), heads=2))
    x = torch.randn(1, 7, 16)
    q, k, v = model.blocks[0].attn.qkv(x).chunk(3, -1)
    pairs = zip(q.split(8, -1), k.split(8, -1), v.split(8, -1), strict=True)
    wanted = torch.cat([(a @ b.mT / 16**0.5).softmax(-1) @ c for a, b, c in pairs], -1)
    assert torch.allclose(loaded.blocks[0].attn(x)[0], model.blocks[0].attn.proj(wanted), atol=1e-5)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="40x48 does not divide into patches of 16"):
        TINY.build(3, (40, 48), 5)
    with pytest.raises(ConfigError, match="no T2T with attention 'linear'"):
        make("linear")
    with pytest.raises(ConfigError, match="need an even width, not 15"):
        make(width=15, heads=3)
