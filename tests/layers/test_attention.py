"""Attention: against a loop, against torch's own module, and with label shares."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tilework.layers.attention import FEW, Attention, mean_attention

BATCH, TOKENS, WIDTH, HEADS = 2, 7, 12, 3


def make(qkv_bias: bool = True) -> tuple[Attention, Tensor]:
    torch.manual_seed(0)
    attention = Attention(WIDTH, HEADS, qkv_bias)
    return attention, 2 * torch.randn(BATCH, TOKENS, WIDTH)


def make_share(sources: int = 2) -> Tensor:
    return torch.rand(BATCH, TOKENS, sources, generator=torch.Generator().manual_seed(1)).softmax(-1)


def slow_attention(attention: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (B, N, D) and weights averaged over heads (B, N, N), one query at a time."""
    size = WIDTH // HEADS
    out, mean = torch.zeros_like(x), torch.zeros(BATCH, TOKENS, TOKENS)
    weight, bias = attention.qkv.weight, attention.qkv.bias
    for b in range(BATCH):
        values = x[b] @ weight.T + (0 if bias is None else bias)  # (N, 3 D): all q, all k, all v
        for head in range(HEADS):
            q, k, v = (values[:, part * WIDTH + head * size :][:, :size] for part in range(3))
            for i in range(TOKENS):
                scores = torch.stack([q[i] @ k[j] / size**0.5 for j in range(TOKENS)])
                a = scores.exp() / scores.exp().sum()
                mean[b, i] += a / HEADS
                out[b, i, head * size : (head + 1) * size] = sum(a[j] * v[j] for j in range(TOKENS))
    return attention.proj(out), mean


@pytest.mark.parametrize("qkv_bias", [True, False])
def test_equals_a_loop(qkv_bias: bool) -> None:
    attention, x = make(qkv_bias)
    out, share = attention(x)
    assert share is None
    assert torch.allclose(out, slow_attention(attention, x)[0], atol=1e-5)


def test_share_equals_a_loop() -> None:
    attention, x = make()
    share = make_share()
    out, attended = attention(x, share)
    slow, weights = slow_attention(attention, x)
    assert torch.allclose(out, slow, atol=1e-5)
    assert torch.allclose(attended, weights @ share, atol=1e-5)


def test_equals_torch_with_the_same_weights() -> None:
    attention, x = make()
    other = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    other.load_state_dict(
        {
            "in_proj_weight": attention.qkv.weight,
            "in_proj_bias": attention.qkv.bias,
            "out_proj.weight": attention.proj.weight,
            "out_proj.bias": attention.proj.bias,
        }
    )
    expected, weights = other(x, x, x, need_weights=True, average_attn_weights=True)
    share = make_share()
    out, attended = attention(x, share)
    assert torch.allclose(attention(x)[0], expected, atol=1e-5)
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(attended, weights @ share, atol=1e-5)


def test_following_shares_leaves_the_tokens() -> None:
    attention, x = make()
    assert torch.allclose(attention(x)[0], attention(x, make_share())[0], atol=1e-5)


def test_gradients_are_the_same_with_and_without_shares() -> None:
    attention, x = make()
    grads = []
    for share in (None, make_share()):
        attention.zero_grad()
        attention(x, share)[0].square().sum().backward()
        grads.append([p.grad.clone() for p in attention.parameters()])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("sources", [1, 2, 5])
def test_share_rows_stay_distributions(sources: int) -> None:
    attention, x = make()
    _, attended = attention(x, make_share(sources))
    assert attended.shape == (BATCH, TOKENS, sources)
    assert torch.allclose(attended.sum(-1), torch.ones(BATCH, TOKENS), atol=1e-6)
    assert (attended >= 0).all()


def test_uniform_attention_gives_the_mean() -> None:
    attention, x = make()
    with torch.no_grad():
        attention.qkv.weight[: 2 * WIDTH] = 0  # queries and keys all alike
        attention.qkv.bias[: 2 * WIDTH] = 0
    share = make_share()
    _, attended = attention(x, share)
    assert torch.allclose(attended, share.mean(1, keepdim=True).expand_as(share), atol=1e-6)


def test_attention_to_oneself_leaves_shares() -> None:
    attention = Attention(8, 1)
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.eye(8).repeat(3, 1))
        attention.qkv.bias.zero_()
    x = 100 * torch.eye(8)[None]  # scores of 3,500 on the diagonal, 0 elsewhere
    share = torch.rand(1, 8, 2)
    assert torch.equal(attention(x, share)[1], share)


def test_share_carries_no_gradient() -> None:
    attention, x = make()
    out, attended = attention(x, make_share())
    assert out.requires_grad
    assert not attended.requires_grad


def test_share_stays_single_precision_under_autocast() -> None:
    attention, x = make()
    with torch.autocast("cpu", torch.bfloat16):
        out, attended = attention(x, make_share())
    assert out.dtype == torch.bfloat16
    assert attended.dtype == torch.float32
    assert torch.allclose(attended, attention(x, make_share())[1], atol=0.02)


def test_permuting_tokens_permutes_outputs() -> None:
    attention, x = make()
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(attention(x[:, order])[0], attention(x)[0][:, order], atol=1e-5)


def test_mean_attention_equals_the_matrices() -> None:
    attention, x = make()
    attention.seen = []
    _, attended = attention(x, make_share())
    q, k, _ = attention.qkv(x).reshape(BATCH, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    mean = mean_attention(q, k)
    assert torch.allclose(mean, attention.seen[0].mean(1), atol=1e-6)
    assert torch.allclose(attended, attention.seen[0].mean(1) @ make_share(), atol=1e-6)
    assert not mean.requires_grad
    attention.seen = None
    assert torch.allclose(attended, attention(x, make_share())[1], atol=1e-6)


def test_the_first_token_can_be_watched() -> None:
    attention, x = make()
    attention.looks = looks = []
    out, _ = attention(x)
    attention.looks = None
    assert torch.equal(out, attention(x)[0])
    assert len(looks) == 1
    assert torch.allclose(looks[0], slow_attention(attention, x)[1][:, 0], atol=1e-6)
    assert not looks[0].requires_grad


def test_nothing_more_is_kept_for_the_way_back() -> None:
    attention, x = make()
    kept: list[list[int]] = []
    for share in (None, make_share()):
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            attention(x, share)
        kept.append(sizes)
    assert kept[0] == kept[1]


@pytest.mark.parametrize("tokens", [FEW, FEW + 1])
def test_few_tokens_in_bfloat16_equal_the_fused_kernel_in_full_precision(tokens: int) -> None:
    torch.manual_seed(0)
    layer, x = Attention(32, 4), torch.randn(2, tokens, 32, requires_grad=True)
    whole, _ = layer(x)
    (slope,) = torch.autograd.grad(whole.square().sum(), x)
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = layer(x)
    (other,) = torch.autograd.grad(half.float().square().sum(), x)
    torch.testing.assert_close(half.float(), whole, atol=2e-2, rtol=2e-2)
    assert (other - slope).norm() < 0.02 * slope.norm()
