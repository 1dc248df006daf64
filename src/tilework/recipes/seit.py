"""SeiT: training from stored tokens, and the pixel runs it is compared with (Park et al., 2023; tables 2, 3, B.1-B.5).

Every setting of table B.1 stands here; rates fall to 1e-5, as in DeiT's code. Token stores hold 32x32 codes of 256 px
images (f8 tokenizers). Pixel runs cut their random crops from whole images, as DeiT does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilework.augment import (
    Augment,
    CentreCrop,
    CutMix,
    CutMixOrMixup,
    Embed,
    EmbeddingNoise,
    Erase,
    Flip,
    Mixup,
    Normalise,
    RandAugment,
    TokenCrop,
    TokenEda,
    WholeCrop,
)
from tilework.layers.stems import PatchStemConfig, StemConfig, TokenF16StemConfig, TokenStemConfig
from tilework.models import ModelConfig, ResnetConfig, preset
from tilework.objectives import ClassifyConfig
from tilework.recipes.recipe import Measured, add, add_small, linked, run_in
from tilework.recipes.small import small
from tilework.runs.run import Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig


def token_run(model: ModelConfig, fit: FitConfig, *, eda: float = 0.25, noise: float = 0.5, crop: int = 28) -> Run:
    """SeiT's pipeline on codes; eda is the probability of each of its two edits, and 0 leaves a part out."""
    edits: tuple[Augment, ...] = (TokenEda(eda, eda),) if eda else ()
    noisy: tuple[Augment, ...] = (EmbeddingNoise(noise),) if noise else ()
    return Run(
        model=model,
        objective=ClassifyConfig(smoothing=0.1),
        augment=(*edits, TokenCrop((crop, crop)), CutMix(1.0), *noisy),
        evaluation=(Embed(), CentreCrop((crop, crop))),
        codes=(crop * 8 // 7, crop * 8 // 7),
        fit=fit,
    )


def pixel_run(model: ModelConfig, fit: FitConfig, *, strong: bool = True, erase: float = 0.25) -> Run:
    """DeiT's pipeline on pixels; not strong: random resized crop and CutMix only (SeiT, B.6)."""
    cut: tuple[Augment, ...] = (WholeCrop((224, 224)),)
    erased: tuple[Augment, ...] = (Erase(erase),) if erase else ()
    deit = (*cut, Flip(), RandAugment(magnitude=9.0, deviation=0.5), Normalise(), *erased)
    mixing = CutMixOrMixup(CutMix(1.0), Mixup(1.0, alpha=0.8), switch=0.5)
    return Run(
        model=model,
        objective=ClassifyConfig(smoothing=0.1),
        augment=(*deit, mixing) if strong else (*cut, Normalise(), CutMix(1.0)),
        evaluation=(CentreCrop((224, 224)), Normalise()),
        size=(256, 256),
        fit=fit,
    )


def vit(name: str, drop_path: float = 0.1, stem: StemConfig | None = None) -> ModelConfig:
    """A ViT of the papers on tokens, read by the mean of its tokens."""
    return preset(name, pool="mean", drop_path=drop_path, stem=stem or TokenStemConfig())


def falling(optim: OptimConfig) -> ScheduleConfig:
    """A cosine from the optimiser's rate to 1e-5, after five epochs of warm-up."""
    return ScheduleConfig(warmup_epochs=5, floor=1e-5 / optim.lr)


def fit_of(epochs: int, batch: int, lr: float, decay: float, *, constant: bool = False, repeats: int = 1) -> FitConfig:
    """A column of table B.1: AdamW, five epochs of warm-up, cosine but for token fine-tuning, no clipping."""
    optim = OptimConfig(lr=lr, weight_decay=decay)
    return FitConfig(
        epochs=epochs,
        batch=batch,
        repeats=repeats,
        precision="bf16",
        optim=optim,
        schedule=ScheduleConfig("constant", warmup_epochs=5) if constant else falling(optim),
    )


SCRATCH = fit_of(300, 1024, 0.00075 * 1024 / 512, 0.1)
SGD = OptimConfig(name="sgd", lr=0.15, weight_decay=0.0001, momentum=0.9)
DEIT = fit_of(300, 1024, 0.0005 * 1024 / 512, 0.05, repeats=3)
COMPARISON = partial(Measured, "Storage against accuracy: Imagenette")
TUNED = ("fit.steps=400", "fit.optim.lr=5e-4")  # of small forms that start from a trained one
MEAN = "model.pool=mean"  # small ViTs on pixels are read by the mean, as those on tokens
seit = partial(add, "SeiT")

# fmt: off
# the columns of table B.1
seit_vit_b = seit(
    "seit_vit_b", "SeiT", "ViT-B", token_run(vit("vit_b"), SCRATCH), "table 2", {"top1": 74.0, "storage_gb": 1.36})
pretrain = seit(
    "seit_vit_b_21k", "SeiT, pre-training on ImageNet-21k", "ViT-B",
    token_run(vit("vit_b"), fit_of(270, 2048, 0.0015, 0.02), eda=0.0), "table 3",
    {"top1_tuned_on_tokens": 81.1, "top1_tuned_on_pixels": 82.6})
tokens = seit(
    "seit_vit_b_tokens", "SeiT, fine-tuned on tokens", "ViT-B",
    token_run(vit("vit_b", 0.15), fit_of(100, 4096, 0.00001, 0.1, constant=True), eda=0.0), "table 3",
    {"top1": 81.1, "storage_gb": 16}, start=True, note="after pre-training on ImageNet-21k tokens")
pixels = seit(
    "seit_vit_b_pixels", "SeiT, fine-tuned on pixels", "ViT-B",
    pixel_run(vit("vit_b", stem=PatchStemConfig(16)), fit_of(100, 512, 0.0005, 0.05), erase=0.0), "table 3",
    {"top1": 82.6, "storage_gb": 154}, start=True, note="after pre-training on ImageNet-21k tokens")
deit_b = seit(
    "deit_b", "DeiT, the reference", "DeiT-B", pixel_run(preset("deit_b"), DEIT), "table B.1",
    {"top1": 81.8, "storage_gb": 140})

# other backbones, tokenizers, data
seit_vit_s = seit(
    "seit_vit_s", "SeiT", "ViT-S", token_run(vit("vit_s"), SCRATCH), "table B.4",
    {"top1": 74.0, "top1_imagenet100": 77.3}, note="at ViT-B's rate (B.1)")
f16 = seit(
    "seit_vit_s_f16", "SeiT on codes of f16 tokenizers", "ViT-S",
    token_run(vit("vit_s", stem=TokenF16StemConfig()), SCRATCH, crop=14), "table B.3",
    {"top1_imagenet100_1024_codes": 75.3, "top1_imagenet100_16384_codes": 76.9})
resnet = seit(
    "seit_resnet50", "SeiT", "ResNet-50",
    token_run(ResnetConfig(50, stem="token"), replace(SCRATCH, optim=SGD, schedule=falling(SGD))), "table 2",
    note="the rate of 0.15 is the paper's (B.1), SGD with momentum our reading")
views = seit(
    "seit_vit_b_views", "SeiT on five crops of each image", "ViT-B",
    token_run(vit("vit_b"), replace(SCRATCH, epochs=60, schedule=replace(SCRATCH.schedule, warmup_epochs=1))),
    "ImageNet-1k-5M",
    {"top1": 78.6, "storage_gb": 7.49},
    note="stores of 'tilework tokenize --views 5'; every view is a sample: 60 epochs have the steps of 300 over one")
deit_s = seit(
    "deit_s", "DeiT", "DeiT-S", pixel_run(preset("deit_s"), DEIT), "table B.4", {"top1": 79.9},
    note="row 2 of TL-Align's table 1 as well: mixup or CutMix")
weak = seit(
    "weak_vit_s", "crops and CutMix only", "ViT-S",
    pixel_run(preset("deit_s"), replace(DEIT, repeats=1), strong=False), "table B.4", {"top1": 78.0},
    note="weak augmentation (B.6)")
moved_tokens = seit(
    "fine_grained_tokens", "SeiT moved to other classes", "ViT-B",
    token_run(vit("vit_b"), replace(DEIT, repeats=1), eda=0.0), "table B.2",
    {"top1_flowers": 93.5, "top1_flowers_from_21k": 98.7}, start=True,
    note="DeiT's schedule as in table B.1, as the paper says no more; augmentation of token fine-tuning")
moved_pixels = seit(
    "fine_grained_pixels", "DeiT moved to other classes", "DeiT-B", deit_b.run, "table B.2", {"top1_flowers": 98.0},
    start=True, note="the settings of deit_b; the small forms differ")

# chains
to_tokens = seit(
    "seit_21k_to_tokens", "SeiT, 21k tokens, 1k tokens", "ViT-B", linked(pretrain=pretrain, tokens=tokens), "table 3",
    {"top1": 81.1, "storage_gb": 16})
to_pixels = seit(
    "seit_21k_to_pixels", "SeiT, 21k tokens, 1k pixels", "ViT-B", linked(pretrain=pretrain, pixels=pixels), "table 3",
    {"top1": 82.6, "storage_gb": 154})
stages = seit(
    "seit_three_stages", "SeiT, 21k tokens, 1k tokens, 1k pixels", "ViT-B",
    linked(pretrain=pretrain, tokens=tokens, pixels=pixels), "B.4", {"top1": 82.8, "storage_gb": 156})

# small forms, and two rows that exist small only
add_small(seit_vit_b, "seit_cpu", measured=COMPARISON({"top1": 42.7}), also=("seit_views_cpu",),
          note="on two views of each image (seit_views_cpu): 40.6")
add_small(seit_vit_s)
add_small(views)
add_small(f16, "seit_f16_cpu")
add_small(resnet, "seit_resnet_cpu")
small_pretrain = add_small(pretrain, "seit_21k_cpu")
small_tokens = add_small(tokens, "seit_tokens_cpu", "fit.steps=400", "fit.optim.lr=1e-4")
small_pixels = add_small(pixels, "seit_pixels_cpu", *TUNED)
add_small(deit_b, "deit_cpu", MEAN, "fit.repeats=3")
add_small(deit_s, "", MEAN, "fit.repeats=3")
add_small(weak, "weak_pixel_cpu", MEAN)
add_small(moved_tokens, "fine_grained_tokens_cpu", *TUNED)
add_small(moved_pixels, "fine_grained_pixels_cpu", MEAN, *TUNED)
add_small(to_tokens, "seit_to_tokens_cpu", run=linked(pretrain=small_pretrain, tokens=small_tokens))
add_small(to_pixels, "seit_to_pixels_cpu", run=linked(pretrain=small_pretrain, pixels=small_pixels))
add_small(stages, "seit_three_stages_cpu",
          run=linked(pretrain=small_pretrain, tokens=small_tokens, pixels=small_pixels))
seit(
    "seit_plain_cpu", "crops only", "small ViT", small(run_in(seit_vit_b), without=(TokenEda, CutMix, EmbeddingNoise)),
    size="cpu", measured=COMPARISON({"top1": 58.3}), also=("token_class_cpu",),
    note="the row without token augmentation, and, as token_class_cpu, the one that token_labels_cpu is compared with: "
         "53.3 (docs/results.md, Token labels on Imagenette)")
seit(
    "plain_pixel_cpu", "crops only", "small ViT", small(run_in(weak), MEAN, without=(CutMix,)),
    size="cpu", measured=Measured("Converged tables: the protocol", {"top1": 60.6}),
    note="the counterpart of seit_plain_cpu")
# fmt: on
