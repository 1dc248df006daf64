"""ConvNeXt: timm's numbers, shares against the whole label matrix, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.models import Convnext, ConvnextConfig, adopt, create_model

TINY = ConvnextConfig(widths=(8, 16), depths=(2, 1), scale=0.5)
GRIDS = ((8, 12), (4, 6))  # of 32x48 px


def make(grid: tuple[int, int] = (32, 48), **changes: Any) -> Convnext:
    torch.manual_seed(0)
    return ConvnextConfig(**{**vars(TINY), **changes}).build(3, grid, 5).eval()


def test_logits_are_those_of_timm(timm: Any) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("convnext_tiny", num_classes=10).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    ours = create_model("convnext_t", grid=(64, 96), classes=10).eval()
    assert isinstance(ours, Convnext)
    assert adopt(ours, theirs.state_dict()).kept == tuple(ours.state_dict())
    x = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        out = ours(x)
        assert torch.allclose(out.logits, theirs(x), atol=1e-4)
        assert torch.allclose(out.tokens, theirs.forward_features(x).flatten(2).mT, atol=1e-4)


def test_published_names_are_those_that_timm_reads(timm: Any) -> None:
    """timm translates published checkpoints; ours, with the stem as it is called there, become its own."""
    ours = create_model("convnext_t", grid=(64, 64), classes=10)
    assert isinstance(ours, Convnext)
    stem = {"stem.proj.": "downsample_layers.0.0.", "stem.norm.": "downsample_layers.0.1."}
    published = {}
    for name, tensor in ours.state_dict().items():
        for here, there in stem.items():
            name = name.replace(here, there)
        published[name] = tensor
    theirs = timm.create_model("convnext_tiny", num_classes=10)
    translated = timm.models.convnext.checkpoint_filter_fn(published, theirs)
    assert theirs.load_state_dict(translated, strict=True)
    assert adopt(ours, published).replaced == ()


def neighbours(grid: tuple[int, int], weight: Tensor) -> Tensor:
    """Matrix of a depthwise convolution's absolute weights, rows normalised."""
    size, (height, width) = weight.detach().abs().mean((0, 1)), grid
    matrix = torch.zeros(height * width, height * width)
    for place in range(height * width):
        for other in range(height * width):
            down, across = other // width - place // width, other % width - place % width
            if max(abs(down), abs(across)) <= 3:
                matrix[place, other] = size[down + 3, across + 3]
    return matrix / matrix.sum(1, keepdim=True)


def test_share_equals_the_whole_label_matrix() -> None:
    """One-hot labels of all first tokens through convolutions, residuals and halving, each written as a matrix."""
    model, x = make(), torch.randn(2, 3, 32, 48)
    own = (torch.rand(2, *GRIDS[0]) < 0.6).float()
    out = model(x, mix=Mix(torch.tensor([1, 0]), own, after_stem=True), track=True)
    labels = torch.eye(96)
    for stage, grid in zip(model.stages, GRIDS, strict=True):
        if grid == GRIDS[1]:
            corners = [12 * r + c for r in range(0, 8, 2) for c in range(0, 12, 2)]
            labels = torch.stack([labels[[i, i + 1, i + 12, i + 13]].mean(0) for i in corners])
        for block in stage.children():
            labels = (labels + neighbours(grid, block.dwconv.weight) @ labels) / 2
    assert torch.allclose(labels.sum(1), torch.ones(24), atol=1e-5)
    wanted = own.flatten(1) @ labels.mean(0)
    assert out.share is not None
    assert torch.allclose(out.share, torch.stack([wanted, 1 - wanted], 1), atol=1e-5)
    assert (wanted - own.mean((1, 2))).abs().max() > 1e-5  # not just the area


def test_mix_after_the_stem_swaps_stem_maps() -> None:
    model, x = make(), torch.randn(2, 3, 32, 48)
    everything = Mix(torch.tensor([1, 0]), torch.zeros(2, 8, 12), after_stem=True)
    out, swapped = model(x), model(x, mix=everything)
    assert torch.allclose(swapped.logits, out.logits.flip(0), atol=1e-5)
    assert torch.equal(swapped.stem, out.stem)


@pytest.mark.parametrize(
    ("grid", "changes", "words"),
    [
        ((30, 32), {}, "a grid of 30x32 does not divide into patches of 4"),
        ((36, 36), {}, "a map of 9x9 cannot be halved: change the size"),
        ((32, 32), {"widths": (8,)}, "2 stages have 1 widths"),
    ],
)
def test_what_does_not_divide_is_refused(grid: tuple[int, int], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(grid, **changes)


def test_layers_are_stem_blocks_head() -> None:
    model = make()
    depths = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert depths["stem.proj.weight"] == depths["stem.norm.weight"] == 0
    assert depths["stages.0.1.gamma"] == 2
    assert depths["downsample_layers.1.1.weight"] == depths["stages.1.0.dwconv.bias"] == 3
    assert depths["norm.weight"] == depths["head.bias"] == 4
