"""The demo: a small tokenizer, then the same ViT from tokens and from pixels, in minutes on two cores."""

from __future__ import annotations

from tilework.augment import Embed, Flip, Normalise, RandomResizedCrop
from tilework.augment.scale import Scale
from tilework.layers.stems import PatchStemConfig, StemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, ReconstructConfig
from tilework.recipes.registry import recipe
from tilework.runs.run import Run
from tilework.tokenizers import VitVqConfig
from tilework.train import FitConfig, OptimConfig, ScheduleConfig


@recipe
def demo_tokenizer() -> Run:
    """Small ViT-VQ on 96 px images. `tilework tokenizer train IMAGES/train --out tokenizer`.

    Paper: none, a CPU-sized relative of ViT-VQGAN.
    """
    return Run(
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


def _vit(stem: StemConfig) -> VitConfig:
    return VitConfig(width=128, depth=3, heads=4, pool="mean", stem=stem)


def _fit() -> FitConfig:
    return FitConfig(
        epochs=0,
        steps=435,
        batch=64,
        optim=OptimConfig(lr=1e-3, weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(warmup_steps=40),
    )


@recipe
def demo_token() -> Run:
    """ViT from stored tokens. `tilework train demo_token --data train.tok --val val.tok --out runs/token`.

    Paper: none, SeiT in miniature.
    """
    return Run(
        model=_vit(TokenStemConfig()),
        objective=ClassifyConfig(smoothing=0.1),
        augment=(Embed(standardise=True), RandomResizedCrop(size=(16, 16), area=(0.35, 1.0))),
        evaluation=(Embed(standardise=True),),
        fit=_fit(),
    )


@recipe
def demo_pixel() -> Run:
    """The same ViT from pixels. `tilework train demo_pixel --data IMAGES/train --val IMAGES/val --out runs/pixel`.

    Paper: none, the control of `demo_token`.
    """
    return Run(
        model=_vit(PatchStemConfig(patch=12)),
        objective=ClassifyConfig(smoothing=0.1),
        augment=(Normalise(), RandomResizedCrop(size=(96, 96), area=(0.35, 1.0))),
        evaluation=(Normalise(),),
        fit=_fit(),
    )
