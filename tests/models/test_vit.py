"""The ViT: names, pooling, mixing after the stem, visible tokens, and the sources of a mixture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.layers.stems import PatchStemConfig, Stem, TokenStemConfig
from tilework.models import Visible, Vit, VitConfig

TINY = VitConfig(width=16, depth=3, heads=2, stem=PatchStemConfig(patch=4))
SIDE, PLACES = 16, 16  # 16 px images, 4x4 tokens
BLOCK_NAMES = [
    "norm1.weight",
    "norm1.bias",
    "attn.qkv.weight",
    "attn.qkv.bias",
    "attn.proj.weight",
    "attn.proj.bias",
    "norm2.weight",
    "norm2.bias",
    "mlp.fc1.weight",
    "mlp.fc1.bias",
    "mlp.fc2.weight",
    "mlp.fc2.bias",
]


def make(seed: int = 0, classes: int = 5, **changes: Any) -> Vit:
    torch.manual_seed(seed)
    model = replace(TINY, **changes).build(3, (SIDE, SIDE), classes)
    with torch.no_grad():  # attention far from uniform
        for block in model.blocks:
            block.attn.qkv.weight.mul_(10)
    return model.eval()


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


def pair_mix(after_stem: bool = False, seed: int = 2) -> Mix:
    """Two samples, each the other's partner, with the complementary share."""
    own = (torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(seed)) < 0.6).float()
    return Mix(torch.tensor([1, 0]), torch.cat([own, own]), after_stem)


class Given(Stem):
    """A stem that gives a map decided beforehand."""

    def __init__(self, value: Tensor) -> None:
        super().__init__((value.shape[2], value.shape[3]), value.shape[1], SIDE // value.shape[2])
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value


# names and sizes


def test_names_are_those_of_timm() -> None:
    blocks = [f"blocks.{i}.{name}" for i in range(3) for name in BLOCK_NAMES]
    names = ["cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias", *blocks]
    assert list(make().state_dict()) == [*names, "norm.weight", "norm.bias", "head.weight", "head.bias"]
    pooled = list(make(pool="mean").state_dict())
    assert pooled == [*names, "fc_norm.weight", "fc_norm.bias", "head.weight", "head.bias"]


def test_shapes_are_those_of_timm() -> None:
    state = make().state_dict()
    assert state["cls_token"].shape == (1, 1, 16)
    assert state["pos_embed"].shape == (1, 1 + PLACES, 16)
    assert state["patch_embed.proj.weight"].shape == (16, 3, 4, 4)
    assert state["blocks.0.attn.qkv.weight"].shape == (48, 16)
    assert state["blocks.0.mlp.fc1.weight"].shape == (64, 16)
    assert state["head.weight"].shape == (5, 16)


def test_no_qkv_bias_leaves_it_out() -> None:
    assert set(make().state_dict()) - set(make(qkv_bias=False).state_dict()) == {
        f"blocks.{i}.attn.qkv.bias" for i in range(3)
    }


def test_same_seed_gives_the_same_network() -> None:
    first, second, other = make(0).state_dict(), make(0).state_dict(), make(1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_initial_weights() -> None:
    torch.manual_seed(0)
    model = replace(TINY, width=64).build(3, (SIDE, SIDE), 5)
    assert model.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.1)
    assert all(p.eq(0).all() for name, p in model.named_parameters() if name.endswith("fc1.bias"))


def test_layers_tell_depths_apart() -> None:
    model = make()
    depths = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    for name in ("cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"):
        assert depths[name] == 0
    for i in range(3):
        assert {depths[f"blocks.{i}.{name}"] for name in BLOCK_NAMES} == {i + 1}
    assert {depths[name] for name in ("norm.weight", "norm.bias", "head.weight", "head.bias")} == {4}
    assert set(depths.values()) == set(range(model.layers))


def test_pooled_norm_belongs_to_the_last_layer() -> None:
    model = make(pool="mean")
    assert model.layer_of("fc_norm.weight") == model.layers - 1


def test_drop_path_rises_linearly() -> None:
    assert [block.drop_path for block in make(drop_path=0.2).blocks] == pytest.approx([0, 0.1, 0.2])
    assert [block.drop_path for block in make(drop_path=0.2, depth=1).blocks] == [0]


def test_sincos_positions_are_fixed() -> None:
    model = make(positions="sincos")
    assert not model.pos_embed.requires_grad
    assert model.pos_embed[0, 0].eq(0).all()
    assert model.pos_embed[0, 1].tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 4 + [1.0] * 4  # place (0, 0)
    assert make().pos_embed.requires_grad


@pytest.mark.parametrize("changes", [{"heads": 3}, {"width": 18, "heads": 2, "positions": "sincos"}])
def test_widths_that_do_not_fit_are_a_configuration_error(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(**changes)


# forward


def test_output_has_the_promised_shapes() -> None:
    out = make()(images())
    assert out.logits.shape == (2, 5)
    assert out.tokens.shape == (2, PLACES, 16)
    assert out.stem.shape == (2, 16, 4, 4)
    assert out.grid == (4, 4)
    assert out.dense is None
    assert out.share is None


def test_token_input_on_an_oblong_grid() -> None:
    model = replace(TINY, stem=TokenStemConfig(), pool="mean").build(6, (8, 12), 5)
    out = model(torch.randn(2, 6, 8, 12))
    assert model.takes == "map"
    assert out.grid == model.grid == (4, 6)
    assert out.tokens.shape == (2, 24, 16)


def test_samples_do_not_see_each_other() -> None:
    model, x = make(), images(4)
    together = model(x).logits
    alone = torch.cat([model(x[i : i + 1]).logits for i in range(4)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_forward_is_stem_positions_blocks_norm_head() -> None:
    model, x = make(), images()
    tokens = model.patch_embed(x).flatten(2).transpose(1, 2)
    tokens = torch.cat([model.cls_token.expand(2, -1, -1), tokens], 1) + model.pos_embed
    for block in model.blocks:
        tokens = block(tokens)[0]
    tokens = model.norm(tokens)
    out = model(x)
    assert torch.allclose(out.tokens, tokens[:, 1:], atol=1e-5)
    assert torch.allclose(out.logits, model.head(tokens[:, 0]), atol=1e-5)


def test_mean_pool_reads_the_mean_of_the_patch_tokens() -> None:
    out = (model := make(pool="mean"))(images())
    assert torch.allclose(out.logits, model.head(model.fc_norm(out.tokens.mean(1))), atol=1e-6)


def test_class_pool_does_not_read_patch_tokens() -> None:
    model, x = make(depth=1), images()
    before = model(x).logits
    original = model.blocks[0].forward

    def disturbed(tokens: Tensor, share: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        tokens, share = original(tokens, share)
        return torch.cat([tokens[:, :1], torch.randn_like(tokens[:, 1:])], 1), share

    model.blocks[0].forward = disturbed  # type: ignore[method-assign]
    assert torch.equal(model(x).logits, before)


def test_without_classes_the_logits_are_the_representation() -> None:
    assert make(classes=0)(images()).logits.shape == (2, 16)


def test_positions_matter() -> None:
    model, x = make(), images()
    assert not torch.allclose(model(x).logits, model(x.flip(-1)).logits, atol=1e-4)


# mixing


def test_mix_after_the_stem_equals_mixing_by_hand() -> None:
    model, x, mix = make(), images(), pair_mix(after_stem=True)
    out = model(x, mix=mix)
    stem = model.patch_embed(x)
    by_hand = torch.empty_like(stem)
    for i in range(2):
        for row in range(4):
            for column in range(4):
                source = i if mix.own[i, row, column] == 1 else 1 - i
                by_hand[i, :, row, column] = stem[source, :, row, column]
    assert torch.equal(out.stem, stem)
    model.patch_embed = Given(by_hand)
    assert torch.allclose(out.logits, model(x).logits, atol=1e-6)


def test_fractional_shares_blend_the_stem_map() -> None:
    model, x = make(), images()
    mix = Mix(torch.tensor([1, 0]), torch.full((2, 4, 4), 0.25), after_stem=True)
    logits, stem = model(x, mix=mix).logits, model.patch_embed(x)
    model.patch_embed = Given(0.25 * stem + 0.75 * stem[[1, 0]])
    assert torch.allclose(logits, model(x).logits, atol=1e-5)


def test_mix_of_the_input_does_not_mix_again() -> None:
    model, x = make(), images()
    assert torch.equal(model(x, mix=pair_mix()).logits, model(x).logits)


# visible tokens


def test_keep_returns_the_visible_tokens_only() -> None:
    keep = torch.tensor([[0, 5, 9], [15, 2, 3]])
    out = make()(images(), visible=Visible(keep))
    assert out.tokens.shape == (2, 3, 16)
    assert out.grid == (4, 4)
    assert out.logits.shape == (2, 5)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_hidden_content_changes_nothing(pool: str) -> None:
    model, x = make(pool=pool), images()
    keep = torch.tensor([[0, 5, 9], [15, 2, 3]])
    hidden = torch.ones(2, PLACES).scatter(1, keep, 0.0).view(2, 1, 4, 4)
    mask = hidden.repeat_interleave(4, 2).repeat_interleave(4, 3)  # (B, 1, H, W) pixels
    other = x * (1 - mask) + x.flip(2, 3) * 3 * mask
    assert not torch.allclose(model(x).logits, model(other).logits, atol=1e-3)
    first, second = model(x, visible=Visible(keep)), model(other, visible=Visible(keep))
    assert torch.allclose(first.logits, second.logits, atol=1e-6)
    assert torch.allclose(first.tokens, second.tokens, atol=1e-6)


def test_visible_content_changes_the_result() -> None:
    model, x = make(), images()
    keep = torch.tensor([[0, 5], [0, 5]])
    other = x.clone()
    other[:, :, 4:8, 4:8] += 1  # place 5
    assert not torch.allclose(
        model(x, visible=Visible(keep)).logits, model(other, visible=Visible(keep)).logits, atol=1e-4
    )


def test_keeping_all_is_keeping_none_out() -> None:
    model, x = make(), images()
    everything = torch.arange(PLACES).expand(2, -1)
    assert torch.allclose(model(x, visible=Visible(everything)).logits, model(x).logits, atol=1e-6)


def test_order_of_the_visible_places_only_orders_the_tokens() -> None:
    model, x = make(), images()
    keep, turned = torch.tensor([[1, 6, 11]] * 2), torch.tensor([[11, 1, 6]] * 2)
    first, second = model(x, visible=Visible(keep)), model(x, visible=Visible(turned))
    assert torch.allclose(first.tokens[:, [2, 0, 1]], second.tokens, atol=1e-5)
    assert torch.allclose(first.logits, second.logits, atol=1e-5)


# sources of a mixture


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_without_mixture_the_share_is_all_own(pool: str) -> None:
    share = make(pool=pool)(images(), track=True).share
    assert share is not None
    assert torch.allclose(share, torch.tensor([[1.0, 0.0]] * 2), atol=1e-6)


def test_tracking_leaves_the_logits() -> None:
    model, x, mix = make(), images(), pair_mix(after_stem=True)
    assert torch.allclose(model(x, mix=mix).logits, model(x, mix=mix, track=True).logits, atol=1e-5)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_swapping_the_images_gives_the_complement(pool: str) -> None:
    model, x, mix = make(pool=pool), images(), pair_mix(after_stem=True)
    swapped = Mix(mix.partner, 1 - mix.own, after_stem=True)
    first, second = model(x, mix=mix, track=True), model(x.flip(0), mix=swapped, track=True)
    assert torch.allclose(first.logits, second.logits, atol=1e-5)  # the same mixed tokens
    assert torch.allclose(first.share, second.share.flip(1), atol=1e-5)
    assert (first.share[:, 0] - 0.5).abs().min() > 0.01


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_share_equals_attention_rollout(pool: str) -> None:
    """Product of (A + 1) / 2 over the blocks, times the initial labels; the class token starts with the area."""
    model, x, mix = make(pool=pool), images(), pair_mix(after_stem=True)
    tokens = mix.apply(model.patch_embed(x)).flatten(2).transpose(1, 2)
    tokens = torch.cat([model.cls_token.expand(2, -1, -1), tokens], 1) + model.pos_embed
    rollout = torch.eye(1 + PLACES).repeat(2, 1, 1)
    for block in model.blocks:
        q, k, _ = block.attn.qkv(block.norm1(tokens)).chunk(3, -1)
        heads = [(a @ b.mT / 8**0.5).softmax(-1) for a, b in zip(q.split(8, -1), k.split(8, -1), strict=True)]
        rollout = (sum(heads) / 2 + torch.eye(1 + PLACES)) / 2 @ rollout
        tokens = block(tokens)[0]
    own = mix.own.flatten(1)
    initial = torch.cat([own.mean(1, keepdim=True), own], 1)[..., None]
    final = (rollout @ initial)[..., 0]
    expected = final[:, 1:].mean(1) if pool == "mean" else final[:, 0]
    share = model(x, mix=mix, track=True).share
    assert share is not None
    assert torch.allclose(share[:, 0], expected, atol=1e-5)
    assert torch.allclose(share.sum(1), torch.ones(2), atol=1e-6)
    assert (expected - own.mean(1)).abs().max() > 1e-3  # not just the area


def test_mixture_on_the_pixel_grid_is_tracked_by_area() -> None:
    model, x = make(depth=0, pool="mean"), images()
    own = torch.zeros(2, SIDE, SIDE)
    own[0, :, :10] = 1
    share = model(x, mix=Mix(torch.tensor([1, 0]), own), track=True).share
    assert share is not None
    assert torch.allclose(share, torch.tensor([[10 / 16, 6 / 16], [0.0, 1.0]]), atol=1e-6)


def test_hidden_tokens_are_left_out_of_the_share() -> None:
    model, x = make(depth=0, pool="mean"), images()
    own = torch.zeros(2, 4, 4)
    own[:, 0] = 1
    keep = torch.tensor([[0, 1, 4], [0, 5, 6]])
    share = model(x, mix=Mix(torch.tensor([1, 0]), own), visible=Visible(keep), track=True).share
    assert share is not None
    assert share[:, 0].tolist() == pytest.approx([2 / 3, 1 / 3])
