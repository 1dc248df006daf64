"""Other people's checkpoints and the networks they need. Oracles: the published layers written as plain functions.

The VQ-VAE was checked on real weights (docs/results.md); VQGAN and ViT-VQGAN never were, and their cards say so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from tilework.core.errors import DamageError, InputError
from tilework.layers.positions import sincos_positions
from tilework.models.model import ModelConfig
from tilework.tokenizers import Tokenizer, VitVqganConfig, VqganConfig, VqVaeConfig, create_tokenizer
from tilework.tokenizers.foreign import FAMILIES, load_foreign
from tilework.tokenizers.vit_vqgan import SIZES, TransformerConfig

SMALL_SIDE = TransformerConfig(width=32, depth=2, heads=2, hidden=48)
SMALL: dict[str, ModelConfig] = {
    "vqgan": VqganConfig(32, (1, 2), 1, (1,), latent=8, codes=12, code_dim=6),
    "gumbel": VqganConfig(32, (1, 2, 2), 2, (), latent=8, codes=12, code_dim=6, gumbel=True),
    "vit_vqgan": VitVqganConfig(4, (4, 4), 12, 6, SMALL_SIDE, TransformerConfig(48, 1, 3, 32)),
    "vq_vae": VqVaeConfig(width=16, blocks=2, hidden=8, codes=12, code_dim=6),
}
PUBLISHED = {  # how the quantiser is called in the checkpoints
    "vqgan": {"quantiser.": "quantize."},
    "gumbel": {"quantiser.embedding.": "quantize.embed.", "quantiser.": "quantize."},
    "vit_vqgan": {"quantiser.": "quantizer."},
    "vq_vae": {"quantiser.embedding.": "vq_vae.codebook."},
}


def built(name: str) -> Tokenizer:
    torch.manual_seed(0)
    model = SMALL[name].build(3, (0, 0), 0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()  # type: ignore[return-value]


def published(name: str, model: Tokenizer) -> dict[str, Tensor]:
    """Weights under the names of the checkpoints."""
    tensors = {}
    for key, value in model.state_dict().items():
        start = next((start for start in PUBLISHED[name] if key.startswith(start)), "")
        tensors[(PUBLISHED[name][start] + key.removeprefix(start)) if start else key] = value
    return tensors


@pytest.mark.parametrize("name", list(SMALL))
@pytest.mark.parametrize("wrap", ["plain", "state_dict", "safetensors"])
def test_checkpoints_are_recognised(name: str, wrap: str, tmp_path: Path) -> None:
    model = built(name)
    tensors = published(name, model)
    path = tmp_path / ("x.safetensors" if wrap == "safetensors" else "x.ckpt")
    if wrap == "safetensors":
        save_file(tensors, path)
    else:
        extra = {"loss.discriminator.weight": torch.zeros(2)}  # lies beside the tokenizer in Lightning's files
        torch.save({"state_dict": {**tensors, **extra}, "epoch": 3} if wrap == "state_dict" else tensors, path)
    found, config, family = load_foreign(path)
    assert config == SMALL[name]
    assert family.tested == (name == "vq_vae")
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(found.encode(x), model.encode(x))
    assert torch.equal(found.decode(found.encode(x)), model.decode(model.encode(x)))


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def group_norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    batch, channels, height, width = x.shape
    parts = x.reshape(batch, 32, -1)
    mean, var = parts.mean(2, keepdim=True), parts.var(2, keepdim=True, correction=0)
    x = ((parts - mean) / (var + 1e-6).sqrt()).view(batch, channels, height, width)
    return x * w[f"{name}.weight"].view(-1, 1, 1) + w[f"{name}.bias"].view(-1, 1, 1)


def conv(x: Tensor, w: dict[str, Tensor], name: str, **options: Any) -> Tensor:
    return F.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], **options)


def residual(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    y = conv(swish(group_norm(x, w, f"{name}.norm1")), w, f"{name}.conv1", padding=1)
    y = conv(swish(group_norm(y, w, f"{name}.norm2")), w, f"{name}.conv2", padding=1)
    return (conv(x, w, f"{name}.nin_shortcut") if f"{name}.nin_shortcut.weight" in w else x) + y


def attention(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    y = group_norm(x, w, f"{name}.norm")
    q, k, v = (conv(y, w, f"{name}.{part}").flatten(2) for part in "qkv")
    weights = (torch.einsum("bci,bcj->bij", q, k) / q.shape[1] ** 0.5).softmax(-1)
    return x + conv(torch.einsum("bij,bcj->bci", weights, v).view(x.shape), w, f"{name}.proj_out")


def middle(x: Tensor, w: dict[str, Tensor], side: str) -> Tensor:
    x = residual(x, w, f"{side}.mid.block_1")
    return residual(attention(x, w, f"{side}.mid.attn_1"), w, f"{side}.mid.block_2")


def slow_vqgan(model: Tokenizer, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Features of a VQGAN and its decoder, layer by layer as published."""
    w, levels = model.state_dict(), len(model.config.multiples)  # type: ignore[union-attr, arg-type]
    x = conv(2 * x - 1, w, "encoder.conv_in", padding=1)
    for level in range(levels):
        for block in range(9):
            if f"encoder.down.{level}.block.{block}.conv1.weight" in w:
                x = residual(x, w, f"encoder.down.{level}.block.{block}")
            if f"encoder.down.{level}.attn.{block}.q.weight" in w:
                x = attention(x, w, f"encoder.down.{level}.attn.{block}")
        if level < levels - 1:
            x = conv(F.pad(x, (0, 1, 0, 1)), w, f"encoder.down.{level}.downsample.conv", stride=2)
    x = conv(swish(group_norm(middle(x, w, "encoder"), w, "encoder.norm_out")), w, "encoder.conv_out", padding=1)

    def decode(vectors: Tensor) -> Tensor:
        y = conv(conv(vectors.permute(0, 3, 1, 2), w, "post_quant_conv"), w, "decoder.conv_in", padding=1)
        y = middle(y, w, "decoder")
        for level in reversed(range(levels)):
            for block in range(9):
                if f"decoder.up.{level}.block.{block}.conv1.weight" in w:
                    y = residual(y, w, f"decoder.up.{level}.block.{block}")
                if f"decoder.up.{level}.attn.{block}.q.weight" in w:
                    y = attention(y, w, f"decoder.up.{level}.attn.{block}")
            if level:
                y = y.repeat_interleave(2, 2).repeat_interleave(2, 3)
                y = conv(y, w, f"decoder.up.{level}.upsample.conv", padding=1)
        return (conv(swish(group_norm(y, w, "decoder.norm_out")), w, "decoder.conv_out", padding=1) + 1) / 2

    return conv(x, w, "quant_conv").permute(0, 2, 3, 1), decode


@pytest.mark.parametrize("name", ["vqgan", "gumbel"])
def test_vqgan_is_its_layers(name: str) -> None:
    model, x = built(name), torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    features, decode = slow_vqgan(model, x)
    torch.testing.assert_close(model.features(x), features, rtol=1e-4, atol=1e-4)
    if name == "gumbel":
        w = model.state_dict()
        scores = features @ w["quantiser.proj.weight"][:, :, 0, 0].T + w["quantiser.proj.bias"]
        expected = scores.argmax(-1)
    else:
        expected = (features[..., None, :] - model.codebook).square().sum(-1).argmin(-1)
    assert torch.equal(model.encode(x), expected)
    vectors = model.codebook[expected]
    torch.testing.assert_close(model.pixels(vectors), decode(vectors), rtol=1e-4, atol=1e-4)


def slow_transformer(x: Tensor, w: dict[str, Tensor], side: str, heads: int) -> Tensor:
    depth = 0
    while f"{side}.transformer.layers.{depth}.0.norm.weight" in w:
        name = f"{side}.transformer.layers.{depth}"
        y = F.layer_norm(x, x.shape[-1:], w[f"{name}.0.norm.weight"], w[f"{name}.0.norm.bias"])
        q, k, v = (y @ w[f"{name}.0.fn.to_qkv.weight"].T).chunk(3, -1)
        heads_of = [t.view(*t.shape[:2], heads, 64).transpose(1, 2) for t in (q, k, v)]
        weights = (heads_of[0] @ heads_of[1].transpose(2, 3) / 8).softmax(-1)
        y = (weights @ heads_of[2]).transpose(1, 2).flatten(2)
        x = x + y @ w[f"{name}.0.fn.to_out.weight"].T + w[f"{name}.0.fn.to_out.bias"]
        y = F.layer_norm(x, x.shape[-1:], w[f"{name}.1.norm.weight"], w[f"{name}.1.norm.bias"])
        y = torch.tanh(y @ w[f"{name}.1.fn.net.0.weight"].T + w[f"{name}.1.fn.net.0.bias"])
        x = x + y @ w[f"{name}.1.fn.net.2.weight"].T + w[f"{name}.1.fn.net.2.bias"]
        depth += 1
    return F.layer_norm(x, x.shape[-1:], w[f"{side}.transformer.norm.weight"], w[f"{side}.transformer.norm.bias"])


def test_vit_vqgan_is_its_layers() -> None:
    model, x = built("vit_vqgan"), torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    w = model.state_dict()
    tokens = conv(x, w, "encoder.to_patch_embedding.0", stride=4).flatten(2).transpose(1, 2)
    tokens = slow_transformer(tokens + w["encoder.en_pos_embedding"], w, "encoder", 2)
    features = F.normalize(tokens @ w["pre_quant.weight"].T + w["pre_quant.bias"], dim=-1)
    torch.testing.assert_close(model.features(x).flatten(1, 2), features, rtol=1e-4, atol=1e-4)
    unit = F.normalize(w["quantiser.embedding.weight"], dim=1)
    ids = (features[:, :, None] - unit).square().sum(-1).argmin(-1)
    assert torch.equal(model.encode(x).flatten(1), ids)
    tokens = unit[ids] @ w["post_quant.weight"].T + w["post_quant.bias"] + w["decoder.de_pos_embedding"]
    tokens = slow_transformer(tokens, w, "decoder", 3).transpose(1, 2).view(2, 48, 4, 4)
    pixels = F.conv_transpose2d(tokens, w["decoder.to_pixel.1.weight"], w["decoder.to_pixel.1.bias"], stride=4)
    torch.testing.assert_close(model.pixels(unit[ids].view(2, 4, 4, 6)), pixels, rtol=1e-4, atol=1e-4)


def test_vit_vqgan_takes_other_sizes_by_their_own_positions() -> None:
    torch.manual_seed(0)
    model = SMALL["vit_vqgan"].build(3, (0, 0), 0).eval()
    assert model.encode(torch.rand(1, 3, 24, 12)).shape == (1, 6, 3)  # type: ignore[operator]
    assert torch.equal(model.encoder.en_pos_embedding[0], sincos_positions(32, 4, 4))  # type: ignore[index, union-attr]


def test_vq_vae_is_its_layers() -> None:
    model, x = built("vq_vae"), torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    w = model.state_dict()

    def stack(y: Tensor, side: str) -> Tensor:
        for block in range(2):
            name = f"{side}._blocks.residual.residual_blocks.residual_{block}._block"
            y = F.relu(y)
            y = y + F.conv2d(F.relu(F.conv2d(y, w[f"{name}.conv_1.weight"], padding=1)), w[f"{name}.conv_2.weight"])
        return F.relu(y)

    y = F.relu(conv(x - 0.5, w, "encoder._blocks.conv_1", stride=2, padding=1))
    y = F.relu(conv(y, w, "encoder._blocks.conv_2", stride=2, padding=1))
    y = stack(conv(y, w, "encoder._blocks.conv_3", padding=1), "encoder")
    features = conv(y, w, "pre_vq_conv").permute(0, 2, 3, 1)
    torch.testing.assert_close(model.features(x), features, rtol=1e-4, atol=1e-4)
    y = stack(conv(features.permute(0, 3, 1, 2), w, "decoder._blocks.conv_1", padding=1), "decoder")
    for name, relu in (("conv_t_1", True), ("conv_t_2", False)):
        weight, bias = w[f"decoder._blocks.{name}.weight"], w[f"decoder._blocks.{name}.bias"]
        y = F.conv_transpose2d(y, weight, bias, stride=2, padding=1)
        y = F.relu(y) if relu else y
    torch.testing.assert_close(model.pixels(features), y + 0.5, rtol=1e-4, atol=1e-4)


def count(config: VqganConfig) -> int:
    """Parameters that the paper's architecture implies, layer by layer."""

    def conv_of(inner: int, outer: int, side: int) -> int:
        return inner * outer * side * side + outer

    def residual_of(inner: int, outer: int) -> int:
        shortcut = conv_of(inner, outer, 1) if inner != outer else 0
        return 2 * inner + conv_of(inner, outer, 3) + 2 * outer + conv_of(outer, outer, 3) + shortcut

    def attention_of(width: int) -> int:
        return 2 * width + 4 * conv_of(width, width, 1)

    sizes = [config.width * m for m in config.multiples]
    low, middle_of = sizes[-1], 2 * residual_of(sizes[-1], sizes[-1]) + attention_of(sizes[-1])
    encoder = conv_of(3, config.width, 3) + middle_of + 2 * low + conv_of(low, config.latent, 3)
    decoder = conv_of(config.latent, low, 3) + middle_of + 2 * sizes[0] + conv_of(sizes[0], 3, 3)
    below = config.width
    for i, size in enumerate(sizes):
        encoder += residual_of(below, size) + (config.blocks - 1) * residual_of(size, size)
        encoder += config.blocks * attention_of(size) if i in config.attention else 0
        encoder += conv_of(size, size, 3) if i < len(sizes) - 1 else 0
        below = size
    for i, size in reversed(list(enumerate(sizes))):
        decoder += residual_of(below, size) + config.blocks * residual_of(size, size)
        decoder += (config.blocks + 1) * attention_of(size) if i in config.attention else 0
        decoder += conv_of(size, size, 3) if i else 0
        below = size
    codes = config.codes * config.code_dim + conv_of(config.code_dim, config.latent, 1)
    if config.gumbel:
        codes += conv_of(config.latent, config.codes, 1) + conv_of(config.latent, config.latent, 1)
    else:
        codes += conv_of(config.latent, config.code_dim, 1)
    return encoder + decoder + codes


@pytest.mark.parametrize(
    ("config", "patch"),
    [  # the tokenizers of SeiT's table B.3
        (VqganConfig(), 16),
        (VqganConfig(codes=16384), 16),
        (VqganConfig(multiples=(1, 2, 2, 4), attention=(3,), latent=4, codes=256, code_dim=4), 8),
        (VqganConfig(multiples=(1, 1, 2, 4), attention=(3,), codes=8192, code_dim=256, gumbel=True), 8),
    ],
)
def test_published_vqgans_have_their_grids_and_sizes(config: VqganConfig, patch: int) -> None:
    with torch.device("meta"):
        model = config.build(3, (256, 256), 0)
    assert model.patch == patch
    assert sum(p.numel() for p in model.parameters()) == count(config)


@pytest.mark.parametrize(("name", "encoder", "decoder"), [("small", 25, 25), ("base", 85, 85), ("large", 25, 588)])
def test_published_vit_vqgans_have_their_sizes(name: str, encoder: int, decoder: int) -> None:
    with torch.device("meta"):
        model = SIZES[f"vit_vqgan_{name}"].build(3, (256, 256), 0)
    assert model.patch == 8
    assert model.codebook.shape == (8192, 32)
    for side, millions in ((model.encoder, encoder), (model.decoder, decoder)):
        assert round(sum(p.numel() for p in side.parameters() if p.requires_grad) / 1e6) == millions


def test_names_build() -> None:
    with torch.device("meta"):
        assert create_tokenizer("vit_vqgan_base").codebook.shape == (8192, 32)
        assert create_tokenizer("vqgan", codes=16384).codebook.shape == (16384, 256)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("this ran",))


def test_code_in_a_checkpoint_never_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": {"a": Evil()}}, tmp_path / "evil.ckpt")
    with pytest.raises(InputError, match="none of it was run"):
        load_foreign(tmp_path / "evil.ckpt")
    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize("name", list(SMALL))
def test_wrong_shapes_name_the_tensor(name: str, tmp_path: Path) -> None:
    tensors = published(name, built(name))
    wrong = next(key for key in sorted(tensors) if key.startswith("decoder.") and tensors[key].ndim == 4)
    torch.save({**tensors, wrong: torch.zeros(3, 3)}, tmp_path / "x.ckpt")
    with pytest.raises(InputError, match=wrong.replace(".", r"\.")):
        load_foreign(tmp_path / "x.ckpt")
    torch.save({key: value for key, value in tensors.items() if key != wrong}, tmp_path / "x.ckpt")
    with pytest.raises(InputError, match=wrong.replace(".", r"\.")):
        load_foreign(tmp_path / "x.ckpt")
    torch.save({**tensors, "decoder.surprise": torch.zeros(1)}, tmp_path / "x.ckpt")
    with pytest.raises(InputError, match=r"decoder\.surprise"):
        load_foreign(tmp_path / "x.ckpt")


def test_unknown_layouts_say_what_was_looked_for(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(3)}, tmp_path / "x.ckpt")
    with pytest.raises(InputError, match="no known tokenizer") as caught:
        load_foreign(tmp_path / "x.ckpt")
    assert all(family.title in str(caught.value) for family in FAMILIES)
    for content in ([1, 2], torch.zeros(3)):
        torch.save(content, tmp_path / "x.ckpt")
        with pytest.raises(InputError, match="a dictionary of tensors"):
            load_foreign(tmp_path / "x.ckpt")
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(DamageError):
        load_foreign(tmp_path / "x.safetensors")
    (tmp_path / "y.ckpt").write_bytes(b"")
    with pytest.raises((DamageError, InputError)):
        load_foreign(tmp_path / "y.ckpt")
    with pytest.raises(InputError, match="no file"):
        load_foreign(tmp_path / "nowhere.ckpt")
