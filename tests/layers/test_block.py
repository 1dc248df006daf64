"""Block: residual branches, drop path, and TL-Align's label update against full label matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tilework.layers.block import Block

WIDTH, HEADS, TOKENS = 8, 2, 6


def make(drop_path: float = 0.0, seed: int = 0) -> Block:
    torch.manual_seed(seed)
    return Block(WIDTH, HEADS, drop_path=drop_path)


def inputs(batch: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    own = torch.rand(batch, TOKENS, generator=g)
    return 2 * torch.randn(batch, TOKENS, WIDTH, generator=g), torch.stack([own, 1 - own], -1)


def head_mean(block: Block, x: Tensor) -> Tensor:
    """Attention weights averaged over heads, (B, N, N)."""
    q, k, _ = block.attn.qkv(block.norm1(x)).chunk(3, -1)
    weights = [
        (a @ b.transpose(1, 2) / (WIDTH // HEADS) ** 0.5).softmax(-1)
        for a, b in zip(q.chunk(HEADS, -1), k.chunk(HEADS, -1), strict=True)
    ]
    return sum(weights) / HEADS


def test_formula_without_drop_path() -> None:
    block, (x, _) = make(), inputs()
    middle = x + block.attn(F.layer_norm(x, (WIDTH,), block.norm1.weight, block.norm1.bias, 1e-6))[0]
    normed = F.layer_norm(middle, (WIDTH,), block.norm2.weight, block.norm2.bias, 1e-6)
    hidden = F.gelu(normed @ block.mlp.fc1.weight.T + block.mlp.fc1.bias)
    expected = middle + hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias
    out, share = block(x)
    assert share is None
    assert torch.allclose(out, expected, atol=1e-5)


def test_mlp_ratio_sets_the_hidden_width() -> None:
    assert Block(8, 2, mlp_ratio=3.0).mlp.fc1.weight.shape == (24, 8)


def test_no_drop_path_means_training_equals_evaluation() -> None:
    block, (x, share) = make(), inputs()
    trained, evaluated = block.train()(x, share), block.eval()(x, share)
    assert torch.equal(trained[0], evaluated[0])
    assert torch.equal(trained[1], evaluated[1])


def test_evaluation_ignores_drop_path() -> None:
    x, share = inputs()
    dropping, plain = make(0.9).eval()(x, share), make(0.0).eval()(x, share)
    assert torch.equal(dropping[0], plain[0])
    assert torch.equal(dropping[1], plain[1])


def test_dropped_branches_leave_tokens_and_shares_alone() -> None:
    block, (x, share) = make(0.999).train(), inputs(8)
    torch.manual_seed(0)
    out, after = block(x, share)
    assert torch.equal(out, x)
    assert torch.equal(after, share)


def test_one_draw_decides_for_tokens_and_shares() -> None:
    block, (x, share) = make(0.5), inputs(200)
    with torch.no_grad():  # silence the second branch, so that tokens change by attention only
        block.mlp.fc2.weight.zero_()
        block.mlp.fc2.bias.zero_()
    full, aligned = block.eval()(x, share)
    torch.manual_seed(0)
    out, after = block.train()(x, share)
    dropped = (out == x).all(2).all(1)
    assert 60 < dropped.sum() < 140
    assert torch.equal(after[dropped], share[dropped])
    assert torch.allclose(after[~dropped], aligned[~dropped], atol=1e-6)
    assert torch.allclose(out[~dropped] - x[~dropped], 2 * (full - x)[~dropped], atol=1e-4)  # 1 / (1 - 0.5)


def test_the_two_branches_are_dropped_independently() -> None:
    block, (x, share) = make(0.5).train(), inputs(400)
    torch.manual_seed(0)
    out, after = block(x, share)
    attention_dropped = (after == share).all(2).all(1)
    both_dropped = (out == x).all(2).all(1)
    assert both_dropped.sum() < attention_dropped.sum()
    assert 60 < both_dropped.sum() < 140  # a quarter of 400


def test_drop_path_keeps_the_mean() -> None:
    block, (x, _) = make(0.3), inputs(1)
    with torch.no_grad():
        block.mlp.fc2.weight.zero_()
        block.mlp.fc2.bias.zero_()
    expected = block.eval()(x)[0]
    torch.manual_seed(0)
    mean = block.train()(x.expand(4000, -1, -1))[0].mean(0, keepdim=True)
    assert torch.allclose(mean, expected, atol=0.05)


def test_shares_equal_full_label_matrices() -> None:
    """TL-Align: Y <- (A Y + Y) / 2 for every token's label, A the mean over heads; here through three blocks."""
    x, share = inputs()
    labels = torch.rand(3, 2, 10, generator=torch.Generator().manual_seed(5)).softmax(-1)  # two images' soft labels
    full = share @ labels  # (B, N, K)
    for seed in range(3):
        block = make(seed=seed).eval()
        with torch.no_grad():
            block.attn.qkv.weight.mul_(3)  # far from uniform
            full = (head_mean(block, x) @ full + full) / 2
            x, share = block(x, share)
    assert torch.allclose(share @ labels, full, atol=1e-5)
    assert torch.allclose(share.sum(-1), torch.ones(3, TOKENS), atol=1e-5)


def test_following_shares_leaves_the_tokens() -> None:
    block, (x, share) = make().eval(), inputs()
    assert torch.allclose(block(x)[0], block(x, share)[0], atol=1e-5)


def test_share_is_returned_and_never_kept() -> None:
    block, (x, share) = make(), inputs()
    before = share.clone()
    _, after = block(x, share)
    assert torch.equal(share, before)
    assert not after.requires_grad
    assert not any(isinstance(value, Tensor) and value.shape == after.shape for value in vars(block).values())


def test_divisor_weakens_both_branches_and_the_attended_labels() -> None:
    """LV-ViT: x + F(x) / d; TL-Align: (Y + A Y / d) / (1 + 1 / d)."""
    x, share = inputs()
    torch.manual_seed(0)
    block = Block(WIDTH, HEADS, divisor=3.0).eval()
    middle = x + block.attn(block.norm1(x))[0] / 3
    out, followed = block(x, share)
    assert torch.allclose(out, middle + block.mlp(block.norm2(middle)) / 3, atol=1e-5)
    attended = head_mean(block, x) @ share
    assert torch.allclose(followed, (share + attended / 3) / (1 + 1 / 3), atol=1e-5)
    assert torch.allclose(followed.sum(-1), torch.ones(3, TOKENS), atol=1e-5)


def test_three_sources() -> None:
    block, (x, _) = make(0.5).train(), inputs(50)
    share = torch.rand(50, TOKENS, 3, generator=torch.Generator().manual_seed(3)).softmax(-1)
    torch.manual_seed(0)
    _, all_three = block(x, share)
    for source in range(3):  # each by itself: what one gets does not depend on the others
        torch.manual_seed(0)
        assert torch.allclose(block(x, share[..., source : source + 1])[1], all_three[..., source : source + 1])
    assert torch.allclose(all_three.sum(-1), torch.ones(50, TOKENS), atol=1e-6)


def test_autocast_leaves_shares_in_single_precision() -> None:
    block, (x, share) = make().eval(), inputs()
    with torch.autocast("cpu", torch.bfloat16):
        _, followed = block(x, share)
    assert followed.dtype == torch.float32
    assert torch.allclose(followed, block(x, share)[1], atol=0.01)
    assert torch.allclose(followed.sum(-1), torch.ones(3, TOKENS), atol=1e-6)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_nothing(reentrant: bool) -> None:
    block, (x, share) = make(0.5).train(), inputs(8)
    found = []
    for again in (False, True):
        block.zero_grad()
        torch.manual_seed(0)
        start = x.clone().requires_grad_()
        out, followed = checkpoint(block, start, share, use_reentrant=reentrant) if again else block(start, share)
        out.square().sum().backward()
        found.append((out, followed, start.grad, block.attn.qkv.weight.grad.clone()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert reentrant or not found[1][1].requires_grad  # that kind says so of all it returns
