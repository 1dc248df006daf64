"""Tokenizers to train on one's own images."""

from __future__ import annotations

from dataclasses import replace

from tilework.augment import Flip
from tilework.augment.scale import Scale
from tilework.objectives import AdversarialConfig, DistilConfig, ReconstructConfig
from tilework.recipes.recipe import add
from tilework.runs.run import Run
from tilework.tokenizers import VitVqConfig, VqganConfig
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

SMALL = Run(
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
SHARP = ReconstructConfig(commitment=0.02, adversarial=AdversarialConfig(weight=0.1, start=3000, width=32, layers=2))
TAUGHT = VitVqConfig(patch=8, codes=512, code_dim=32, width=128, depth=4, heads=8, cosine=True)


def taught(model: VitVqConfig) -> Run:
    """Codes from which a teacher's map is restored, one for every patch of 128 px images."""
    return replace(SMALL, model=model, objective=DistilConfig(commitment=1.0, pixel=0.5))


VQGAN = Run(
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

# fmt: off
add("", "small_tokenizer", "tokenizer of 512 codes", "small ViT-VQ", SMALL, size="cpu",
    note="16x16 codes; about 15 minutes on two cores; a relative of ViT-VQGAN")
add("", "small_tokenizer_fsq", "tokenizer of 1,000 codes of rounded channels", "small ViT-VQ",
    replace(SMALL, model=VitVqConfig(8, 1000, 4, width=96, depth=2, heads=8, quantiser="fsq", levels=(8, 5, 5, 5))),
    size="cpu", note="FSQ's levels for 2^10 codes (Mentzer et al., 2023, table 1)")
add("", "small_tokenizer_lfq", "tokenizer of 1,024 codes of ten signs", "small ViT-VQ",
    replace(SMALL, model=VitVqConfig(8, 1024, 10, width=96, depth=2, heads=8, quantiser="lfq")),
    size="cpu", note="MAGVIT-v2's quantiser (Yu et al., 2024), fewer bits")
add("", "small_tokenizer_gan", "tokenizer of 512 codes, adversarial loss", "small ViT-VQ",
    replace(SMALL, objective=SHARP), size="cpu",
    note="VQGAN's loss in the last third of small_tokenizer: sharper pictures, lower PSNR")
KD = "after BEiT v2 (Peng et al., 2022, section 2.2): codes restore a teacher's map (objective.teacher: box, or of " \
     "'tilework tokenizer teacher') and the pixels (objective.pixel, 0: the map alone); model.codes: 128 to 8,192"
for _side, _patch in ((16, 8), (8, 16), (4, 32)):
    add("", f"small_teacher_{_side}x{_side}", "tokenizer of 512 codes that restore a teacher's map",
        "small ViT-VQ", taught(replace(TAUGHT, patch=_patch)), size="cpu", note=KD)
add("", "small_teacher_fsq", "tokenizer of 1,000 rounded codes that restore a teacher's map", "small ViT-VQ",
    taught(replace(TAUGHT, patch=16, codes=1000, code_dim=4, quantiser="fsq", levels=(8, 5, 5, 5), cosine=False)),
    size="cpu", note=f"FSQ (Mentzer et al., 2023), 8x8 codes; {KD}")
add("VQGAN", "vqgan_f16", "tokenizer of 1,024 codes", "VQGAN f16", VQGAN, "ImageNet", {"fid": 7.94},
    note="Esser et al., 2021; rates and steps of its published code; the perceptual loss by settings: "
         "objective.perceptual=1 objective.perceptual_weights=FILE")
# fmt: on
