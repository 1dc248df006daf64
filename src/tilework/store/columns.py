"""Columns: one value per image, beside the shards, as safetensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from safetensors.numpy import load, save


def pack_column(values: Sequence[str] | np.ndarray) -> bytes:
    """A column as the bytes of a safetensors file; strings become one text and its offsets."""
    if isinstance(values, np.ndarray):
        return bytes(save({"values": np.ascontiguousarray(values)}))
    texts = [value.encode("utf-8", "surrogateescape") for value in values]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return bytes(save({"text": np.frombuffer(b"".join(texts), np.uint8), "offsets": offsets}))


def unpack_column(data: bytes) -> Any:
    """The values of a column: an array, or a list of strings."""
    tensors = load(data)
    if "values" in tensors:
        return tensors["values"]
    text, offsets = tensors["text"].tobytes(), tensors["offsets"].tolist()
    return [text[a:b].decode("utf-8", "surrogateescape") for a, b in pairwise(offsets)]
