"""How much of each image is in a mixed token, layer by layer (TL-Align, supplement, eq. 1), beside what labels say.

B batch | T = 1 + N tokens, the class token first | D width | L blocks
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.layers.block import Block
from tilework.models import Model, Output
from tilework.objectives.trans_mix import looked_share, looking, reads_class_token


@dataclass(frozen=True)
class MixingRatios:
    """Share of a sample itself in its mixture with a partner."""

    similarity: Tensor  # (L, B, T) by the tokens themselves
    aligned: Tensor  # (1 + L, B, T) by TL-Align, at first as mixed
    area: Tensor  # (B,)
    trans_mix: Tensor | None  # (B,); None where no class token is read
    read: Tensor  # (B,) aligned, in what the head reads


def similarity_ratio(mixed: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Softmax of the largest cosines of a mixed token with those of either image. Each (B, T, D); returns (B, T)."""
    nearest = [
        (F.normalize(mixed, dim=-1) @ F.normalize(one, dim=-1).transpose(1, 2)).amax(-1) for one in (first, second)
    ]
    return torch.stack(nearest).softmax(0)[0]


@torch.no_grad()
def mixing_ratios(model: Model, x: Tensor, mix: Mix) -> MixingRatios:
    """Ratios of every token of every mixture. x: (B, C, H, W) before mixing."""
    model.eval()
    plain, _ = _blocks(model, x, None)
    mixed, out = _blocks(model, x if mix.after_stem else mix.apply(x), mix)
    own = mix.at(*out.grid).flatten(1)
    shares = [torch.cat([own.mean(1, keepdim=True), own], 1), *(share[..., 0] for _, share in mixed)]
    similarity = [
        similarity_ratio(tokens, one, one[mix.partner]) for (tokens, _), (one, _) in zip(mixed, plain, strict=True)
    ]
    seen = None
    if reads_class_token(model):
        with looking(model) as looks:
            model(x if mix.after_stem else mix.apply(x), mix=mix)
        seen = looked_share(looks[0], mix, out.grid)[:, 0]
    assert out.share is not None  # it was asked for
    return MixingRatios(torch.stack(similarity), torch.stack(shares), own.mean(1), seen, out.share[:, 0])


def _blocks(model: Model, x: Tensor, mix: Mix | None) -> tuple[list[tuple[Tensor, Tensor]], Output]:
    """Tokens and shares after every block, and the output."""
    found: list[tuple[Tensor, Tensor]] = []
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise ConfigError(f"a {type(model).__name__} has no blocks to follow tokens through", "give the run of a ViT")
    hooks = [block.register_forward_hook(lambda module, given, gave: found.append(gave)) for block in blocks]
    try:
        return found, model(x, mix=mix, track=True)
    finally:
        for hook in hooks:
            hook.remove()
