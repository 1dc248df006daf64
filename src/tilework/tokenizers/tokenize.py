"""From a folder of images to a token store.

B batch | h, w code grid
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tilework.data import ImageSource, in_order
from tilework.store import StoreWriter
from tilework.tokenizers.tokenizer import Card, Tokenizer


@torch.inference_mode()
def tokenize(
    source: ImageSource,
    tokenizer: Tokenizer,
    card: Card,
    out: Path,
    device: torch.device,
    licence: str = "",
    codec: str = "auto",
    used: np.ndarray | None = None,
    batch: int = 64,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the codes of every image, in order; the store appears when it is complete.

    used: the tokenizer's codes that the store keeps, as another store does; those in use if it is not given.
    """
    tokenizer = tokenizer.to(device).eval()
    writer = StoreWriter(
        out,
        tokenizer.codebook.cpu().numpy(),
        source.classes,
        codec=codec,
        tokenizer={"name": card.name, "sha256": card.sha256},
        preprocessing=card.preprocessing,
        licence=licence,
        cut=True,
        used=used,
    )
    keys, labels = source.folder.keys, source.folder.labels
    with writer:
        done = 0
        for part in in_order(source, batch):
            ids = tokenizer.encode(part.x.to(device) / 255).cpu().numpy()  # (B, h, w)
            writer.add(ids, labels[done : done + len(ids)], keys[done : done + len(ids)])
            done += len(ids)
            progress(done, len(source))
