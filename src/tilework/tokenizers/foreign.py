"""Other people's checkpoints, recognised by their keys and read without running anything in them.

A family is a file of its own that says which keys it has, how they are renamed, and which settings their shapes imply.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tilework.core.errors import DamageError, InputError
from tilework.models.model import ModelConfig
from tilework.tokenizers import vit_vqgan, vq_vae, vqgan
from tilework.tokenizers.tokenizer import Tokenizer

Shapes = dict[str, torch.Size]


@dataclass(frozen=True)
class Family:
    """A layout of checkpoints."""

    title: str
    marks: tuple[str, ...]  # keys that all of them have
    rename: tuple[tuple[str, str], ...]  # starts of keys, and what they become
    config: Callable[[Shapes], ModelConfig]  # from renamed keys
    size: tuple[int, int]  # pixels of an image, unless told otherwise
    tested: bool  # on real weights


FAMILIES = (
    Family(
        "VQGAN with vector quantisation (taming-transformers, latent diffusion)",
        ("encoder.conv_in.weight", "quant_conv.weight", "quantize.embedding.weight", "decoder.conv_out.weight"),
        (("quantize.", "quantiser."),),
        vqgan.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "VQGAN with Gumbel quantisation (taming-transformers)",
        ("encoder.conv_in.weight", "quantize.embed.weight", "quantize.proj.weight", "decoder.conv_out.weight"),
        (("quantize.embed.", "quantiser.embedding."), ("quantize.", "quantiser.")),
        vqgan.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "ViT-VQGAN",
        ("encoder.en_pos_embedding", "pre_quant.weight", "quantizer.embedding.weight", "post_quant.weight"),
        (("quantizer.", "quantiser."),),
        vit_vqgan.config_of,
        (256, 256),
        tested=False,
    ),
    Family(
        "plain VQ-VAE",
        ("encoder._blocks.conv_1.weight", "pre_vq_conv.weight", "vq_vae.codebook.weight"),
        (("vq_vae.codebook.", "quantiser.embedding."),),
        vq_vae.config_of,
        (128, 128),
        tested=True,
    ),
)
WRAPPERS = ("state_dict", "model", "ema")  # keys under which others keep the tensors
LEFT_OUT = ("loss.", "model_ema.", "quantizer.loss.")  # discriminators, perceptual networks, averages


def load_foreign(path: Path) -> tuple[Tokenizer, ModelConfig, Family]:
    """The tokenizer of a checkpoint, its settings, and the layout that was recognised."""
    tensors = {k: v for k, v in _tensors(path).items() if not k.startswith(LEFT_OUT)}
    family = next((family for family in FAMILIES if set(family.marks) <= tensors.keys()), None)
    if family is None:
        looked = "; ".join(f"{family.title}: {', '.join(family.marks)}" for family in FAMILIES)
        raise InputError(f"{path} has the keys of no known tokenizer", f"looked for {looked}")
    renamed = {_rename(name, family): tensor for name, tensor in tensors.items()}
    try:
        config = family.config({name: tensor.shape for name, tensor in renamed.items()})
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(f"{path} looks like {family.title} but lacks tensors", f"first: {error}") from error
    tokenizer = config.build(3, family.size, 0)
    assert isinstance(tokenizer, Tokenizer)
    expected = tokenizer.state_dict()
    for name, tensor in expected.items():
        if name not in renamed or renamed[name].shape != tensor.shape:
            found = tuple(renamed[name].shape) if name in renamed else "nothing"
            raise InputError(f"{path} has {found} for '{name}'", f"{family.title} needs {tuple(tensor.shape)}")
    if surplus := sorted(renamed.keys() - expected.keys()):
        raise InputError(f"{path} has a tensor '{surplus[0]}' that {family.title} lacks", "it may be another model")
    tokenizer.load_state_dict({name: renamed[name].float() for name in expected})
    return tokenizer.eval(), config, family


def _rename(name: str, family: Family) -> str:
    for start, becomes in family.rename:
        if name.startswith(start):
            return becomes + name.removeprefix(start)
    return name


def _tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint by name; pickles are read by torch's restricted reader, which runs nothing."""
    if not path.is_file():
        raise InputError(f"no file {path}", "give a checkpoint: .ckpt, .pt, .pth or .safetensors")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError, EOFError) as error:
        raise DamageError(f"{path} cannot be read", str(error)) from error
    except Exception as error:  # the restricted reader refuses in many ways: UnpicklingError, RuntimeError, ...
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} holds more than tensors, or is damaged; none of it was run", reason) from error
    for wrapper in WRAPPERS:
        if isinstance(found, dict) and isinstance(found.get(wrapper), dict):
            found = found[wrapper]
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}", "a dictionary of tensors is needed")
    return {str(name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
