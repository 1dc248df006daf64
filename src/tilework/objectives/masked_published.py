"""Weights in the layout of SeiT++'s published networks, which embed codes themselves, by our names.

K codes | C code dim | D width
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.errors import ConfigError, InputError
from tilework.layers.code_table import EPS

if TYPE_CHECKING:
    from tilework.objectives.masked import Masked

TABLE, NORM, STEM = "token_emb.word_embeddings.weight", "token_emb.LayerNorm.", "patch_embed.proj."
ENCODER = ("cls_token", "pos_embed", "patch_embed.", "blocks.", "norm.")

OURS = {  # how names begin there, and here
    "token_emb.word_embeddings.": "table.",
    "decoder_embed.": "decoder.inlet.",
    "decoder_pos_embed_learned": "decoder.pos_embed",
    "decoder_blocks.": "decoder.blocks.",
    "decoder_norm.": "decoder.norm.",
    "mlm_layer.fc.": "decoder.outlet.",
    "mlm_layer.ln.": "decoder.code_norm.",
    "mlm_layer.bias": "bias",
    **{name: f"model.{name}" for name in ENCODER},
}
# TokenAdapt lies in the same file; fixed positions are unused there
LEFT_OUT = "conversion_function.", "reverse_transform.", "decoder_pos_embed", "mask_token_label", "token_emb.LayerNorm."


def embeds_codes(tensors: Mapping[str, Tensor]) -> bool:
    """Whether these are weights of such a network: of masked token modelling, or of a classifier after it."""
    return TABLE in tensors


def has_decoder(tensors: Mapping[str, Tensor]) -> bool:
    """Whether they are of masked token modelling as a whole."""
    return embeds_codes(tensors) and "mlm_layer.bias" in tensors


def published_encoder(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The encoder, with the head of a classifier, by our names, and the vectors of codes that it takes, (K, C).

    The norm of the embedding has a scale and a shift there; here they are part of the patch embedding behind it.
    """
    table, weight = tensors[TABLE], tensors.get(f"{STEM}weight")  # (K, C), (D, C, q, q)
    scale, shift = (tensors.get(f"{NORM}{name}") for name in ("weight", "bias"))  # (C,)
    bias = tensors.get(f"{STEM}bias")  # (D,)
    if weight is None or bias is None or scale is None or shift is None:
        raise InputError("a part of the embedding of codes is missing", "give a whole checkpoint of SeiT++'s code")
    fits = weight.ndim == 4 and scale.shape == shift.shape == table.shape[1:] == weight.shape[1:2]
    whole = all(part.numel() * part.itemsize <= part.untyped_storage().nbytes() for part in (table, weight))
    if not (fits and whole and bias.shape == weight.shape[:1] and table.isfinite().all()):
        raise InputError("the parts of the embedding of codes do not fit each other", "give another checkpoint")
    found = {name: tensor for name, tensor in tensors.items() if name.startswith((*ENCODER, "head."))}
    found[f"{STEM}weight"] = weight * scale[:, None, None]
    found[f"{STEM}bias"] = bias + torch.einsum("dcij,c->d", weight, shift)
    return found, F.layer_norm(table, table.shape[1:], eps=EPS)


def load_published(objective: Masked, tensors: Mapping[str, Tensor]) -> None:
    """Fill an objective whose decoder gets the class feature for hidden patches, as in `fill='class'`.

    The published network has hidden='partly'; one that drops all hidden patches leaves out the vector that stands for
    them.
    """
    if objective.config.fill != "class" or not objective.config.learns_table:
        what = "published masked token modelling has no mask vector in its decoder, and learns its table"
        raise ConfigError(what, "set objective.fill=class objective.table=learnt")
    found = {}
    for name, tensor in tensors.items():
        start = next((start for start in OURS if name.startswith(start)), None)
        if start is not None:
            found[OURS[start] + name.removeprefix(start)] = tensor
        elif not name.startswith(LEFT_OUT):
            raise ConfigError(f"'{name}' is no part of published masked token modelling", "give its checkpoint")
    try:
        found["bias"] = found["bias"].flatten()
        if objective.hidden_patch is not None:
            found["hidden_patch"] = tensors["mask_token_label"].flatten()
        found |= {f"model.{name}": tensor for name, tensor in published_encoder(tensors)[0].items()}
        objective.load_state_dict(found)
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError("the weights do not fit this masked token modelling", f"set its sizes ({reason})") from error
