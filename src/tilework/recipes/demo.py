"""The demo: a small tokenizer, then the same ViT from tokens and from pixels, in minutes on two cores."""

from __future__ import annotations

from functools import partial

from tilework.augment import Augment, Embed, Flip, Normalise, RandomResizedCrop
from tilework.augment.scale import Scale
from tilework.layers.stems import PatchStemConfig, StemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, ReconstructConfig
from tilework.recipes.recipe import Measured, add
from tilework.recipes.small import STEM_SCALE
from tilework.runs.run import Run
from tilework.tokenizers import VitVqConfig
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

TOKENIZER = Run(
    model=VitVqConfig(patch=6, codes=512, code_dim=32, width=96, depth=2, heads=8),
    objective=ReconstructConfig(commitment=0.02),
    augment=(Scale(), Flip()),
    evaluation=(Scale(),),
    fit=FitConfig(
        epochs=0,
        steps=460,
        batch=12,
        evaluate_every=0,
        optim=OptimConfig(lr=1e-3, weight_decay=0.01, clip=1.0),
        schedule=ScheduleConfig(warmup_steps=50),
    ),
)


def demo_run(stem: StemConfig, first: Augment, side: int, stem_scale: float = 1.0) -> Run:
    """A ViT of width 128 with random crops."""
    return Run(
        model=VitConfig(width=128, depth=3, heads=4, pool="mean", stem=stem),
        objective=ClassifyConfig(smoothing=0.1),
        augment=(first, RandomResizedCrop(size=(side, side), area=(0.35, 1.0))),
        evaluation=(first,),
        fit=FitConfig(
            epochs=0,
            steps=435,
            batch=64,
            optim=OptimConfig(lr=1e-3, weight_decay=0.05, clip=1.0, stem_scale=stem_scale),
            schedule=ScheduleConfig(warmup_steps=40),
        ),
    )


demo = partial(add, "", size="cpu")
# fmt: off
demo("demo_tokenizer", "the demo's tokenizer", "small ViT-VQ", TOKENIZER, measured=Measured("The demo", {"psnr": 25.9}),
     note="a relative of ViT-VQGAN; 16x16 codes of 512")
demo("demo_token", "the demo from tokens", "small ViT", demo_run(TokenStemConfig(), Embed(standardise=True), 16),
     measured=Measured("The demo", {"top1": 85.5}))
demo("demo_pixel", "the demo from pixels", "small ViT",
     demo_run(PatchStemConfig(patch=12), Normalise(), 96, STEM_SCALE), measured=Measured("The demo", {"top1": 86.4}))
# fmt: on
