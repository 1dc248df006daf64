"""Tokenizers to train on one's own images."""

from __future__ import annotations

from tilework.augment import Flip
from tilework.augment.scale import Scale
from tilework.objectives import ReconstructConfig
from tilework.recipes.run import Run, recipe
from tilework.tokenizers import VitVqConfig
from tilework.train import FitConfig, OptimConfig, ScheduleConfig


@recipe
def small_tokenizer() -> Run:
    """Small ViT-VQ on 128 px images, 16x16 codes. `tilework tokenizer train IMAGES --recipe small_tokenizer`.

    About 15 minutes on two cores. Paper: none, a CPU-sized relative of ViT-VQGAN.
    """
    return Run(
        model=VitVqConfig(patch=8, codes=512, code_dim=32, width=96, depth=2, heads=8),
        objective=ReconstructConfig(commitment=0.02),
        augment=(Scale(), Flip()),
        evaluation=(Scale(),),
        size=(128, 128),
        fit=FitConfig(
            epochs=0,
            steps=4500,
            batch=16,
            evaluate_every=0,
            save_every=1000,
            picture_every=1000,
            log_every=50,
            optim=OptimConfig(lr=1e-3, weight_decay=0.01, clip=1.0),
            schedule=ScheduleConfig(warmup_steps=50),
        ),
    )
