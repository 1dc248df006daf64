"""Swin: timm's numbers, shares and padding against attention written place by place, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.models import Swin, SwinConfig, adopt, create_model

TINY = SwinConfig(width=8, depths=(2, 2), heads=(2, 4), window=2)  # 8x12 and 4x6 tokens of 32x48 px
GRIDS = ((8, 12), (4, 6))


def make(grid: tuple[int, int] = (32, 48), **changes: Any) -> Swin:
    torch.manual_seed(0)
    model = SwinConfig(**{**vars(TINY), **changes}).build(3, grid, 5).eval()
    with torch.no_grad():  # far from uniform
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def disturbed(model: torch.nn.Module) -> torch.nn.Module:
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # biases, norms and tables too
    return model.eval()


# against timm


@pytest.mark.parametrize(
    ("settings", "grid", "window"),
    [({}, (224, 224), 7), ({"window_size": 4, "img_size": (128, 256)}, (128, 256), 4)],
)
def test_logits_are_those_of_timm(timm: Any, settings: dict[str, Any], grid: tuple[int, int], window: int) -> None:
    torch.manual_seed(0)
    theirs = disturbed(timm.create_model("swin_tiny_patch4_window7_224", num_classes=10, **settings))
    ours = create_model("swin_t", grid=grid, classes=10, window=window).eval()
    assert isinstance(ours, Swin)
    adopted = adopt(ours, theirs.state_dict())
    assert adopted.kept == tuple(ours.state_dict())
    x = torch.randn(1, 3, *grid)
    with torch.no_grad():
        out = ours(x)
        assert torch.allclose(out.logits, theirs(x), atol=1e-4)
        assert torch.allclose(out.tokens, theirs.forward_features(x).flatten(1, 2), atol=1e-4)


def test_published_names_are_those_that_timm_reads(timm: Any) -> None:
    """timm translates published checkpoints; ours, under published names, become its own."""
    ours = create_model("swin_t", classes=10)
    assert isinstance(ours, Swin)
    published = {name.replace("stages.", "layers.", 1): tensor for name, tensor in ours.state_dict().items()}
    theirs = timm.create_model("swin_tiny_patch4_window7_224", num_classes=10)
    translated = timm.models.swin_transformer.checkpoint_filter_fn(published, theirs)
    assert theirs.load_state_dict(translated, strict=True)
    published["layers.0.blocks.1.attn_mask"] = torch.zeros(64, 49, 49)
    published["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49).long()
    assert adopt(ours, published).replaced == ()


def test_timms_backbones_without_a_head_are_told_by_their_first_stage() -> None:
    ours = make()
    names = {"stages.0.downsample.": "layers.1.downsample.", "stages.": "layers."}
    tensors = {}
    for name, tensor in ours.state_dict().items():
        here = next((start for start in names if name.startswith(start)), "")
        if not name.startswith("head."):
            tensors[names.get(here, "") + name.removeprefix(here)] = tensor
    assert adopt(ours, tensors).replaced == ("head.weight", "head.bias")


# the sources of a mixture


def windowed_attention(module: Any, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The slow way, place by place: the matrix (k, N, N) of one sample, and what comes out of the module (N, D).

    N are the places of the map padded with zeros to whole windows; those of the map itself come out.
    """
    (rows, columns), (down, across), heads, size = (
        module.window,
        module.shift(grid),
        module.heads,
        x.shape[1] // module.heads,
    )
    height, width = (
        next(n for n in range(side, 2 * side + 9) if n % by == 0) for side, by in zip(grid, module.window, strict=True)
    )
    padded = torch.zeros(height, width, x.shape[1])
    padded[: grid[0], : grid[1]] = x.unflatten(0, grid)
    x = padded.flatten(0, 1)
    q, k, v = (part.view(-1, heads, size).transpose(0, 1) for part in module.qkv(x).chunk(3, -1))
    table = module.relative_position_bias_table.view(2 * rows - 1, 2 * columns - 1, heads)
    matrix = torch.zeros(heads, height * width, height * width)
    for place in range(height * width):
        r, c = divmod(place, width)
        window = ((r - down) % height // rows, (c - across) % width // columns)  # in the rolled map
        keys, scores = [], []
        for other in range(height * width):
            s, d = divmod(other, width)
            near = abs(r - s) < rows and abs(c - d) < columns
            if near and window == ((s - down) % height // rows, (d - across) % width // columns):
                keys.append(other)
                scores.append(
                    (q[:, place] * k[:, other]).sum(1) * size**-0.5 + table[r - s + rows - 1, c - d + columns - 1]
                )
        matrix[:, place, keys] = torch.stack(scores, 1).softmax(1)
    y = module.proj((matrix @ v).transpose(0, 1).flatten(1))
    return matrix, y.view(height, width, -1)[: grid[0], : grid[1]].flatten(0, 1)


def test_share_equals_the_whole_label_matrix() -> None:
    """One-hot labels of all first tokens through windows, residuals and merging, each written as a matrix."""
    model, x = make(), torch.randn(2, 3, 32, 48)
    own = (torch.rand(2, *GRIDS[0]) < 0.6).float()
    mix = Mix(torch.tensor([1, 0]), own, after_stem=True)
    with torch.no_grad():
        out = model(x, mix=mix, track=True)
        maps = model.patch_embed.get_submodule("norm")(mix.apply(model.patch_embed(x)).flatten(2).mT)
    for sample in range(2):
        tokens, labels = maps[sample], torch.eye(GRIDS[0][0] * GRIDS[0][1])
        with torch.no_grad():
            for stage, grid in zip(model.stages, GRIDS, strict=True):
                for block in stage.blocks:
                    matrix, added = windowed_attention(block.attn, block.norm1(tokens), grid)
                    tokens, labels = tokens + added, (labels + matrix.mean(0) @ labels) / 2
                    tokens = tokens + block.mlp(block.norm2(tokens))
                if stage.downsample is not None:
                    corners = [grid[1] * r + c for r in range(0, grid[0], 2) for c in range(0, grid[1], 2)]
                    fours = [[i, i + grid[1], i + 1, i + grid[1] + 1] for i in corners]
                    labels = torch.stack([labels[four].mean(0) for four in fours])
                    merged = torch.stack([tokens[four].flatten() for four in fours])
                    tokens = stage.downsample.reduction(stage.downsample.norm(merged))
            tokens = model.norm(tokens)
        assert torch.allclose(tokens, out.tokens[sample], atol=1e-4)
        assert torch.allclose(labels.sum(1), torch.ones(len(labels)), atol=1e-5)
        wanted = labels.mean(0) @ own[sample].flatten()
        assert out.share is not None
        assert out.share[sample].tolist() == pytest.approx([wanted.item(), 1 - wanted.item()], abs=1e-5)
        assert abs(wanted - own[sample].mean()) > 1e-4  # not just the area


def test_shift_moves_half_a_window_where_the_map_is_larger() -> None:
    model = make((32, 64), window=4)
    grids = ((8, 16), (4, 8))
    found = [block.attn.shift(grid) for stage, grid in zip(model.stages, grids, strict=True) for block in stage.blocks]
    assert found == [(0, 0), (2, 2), (0, 0), (0, 2)]
    assert model.stages[1].blocks[1].attn.shift((5, 4)) == (2, 0)  # another grid


# maps that windows do not divide


PADDED = ((10, 14), (5, 7))  # tokens of 40x56 px; windows of 3 make 12x15 and 6x9 of them


@pytest.mark.parametrize("built", [(40, 56), (48, 48)], ids=["built for it", "built for another"])
def test_padded_windows_equal_the_slow_way(built: tuple[int, int]) -> None:
    """Position by position on the padded map, as published detectors compute it: timm pads after the roll instead."""
    model, x = make(built, window=3), torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        out = model(x, stages=True)
        maps = model.patch_embed.get_submodule("norm")(model.patch_embed(x).flatten(2).mT)
    for sample in range(2):
        tokens = maps[sample]
        with torch.no_grad():
            for i, (stage, grid) in enumerate(zip(model.stages, PADDED, strict=True)):
                for block in stage.blocks:
                    tokens = tokens + windowed_attention(block.attn, block.norm1(tokens), grid)[1]
                    tokens = tokens + block.mlp(block.norm2(tokens))
                assert torch.allclose(out.stages[i][sample].flatten(1).mT, tokens, atol=1e-4)
                if stage.downsample is not None:
                    tokens = stage.downsample(tokens[None], None, grid)[0][0]
            assert torch.allclose(model.norm(tokens), out.tokens[sample], atol=1e-4)
    assert out.grid == PADDED[1]


def test_sources_are_not_followed_through_padding() -> None:
    model, x = make((40, 40), window=4), torch.randn(1, 3, 40, 40)
    with pytest.raises(ConfigError, match="sources cannot be followed as 10x10 tokens are padded to 12x12: change"):
        model(x, track=True)
    assert model(torch.randn(1, 3, 64, 32), track=True).share is not None  # 16x8 and 8x4 tokens


# the rest


def test_mix_after_the_stem_swaps_stem_maps() -> None:
    model, x = make(), torch.randn(2, 3, 32, 48)
    everything = Mix(torch.tensor([1, 0]), torch.zeros(2, 8, 12), after_stem=True)
    out, swapped = model(x), model(x, mix=everything)
    assert torch.allclose(swapped.logits, out.logits.flip(0), atol=1e-5)
    assert torch.equal(swapped.stem, out.stem)


@pytest.mark.parametrize(
    ("grid", "changes", "words"),
    [
        ((36, 36), {"window": 9}, "a map of 9x9 cannot be halved: change the size"),
        ((32, 32), {"heads": (3, 4)}, "a width of 8 is no multiple of 3 heads"),
        ((32, 32), {"heads": (2,)}, "2 stages have 1 heads"),
    ],
)
def test_what_does_not_divide_is_refused(grid: tuple[int, int], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(grid, **changes)


def test_layers_are_stem_blocks_head() -> None:
    model = make()
    depths = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert depths["patch_embed.norm.weight"] == 0
    assert depths["stages.0.blocks.1.norm1.bias"] == depths["stages.0.downsample.reduction.weight"] == 2
    assert depths["stages.1.blocks.0.attn.qkv.weight"] == 3
    assert depths["norm.weight"] == depths["head.bias"] == 5
