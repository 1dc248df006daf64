"""Masked token modelling from the weights that SeiT++ published: their layout by our names.

K codes | C code dim | D width
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tilework.core.errors import ConfigError
from tilework.objectives.masked import Masked

OURS = {  # how names begin there, and here
    "token_emb.word_embeddings.": "table.",
    "decoder_embed.": "decoder.inlet.",
    "decoder_pos_embed_learned": "decoder.pos_embed",
    "decoder_blocks.": "decoder.blocks.",
    "decoder_norm.": "decoder.norm.",
    "mlm_layer.fc.": "decoder.outlet.",
    "mlm_layer.ln.": "decoder.code_norm.",
    "mlm_layer.bias": "bias",
    **{name: f"model.{name}" for name in ("cls_token", "pos_embed", "patch_embed.", "blocks.", "norm.")},
}
# TokenAdapt lies in the same file; fixed positions are unused there
LEFT_OUT = "conversion_function.", "reverse_transform.", "decoder_pos_embed", "mask_token_label", "token_emb.LayerNorm."


def load_published(objective: Masked, tensors: Mapping[str, Tensor]) -> None:
    """Fill an objective whose decoder gets the class feature for hidden patches, as in `fill='class'`.

    The published network has hidden='partly'; one that drops all hidden patches leaves out the vector that stands for
    them. The norm of the embedding has a scale and a shift there; here they are part of the patch embedding behind it.
    """
    if objective.config.fill != "class" or not objective.config.learns_table:
        raise ConfigError("published weights are of another form", "set fill=class, table=learnt")
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
        weight, norm = found["model.patch_embed.proj.weight"], "token_emb.LayerNorm."  # (D, C, q, q)
        scale, shift = tensors[f"{norm}weight"], tensors[f"{norm}bias"]  # (C,)
        moved = torch.einsum("dcij,c->d", weight, shift)
        found["model.patch_embed.proj.bias"] = found["model.patch_embed.proj.bias"] + moved
        found["model.patch_embed.proj.weight"] = weight * scale[:, None, None]
        objective.load_state_dict(found)
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError("the weights do not fit this masked token modelling", f"set its sizes ({reason})") from error
