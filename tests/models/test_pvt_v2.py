"""PVTv2: timm's numbers, shares against the whole label matrix, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.models import PvtV2, PvtV2Config, adopt, create_model

TINY = PvtV2Config(widths=(8, 16), depths=(2, 1), heads=(2, 4), mlp_ratios=(2, 2), reductions=(2, 1))
GRIDS = ((8, 12), (4, 6))  # of 32x48 px


def make(grid: tuple[int, int] = (32, 48), **changes: Any) -> PvtV2:
    torch.manual_seed(0)
    model = PvtV2Config(**{**vars(TINY), **changes}).build(3, grid, 5).eval()
    with torch.no_grad():  # far from uniform
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("name", ["pvt_v2_b1", "pvt_v2_b2"])
def test_logits_are_those_of_timm(timm: Any, name: str) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=10).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    ours = create_model(name, grid=(128, 192), classes=10).eval()
    assert isinstance(ours, PvtV2)
    assert adopt(ours, theirs.state_dict()).kept == tuple(ours.state_dict())
    x = torch.randn(1, 3, 128, 192)
    with torch.no_grad():
        out = ours(x)
        assert torch.allclose(out.logits, theirs(x), atol=1e-4)
        assert torch.allclose(out.tokens, theirs.forward_features(x).flatten(2).mT, atol=1e-4)


def test_published_names_are_those_that_timm_reads(timm: Any) -> None:
    """timm translates published checkpoints; ours become its own."""
    ours = create_model("pvt_v2_b1", grid=(64, 64), classes=10)
    theirs = timm.create_model("pvt_v2_b1", num_classes=10)
    assert theirs.load_state_dict(timm.models.pvt_v2.checkpoint_filter_fn(ours.state_dict(), theirs), strict=True)


def windows(grid: tuple[int, int], kernel: int, stride: int, padding: int) -> torch.Tensor:
    """Matrix of means over the places of each window that exist."""
    rows = []
    for top in range(-padding, grid[0] - padding, stride):
        for left in range(-padding, grid[1] - padding, stride):
            row = torch.zeros(grid)
            row[max(0, top) : top + kernel, max(0, left) : left + kernel] = 1
            rows.append(row.flatten() / row.sum())
    return torch.stack(rows)


def neighbours(grid: tuple[int, int], weight: torch.Tensor) -> torch.Tensor:
    """Matrix of a depthwise convolution's absolute weights, rows normalised."""
    size, (height, width) = weight.abs().mean((0, 1)), grid
    matrix = torch.zeros(height * width, height * width)
    for place in range(height * width):
        for other in range(height * width):
            down, across = other // width - place // width, other % width - place % width
            if max(abs(down), abs(across)) <= 1:
                matrix[place, other] = size[down + 1, across + 1]
    return matrix / matrix.sum(1, keepdim=True)


def test_share_equals_the_whole_label_matrix() -> None:
    """One-hot labels of all first tokens through reduced keys, convolutions, residuals and overlapping patches."""
    model, x = make(), torch.randn(2, 3, 32, 48)
    own = (torch.rand(2, *GRIDS[0]) < 0.6).float()
    inputs: list[torch.Tensor] = []  # of each attention
    for name, module in model.named_modules():
        if name.endswith(".attn"):
            module.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with torch.no_grad():
        out = model(x, mix=Mix(torch.tensor([1, 0]), own, after_stem=True), track=True)
        labels = torch.eye(GRIDS[0][0] * GRIDS[0][1]).repeat(2, 1, 1)
        for i, grid in enumerate(GRIDS):
            if i:
                labels = windows(GRIDS[0], 3, 2, 1) @ labels
            for block in model.get_submodule(f"block{i + 1}"):
                attn, given = block.attn, inputs.pop(0)
                keys, reduced = given, labels
                if attn.reduction > 1:
                    keys = attn.norm(attn.sr(given.mT.unflatten(2, grid)).flatten(2).mT)
                    reduced = windows(grid, 2, 2, 0) @ labels
                size = given.shape[2] // attn.heads
                pairs = zip(attn.q(given).split(size, -1), attn.kv(keys).chunk(2, -1)[0].split(size, -1), strict=True)
                matrix = sum((q @ k.mT / size**0.5).softmax(-1) for q, k in pairs) / attn.heads
                labels = (labels + matrix @ reduced) / 2
                labels = (labels + neighbours(grid, block.mlp.dwconv.dwconv.weight) @ labels) / 2
    assert inputs == []
    assert torch.allclose(labels.sum(2), torch.ones(2, labels.shape[1]), atol=1e-5)
    wanted = (labels.mean(1) * own.flatten(1)).sum(1)
    assert out.share is not None
    assert torch.allclose(out.share, torch.stack([wanted, 1 - wanted], 1), atol=1e-5)
    assert (wanted - own.mean((1, 2))).abs().min() > 1e-4  # not just the area


def test_dropped_branches_leave_the_shares_alone() -> None:
    model = make(drop_path=0.9999, depths=(1, 1)).train()  # the second block is dropped
    block = model.get_submodule("block2.0")
    tokens, share = torch.randn(2, 24, 16), torch.rand(2, 24, 2)
    after, kept = block(tokens, share)
    assert torch.equal(after, tokens)
    assert torch.equal(kept, share)


@pytest.mark.parametrize(
    ("grid", "changes", "words"),
    [
        ((30, 32), {}, "a grid of 30x32 does not divide into patches of 4"),
        ((36, 36), {}, "a map of 9x9 does not divide into windows of 2: change the size or model.reductions"),
        ((36, 36), {"reductions": (1, 1)}, "a grid of 9x9 does not divide into patches of 2"),
        ((32, 32), {"heads": (2,)}, "different numbers of stages"),
    ],
)
def test_what_does_not_divide_is_refused(grid: tuple[int, int], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(grid, **changes)


def test_layers_are_stem_blocks_head() -> None:
    model = make()
    depths = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert depths["patch_embed1.norm.weight"] == 0
    assert depths["block1.0.attn.sr.weight"] == 1
    assert depths["block1.1.mlp.dwconv.dwconv.weight"] == depths["norm1.weight"] == 2
    assert depths["patch_embed2.proj.weight"] == depths["block2.0.attn.q.weight"] == depths["norm2.bias"] == 3
    assert depths["head.bias"] == 4
