"""Relevance of patches, propagated layer by layer (Chefer et al., 2021, "Transformer Interpretability Beyond Attention
Visualization"): what the logit of a class is made of, handed back to the attention of every block.

Every layer shares its relevance among its inputs by what they contributed (deep Taylor decomposition; linear layers
with alpha 1, beta 0), so the total stays the same. A block's attention keeps relevance times gradient, where positive,
on average over heads; the matrices of all blocks, each plus the identity, are multiplied (eqs. 13 and 14).

B batch | N patch tokens | T = 1 + N tokens, the class token first | D width | k heads | K classes
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import ConfigError
from tilework.evaluation.relevance import watched
from tilework.layers.block import Block
from tilework.models import Model, Vit

TINY = 1e-9  # beside what is divided by


def relevance(model: Model, x: Tensor, classes: Tensor) -> Tensor:
    """What speaks for a class in each patch. x: (B, ...) as the model takes it; classes: (B,); returns (B, h, w)."""
    if not isinstance(model, Vit) or len(model.motos):
        what = "a Vit with MoTo" if isinstance(model, Vit) else f"a {type(model).__name__}"
        raise ConfigError(f"relevance cannot be propagated through {what}", "choose --method gradient_attention")
    model.eval()
    with torch.enable_grad(), watched(model) as seen, _entering([*model.blocks, model.norm]) as entered:
        out = model(x.detach().requires_grad_())  # weights may be frozen
        slopes = torch.autograd.grad(out.logits.gather(1, classes[:, None]).sum(), seen)
    with torch.no_grad():
        *inputs, last = entered
        passed, read = through_head(model, last, classes)  # (B, T, D), (B, T)
        # (B, 1, T): the rows of the product that the head reads; where it reads all patches alike, what attention adds
        # to that one number is smaller than single precision can tell
        total = read[:, None].double()
        for block, tokens, slope in zip(reversed(model.blocks), reversed(inputs), reversed(slopes), strict=True):
            assert isinstance(block, Block)
            passed, attended = through_block(block, tokens, passed)
            total = total + total @ (slope * attended).clamp(min=0).mean(1).double()
    return total[:, 0, 1:].unflatten(1, out.grid)


def through_head(model: Vit, tokens: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance 1 of a logit back to the tokens before the last norm, (B, T, D), and how far each is read, (B, T).

    A dense head has its part of the logit, and hands it to the token that says most of the class (LV-ViT).
    tokens: (B, T, D).
    """
    head, tokens = model.head, model.norm(tokens)
    if not isinstance(head, nn.Linear):
        raise ConfigError("a model without classes has none to be relevant for", "explain a classifier")
    chosen = F.one_hot(classes, head.out_features).to(tokens.dtype)  # (B, K)
    pooled = model.config.pool == "mean"
    source = tokens[:, 1:].mean(1) if pooled else tokens[:, 0]
    source = model.fc_norm(source)
    own, dense = chosen, torch.zeros_like(tokens[:, 1:])
    best = torch.zeros_like(tokens[:, 1:, 0])  # (B, N)
    if model.aux_head is not None:
        patches = model.fc_norm(tokens[:, 1:])
        said = model.aux_head(patches)  # (B, N, K)
        own, rest = through_sum(head(source), 0.5 * said.amax(1), chosen)
        best = F.one_hot((said * chosen[:, None]).sum(-1).argmax(1), said.shape[1]).to(tokens.dtype)
        dense = through_linear(model.aux_head, patches, rest[:, None] * best[..., None])
        best = best * rest.sum(1, keepdim=True)
    passed = through_linear(head, source, own)  # (B, D)
    share = own.sum(1, keepdim=True)  # (B, 1)
    if pooled:
        count = dense.shape[1]
        spread = tokens[:, 1:] * divided(passed[:, None], tokens[:, 1:].sum(1, keepdim=True))  # of a mean, by parts
        return F.pad(dense + spread, (0, 0, 1, 0)), F.pad(best + share / count, (1, 0))
    return torch.cat([passed[:, None], dense], 1), torch.cat([share, best], 1)


def through_block(block: Block, x: Tensor, passed: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of what a block gives back to what it takes, and that of its attention, (B, k, T, T).

    Norms, GELU and softmax hand relevance on as it is. x, passed: (B, T, D).
    """
    attention, mlp = block.attn, block.mlp
    normed = block.norm1(x)
    q, k, v = attention.qkv(normed).unflatten(2, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)  # each (B, k, T, D/k)
    scores = q @ k.transpose(-2, -1)
    a = (scores * q.shape[-1] ** -0.5).softmax(-1)
    mixed = a @ v  # (B, k, T, D/k)
    joined = mixed.transpose(1, 2).flatten(2)  # (B, T, D)
    y = attention.proj(joined) / block.divisor
    middle = x + y
    wide = block.norm2(middle)
    hidden = mlp.act(mlp.fc1(wide))

    kept, branch = through_sum(middle, mlp.fc2(hidden) / block.divisor, passed)
    branch = through_linear(mlp.fc1, wide, through_linear(mlp.fc2, hidden, branch))
    kept, branch = through_sum(x, y, kept + branch)
    branch = through_linear(attention.proj, joined, branch).unflatten(2, (attention.heads, -1)).transpose(1, 2)
    of_a, of_v = through_product(a, v, mixed, branch)
    of_q, of_k = through_product(q, k.transpose(-2, -1), scores, of_a)
    parts = torch.stack([of_q, of_k.transpose(-2, -1), of_v])  # (3, B, k, T, D/k)
    return kept + through_linear(attention.qkv, normed, parts.permute(1, 3, 0, 2, 4).flatten(2)), of_a


def through_linear(layer: nn.Linear, x: Tensor, passed: Tensor) -> Tensor:
    """By positive contributions alone. x: (..., D); passed: (..., K); returns (..., D)."""
    up, down = layer.weight.clamp(min=0), layer.weight.clamp(max=0)  # (K, D)
    above, below = x.clamp(min=0), x.clamp(max=0)
    each = divided(passed, F.linear(above, up) + F.linear(below, down))
    return above * (each @ up) + below * (each @ down)


def through_product(a: Tensor, b: Tensor, product: Tensor, passed: Tensor) -> tuple[Tensor, Tensor]:
    """Half to each factor, by the terms of the sums. a: (..., m, n); b: (..., n, r); product, passed: (..., m, r)."""
    each = divided(passed, product) / 2
    return a * (each @ b.transpose(-2, -1)), b * (a.transpose(-2, -1) @ each)


def through_sum(a: Tensor, b: Tensor, passed: Tensor) -> tuple[Tensor, Tensor]:
    """By parts, scaled so that each term gets its share of the absolute totals (eq. 10). All (B, ...)."""
    dims = tuple(range(1, a.ndim))
    each = divided(passed, a + b)
    whole = passed.sum(dims, keepdim=True)
    parts = [a * each, b * each]
    totals = [part.sum(dims, keepdim=True) for part in parts]
    size = totals[0].abs() + totals[1].abs()
    first, second = (
        part * divided(whole * divided(total.abs(), size), total) for part, total in zip(parts, totals, strict=True)
    )
    return first, second


def divided(part: Tensor, whole: Tensor) -> Tensor:
    """A quotient that is 0 where nothing can be divided."""
    near = whole + TINY
    return torch.where((whole == 0) | (near == 0), torch.zeros_like(whole), part / near)


@contextmanager
def _entering(layers: list[nn.Module]) -> Iterator[list[Tensor]]:
    """What each layer takes, in the order they are used."""
    found: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        found.append(inputs[0].detach())

    hooks = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
