"""Tokenizers to train on one's own images."""

from __future__ import annotations

from dataclasses import replace

from tilework.augment import Flip
from tilework.augment.scale import Scale
from tilework.objectives import AdversarialConfig, ReconstructConfig
from tilework.recipes.registry import recipe
from tilework.runs.run import Run
from tilework.tokenizers import VitVqConfig, VqganConfig
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


@recipe
def small_tokenizer_fsq() -> Run:
    """`small_tokenizer` with 1,000 codes of rounded channels.

    `tilework tokenizer train IMAGES --recipe small_tokenizer_fsq`
    Paper: FSQ's levels for 2^10 codes (Mentzer et al., 2023, table 1). Measured here: not measured.
    """
    model = VitVqConfig(8, 1000, 4, width=96, depth=2, heads=8, quantiser="fsq", levels=(8, 5, 5, 5))
    return replace(small_tokenizer(), model=model)


@recipe
def small_tokenizer_lfq() -> Run:
    """`small_tokenizer` with 1,024 codes of ten signs.

    `tilework tokenizer train IMAGES --recipe small_tokenizer_lfq`
    Paper: MAGVIT-v2's quantiser (Yu et al., 2024), fewer bits. Measured here: not measured.
    """
    model = VitVqConfig(8, 1024, 10, width=96, depth=2, heads=8, quantiser="lfq")
    return replace(small_tokenizer(), model=model)


@recipe
def small_tokenizer_gan() -> Run:
    """`small_tokenizer` with an adversarial loss in its last third: sharper pictures, lower PSNR.

    `tilework tokenizer train IMAGES --recipe small_tokenizer_gan --out tokenizer`
    Paper: none, VQGAN's loss at CPU size. Measured here: not measured.
    """
    run = small_tokenizer()
    adversarial = AdversarialConfig(weight=0.1, start=3000, width=32, layers=2)
    return replace(run, objective=ReconstructConfig(commitment=0.02, adversarial=adversarial))


@recipe
def vqgan_f16() -> Run:
    """VQGAN f16 with 1,024 codes on 256 px images (Esser et al., 2021).

    `tilework tokenizer train IMAGES objective.perceptual=1 objective.perceptual_weights=FILE --recipe vqgan_f16`
    Paper: FID 7.94 of reconstructions, ImageNet; its published code's rates and steps. Measured here: not measured.
    """
    return Run(
        model=VqganConfig(),
        objective=ReconstructConfig(pixel_loss="l1", adversarial=AdversarialConfig(weight=0.8, start=250_000)),
        augment=(Scale(), Flip()),
        evaluation=(Scale(),),
        size=(256, 256),
        fit=FitConfig(
            epochs=0,
            steps=1_000_000,
            batch=96,
            evaluate_every=0,
            save_every=10_000,
            picture_every=10_000,
            precision="bf16",
            optim=OptimConfig(lr=4.5e-6 * 96, weight_decay=0.0, betas=(0.5, 0.9)),
            schedule=ScheduleConfig(name="constant"),
        ),
    )
