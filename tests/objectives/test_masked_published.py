"""Published weights of masked token modelling: logits as a plain reading of their layout gives them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.layers.stems import TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import Masked, MaskedConfig
from tilework.objectives.masked_published import load_published

CODES, DIM, SIDE, WIDTH, INNER = 11, 4, 3, 16, 8  # SIDE: patches on each side; two heads everywhere


def published(seed: int = 0) -> dict[str, Tensor]:
    """Random tensors in the published layout."""
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


def slow_logits(t: dict[str, Tensor], ids: Tensor, visible: list[int], masked: list[int]) -> Tensor:
    """Of all codes of one sample, as the grid lies. ids: (6, 6); returns (6, 6, K).

    masked: patches that enter the encoder as the published mask vector, which takes the place of patch embeddings.
    """
    embedded = normed(t, "token_emb.LayerNorm", t["token_emb.word_embeddings.weight"][ids]).permute(2, 0, 1)
    patches = F.conv2d(embedded[None], t["patch_embed.proj.weight"], t["patch_embed.proj.bias"], 2)[0].flatten(1).T
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


def objective(**settings: object) -> Masked:
    config = VitConfig(width=WIDTH, depth=1, heads=2, positions="sincos", stem=TokenPatchStemConfig())
    masked = MaskedConfig(**{"fill": "class", **settings}, width=INNER, depth=1, heads=2)  # type: ignore[arg-type]
    return masked.build(config.build(DIM, (6, 6), 0), Codebook.of(torch.randn(CODES, DIM))).eval()


@pytest.mark.parametrize("hidden", ["dropped", "partly"])
@pytest.mark.parametrize("count", [3, 5, 9])
def test_logits(count: int, hidden: str) -> None:
    """Published: a third of the patches, the least ratio, is dropped; the others that are hidden enter as a vector."""
    one, tensors = objective(hidden=hidden, ratio=(1 / 3, 1.0)), published()
    generator = torch.Generator().manual_seed(1)
    load_published(one, tensors)
    ids = torch.randint(CODES, (4, 6, 6), generator=generator)
    order = torch.rand(4, SIDE**2, generator=generator).argsort(1)
    with torch.no_grad():
        found = one.predict(one.model, ids, order, count)  # (B, N, 4, K)
    found = found.view(4, SIDE, SIDE, 2, 2, CODES).transpose(2, 3).reshape(4, 6, 6, CODES)
    for sample in range(4):
        places, seen = order[sample].tolist(), SIDE**2 - count
        wanted = slow_logits(tensors, ids[sample], places[:seen], places[seen:6] if hidden == "partly" else [])
        torch.testing.assert_close(found[sample], wanted, atol=1e-4, rtol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="another form: set fill=class, table=learnt"):
        load_published(objective(fill="mask"), published())
    with pytest.raises(ConfigError, match=r"'head\.weight' is no part"):
        load_published(objective(), {**published(), "head.weight": torch.zeros(1)})
    with pytest.raises(ConfigError, match="do not fit"):
        load_published(objective(), {k: v for k, v in published().items() if not k.startswith("norm.")})
    with pytest.raises(ConfigError, match="do not fit"):
        load_published(objective(), {**published(), "cls_token": torch.zeros(1, 1, 5)})
