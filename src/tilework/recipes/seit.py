"""SeiT: training from stored tokens, and the pixel runs it is compared with (Park et al., 2023; tables 2, 3, B.1-B.5).

Every setting of table B.1 stands here. Token stores hold 32x32 codes of 256 px images (f8 tokenizers). Pixel runs cut
their random crops from images resized and cut to 256 px, where DeiT cuts them from whole ones. The sizes for a CPU take
128 px images and their 16x16 codes, as `small_tokenizer` makes them, and milder crops for short training.
"""

from __future__ import annotations

from dataclasses import replace

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
    RandomResizedCrop,
    TokenCrop,
    TokenEda,
)
from tilework.layers.stems import PatchStemConfig, StemConfig, TokenF16StemConfig, TokenStemConfig
from tilework.models import ModelConfig, ResnetConfig, VitConfig, preset
from tilework.objectives import ClassifyConfig
from tilework.recipes.registry import chain, recipe
from tilework.runs.run import Chain, Link, Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig


def token_run(
    model: ModelConfig,
    fit: FitConfig,
    *,
    eda: float = 0.25,
    noise: float = 0.5,
    cutmix: float = 1.0,
    crop: int = 28,
    area: tuple[float, float] = (0.08, 1.0),
    standardise: bool = False,
) -> Run:
    """SeiT's pipeline on codes; eda is the probability of each of its two edits, and 0 leaves a part out."""
    mixing: tuple[Augment, ...] = (CutMix(cutmix),) if cutmix else ()
    noisy: tuple[Augment, ...] = (EmbeddingNoise(noise),) if noise else ()
    edits: tuple[Augment, ...] = (TokenEda(eda, eda),) if eda else ()
    return Run(
        model=model,
        objective=ClassifyConfig(smoothing=0.1),
        augment=(*edits, TokenCrop((crop, crop), area, standardise=standardise), *mixing, *noisy),
        evaluation=(Embed(standardise), CentreCrop((crop, crop))),
        codes=(crop * 8 // 7, crop * 8 // 7),
        fit=fit,
    )


def pixel_run(
    model: ModelConfig,
    fit: FitConfig,
    *,
    strong: bool = True,
    erase: float = 0.25,
    size: int = 256,
    crop: int = 224,
    area: tuple[float, float] = (0.08, 1.0),
) -> Run:
    """DeiT's pipeline on pixels; not strong: random resized crop and CutMix only (SeiT, B.6)."""
    cut: tuple[Augment, ...] = (RandomResizedCrop((crop, crop), area),)
    erased: tuple[Augment, ...] = (Erase(erase),) if erase else ()
    deit = (*cut, Flip(), RandAugment(magnitude=9.0, deviation=0.5), Normalise(), *erased)
    mixing = CutMixOrMixup(CutMix(1.0), Mixup(1.0, alpha=0.8), switch=0.5)
    return Run(
        model=model,
        objective=ClassifyConfig(smoothing=0.1),
        augment=(*deit, mixing) if strong else (*cut, Normalise(), CutMix(1.0)),
        evaluation=(CentreCrop((crop, crop)), Normalise()),
        size=(size, size),
        fit=fit,
    )


def vit(name: str, drop_path: float = 0.1, stem: StemConfig | None = None) -> ModelConfig:
    """A ViT of the papers on tokens, read by the mean of its tokens."""
    return preset(name, pool="mean", drop_path=drop_path, stem=stem or TokenStemConfig())


def fit_of(
    epochs: int,
    batch: int,
    lr: float,
    weight_decay: float,
    *,
    constant: bool = False,
    repeats: int = 1,
) -> FitConfig:
    """A column of table B.1: AdamW, five epochs of warm-up, cosine but for token fine-tuning, no clipping."""
    return FitConfig(
        epochs=epochs,
        batch=batch,
        repeats=repeats,
        precision="bf16",
        optim=OptimConfig(lr=lr, weight_decay=weight_decay),
        schedule=ScheduleConfig(name="constant" if constant else "cosine", warmup_epochs=5),
    )


# the columns of table B.1


@recipe
def seit_vit_b() -> Run:
    """SeiT ViT-B on ImageNet-1k tokens (table 2).

    `tilework train seit_vit_b --data STORE --val STORE --out RUN`
    Paper: 74.0 top-1 from 1.36 GB. Measured here: not measured.
    """
    return token_run(vit("vit_b"), fit_of(300, 1024, 0.00075 * 1024 / 512, 0.1))


@recipe
def seit_vit_b_21k() -> Run:
    """SeiT ViT-B pre-training on ImageNet-21k tokens (table 3).

    `tilework train seit_vit_b_21k --data STORE --out RUN`
    Paper: 81.1 top-1 after fine-tuning on tokens, 82.6 on pixels. Measured here: not measured.
    """
    return token_run(vit("vit_b"), fit_of(270, 2048, 0.0015, 0.02), eda=0.0)


@recipe
def seit_vit_b_tokens() -> Run:
    """SeiT ViT-B fine-tuned on tokens (table 3).

    `tilework train seit_vit_b_tokens --start RUN --data STORE --out TUNED`
    Paper: 81.1 top-1 after pre-training on ImageNet-21k tokens, 16 GB. Measured here: not measured.
    """
    return token_run(vit("vit_b", 0.15), fit_of(100, 4096, 0.00001, 0.1, constant=True), eda=0.0)


@recipe
def seit_vit_b_pixels() -> Run:
    """SeiT ViT-B fine-tuned on pixels (table 3).

    `tilework train seit_vit_b_pixels --start RUN --data IMAGES --out TUNED`
    Paper: 82.6 top-1 after pre-training on ImageNet-21k tokens, 154 GB. Measured here: not measured.
    """
    return pixel_run(vit("vit_b", stem=PatchStemConfig(16)), fit_of(100, 512, 0.0005, 0.05), erase=0.0)


@recipe
def deit_b() -> Run:
    """DeiT-B on ImageNet-1k pixels, the reference.

    `tilework train deit_b --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 81.8 top-1 from 140 GB. Measured here: not measured.
    """
    return pixel_run(preset("deit_b"), fit_of(300, 1024, 0.0005 * 1024 / 512, 0.05, repeats=3))


# other backbones, tokenizers, data


@recipe
def seit_vit_s() -> Run:
    """SeiT ViT-S on tokens, at ViT-B's rate (B.1).

    `tilework train seit_vit_s --data STORE --val STORE --out RUN`
    Paper: 74.0 top-1 on ImageNet-1k (table B.4), 77.3 on ImageNet-100. Measured here: not measured.
    """
    return replace(seit_vit_b(), model=vit("vit_s"))


@recipe
def seit_vit_s_f16() -> Run:
    """SeiT ViT-S on 16x16 codes of f16 tokenizers (table B.3).

    `tilework train seit_vit_s_f16 --data STORE --out RUN`
    Paper: 75.3 (1,024 codes) and 76.9 (16,384 codes) top-1 on ImageNet-100. Measured here: not measured.
    """
    return token_run(vit("vit_s", stem=TokenF16StemConfig()), seit_vit_b().fit, crop=14)


@recipe
def seit_resnet50() -> Run:
    """ResNet-50 on tokens (table 2).

    `tilework train seit_resnet50 --data STORE --val STORE --out RUN`
    Paper: its rate of 0.15 (B.1); SGD with momentum is our reading. Measured here: not measured.
    """
    fit = seit_vit_b().fit
    optim = OptimConfig(name="sgd", lr=0.15, weight_decay=0.0001, momentum=0.9)
    return token_run(ResnetConfig(50, stem="token"), replace(fit, optim=optim))


@recipe
def seit_vit_b_views() -> Run:
    """SeiT ViT-B on several stored crops of each image (ImageNet-1k-5M).

    `tilework train seit_vit_b_views --data STORE`
    Made by `tilework tokenize --views 5`; every view is a sample, so 60 epochs are the steps of 300 over one view.
    Paper: 78.6 top-1 from 7.49 GB. Measured here: not measured.
    """
    run = seit_vit_b()
    return replace(run, fit=replace(run.fit, epochs=60, schedule=ScheduleConfig(warmup_epochs=1)))


@recipe
def deit_s() -> Run:
    """DeiT-S on pixels.

    `tilework train deit_s --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: 79.9 top-1 (table B.4). Measured here: not measured.
    """
    return replace(deit_b(), model=preset("deit_s"))


@recipe
def weak_vit_s() -> Run:
    """ViT-S on pixels with crop and CutMix only (B.6).

    `tilework train weak_vit_s --data IMAGES/train --out RUN`
    Paper: 78.0 top-1 (table B.4). Measured here: not measured.
    """
    return pixel_run(preset("deit_s"), fit_of(300, 1024, 0.0005 * 1024 / 512, 0.05), strong=False)


@recipe
def fine_grained_tokens() -> Run:
    """ViT-B moved to other classes, on tokens (table B.2).

    `tilework train fine_grained_tokens --start RUN --data STORE`
    Paper: 93.5 on Flowers from ImageNet-1k tokens, 98.7 from 21k and 1k. Measured here: not measured.
    DeiT's schedule as in its column of table B.1, as the paper says no more; augmentation of token fine-tuning.
    """
    return token_run(vit("vit_b"), fit_of(300, 1024, 0.0005 * 1024 / 512, 0.05), eda=0.0)


@recipe
def fine_grained_pixels() -> Run:
    """ViT-B moved to other classes, on pixels (table B.2).

    `tilework train fine_grained_pixels --start RUN --data IMAGES`
    Paper: 98.0 on Flowers from ImageNet-1k pixels. Measured here: not measured.
    """
    return deit_b()


@chain
def seit_21k_to_tokens() -> Chain:
    """21k tokens, then 1k tokens (table 3).

    `tilework train seit_21k_to_tokens --data 21K.tok 1K.tok --val none V.tok`
    Paper: 81.1 top-1 from 16 GB. Measured here: not measured.
    """
    return Chain((Link("pretrain", seit_vit_b_21k()), Link("tokens", seit_vit_b_tokens())))


@chain
def seit_21k_to_pixels() -> Chain:
    """21k tokens, then 1k pixels (table 3).

    `tilework train seit_21k_to_pixels --data 21K.tok IMAGES --val none VAL`
    Paper: 82.6 top-1 from 154 GB. Measured here: not measured.
    """
    return Chain((Link("pretrain", seit_vit_b_21k()), Link("pixels", seit_vit_b_pixels())))


@chain
def seit_three_stages() -> Chain:
    """21k tokens, 1k tokens, 1k pixels (B.4).

    `tilework train seit_three_stages --data 21K.tok 1K.tok IMAGES ...`
    Paper: 82.8 top-1 from 156 GB. Measured here: not measured.
    """
    pixels = Link("pixels", seit_vit_b_pixels())
    return Chain((Link("pretrain", seit_vit_b_21k()), Link("tokens", seit_vit_b_tokens()), pixels))


# the same for two cores: 128 px images, their 16x16 codes, minutes instead of days


def small_vit(stem: StemConfig) -> VitConfig:
    """A ViT of 0.8 million parameters."""
    return VitConfig(width=128, depth=4, heads=4, pool="mean", stem=stem)


def small_fit(steps: int = 1200, lr: float = 1e-3) -> FitConfig:
    """About four minutes on two cores."""
    return FitConfig(
        epochs=0,
        steps=steps,
        batch=64,
        evaluate_every=0,
        optim=OptimConfig(lr=lr, weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(warmup_steps=60),
    )


SMALL_AREA = (0.35, 1.0)


def small_token_run(fit: FitConfig, eda: float = 0.25, noise: float = 0.5, cutmix: float = 1.0) -> Run:
    """`token_run` for two cores."""
    model = small_vit(TokenStemConfig())
    settings = {"eda": eda, "noise": noise, "cutmix": cutmix}
    return token_run(model, fit, crop=14, area=SMALL_AREA, standardise=True, **settings)


def small_pixel_run(fit: FitConfig, strong: bool, erase: float = 0.25) -> Run:
    """`pixel_run` for two cores."""
    model = small_vit(PatchStemConfig(16))
    return pixel_run(model, fit, strong=strong, erase=erase, size=128, crop=112, area=SMALL_AREA)


@recipe
def seit_cpu() -> Run:
    """Small ViT on tokens with SeiT's augmentation.

    `tilework train seit_cpu --data STORE --val STORE --out RUN`
    Paper: `seit_vit_b` in miniature. Measured here: docs/results.md, comparison on Imagenette.
    """
    return small_token_run(small_fit())


@recipe
def seit_plain_cpu() -> Run:
    """Small ViT on tokens, random resized crops only.

    `tilework train seit_plain_cpu --data STORE --val STORE --out RUN`
    Paper: the row without token augmentation. Measured here: docs/results.md, comparison on Imagenette.
    """
    return small_token_run(small_fit(), eda=0.0, noise=0.0, cutmix=0.0)


@recipe
def seit_f16_cpu() -> Run:
    """Small ViT on 8x8 codes of f16 tokenizers.

    `tilework train seit_f16_cpu --data STORE --val STORE --out RUN`
    Paper: `seit_vit_s_f16` in miniature. Measured here: not measured.
    """
    run = small_token_run(small_fit())
    crops = token_run(run.model, run.fit, crop=7, area=SMALL_AREA, standardise=True)
    return replace(crops, model=small_vit(TokenF16StemConfig()))


@recipe
def seit_resnet_cpu() -> Run:
    """Narrow ResNet-18 on tokens.

    `tilework train seit_resnet_cpu --data STORE --val STORE --out RUN`
    Paper: `seit_resnet50` in miniature. Measured here: not measured.
    """
    return replace(small_token_run(small_fit()), model=ResnetConfig(18, width=16, stem="token"))


@recipe
def seit_21k_cpu() -> Run:
    """Small ViT pre-trained on tokens without Token-EDA.

    `tilework train seit_21k_cpu --data STORE --out RUN`
    Paper: `seit_vit_b_21k` in miniature. Measured here: not measured.
    """
    return small_token_run(small_fit(), eda=0.0)


@recipe
def seit_tokens_cpu() -> Run:
    """Small ViT fine-tuned on tokens.

    `tilework train seit_tokens_cpu --start RUN --data STORE --out TUNED`
    Paper: `seit_vit_b_tokens` in miniature, at a constant rate. Measured here: not measured.
    """
    fit = small_fit(400, 1e-4)
    return small_token_run(replace(fit, schedule=replace(fit.schedule, name="constant")), eda=0.0)


@recipe
def seit_pixels_cpu() -> Run:
    """Small ViT fine-tuned on pixels.

    `tilework train seit_pixels_cpu --start RUN --data IMAGES --out TUNED`
    Paper: `seit_vit_b_pixels` in miniature. Measured here: not measured.
    """
    return small_pixel_run(small_fit(400, 5e-4), strong=True, erase=0.0)


@recipe
def deit_cpu() -> Run:
    """Small ViT on pixels with DeiT's augmentation.

    `tilework train deit_cpu --data IMAGES/train --val IMAGES/val --out RUN`
    Paper: `deit_b` in miniature, repeated augmentation included. Measured here: not measured.
    """
    return small_pixel_run(replace(small_fit(), repeats=3), strong=True)


@recipe
def weak_pixel_cpu() -> Run:
    """Small ViT on pixels, crops and CutMix only.

    `tilework train weak_pixel_cpu --data IMAGES/train --val IMAGES/val`
    Paper: `weak_vit_s` in miniature. Measured here: not measured.
    """
    return small_pixel_run(small_fit(), strong=False)


@recipe
def plain_pixel_cpu() -> Run:
    """Small ViT on pixels, random resized crops only.

    `tilework train plain_pixel_cpu --data IMAGES/train --out RUN`
    Paper: none, the counterpart of `seit_plain_cpu`. Measured here: docs/results.md, comparison on Imagenette.
    """
    run = small_pixel_run(small_fit(), strong=False)
    return replace(run, augment=tuple(step for step in run.augment if not isinstance(step, CutMix)))


@recipe
def seit_views_cpu() -> Run:
    """Small ViT on several stored crops of each image.

    `tilework train seit_views_cpu --data STORE --val STORE --out RUN`
    Paper: `seit_vit_b_views` in miniature. Measured here: docs/results.md, comparison on Imagenette.
    """
    return seit_cpu()


@recipe
def fine_grained_tokens_cpu() -> Run:
    """Small ViT moved to other classes, on tokens.

    `tilework train fine_grained_tokens_cpu --start RUN --data STORE`
    Paper: `fine_grained_tokens` in miniature. Measured here: not measured.
    """
    return small_token_run(small_fit(400, 5e-4), eda=0.0)


@recipe
def fine_grained_pixels_cpu() -> Run:
    """Small ViT moved to other classes, on pixels.

    `tilework train fine_grained_pixels_cpu --start RUN --data IMAGES`
    Paper: `fine_grained_pixels` in miniature. Measured here: not measured.
    """
    return small_pixel_run(small_fit(400, 5e-4), strong=True)


@chain
def seit_to_tokens_cpu() -> Chain:
    """Tokens, then other tokens.

    `tilework train seit_to_tokens_cpu --data MANY.tok FEW.tok --val none V.tok --out RUN`
    Paper: `seit_21k_to_tokens` in miniature. Measured here: not measured.
    """
    return Chain((Link("pretrain", seit_21k_cpu()), Link("tokens", seit_tokens_cpu())))


@chain
def seit_to_pixels_cpu() -> Chain:
    """Tokens, then pixels.

    `tilework train seit_to_pixels_cpu --data STORE IMAGES --val none VAL --out RUN`
    Paper: `seit_21k_to_pixels` in miniature. Measured here: not measured.
    """
    return Chain((Link("pretrain", seit_21k_cpu()), Link("pixels", seit_pixels_cpu())))


@chain
def seit_three_stages_cpu() -> Chain:
    """Tokens, other tokens, pixels.

    `tilework train seit_three_stages_cpu --data A.tok B.tok IMAGES --val none none VAL`
    Paper: `seit_three_stages` in miniature. Measured here: not measured.
    """
    pixels = Link("pixels", seit_pixels_cpu())
    return Chain((Link("pretrain", seit_21k_cpu()), Link("tokens", seit_tokens_cpu()), pixels))
