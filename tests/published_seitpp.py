"""Files in the layout of SeiT++'s published code, and what its networks make of them, written the slow way."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.layers.positions import sincos_positions

CODES, DIM, SIDE, WIDTH, INNER = 11, 4, 3, 16, 8  # SIDE: patches on each side; two heads everywhere


def published(seed: int = 0) -> dict[str, Tensor]:
    """Random tensors of masked token modelling in the published layout."""
    sizes: dict[str, tuple[int, ...]] = {
        "mask_token_label": (1, 1, WIDTH),
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, 1 + SIDE**2, WIDTH),
        "token_emb.word_embeddings.weight": (CODES, DIM),
        "token_emb.LayerNorm.weight": (DIM,),
        "token_emb.LayerNorm.bias": (DIM,),
        "patch_embed.proj.weight": (WIDTH, DIM, 2, 2),
        "patch_embed.proj.bias": (WIDTH,),
        "decoder_pos_embed": (1, 1 + SIDE**2, INNER),
        "decoder_pos_embed_learned": (1, 1 + SIDE**2, INNER),
        "mlm_layer.bias": (1, 1, CODES),
        "conversion_function.0.weight": (5, 5),
    }
    for name, inputs, outputs in (("decoder_embed", WIDTH, INNER), ("mlm_layer.fc", INNER, 4 * DIM)):
        sizes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    for name, width in (("norm", WIDTH), ("decoder_norm", INNER), ("mlm_layer.ln", DIM)):
        sizes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    for name, width in (("blocks.0", WIDTH), ("decoder_blocks.0", INNER)):
        layers = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
        layers |= {"mlp.fc1": (4 * width, width), "mlp.fc2": (width, 4 * width)}
        for layer, shape in layers.items():
            sizes |= {f"{name}.{layer}.weight": shape, f"{name}.{layer}.bias": shape[:1]}
        for layer in ("norm1", "norm2"):
            sizes |= {f"{name}.{layer}.weight": (width,), f"{name}.{layer}.bias": (width,)}
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.5 * torch.randn(shape, generator=generator) for name, shape in sizes.items()}


def published_classifier(classes: int) -> dict[str, Tensor]:
    """The same of a classifier after it."""
    generator = torch.Generator().manual_seed(2)
    found = {k: v for k, v in published().items() if not k.startswith(("decoder", "mlm_layer", "mask_token"))}
    weight, bias = torch.randn(classes, WIDTH, generator=generator), torch.randn(classes, generator=generator)
    return {**found, "head.weight": weight, "head.bias": bias}


def normed(t: dict[str, Tensor], name: str, x: Tensor, eps: float = 1e-6) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], t[f"{name}.weight"], t[f"{name}.bias"], eps)


def linear(t: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.linear(x, t[f"{name}.weight"], t[f"{name}.bias"])


def block(t: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    """x: (N, D)."""
    q, k, v = linear(t, f"{name}.attn.qkv", normed(t, f"{name}.norm1", x)).view(len(x), 3, 2, -1).permute(1, 2, 0, 3)
    attention = (q @ k.transpose(1, 2) / q.shape[2] ** 0.5).softmax(-1)
    x = x + linear(t, f"{name}.attn.proj", (attention @ v).transpose(0, 1).flatten(1))
    hidden = F.gelu(linear(t, f"{name}.mlp.fc1", normed(t, f"{name}.norm2", x)))
    return x + linear(t, f"{name}.mlp.fc2", hidden)


def embedded_patches(t: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Of one sample, before positions. ids: (6, 6); returns (N, D)."""
    embedded = normed(t, "token_emb.LayerNorm", t["token_emb.word_embeddings.weight"][ids]).permute(2, 0, 1)
    return F.conv2d(embedded[None], t["patch_embed.proj.weight"], t["patch_embed.proj.bias"], 2)[0].flatten(1).T


def slow_classes(t: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Logits of the published classifier, whose head reads the norm of the mean. ids: (6, 6); returns (K,)."""
    x = torch.cat([t["cls_token"][0], embedded_patches(t, ids)]) + t["pos_embed"][0]
    return linear(t, "head", normed(t, "norm", block(t, "blocks.0", x)[1:].mean(0)))


def slow_logits(t: dict[str, Tensor], ids: Tensor, visible: list[int], masked: list[int]) -> Tensor:
    """Of all codes of one sample, as the grid lies. ids: (6, 6); returns (6, 6, K).

    masked: patches that enter the encoder as the published mask vector, which takes the place of patch embeddings.
    """
    patches = embedded_patches(t, ids)
    patches[masked] = t["mask_token_label"][0]
    given = [*visible, *masked]
    x = torch.cat([t["cls_token"][0], patches[given]]) + t["pos_embed"][0, [0, *(1 + n for n in given)]]
    x = linear(t, "decoder_embed", normed(t, "norm", block(t, "blocks.0", x)))
    whole = x[:1].repeat(1 + SIDE**2, 1)  # the class feature wherever nothing is seen
    whole[[1 + n for n in visible]] = x[1 : 1 + len(visible)]
    whole = normed(t, "decoder_norm", block(t, "decoder_blocks.0", whole + t["decoder_pos_embed_learned"][0]))
    said = linear(t, "mlm_layer.fc", whole[1:]).view(SIDE, SIDE, 2, 2, DIM).transpose(1, 2).reshape(6, 6, DIM)
    said = normed(t, "mlm_layer.ln", F.gelu(said), 1e-5)
    return said @ t["token_emb.word_embeddings.weight"].T + t["mlm_layer.bias"][0, 0]


def published_adapter(codes: int = 20, code_dim: int = 5, width: int = 64) -> dict[str, Tensor]:
    """Random weights under the names and in the sizes of SeiT++'s modules (its layers.py and models_mtm.py)."""
    sizes: dict[str, tuple[int, ...]] = {
        "conversion_function.0.weight": (width, code_dim),
        "conversion_function.0.bias": (width,),
        "conversion_function.1.to_pixel.1.weight": (width, code_dim, 2, 2),
        "conversion_function.1.to_pixel.1.bias": (code_dim,),
        "reverse_transform.0.to_patch_embedding.0.weight": (width, code_dim, 2, 2),
        "reverse_transform.0.to_patch_embedding.0.bias": (width,),
        "reverse_transform.1.weight": (codes, width),
        "reverse_transform.1.bias": (codes,),
    }
    for half in ("conversion_function.1.transformer.", "reverse_transform.0.transformer."):
        sizes |= {f"{half}layers.0.0.fn.to_qkv.weight": (3 * width, width)}
        for name, (out, into) in {
            "0.fn.to_out": (width, width),
            "1.fn.net.0": (4 * width, width),
            "1.fn.net.2": (width, 4 * width),
        }.items():
            sizes |= {f"{half}layers.0.{name}.weight": (out, into), f"{half}layers.0.{name}.bias": (out,)}
        for norm in ("layers.0.0.norm", "layers.0.1.norm", "norm"):
            sizes |= {f"{half}{norm}.weight": (width,), f"{half}{norm}.bias": (width,)}
    g = torch.Generator().manual_seed(1)
    return {
        **{name: torch.randn(size, generator=g) / size[-1] ** 0.5 for name, size in sizes.items()},
        "conversion_function.1.de_pos_embedding": sincos_positions(width, 32, 32)[None],
        "reverse_transform.0.en_pos_embedding": sincos_positions(width, 28, 28)[None],
    }
