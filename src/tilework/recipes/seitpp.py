"""SeiT++: TokenAdapt and what is trained with it (Lee et al., 2024; section 3.3, appendix C)."""

from __future__ import annotations

from tilework.augment.scale import Scale
from tilework.models import TokenAdaptModelConfig
from tilework.objectives import AdaptConfig
from tilework.recipes.run import Run, recipe
from tilework.train import FitConfig, OptimConfig, ScheduleConfig


@recipe
def token_adapt() -> Run:
    """TokenAdapt on images, for one tokenizer; leaves OUT/token_adapt for the augmentation of that name.

    `tilework train token_adapt --tokenizer TOKENIZER --data IMAGES/train --val IMAGES/val --out adapt`
    Paper: batch 128, rate 1e-3, weight decay 0.05, one epoch of ImageNet. Measured here: not measured.
    """
    return Run(
        model=TokenAdaptModelConfig(),
        objective=AdaptConfig(),
        augment=(Scale(),),
        evaluation=(Scale(),),
        size=(256, 256),
        fit=FitConfig(
            epochs=1,
            batch=128,
            optim=OptimConfig(lr=1e-3, weight_decay=0.05),
            schedule=ScheduleConfig(warmup_steps=100),
        ),
    )


@recipe
def token_adapt_cpu() -> Run:
    """A smaller TokenAdapt, for two cores and 16x16 codes.

    `tilework train token_adapt_cpu --tokenizer TOKENIZER --data IMAGES/train --val IMAGES/val --out adapt`
    Paper: `token_adapt` in miniature. Measured here: not measured.
    """
    return Run(
        model=TokenAdaptModelConfig(width=192, heads=6),
        objective=AdaptConfig(),
        augment=(Scale(),),
        evaluation=(Scale(),),
        size=(128, 128),
        fit=FitConfig(
            epochs=0,
            steps=1500,
            batch=32,
            evaluate_every=0,
            optim=OptimConfig(lr=1e-3, weight_decay=0.05, clip=1.0),
            schedule=ScheduleConfig(warmup_steps=50),
        ),
    )
