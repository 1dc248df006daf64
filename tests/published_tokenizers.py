"""Other people's tokenizers as published: the names and shapes of their tensors, and what they compute, layer by layer.

Written from these files (repository, file, commit), sharing nothing with the library; weights are a dictionary:
FoundationVision/LlamaGen: tokenizer/tokenizer_image/vq_model.py 3786e6a.
bytedance/1d-tokenizer: modeling/titok.py 10113ad, modeling/modules/blocks.py 10113ad, .../maskgit_vqgan.py be0b076.
TencentARC/Open-MAGVIT2 (SEED-Voken): src/Open_MAGVIT2/modules/diffusionmodules/improved_model.py 21e1f93,
taming/modules/vqvae/lookup_free_quantize.py 6515009, src/IBQ/modules/vqvae/quantize.py 21e1f93.
FoundationVision/VAR: models/basic_vae.py 75ba1e2, models/quant.py 2241199, models/vqvae.py 0029ecd.
duchenzhuang/FSQ-pytorch: model.py, quantizers/fsq.py, dataset.py 361b3d2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Layout = dict[str, tuple[int, ...]]
Weights = dict[str, Tensor]

# names and shapes


def conv_of(name: str, inner: int, outer: int, side: int, bias: bool = True) -> Layout:
    return {f"{name}.weight": (outer, inner, side, side)} | ({f"{name}.bias": (outer,)} if bias else {})


def norm_of(name: str, width: int) -> Layout:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def linear_of(name: str, inner: int, outer: int) -> Layout:
    return {f"{name}.weight": (outer, inner), f"{name}.bias": (outer,)}


def residual_of(name: str, inner: int, outer: int, bias: bool = True, shortcut: int | None = None) -> Layout:
    """shortcut: channels that go into it, where the widths differ."""
    found = norm_of(f"{name}.norm1", inner) | conv_of(f"{name}.conv1", inner, outer, 3, bias)
    found |= norm_of(f"{name}.norm2", outer) | conv_of(f"{name}.conv2", outer, outer, 3, bias)
    return found | (conv_of(f"{name}.nin_shortcut", shortcut or inner, outer, 1, bias) if inner != outer else {})


def attention_of(name: str, width: int, fused: bool = False) -> Layout:
    found = norm_of(f"{name}.norm", width) | conv_of(f"{name}.proj_out", width, width, 1)
    if fused:
        return found | conv_of(f"{name}.qkv", width, 3 * width, 1)
    return found | {k: v for part in "qkv" for k, v in conv_of(f"{name}.{part}", width, width, 1).items()}


@dataclass(frozen=True)
class Names:
    """How a relative of VQGAN calls its parts."""

    level: Callable[[str, int, int], str] = lambda side, i, levels: (
        f"{side}.{'down' if side == 'encoder' else 'up'}.{i}"
    )
    block: str = "block"
    middle: tuple[str, str, str] = ("mid.block_1", "mid.attn_1", "mid.block_2")
    fused: bool = False


TAMING = Names()
VAR = Names(fused=True)
LLAMAGEN = Names(
    lambda side, i, levels: f"{side}.conv_blocks.{i if side == 'encoder' else levels - 1 - i}",
    "res",
    ("mid.0", "mid.1", "mid.2"),
)


def vqgan_layout(n: Names, width: int, multiples: tuple[int, ...], blocks: int, latent: int) -> Layout:
    """Encoder and decoder, attention at the lowest resolution."""
    sizes, levels = [width * m for m in multiples], len(multiples)
    found = conv_of("encoder.conv_in", 3, width, 3)
    found |= conv_of("decoder.conv_in", latent, sizes[-1], 3)
    below = width
    for side in ("encoder", "decoder"):
        steps = range(levels) if side == "encoder" else reversed(range(levels))
        below = width if side == "encoder" else sizes[-1]
        for i in steps:
            name = n.level(side, i, levels)
            for j in range(blocks + (side == "decoder")):
                found |= residual_of(f"{name}.{n.block}.{j}", below, sizes[i])
                below = sizes[i]
                found |= attention_of(f"{name}.attn.{j}", below, n.fused) if i == levels - 1 else {}
            if side == "encoder" and i < levels - 1:
                found |= conv_of(f"{name}.downsample.conv", below, below, 3)
            if side == "decoder" and i > 0:
                found |= conv_of(f"{name}.upsample.conv", below, below, 3)
        first, second, third = (f"{side}.{part}" for part in n.middle)
        found |= residual_of(first, sizes[-1], sizes[-1]) | attention_of(second, sizes[-1], n.fused)
        found |= residual_of(third, sizes[-1], sizes[-1])
        found |= norm_of(f"{side}.norm_out", below)
    return found | conv_of("encoder.conv_out", sizes[-1], latent, 3) | conv_of("decoder.conv_out", width, 3, 3)


def llamagen_layout(width: int, multiples: tuple[int, ...], latent: int, codes: int, dim: int) -> Layout:
    found = vqgan_layout(LLAMAGEN, width, multiples, 2, latent) | {"quantize.embedding.weight": (codes, dim)}
    found |= {"quantize.codebook_used": (65536,)}
    return found | conv_of("quant_conv", latent, dim, 1) | conv_of("post_quant_conv", dim, latent, 1)


def ibq_layout(width: int, multiples: tuple[int, ...], latent: int, codes: int, dim: int) -> Layout:
    found = vqgan_layout(TAMING, width, multiples, 4, latent) | {"quantize.embedding.weight": (codes, dim)}
    return found | conv_of("quant_conv", latent, dim, 1) | conv_of("post_quant_conv", dim, latent, 1)


def var_layout(width: int, multiples: tuple[int, ...], codes: int, dim: int) -> Layout:
    found = vqgan_layout(VAR, width, multiples, 2, dim)
    found |= {"quantize.embedding.weight": (codes, dim), "quantize.ema_vocab_hit_SV": (10, codes)}
    for i in range(4):
        found |= conv_of(f"quantize.quant_resi.qresi_ls.{i}", dim, dim, 3)
    return found | conv_of("quant_conv", dim, dim, 3) | conv_of("post_quant_conv", dim, dim, 3)


def maskgit_decoder_layout(name: str, width: int, multiples: tuple[int, ...], dim: int) -> Layout:
    sizes = [width * m for m in multiples]
    found, below = conv_of(f"{name}.conv_in", dim, sizes[-1], 3), sizes[-1]
    for j in range(2):
        found |= residual_of(f"{name}.mid.{j}", below, below, bias=False)
    for i in reversed(range(len(sizes))):
        for j in range(2):
            found |= residual_of(f"{name}.up.{i}.block.{j}", below, sizes[i], False, shortcut=sizes[i])
            below = sizes[i]
        found |= conv_of(f"{name}.up.{i}.upsample_conv", below, below, 3) if i else {}
    return found | norm_of(f"{name}.norm_out", below) | conv_of(f"{name}.conv_out", below, 3, 3)


def maskgit_layout(width: int, multiples: tuple[int, ...], codes: int, dim: int) -> Layout:
    sizes = [width * m for m in multiples]
    found, below = conv_of("encoder.conv_in", 3, width, 3, bias=False), width
    for i, size in enumerate(sizes):
        for j in range(2):
            found |= residual_of(f"encoder.down.{i}.block.{j}", below, size, False, shortcut=size)
            below = size
    for j in range(2):
        found |= residual_of(f"encoder.mid.{j}", below, below, bias=False)
    found |= norm_of("encoder.norm_out", below) | conv_of("encoder.conv_out", below, dim, 1)
    return (
        found | maskgit_decoder_layout("decoder", width, multiples, dim) | {"quantize.embedding.weight": (codes, dim)}
    )


def magvit2_layout(width: int, multiples: tuple[int, ...], blocks: int, bits: int) -> Layout:
    sizes = [width * m for m in multiples]
    found, below = conv_of("encoder.conv_in", 3, width, 3, bias=False), width
    for i, size in enumerate(sizes):
        for j in range(blocks):
            found |= residual_of(f"encoder.down.{i}.block.{j}", below, size, bias=False)
            below = size
        found |= conv_of(f"encoder.down.{i}.downsample", below, below, 3) if i < len(sizes) - 1 else {}
    found |= conv_of("encoder.conv_out", below, bits, 1) | conv_of("decoder.conv_in", bits, below, 3)
    for side, j in itertools.product(("encoder", "decoder"), range(blocks)):
        found |= residual_of(f"{side}.mid_block.{j}", below, below, bias=False)
    found |= norm_of("encoder.norm_out", below)
    for i in reversed(range(len(sizes))):
        found |= linear_of(f"decoder.adaptive.{i}.gamma", bits, below) | linear_of(
            f"decoder.adaptive.{i}.beta", bits, below
        )
        for j in range(blocks):
            found |= residual_of(f"decoder.up.{i}.block.{j}", below, sizes[i], bias=False)
            below = sizes[i]
        found |= conv_of(f"decoder.up.{i}.upsample.conv1", below, 4 * below, 3) if i else {}
    return found | norm_of("decoder.norm_out", below) | conv_of("decoder.conv_out", below, 3, 3)


def titok_side_layout(name: str, width: int, depth: int, grid: int, tokens: int) -> Layout:
    found: Layout = {f"{name}.class_embedding": (1, width), f"{name}.positional_embedding": (grid**2 + 1, width)}
    found |= {f"{name}.latent_token_positional_embedding": (tokens, width)}
    found |= norm_of(f"{name}.ln_pre", width) | norm_of(f"{name}.ln_post", width)
    for i in range(depth):
        block = f"{name}.transformer.{i}"
        found |= norm_of(f"{block}.ln_1", width) | norm_of(f"{block}.ln_2", width)
        found |= {f"{block}.attn.in_proj_weight": (3 * width, width), f"{block}.attn.in_proj_bias": (3 * width,)}
        found |= linear_of(f"{block}.attn.out_proj", width, width)
        found |= linear_of(f"{block}.mlp.c_fc", width, 4 * width) | linear_of(f"{block}.mlp.c_proj", 4 * width, width)
    return found


def titok_layout(
    tokens: int,
    codes: int,
    dim: int,
    encoder: tuple[int, int],
    decoder: tuple[int, int],
    grid: int = 16,
    patch: int = 16,
    painter: tuple[int, tuple[int, ...], int, int] | None = (128, (1, 1, 2, 2, 4), 1024, 256),
) -> Layout:
    """painter: width, multiples, codes and dims of the MaskGIT decoder in the first models."""
    wide, out = encoder[0], decoder[0]
    found: Layout = {"latent_tokens": (tokens, wide), "quantize.embedding.weight": (codes, dim)}
    found |= titok_side_layout("encoder", *encoder, grid, tokens) | titok_side_layout("decoder", *decoder, grid, tokens)
    found |= conv_of("encoder.patch_embed", 3, wide, patch) | conv_of("encoder.conv_out", wide, dim, 1)
    found |= linear_of("decoder.decoder_embed", dim, out) | {"decoder.mask_token": (1, 1, out)}
    if painter is None:
        return found | conv_of("decoder.ffn.0", out, 3 * patch**2, 1) | conv_of("decoder.conv_out", 3, 3, 3)
    width, multiples, count, size = painter
    found |= conv_of("decoder.ffn.0", out, 2 * out, 1) | conv_of("decoder.ffn.2", 2 * out, count, 1)
    found |= {"pixel_quantize.embedding.weight": (count, size)}
    return found | maskgit_decoder_layout("pixel_decoder", width, multiples, size)


def fsq_layout(width: int, channels: int) -> Layout:
    found: Layout = {}
    for i, inner in zip((0, 2, 4), (3, width, width), strict=True):
        found |= conv_of(f"enc.blocks.{i}", inner, width, 4)
    for i, inner in zip((0, 2, 4), (channels, width, width), strict=True):
        found |= {f"dec.blocks.{i}.weight": (inner, width, 4, 4), f"dec.blocks.{i}.bias": (width,)}
    return found | conv_of("enc.blocks.6", width, channels, 1) | conv_of("dec.blocks.6", width, 3, 1)


def weights(layout: Layout, seed: int = 0) -> Weights:
    """Random tensors of a layout, scaled so that signals neither die nor explode."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in layout.items():
        fan = math.prod(shape[1:]) if len(shape) > 1 else 25
        found[name] = torch.randn(shape, generator=generator) / math.sqrt(fan)
        if ("norm" in name or ".ln_" in name) and name.endswith("weight"):
            found[name] += 1
    return found


# what they compute


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def plain_norm(x: Tensor) -> Tensor:
    parts = x.reshape(len(x), 32, -1)
    mean, var = parts.mean(2, keepdim=True), parts.var(2, keepdim=True, correction=0)
    return ((parts - mean) / (var + 1e-6).sqrt()).view(x.shape)


def group_norm(x: Tensor, w: Weights, name: str) -> Tensor:
    return plain_norm(x) * w[f"{name}.weight"].view(-1, 1, 1) + w[f"{name}.bias"].view(-1, 1, 1)


def conv(x: Tensor, w: Weights, name: str, **options: Any) -> Tensor:
    return F.conv2d(x, w[f"{name}.weight"], w.get(f"{name}.bias"), **options)


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def branch(x: Tensor, w: Weights, name: str) -> Tensor:
    y = conv(swish(group_norm(x, w, f"{name}.norm1")), w, f"{name}.conv1", padding=1)
    return conv(swish(group_norm(y, w, f"{name}.norm2")), w, f"{name}.conv2", padding=1)


def residual(x: Tensor, w: Weights, name: str) -> Tensor:
    shortcut = conv(x, w, f"{name}.nin_shortcut") if f"{name}.nin_shortcut.weight" in w else x
    return shortcut + branch(x, w, name)


def attention(x: Tensor, w: Weights, name: str) -> Tensor:
    y = group_norm(x, w, f"{name}.norm")
    if f"{name}.qkv.weight" in w:
        q, k, v = conv(y, w, f"{name}.qkv").flatten(2).chunk(3, 1)
    else:
        q, k, v = (conv(y, w, f"{name}.{part}").flatten(2) for part in "qkv")
    shares = (torch.einsum("bci,bcj->bij", q, k) / q.shape[1] ** 0.5).softmax(-1)
    return x + conv(torch.einsum("bij,bcj->bci", shares, v).view(x.shape), w, f"{name}.proj_out")


def doubled(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def vqgan_encoder(w: Weights, x: Tensor, n: Names, levels: int) -> Tensor:
    x = conv(2 * x - 1, w, "encoder.conv_in", padding=1)
    for i in range(levels):
        name = n.level("encoder", i, levels)
        for j in itertools.count():
            if f"{name}.{n.block}.{j}.conv1.weight" not in w:
                break
            x = residual(x, w, f"{name}.{n.block}.{j}")
            x = attention(x, w, f"{name}.attn.{j}") if f"{name}.attn.{j}.norm.weight" in w else x
        if i < levels - 1:
            x = conv(F.pad(x, (0, 1, 0, 1)), w, f"{name}.downsample.conv", stride=2)
    first, second, third = (f"encoder.{part}" for part in n.middle)
    x = residual(attention(residual(x, w, first), w, second), w, third)
    return conv(swish(group_norm(x, w, "encoder.norm_out")), w, "encoder.conv_out", padding=1)


def vqgan_decoder(w: Weights, x: Tensor, n: Names, levels: int) -> Tensor:
    first, second, third = (f"decoder.{part}" for part in n.middle)
    x = residual(conv(x, w, "decoder.conv_in", padding=1), w, first)
    x = residual(attention(x, w, second), w, third)
    for i in reversed(range(levels)):
        name = n.level("decoder", i, levels)
        for j in itertools.count():
            if f"{name}.{n.block}.{j}.conv1.weight" not in w:
                break
            x = residual(x, w, f"{name}.{n.block}.{j}")
            x = attention(x, w, f"{name}.attn.{j}") if f"{name}.attn.{j}.norm.weight" in w else x
        x = conv(doubled(x), w, f"{name}.upsample.conv", padding=1) if i else x
    return (conv(swish(group_norm(x, w, "decoder.norm_out")), w, "decoder.conv_out", padding=1) + 1) / 2


def last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def first(x: Tensor) -> Tensor:
    return x.permute(0, 3, 1, 2)


def closest(features: Tensor, book: Tensor) -> Tensor:
    return (features[..., None, :] - book).square().sum(-1).argmin(-1)


class LlamaGen:
    levels = 2
    layout = llamagen_layout(32, (1, 2), 8, 12, 6)
    size = (16, 16)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        return last(conv(vqgan_encoder(w, x, LLAMAGEN, self.levels), w, "quant_conv"))

    def ids(self, w: Weights, features: Tensor) -> Tensor:
        return closest(F.normalize(features, dim=-1), F.normalize(w["quantize.embedding.weight"], dim=-1))

    def pixels(self, w: Weights, ids: Tensor) -> Tensor:
        vectors = F.normalize(w["quantize.embedding.weight"], dim=-1)[ids]
        return vqgan_decoder(w, conv(first(vectors), w, "post_quant_conv"), LLAMAGEN, self.levels)


class Ibq:
    levels = 2
    layout = ibq_layout(32, (1, 2), 8, 12, 6)
    size = (16, 16)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        return last(conv(vqgan_encoder(w, x, TAMING, self.levels), w, "quant_conv"))

    def ids(self, w: Weights, features: Tensor) -> Tensor:
        return torch.einsum("bhwd,nd->bhwn", features, w["quantize.embedding.weight"]).softmax(-1).argmax(-1)

    def pixels(self, w: Weights, ids: Tensor) -> Tensor:
        vectors = first(w["quantize.embedding.weight"][ids])
        return vqgan_decoder(w, conv(vectors, w, "post_quant_conv"), TAMING, self.levels)


class Var:
    levels, scales = 2, (1, 2, 3, 4, 5, 6, 8, 10, 13, 16)
    layout = var_layout(32, (1, 2), 12, 32)
    size = (32, 32)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        return last(conv(vqgan_encoder(w, x, VAR, self.levels), w, "quant_conv", padding=1))

    def added(self, w: Weights, number: int, vectors: Tensor) -> Tensor:
        x = first(vectors)
        x = F.interpolate(x, size=(16, 16), mode="bicubic") if number < 9 else x
        ticks = np.linspace(1 / 3 / 4, 1 - 1 / 3 / 4, 4)
        phi = int(np.argmin(np.abs(ticks - number / 9)))
        return 0.5 * x + 0.5 * conv(x, w, f"quantize.quant_resi.qresi_ls.{phi}", padding=1)

    def ids(self, w: Weights, features: Tensor) -> Tensor:
        rest, book, found = first(features), w["quantize.embedding.weight"], []
        for number, scale in enumerate(self.scales):
            seen = rest if number == 9 else F.interpolate(rest, size=(scale, scale), mode="area")
            chosen = closest(last(seen), book)
            rest = rest - self.added(w, number, book[chosen])
            found.append(chosen.flatten(1))
        return torch.cat(found, 1)

    def pixels(self, w: Weights, ids: Tensor) -> Tensor:
        total, start = torch.zeros(()), 0
        for number, scale in enumerate(self.scales):
            chosen = ids[:, start : start + scale**2].view(len(ids), scale, scale)
            total = total + self.added(w, number, w["quantize.embedding.weight"][chosen])
            start += scale**2
        return vqgan_decoder(w, conv(total, w, "post_quant_conv", padding=1), VAR, self.levels)


def odd_residual(x: Tensor, w: Weights, name: str) -> Tensor:
    y = branch(x, w, name)
    return y + (conv(y, w, f"{name}.nin_shortcut") if f"{name}.nin_shortcut.weight" in w else x)


def maskgit_decoder(w: Weights, x: Tensor, name: str, levels: int) -> Tensor:
    x = conv(x, w, f"{name}.conv_in", padding=1)
    for j in range(2):
        x = odd_residual(x, w, f"{name}.mid.{j}")
    for i in reversed(range(levels)):
        for j in range(2):
            x = odd_residual(x, w, f"{name}.up.{i}.block.{j}")
        x = conv(doubled(x), w, f"{name}.up.{i}.upsample_conv", padding=1) if i else x
    return conv(swish(group_norm(x, w, f"{name}.norm_out")), w, f"{name}.conv_out", padding=1)


class MaskgitVq:
    levels = 2
    layout = maskgit_layout(32, (1, 2), 12, 6)
    size = (16, 16)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        x = conv(x, w, "encoder.conv_in", padding=1)
        for i in range(self.levels):
            for j in range(2):
                x = odd_residual(x, w, f"encoder.down.{i}.block.{j}")
            if i < self.levels - 1:
                x = (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4
        for j in range(2):
            x = odd_residual(x, w, f"encoder.mid.{j}")
        return last(conv(swish(group_norm(x, w, "encoder.norm_out")), w, "encoder.conv_out"))

    def ids(self, w: Weights, features: Tensor) -> Tensor:
        return closest(features, w["quantize.embedding.weight"])

    def pixels(self, w: Weights, ids: Tensor) -> Tensor:
        return maskgit_decoder(w, first(w["quantize.embedding.weight"][ids]), "decoder", self.levels)


class Magvit2:
    levels, blocks = 3, 2
    layout = magvit2_layout(32, (1, 2, 2), 2, 7)
    size = (16, 16)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        x = conv(2 * x - 1, w, "encoder.conv_in", padding=1)
        for i in range(self.levels):
            for j in range(self.blocks):
                x = residual(x, w, f"encoder.down.{i}.block.{j}")
            x = conv(x, w, f"encoder.down.{i}.downsample", stride=2, padding=1) if i < self.levels - 1 else x
        for j in range(self.blocks):
            x = residual(x, w, f"encoder.mid_block.{j}")
        return last(conv(swish(group_norm(x, w, "encoder.norm_out")), w, "encoder.conv_out"))

    def ids(self, w: Weights, features: Tensor) -> Tensor:
        return sum(2**bit * (features[..., bit] > 0).long() for bit in range(features.shape[-1]))  # type: ignore[return-value]

    def pixels(self, w: Weights, ids: Tensor) -> Tensor:
        codes = torch.stack([2.0 * ((ids >> bit) % 2) - 1 for bit in range(7)], 1)
        x = conv(codes, w, "decoder.conv_in", padding=1)
        for j in range(self.blocks):
            x = residual(x, w, f"decoder.mid_block.{j}")
        for i in reversed(range(self.levels)):
            flat, name = codes.flatten(2), f"decoder.adaptive.{i}"
            scale = linear((flat.var(2, correction=1) + 1e-6).sqrt(), w, f"{name}.gamma")
            x = scale[..., None, None] * plain_norm(x) + linear(flat.mean(2), w, f"{name}.beta")[..., None, None]
            for j in range(self.blocks):
                x = residual(x, w, f"decoder.up.{i}.block.{j}")
            if i:
                y = conv(x, w, f"decoder.up.{i}.upsample.conv1", padding=1)
                y = y.unflatten(1, (4, -1)).transpose(1, 2).flatten(1, 2)  # torch wants the channel first
                x = F.pixel_shuffle(y, 2)
        return (conv(swish(group_norm(x, w, "decoder.norm_out")), w, "decoder.conv_out", padding=1) + 1) / 2


def clip_block(w: Weights, name: str, width: int) -> nn.TransformerEncoderLayer:
    """Torch's own layer with the weights of a block; heads of 64 channels."""
    layer = nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, 0.0, activation="gelu", batch_first=True, norm_first=True
    )
    names = {"self_attn": "attn", "linear1": "mlp.c_fc", "linear2": "mlp.c_proj", "norm1": "ln_1", "norm2": "ln_2"}
    state = {}
    for key in layer.state_dict():
        part, _, rest = key.partition(".")
        state[key] = w[f"{name}.{names[part]}.{rest}"]
    layer.load_state_dict(state)
    return layer.eval()


class Titok:
    """The first models."""

    tokens, grid, patch = 6, 8, 2
    painter: tuple[int, tuple[int, ...], int, int] | None = (32, (1, 2), 10, 5)
    layout = titok_layout(6, 12, 4, (64, 2), (128, 1), 8, 2, (32, (1, 2), 10, 5))
    size = (16, 16)

    def side(self, w: Weights, name: str, patches: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        width, batch = patches.shape[2], len(patches)
        start = w[f"{name}.class_embedding"].repeat(batch, 1, 1)
        x = torch.cat([start, patches], 1) + w[f"{name}.positional_embedding"]
        x = torch.cat([x, codes + w[f"{name}.latent_token_positional_embedding"]], 1)
        x = F.layer_norm(x, (width,), w[f"{name}.ln_pre.weight"], w[f"{name}.ln_pre.bias"])
        for i in itertools.count():
            if f"{name}.transformer.{i}.ln_1.weight" not in w:
                break
            x = clip_block(w, f"{name}.transformer.{i}", width)(x)
        x = F.layer_norm(x, (width,), w[f"{name}.ln_post.weight"], w[f"{name}.ln_post.bias"])
        return x[:, 1 : 1 + self.grid**2], x[:, 1 + self.grid**2 :]

    def features(self, w: Weights, x: Tensor) -> Tensor:
        patches = conv(x, w, "encoder.patch_embed", stride=self.patch).flatten(2).transpose(1, 2)
        codes = self.side(w, "encoder", patches, w["latent_tokens"].repeat(len(x), 1, 1))[1]
        if self.painter:  # the numbers of a token are read as those of several channels
            flat = codes.flatten(1)
            codes = torch.stack([flat[:, t :: self.tokens] for t in range(self.tokens)], 1)
        return codes @ w["encoder.conv_out.weight"][:, :, 0, 0].T + w["encoder.conv_out.bias"]

    def ids(self, w: Weights, features: Tensor) -> Tensor:
        return closest(F.normalize(features, dim=-1), F.normalize(w["quantize.embedding.weight"], dim=-1))

    def pixels(self, w: Weights, ids: Tensor) -> Tensor:
        vectors = F.normalize(w["quantize.embedding.weight"], dim=-1)[ids]
        patches = w["decoder.mask_token"].repeat(len(ids), self.grid**2, 1)
        x = self.side(w, "decoder", patches, linear(vectors, w, "decoder.decoder_embed"))[0]
        x = x.transpose(1, 2).reshape(len(ids), -1, self.grid, self.grid)
        scores = conv(torch.tanh(conv(x, w, "decoder.ffn.0")), w, "decoder.ffn.2")
        mixed = torch.einsum("nchw,cd->ndhw", scores.softmax(1), w["pixel_quantize.embedding.weight"])
        return maskgit_decoder(w, mixed, "pixel_decoder", 2)


class TitokVq8k(Titok):
    """The later ones: codes by distance, pixels straight from the decoder."""

    painter = None
    layout = titok_layout(6, 12, 4, (64, 2), (128, 1), 8, 2, None)

    def ids(self, w: Weights, features: Tensor) -> Tensor:
        return closest(features, w["quantize.embedding.weight"])

    def pixels(self, w: Weights, ids: Tensor) -> Tensor:
        vectors = w["quantize.embedding.weight"][ids]
        patches = w["decoder.mask_token"].repeat(len(ids), self.grid**2, 1)
        x = self.side(w, "decoder", patches, linear(vectors, w, "decoder.decoder_embed"))[0]
        x = x @ w["decoder.ffn.0.weight"][:, :, 0, 0].T + w["decoder.ffn.0.bias"]  # (B, N, p p 3)
        image = torch.zeros(len(ids), 3, 16, 16)
        for row, column, y, z in itertools.product(range(8), range(8), range(2), range(2)):
            at = 3 * (2 * y + z)
            image[:, :, 2 * row + y, 2 * column + z] = x[:, 8 * row + column, at : at + 3]
        return conv(image, w, "decoder.conv_out", padding=1)


class Fsq:
    levels = (8, 5, 5, 5)
    layout = fsq_layout(8, 4)
    size = (16, 16)

    def normal(self) -> tuple[Tensor, Tensor]:
        return torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

    def features(self, w: Weights, x: Tensor) -> Tensor:
        mean, deviation = self.normal()
        x = (x - mean) / deviation
        for i in (0, 2, 4):
            x = F.relu(conv(x, w, f"enc.blocks.{i}", stride=2, padding=1))
        return last(conv(x, w, "enc.blocks.6"))

    def ids(self, w: Weights, features: Tensor) -> Tensor:
        return slow_fsq(features, self.levels)[0]

    def pixels(self, w: Weights, ids: Tensor) -> Tensor:
        digits, rest = [], ids
        for level in self.levels:
            digits.append((rest % level - level // 2) / (level // 2))
            rest = rest // level
        x = torch.stack(digits, 1)
        for i in (0, 2, 4):
            x = F.relu(F.conv_transpose2d(x, w[f"dec.blocks.{i}.weight"], w[f"dec.blocks.{i}.bias"], 2, 1))
        mean, deviation = self.normal()
        return conv(x, w, "dec.blocks.6") * deviation + mean


def slow_fsq(features: Tensor, levels: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Number and vector of each code, channel by channel (Mentzer et al., 2023, listing A.1)."""
    number, vector, weight = torch.zeros(features.shape[:-1], dtype=torch.long), [], 1
    for channel, level in enumerate(levels):
        half = (level - 1) * (1 - 1e-3) / 2
        offset = 0.5 if level % 2 == 0 else 0.0
        bounded = torch.tanh(features[..., channel] + math.tan(offset / half)) * half - offset
        step = bounded.round()
        vector.append(step / (level // 2))
        number = number + weight * (step.long() + level // 2)
        weight *= level
    return number, torch.stack(vector, -1)
