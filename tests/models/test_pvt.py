"""PVT: the paper's formulas written the slow way, shares against the whole label matrix, positions, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.layers.positions import resize_positions
from tilework.models import Pvt, PvtConfig, adopt

TINY = PvtConfig(widths=(8, 16, 24), depths=(2, 1, 2), heads=(1, 2, 4), mlp_ratios=(2, 3, 2), reductions=(4, 2, 1))
GRIDS = ((8, 12), (4, 6), (2, 3))  # of 32x48 px


def make(grid: tuple[int, int] = (32, 48), seed: int = 0, **changes: Any) -> Pvt:
    torch.manual_seed(seed)
    model = PvtConfig(**{**vars(TINY), **changes}).build(3, grid, 5).eval()
    with torch.no_grad():  # far from uniform
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def patches(x: Tensor, grid: tuple[int, int], side: int) -> Tensor:
    """Places of each window, window after window: (N, D) on `grid` to (N / side^2, side^2, D)."""
    rows, columns = range(0, grid[0], side), range(0, grid[1], side)
    inside = [(r, c) for r in range(side) for c in range(side)]
    return torch.stack([x[[grid[1] * (top + r) + left + c for r, c in inside]] for top in rows for left in columns])


def filtered(windows: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    """A convolution whose stride is its side, as one product per window. windows: (N, side^2, D)."""
    return windows.mT.flatten(1) @ state[f"{name}.weight"].flatten(1).T + state[f"{name}.bias"]


def slow(state: dict[str, Tensor], image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, tokens and labels (rows of final tokens, columns of first ones) of one image (3, H, W).

    Written from the paper, independently of the model's code: timm has no PVT of the first version.
    """

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(x: Tensor, name: str, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    tokens, labels, before, side = image.flatten(1).T, torch.eye(96), (32, 48), 4
    for i, grid in enumerate(GRIDS):
        embed, last = f"patch_embed{i + 1}", i == len(GRIDS) - 1
        tokens = norm(filtered(patches(tokens, before, side), state, f"{embed}.proj"), f"{embed}.norm", 1e-5)
        if i:
            labels = patches(labels, before, 2).mean(1)
        if last:
            tokens = torch.cat([state["cls_token"][0], tokens])
            labels = torch.cat([torch.full((1, 96), 1 / 96), labels])
        tokens = tokens + state[f"pos_embed{i + 1}"][0]
        for j in range(TINY.depths[i]):
            block, heads, reduction = f"block{i + 1}.{j}", TINY.heads[i], TINY.reductions[i]
            x = norm(tokens, f"{block}.norm1", 1e-6)
            keys, reduced = x, labels
            if reduction > 1:
                keys = norm(
                    filtered(patches(x, grid, reduction), state, f"{block}.attn.sr"), f"{block}.attn.norm", 1e-5
                )
                reduced = patches(labels, grid, reduction).mean(1)
            key, value = linear(keys, f"{block}.attn.kv").chunk(2, -1)
            size, query = x.shape[1] // heads, linear(x, f"{block}.attn.q")
            split = [t.split(size, 1) for t in (query, key, value)]
            maps = [(q @ k.T / size**0.5).softmax(1) for q, k in zip(split[0], split[1], strict=True)]
            read = torch.cat([a @ v for a, v in zip(maps, split[2], strict=True)], 1)
            tokens = tokens + linear(read, f"{block}.attn.proj")
            labels = (labels + sum(maps) / heads @ reduced) / 2
            hidden = F.gelu(linear(norm(tokens, f"{block}.norm2", 1e-6), f"{block}.mlp.fc1"))
            tokens = tokens + linear(hidden, f"{block}.mlp.fc2")
        before, side = grid, 2
    tokens = norm(tokens, "norm", 1e-6)
    return linear(tokens[0], "head"), tokens[1:], labels


def test_equals_the_paper_written_the_slow_way() -> None:
    model, x = make(), torch.randn(2, 3, 32, 48)
    own = (torch.rand(2, *GRIDS[0]) < 0.6).float()
    own_pixels = own.repeat_interleave(4, 1).repeat_interleave(4, 2)
    mixed = torch.where(own_pixels[:, None] == 1, x, x.flip(0))
    with torch.no_grad():
        out = model(mixed, mix=Mix(torch.tensor([1, 0]), own), track=True)
        after = model(x, mix=Mix(torch.tensor([1, 0]), own, after_stem=True))
        plain = model(mixed)
    assert out.share is not None
    assert torch.allclose(plain.logits, out.logits, atol=1e-4)
    assert torch.allclose(after.logits, out.logits, atol=1e-4)  # whole patches: the same before and after the stem
    state = model.state_dict()
    for i in range(2):
        logits, tokens, labels = slow(state, mixed[i])
        assert torch.allclose(out.logits[i], logits, atol=1e-4)
        assert torch.allclose(out.tokens[i], tokens, atol=1e-4)
        assert torch.allclose(labels.sum(1), torch.ones(7), atol=1e-5)
        wanted = (labels[0] @ own[i].flatten()).item()
        assert out.share[i].tolist() == pytest.approx([wanted, 1 - wanted], abs=1e-5)
        assert abs(wanted - own[i].mean()) > 1e-4  # not just the area


def test_names_are_the_published_ones() -> None:
    """As in the files of the paper's authors: written down from their layout, no file was at hand."""
    names = list(make().state_dict())
    parts = ("norm1", "attn.q", "attn.kv", "attn.proj", "attn.sr", "attn.norm", "norm2", "mlp.fc1", "mlp.fc2")
    block = {f"block1.0.{part}.{kind}" for part in parts for kind in ("weight", "bias")}
    assert {name for name in names if name.startswith("block1.0.")} == block
    stages = {name for i in (1, 2, 3) for name in (f"pos_embed{i}", f"patch_embed{i}.proj", f"patch_embed{i}.norm")}
    rest = {re.sub(r"\.(weight|bias)$", "", name) for name in names if not name.startswith("block")}
    assert rest == stages | {"cls_token", "norm", "head"}
    assert make().state_dict()["pos_embed3"].shape == (1, 7, 24)  # the class token's first


def test_another_grid_resizes_all_positions() -> None:
    source, target = make((32, 32)), make((32, 48), seed=1)
    adopted = adopt(target, source.state_dict())
    assert adopted.resized == ("pos_embed1", "pos_embed2", "pos_embed3")
    assert adopted.replaced == ()
    wanted = resize_positions(source.state_dict()["pos_embed3"], (2, 2), (2, 3))
    assert torch.equal(target.state_dict()["pos_embed3"], wanted)
    back = make((32, 32), seed=1)
    assert adopt(back, target.state_dict(), grid=(2, 3)).resized == ("pos_embed1", "pos_embed2", "pos_embed3")


@pytest.mark.parametrize(
    ("grid", "changes", "words"),
    [
        ((30, 32), {}, "a grid of 30x32 does not divide into patches of 4"),
        ((40, 40), {}, "a map of 10x10 does not divide into windows of 4: change the size or model.reductions"),
        ((40, 40), {"reductions": (1, 1, 1)}, "a grid of 5x5 does not divide into patches of 2"),
        ((32, 32), {"heads": (2,)}, "different numbers of stages"),
        ((32, 32), {"reductions": (4, 2, 2)}, "a class token cannot be reduced"),
    ],
)
def test_what_does_not_divide_is_refused(grid: tuple[int, int], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(grid, **changes)


def test_layers_are_stem_blocks_head() -> None:
    model = make()
    depths = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert depths["patch_embed1.norm.weight"] == depths["pos_embed1"] == 0
    assert depths["block1.0.attn.sr.weight"] == 1
    assert depths["patch_embed2.proj.weight"] == depths["pos_embed2"] == depths["block2.0.mlp.fc1.bias"] == 3
    assert depths["cls_token"] == depths["pos_embed3"] == depths["block3.0.norm1.bias"] == 4
    assert depths["head.bias"] == depths["norm.weight"] == 6
