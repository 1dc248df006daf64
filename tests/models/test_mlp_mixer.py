"""MLP-Mixer: timm's numbers, shares against the whole label matrix, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.layers.stems import PatchStemConfig
from tilework.models import MlpMixer, MlpMixerConfig, adopt, create_model

TINY = MlpMixerConfig(width=8, depth=3, token_hidden=5, channel_hidden=16, stem=PatchStemConfig(8))


def make(grid: tuple[int, int] = (32, 48), **changes: Any) -> MlpMixer:
    torch.manual_seed(0)
    return MlpMixerConfig(**{**vars(TINY), **changes}).build(3, grid, 5).eval()


def test_logits_are_those_of_timm(timm: Any) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("mixer_s16_224", num_classes=10).eval()
    for parameter in theirs.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    ours = create_model("mixer_s16", classes=10).eval()
    assert isinstance(ours, MlpMixer)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert adopt(ours, theirs.state_dict()).kept == tuple(ours.state_dict())
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        out = ours(x)
        assert torch.allclose(out.logits, theirs(x), atol=1e-4)
        assert torch.allclose(out.tokens, theirs.forward_features(x), atol=1e-4)


def test_share_equals_the_whole_label_matrix() -> None:
    """Each entry of |W2| |W1| as a sum over hidden units, rows made to sum to one."""
    model, x = make(), torch.randn(2, 3, 32, 48)
    own = (torch.rand(2, 4, 6) < 0.6).float()
    out = model(x, mix=Mix(torch.tensor([1, 0]), own, after_stem=True), track=True)
    labels = torch.eye(24)
    for block in model.blocks:
        first, second = block.mlp_tokens.fc1.weight.detach(), block.mlp_tokens.fc2.weight.detach()
        matrix = torch.zeros(24, 24)
        for i in range(24):
            for j in range(24):
                matrix[i, j] = sum(abs(second[i, u].item()) * abs(first[u, j].item()) for u in range(5))
            matrix[i] /= matrix[i].sum()
        labels = (labels + matrix @ labels) / 2
    assert torch.allclose(labels.sum(1), torch.ones(24), atol=1e-5)
    wanted = own.flatten(1) @ labels.mean(0)
    assert out.share is not None
    assert torch.allclose(out.share, torch.stack([wanted, 1 - wanted], 1), atol=1e-5)
    assert (wanted - own.mean((1, 2))).abs().max() > 1e-4  # not just the area


def test_mix_after_the_stem_swaps_stem_maps() -> None:
    model, x = make(), torch.randn(2, 3, 32, 48)
    torch.nn.init.normal_(model.head.weight)
    everything = Mix(torch.tensor([1, 0]), torch.zeros(2, 4, 6), after_stem=True)
    assert torch.allclose(model(x, mix=everything).logits, model(x).logits.flip(0), atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="30x48 does not divide into patches of 8"):
        make((30, 48))
    with pytest.raises(ConfigError, match=r"'blocks.0.mlp_tokens.fc1.weight' is \(5, 16\) there and \(5, 24\) here"):
        adopt(make(), make((32, 32)).state_dict())
