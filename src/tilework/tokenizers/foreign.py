"""Other people's checkpoints, recognised by their keys and read without running anything in them.

A family is a file of its own that says which keys it has, how they are renamed, and which settings their shapes imply.
What shapes do not say (heads, scales, levels) is what was published, and can be set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tilework.core.config import resolve
from tilework.core.errors import DamageError, InputError
from tilework.core.torch_files import check_stored, check_whole, load_tensors
from tilework.models.model import ModelConfig
from tilework.tokenizers import fsq_vae, magvit2, maskgit_vq, titok, var, vit_vqgan, vq_vae, vqgan
from tilework.tokenizers.shapes import Shapes, renamed
from tilework.tokenizers.tokenizer import Tokenizer

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Family:
    """A layout of checkpoints."""

    title: str
    marks: tuple[str, ...]  # keys that all of them have
    names: Callable[[Tensors], Tensors]  # the same tensors by our names
    config: Callable[[Shapes], ModelConfig]  # from our names
    size: tuple[int, int]  # pixels of an image, unless told otherwise
    tested: bool  # on real weights


def _starts(**starts: str) -> Callable[[Tensors], Tensors]:
    """Tensors whose names start otherwise: quantize="quantiser" makes "quantiser.x" of "quantize.x"."""
    return lambda tensors: renamed(tensors, {f"{old}.": f"{new}." for old, new in starts.items()})


def _gumbel_names(tensors: Tensors) -> Tensors:
    return renamed(tensors, {"quantize.embed.": "quantiser.embedding.", "quantize.": "quantiser."})


FAMILIES = (  # the first whose marks are all there
    Family(
        "VAR's multi-scale tokenizer",
        ("encoder.conv_in.weight", "encoder.mid.attn_1.qkv.weight", "quantize.quant_resi.qresi_ls.0.weight"),
        var.var_names,
        var.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "LlamaGen",
        ("encoder.conv_blocks.0.res.0.conv1.weight", "quant_conv.weight", "quantize.embedding.weight"),
        vqgan.llamagen_names,
        partial(vqgan.config_of, match="cosine"),
        (256, 256),
        tested=False,
    ),
    Family(
        "TiTok",
        ("latent_tokens", "encoder.latent_token_positional_embedding", "quantize.embedding.weight"),
        _starts(quantize="quantiser"),
        titok.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "MaskGIT's VQGAN (open-muse, 1d-tokenizer)",
        ("encoder.mid.0.conv1.weight", "decoder.up.1.upsample_conv.weight", "quantize.embedding.weight"),
        _starts(quantize="quantiser"),
        maskgit_vq.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "Open-MAGVIT2 with lookup-free quantisation (SEED-Voken)",
        ("encoder.mid_block.0.conv1.weight", "encoder.conv_out.weight", "decoder.adaptive.0.gamma.weight"),
        dict,
        magvit2.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "FSQ autoencoder (FSQ-pytorch)",
        ("enc.blocks.0.weight", "enc.blocks.6.weight", "dec.blocks.0.weight"),
        dict,
        fsq_vae.config_of,
        (128, 128),
        tested=False,
    ),
    Family(
        "IBQ (SEED-Voken)",  # a VQGAN but for its rule, and no VQGAN was published with four blocks a level
        ("encoder.down.0.block.3.conv1.weight", "quant_conv.weight", "quantize.embedding.weight"),
        _starts(quantize="quantiser"),
        partial(vqgan.config_of, match="product"),
        (256, 256),
        tested=False,
    ),
    Family(
        "VQGAN with vector quantisation (taming-transformers, latent diffusion)",
        ("encoder.conv_in.weight", "quant_conv.weight", "quantize.embedding.weight", "decoder.conv_out.weight"),
        _starts(quantize="quantiser"),
        vqgan.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "VQGAN with Gumbel quantisation (taming-transformers)",
        ("encoder.conv_in.weight", "quantize.embed.weight", "quantize.proj.weight", "decoder.conv_out.weight"),
        _gumbel_names,
        vqgan.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "ViT-VQGAN",
        ("encoder.en_pos_embedding", "pre_quant.weight", "quantizer.embedding.weight", "post_quant.weight"),
        _starts(quantizer="quantiser"),
        vit_vqgan.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "plain VQ-VAE",
        ("encoder._blocks.conv_1.weight", "pre_vq_conv.weight", "vq_vae.codebook.weight"),
        lambda tensors: renamed(tensors, {"vq_vae.codebook.": "quantiser.embedding."}),
        vq_vae.config_of,
        (128, 128),
        tested=True,
    ),
)
WRAPPERS = ("state_dict", "model_state_dict", "ema", "model")  # keys under which others keep the tensors, in order
AVERAGED = "model_ema."  # before the names of averaged weights, which have lost their dots
LEFT_OUT = ("loss.", AVERAGED, "quantizer.loss.")  # discriminators, perceptual networks, averages


def load_foreign(path: Path, settings: Sequence[str] = ()) -> tuple[Tokenizer, ModelConfig, Family]:
    """The tokenizer of a checkpoint, its settings, and the layout that was recognised.

    settings: key=value for what its shapes do not say.
    """
    tensors = _averaged(_tensors(path))
    family = next((family for family in FAMILIES if set(family.marks) <= tensors.keys()), None)
    if family is None:
        looked, has = ", ".join(family.title for family in FAMILIES), ", ".join(list(tensors)[:3])
        raise InputError(f"{path} has the tensors of no known tokenizer ({has}, ...)", f"looked for {looked}")
    ours = family.names(tensors)
    try:
        config = family.config({name: tensor.shape for name, tensor in ours.items()})
    except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        raise InputError(f"{path} looks like {family.title} but lacks tensors", f"first: {error}") from error
    config = resolve(config, None, settings)
    with torch.device("meta"):  # nothing is allocated before all shapes are known to fit
        expected = config.build(3, family.size, 0).state_dict()
    for name, tensor in expected.items():
        if name not in ours or ours[name].shape != tensor.shape:
            found = tuple(ours[name].shape) if name in ours else "nothing"
            raise InputError(f"{path} has {found} for '{name}'", f"{family.title} needs {tuple(tensor.shape)}")
    if surplus := sorted(ours.keys() - expected.keys()):
        raise InputError(f"{path} has a tensor '{surplus[0]}' that {family.title} lacks", "it may be another model")
    tokenizer = config.build(3, family.size, 0)
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.load_state_dict({name: ours[name].float() for name in expected})
    return tokenizer.eval(), config, family


def _averaged(tensors: Tensors) -> Tensors:
    """Tensors of the tokenizer, averaged over training where the checkpoint has that: its authors measure those."""
    found = {}
    for name, tensor in tensors.items():
        if not name.startswith(LEFT_OUT):
            average = tensors.get(AVERAGED + name.replace(".", ""), tensor)
            found[name] = average if average.shape == tensor.shape else tensor
    return found


def _tensors(path: Path) -> Tensors:
    """All tensors of a checkpoint by name; pickles are read by torch's restricted reader, which runs nothing."""
    if not path.is_file():
        raise InputError(f"no file {path}", "give a checkpoint: .ckpt, .pt, .pth or .safetensors")
    if path.suffix == ".safetensors":
        try:
            return load_tensors(path)
        except (ValueError, OSError) as error:
            raise DamageError(f"{path} cannot be read", str(error)) from error
    check_stored(path)
    try:
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError) as error:
        raise DamageError(f"{path} cannot be read", str(error)) from error
    except Exception as error:  # the restricted reader refuses in many ways: UnpicklingError, RuntimeError, ...
        what = f"{path} is no checkpoint of plain tensors, or is damaged; none of it was run"
        raise InputError(what, f"give a .ckpt, .pt, .pth or .safetensors file ({type(error).__name__})") from error
    for wrapper in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}", "a dictionary of tensors is needed")
    tensors = {
        str(name).removeprefix("module."): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)
    }
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided:
            raise InputError(f"{path} has '{name}' of {tuple(tensor.shape)} in fewer bytes", "such files are not read")
    check_whole(path, tensors)
    return tensors
