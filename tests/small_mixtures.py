"""Small classifiers and mixtures for tests of label rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tilework.augment import Augment, BlockMix, CutMix, MixToken, Mixup, PatchCutMix, RandomMix, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.rng import Draws
from tilework.layers.stems import PatchStemConfig
from tilework.models import Vit, VitConfig

CLASSES, SIDE, COUNT = 9, 32, 6
PIXELS = VitConfig(width=16, depth=4, heads=2, stem=PatchStemConfig(8))
MIXINGS: dict[str, Augment] = {
    "boxes": PatchCutMix(8),
    "random": RandomMix(8),
    "blocks": BlockMix(8),
    "boxes between patches": CutMix(),
    "mixup": Mixup(),
    "after the stem": MixToken((4, 4)),
}


def network(**changes: Any) -> Vit:
    """A ViT whose attention is far from uniform."""
    torch.manual_seed(0)
    model = replace(PIXELS, **changes).build(3, (SIDE, SIDE), CLASSES)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(10)
    return model.eval()


def make_batch(mixing: Augment | None = None) -> Batch:
    """Samples of different classes, mixed or not."""
    x = torch.randn(COUNT, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    batch = Batch(x, Target.hard(torch.arange(COUNT)), torch.arange(COUNT))
    return batch if mixing is None else apply_all([mixing], batch, Draws(3, 0, batch.index, step=5))
