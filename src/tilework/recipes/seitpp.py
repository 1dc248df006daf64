"""SeiT++: masked token modelling, TokenAdapt, ColorAdapt (Lee et al., 2024; tables 1-3, 6-8, A, B, appendix C).

Table 2's storage sizes are 100, 80, 60, 40 and 20 % of ImageNet-1k, table 6's numbers of images 100, 60, 20 and 10 % of
ImageNet-100: `tilework subset` makes such stores, or `samples=N` takes a part; epochs stay, so that steps shrink with
the data, as in the paper. Table 8's VQGAN row is the same recipe on a store of that tokenizer's codes. Recipes that say
`--adapter` use a TokenAdapt of the same tokenizer (recipe `token_adapt`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tilework.augment import (
    Augment,
    CentreCrop,
    CodeCut,
    CutMix,
    CutMixOrMixup,
    Flip,
    LikePixels,
    Mixup,
    TokenAdapt,
    TokenColour,
    TokenCrop,
    TokenEda,
    TokenGeometry,
)
from tilework.augment.affine import Geometry
from tilework.augment.embed import Embed
from tilework.augment.scale import Scale
from tilework.layers.stems import TokenF16StemConfig, TokenPatchStemConfig
from tilework.models import ModelConfig, TokenAdaptModelConfig, VitConfig, preset
from tilework.objectives import AdaptConfig, ClassifyConfig, MaskedConfig
from tilework.recipes.registry import chain, recipe
from tilework.recipes.seit import SMALL_AREA, fit_of, small_fit, vit
from tilework.runs.run import Chain, Link, Run
from tilework.tokenizers import DecodeEncode
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

NOISE, COLOURS = TokenColour(0.5, 0.0), TokenColour(0.5, 0.25)  # SeiT's step; SeiT++'s, from scratch
TUNED_COLOURS = TokenColour(0.75, 0.25)  # in fine-tuning


def classify_run(
    model: ModelConfig,
    fit: FitConfig,
    *,
    colour: TokenColour = COLOURS,
    adapt: LikePixels | None = None,
    eda: float = 0.25,
    cutmix: float = 1.0,
    crop: int = 28,
    area: tuple[float, float] = (0.08, 1.0),
    standardise: bool = False,
) -> Run:
    """Token-EDA, then crop, colour and mixing: through `adapt` for a part of each batch where there is one."""
    edits: tuple[Augment, ...] = (TokenEda(eda, eda),) if eda else ()
    size = (crop, crop)
    if adapt is None:
        mixing: tuple[Augment, ...] = (CutMix(cutmix),) if cutmix else ()
        steps: tuple[Augment, ...] = (TokenCrop(size, area, standardise=standardise), colour, *mixing)
    else:
        adapt = replace(adapt, size=size, area=area, geometry=replace(adapt.geometry, area=area), colour=colour)
        steps = (replace(adapt, cutmix=CutMix(cutmix), standardise=standardise),)
    return Run(
        model=model,
        objective=ClassifyConfig(smoothing=0.1),
        augment=(*edits, *steps),
        evaluation=(Embed(standardise), CentreCrop(size)),
        codes=(crop * 8 // 7, crop * 8 // 7),
        fit=fit,
    )


def masked_run(
    model: ModelConfig,
    fit: FitConfig,
    objective: MaskedConfig,
    *,
    adapt: bool,
    crop: int = 28,
    area: tuple[float, float] = (0.2, 1.0),
) -> Run:
    """Masked token modelling on cuts of whole codes, or on geometry through TokenAdapt for half of each batch.

    area: of crops; MAGE's, which the paper follows here.
    """
    size = (crop, crop)
    moved: Augment = TokenGeometry(size=size, geometry=Geometry(area=area)) if adapt else CodeCut(size)
    return Run(
        model=model,
        objective=objective,
        augment=(moved,),
        evaluation=(CentreCrop(size),),
        codes=(crop * 8 // 7, crop * 8 // 7),
        fit=fit,
    )


# TokenAdapt


@recipe
def token_adapt() -> Run:
    """TokenAdapt on images, for one tokenizer; leaves OUT/token_adapt for `--adapter`.

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
def token_adapt_1k() -> Run:
    """TokenAdapt from 1,000 images (table A).

    `tilework train token_adapt_1k --tokenizer TOKENIZER --data IMAGES/train --out adapt`
    Paper: 75.4 top-1 with it, 75.5 with all images. Measured here: not measured.
    A tenth of the steps of all images: steps in proportion to the images would be eight.
    """
    run = token_adapt()
    return replace(run, samples=1000, fit=replace(run.fit, epochs=0, steps=1000, save_every=250, evaluate_every=0))


@recipe
def token_adapt_100() -> Run:
    """TokenAdapt from 100 images (table A).

    `tilework train token_adapt_100 --tokenizer TOKENIZER --data IMAGES/train --out adapt`
    Paper: 75.1 top-1 with it, 75.5 with all images. Measured here: not measured. As `token_adapt_1k`.
    """
    run = token_adapt_1k()
    return replace(run, samples=100, fit=replace(run.fit, batch=100))


# tables 1, 2, 7: from scratch


@recipe
def seitpp_vit_b() -> Run:
    """SeiT with TokenAdapt and ColorAdapt, from scratch (table 2).

    `tilework train seitpp_vit_b --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: 75.5 top-1 from 1.4 GB, 51.2 from 0.3 GB. Measured here: not measured. Its warm-up is not told: SeiT's.
    """
    return classify_run(vit("vit_b"), fit_of(300, 1024, 0.0015, 0.1), adapt=TokenAdapt())


@recipe
def seitpp_vit_s() -> Run:
    """SeiT++ ViT-S with TokenAdapt and ColorAdapt (tables 6, 7, 8).

    `tilework train seitpp_vit_s --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: 81.4 top-1 on ImageNet-100, 83.9 from VQGAN's codes, 52.3 from 13k images. Measured here: not measured.
    """
    return replace(seitpp_vit_b(), model=vit("vit_s"))


@recipe
def seitpp_vit_s_f16() -> Run:
    """SeiT++ ViT-S on 16x16 codes of f16 tokenizers (table 8 with VQGAN f16).

    `tilework train seitpp_vit_s_f16 --adapter adapt/token_adapt --data STORE --out RUN`
    Paper: none, its VQGAN codes are 32x32. Measured here: not measured.
    """
    model = vit("vit_s", stem=TokenF16StemConfig())
    return classify_run(model, seitpp_vit_b().fit, adapt=TokenAdapt(), crop=14)


@recipe
def color_adapt_vit_s() -> Run:
    """SeiT with ColorAdapt alone (table 7).

    `tilework train color_adapt_vit_s --data STORE --val STORE --out RUN`
    Paper: 78.3 top-1 on ImageNet-100. Measured here: not measured.
    """
    return classify_run(vit("vit_s"), seitpp_vit_b().fit)


@recipe
def token_adapt_vit_s() -> Run:
    """SeiT with TokenAdapt alone (table 7).

    `tilework train token_adapt_vit_s --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: 80.4 top-1 on ImageNet-100. Measured here: not measured.
    """
    return classify_run(vit("vit_s"), seitpp_vit_b().fit, colour=NOISE, adapt=TokenAdapt())


@recipe
def decode_encode_vit_s() -> Run:
    """SeiT with pixel augmentation of decoded images (table B).

    `tilework train decode_encode_vit_s --tokenizer TOKENIZER --data STORE --val STORE --out RUN`
    Paper: 80.1 top-1 on ImageNet-100 in 8.3 times the hours. Measured here: not measured.
    """
    return classify_run(vit("vit_s"), seitpp_vit_b().fit, colour=NOISE, adapt=DecodeEncode())


# figure 3(b): pixel augmentations applied to code vectors as they are


def naive_run(run: Run, *added: Augment) -> Run:
    """A run with a cut of whole codes, and what is added, instead of its augmentation."""
    embed, cut = run.evaluation
    assert isinstance(cut, CentreCrop)
    return replace(run, augment=(CodeCut(cut.size), embed, *added))


@recipe
def naive_none() -> Run:
    """ViT-B on cuts of whole codes, nothing else (figure 3b).

    `tilework train naive_none --data STORE --val STORE --out RUN`
    Paper: drawn, no number. Measured here: not measured.
    """
    return naive_run(classify_run(vit("vit_b"), seitpp_vit_b().fit))


@recipe
def naive_flip() -> Run:
    """Code maps flipped as they are (figure 3b).

    `tilework train naive_flip --data STORE --val STORE --out RUN`
    Paper: drawn, no number. Measured here: not measured.
    """
    return naive_run(classify_run(vit("vit_b"), seitpp_vit_b().fit), Flip())


@recipe
def naive_crop() -> Run:
    """Code maps cropped and resized as they are (figure 3b).

    `tilework train naive_crop --data STORE --val STORE --out RUN`
    Paper: drawn, no number. Measured here: not measured.
    """
    return replace(naive_none(), augment=(TokenCrop((28, 28)),))


@recipe
def naive_mixup() -> Run:
    """Code maps mixed as they are (figure 3b).

    `tilework train naive_mixup --data STORE --val STORE --out RUN`
    Paper: drawn, no number. Measured here: not measured.
    """
    return naive_run(classify_run(vit("vit_b"), seitpp_vit_b().fit), Mixup())


# masked token modelling (tables 1, 2; appendix C)


def masked_fit() -> FitConfig:
    """400 epochs in batches of 4,096, base rate 1.5e-4 for 256 samples."""
    return FitConfig(
        epochs=400,
        batch=4096,
        precision="bf16",
        optim=OptimConfig(lr=1.5e-4 * 4096 / 256, weight_decay=0.05, betas=(0.9, 0.95)),
        schedule=ScheduleConfig(warmup_epochs=40),
    )


def tuned_fit() -> FitConfig:
    """100 epochs in batches of 1,024, base rate 1e-3 for 256 samples, lower layers slower.

    The paper does not say the weight decay and the warm-up: MAGE's 0.05 and 5 epochs are our reading.
    """
    return FitConfig(
        epochs=100,
        batch=1024,
        precision="bf16",
        optim=OptimConfig(lr=1e-3 * 1024 / 256, weight_decay=0.05, layer_decay=0.65),
        schedule=ScheduleConfig(warmup_epochs=5),
    )


def patch_vit(name: str, pool: Literal["class", "mean"] = "class", drop_path: float = 0.0) -> ModelConfig:
    """A ViT over 2x2 patches of codes with fixed positions; its class token is read in pre-training."""
    return preset(name, pool=pool, drop_path=drop_path, positions="sincos", stem=TokenPatchStemConfig())


@recipe
def mtm_vit_b() -> Run:
    """Masked token modelling without TokenAdapt (table 2, SeiT with MTM).

    `tilework train mtm_vit_b --data STORE --val STORE --out PRE`
    Paper: 75.1 top-1 after fine-tuning. Measured here: not measured.
    """
    return masked_run(patch_vit("vit_b"), masked_fit(), MaskedConfig(), adapt=False)


@recipe
def mtm_adapt_vit_b() -> Run:
    """Masked token modelling with geometry through TokenAdapt (tables 1, 2).

    `tilework train mtm_adapt_vit_b --adapter adapt/token_adapt --data STORE --val STORE --out PRE`
    Paper: 77.8 top-1 after fine-tuning. Measured here: not measured.
    """
    return masked_run(patch_vit("vit_b"), masked_fit(), MaskedConfig(), adapt=True)


@recipe
def mtm_tuned_vit_b() -> Run:
    """Fine-tuning after MTM with SeiT's augmentation (table 2).

    `tilework train mtm_tuned_vit_b --start PRE --data STORE --val STORE --out RUN`
    Paper: 75.1 top-1 from 1.4 GB. Measured here: not measured.
    """
    return classify_run(patch_vit("vit_b", "mean", 0.1), tuned_fit(), colour=NOISE)


@recipe
def seitpp_tuned_vit_b() -> Run:
    """Fine-tuning after MTM with TokenAdapt and ColorAdapt (tables 1, 2).

    `tilework train seitpp_tuned_vit_b --start PRE --adapter adapt/token_adapt --data STORE --out RUN`
    Paper: 77.8 top-1 from 1.4 GB, 60.6 from 0.3 GB. Measured here: not measured.
    """
    return classify_run(patch_vit("vit_b", "mean", 0.1), tuned_fit(), colour=TUNED_COLOURS, adapt=TokenAdapt())


@chain
def mtm_to_seit() -> Chain:
    """Masked token modelling, then SeiT (table 2).

    `tilework train mtm_to_seit --data STORE STORE --val none V.tok --out RUN`
    Paper: 75.1 top-1 from 1.4 GB. Measured here: not measured.
    """
    return Chain((Link("pretrain", mtm_vit_b()), Link("tune", mtm_tuned_vit_b())))


@chain
def mtm_to_seitpp() -> Chain:
    """SeiT++ whole (table 1).

    `tilework train mtm_to_seitpp --adapter adapt/token_adapt --data STORE STORE --val none V.tok --out RUN`
    Paper: 77.8 top-1 from 1.4 GB. Measured here: not measured.
    """
    return Chain((Link("pretrain", mtm_adapt_vit_b()), Link("tune", seitpp_tuned_vit_b())))


@recipe
def fine_grained_seitpp() -> Run:
    """ViT-B moved to other classes with TokenAdapt and ColorAdapt (table 3).

    `tilework train fine_grained_seitpp --start RUN --adapter adapt/token_adapt --data STORE`
    RUN is one of `seitpp_tuned_vit_b`, the TokenAdapt that of ImageNet, the schedule DeiT's.
    Paper: 95.2 on Flowers, 86.9 on Cars. Measured here: not measured.
    """
    fit = fit_of(300, 1024, 0.0005 * 1024 / 512, 0.05)
    model = patch_vit("vit_b", "mean", 0.1)
    return classify_run(model, fit, colour=TUNED_COLOURS, eda=0.0, adapt=TokenAdapt())


# the same for two cores: 16x16 codes of 128 px images


def small_patch_vit(pool: Literal["class", "mean"] = "mean") -> VitConfig:
    """A ViT of 0.8 million parameters over 2x2 patches of codes."""
    return VitConfig(width=128, depth=4, heads=4, pool=pool, positions="sincos", stem=TokenPatchStemConfig())


SMALL_GEOMETRY = Geometry(area=SMALL_AREA)
SMALL_MIXING = CutMixOrMixup(CutMix(0.5), Mixup(0.5))


def small_classify_run(
    fit: FitConfig, *, colour: TokenColour = NOISE, adapt: LikePixels | None = None, eda: float = 0.25
) -> Run:
    """`classify_run` for two cores: milder crops, and only half of the samples mixed."""
    if adapt is not None:
        adapt = replace(adapt, geometry=SMALL_GEOMETRY, mixing=SMALL_MIXING)
    return classify_run(
        small_patch_vit(),
        fit,
        colour=colour,
        adapt=adapt,
        eda=eda,
        cutmix=0.5,
        crop=14,
        area=SMALL_AREA,
        standardise=True,
    )


def small_masked_run(adapt: bool) -> Run:
    """`masked_run` for two cores."""
    objective = MaskedConfig(width=128, depth=2, heads=4, standardise=True)
    fit = small_fit(1000)
    fit = replace(fit, optim=replace(fit.optim, betas=(0.9, 0.95)))
    return masked_run(small_patch_vit("class"), fit, objective, adapt=adapt, crop=14, area=SMALL_AREA)


def small_tuned_fit(steps: int = 1200) -> FitConfig:
    """`tuned_fit` for two cores."""
    fit = small_fit(steps, 2e-3)
    return replace(fit, optim=replace(fit.optim, layer_decay=0.65))


@recipe
def token_adapt_cpu() -> Run:
    """A smaller TokenAdapt, for two cores and 16x16 codes.

    `tilework train token_adapt_cpu --tokenizer TOKENIZER --data IMAGES/train --val IMAGES/val --out adapt`
    Paper: `token_adapt` in miniature. Measured here: docs/results.md, TokenAdapt.
    """
    return Run(
        model=TokenAdaptModelConfig(width=192, heads=6),
        objective=AdaptConfig(geometry=Geometry(crop=0.25, turn=0.25), mix=0.2),  # more of the simple ones
        augment=(Scale(),),
        evaluation=(Scale(),),
        size=(128, 128),
        fit=FitConfig(
            epochs=0,
            steps=1100,
            batch=32,
            evaluate_every=0,
            save_every=250,
            optim=OptimConfig(lr=1e-3, weight_decay=0.05, clip=1.0),
            schedule=ScheduleConfig(warmup_steps=50),
        ),
    )


@recipe
def token_adapt_1k_cpu() -> Run:
    """A smaller TokenAdapt from 1,000 images.

    `tilework train token_adapt_1k_cpu --tokenizer TOKENIZER --data IMAGES/train --out adapt`
    Paper: `token_adapt_1k` in miniature. Measured here: not measured.
    """
    return replace(token_adapt_cpu(), samples=1000)


@recipe
def token_adapt_100_cpu() -> Run:
    """A smaller TokenAdapt from 100 images.

    `tilework train token_adapt_100_cpu --tokenizer TOKENIZER --data IMAGES/train --out adapt`
    Paper: `token_adapt_100` in miniature. Measured here: not measured.
    """
    return replace(token_adapt_cpu(), samples=100)


@recipe
def seit_patch_cpu() -> Run:
    """Small ViT over patches of codes with SeiT's augmentation: the row to compare with.

    `tilework train seit_patch_cpu --data STORE --val STORE --out RUN`
    Paper: table 7's first row in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_classify_run(small_fit())


@recipe
def color_adapt_cpu() -> Run:
    """Small ViT over patches of codes as SeiT, with ColorAdapt.

    `tilework train color_adapt_cpu --data STORE --val STORE --out RUN`
    Paper: `color_adapt_vit_s` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_classify_run(small_fit(), colour=COLOURS)


@recipe
def token_adapted_cpu() -> Run:
    """Small ViT over patches of codes as SeiT, with TokenAdapt.

    `tilework train token_adapted_cpu --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: `token_adapt_vit_s` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_classify_run(small_fit(), adapt=TokenAdapt())


@recipe
def seitpp_cpu() -> Run:
    """Small ViT over patches of codes as SeiT, with TokenAdapt and ColorAdapt.

    `tilework train seitpp_cpu --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: `seitpp_vit_s` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_classify_run(small_fit(), colour=COLOURS, adapt=TokenAdapt())


@recipe
def decode_encode_cpu() -> Run:
    """Small ViT over patches of codes, with pixel augmentation of decoded images instead of TokenAdapt.

    `tilework train decode_encode_cpu --tokenizer TOKENIZER --data STORE --val STORE --out RUN`
    Paper: `decode_encode_vit_s` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_classify_run(small_fit(), adapt=DecodeEncode())


@recipe
def naive_none_cpu() -> Run:
    """Small ViT on cuts of whole codes, nothing else.

    `tilework train naive_none_cpu --data STORE --val STORE --out RUN`
    Paper: `naive_none` in miniature. Measured here: not measured.
    """
    return naive_run(seit_patch_cpu())


@recipe
def naive_flip_cpu() -> Run:
    """Small ViT on cuts of codes, with code maps flipped as they are.

    `tilework train naive_flip_cpu --data STORE --val STORE --out RUN`
    Paper: `naive_flip` in miniature. Measured here: not measured.
    """
    return naive_run(seit_patch_cpu(), Flip())


@recipe
def naive_crop_cpu() -> Run:
    """Small ViT on cuts of codes, with code maps cropped and resized as they are.

    `tilework train naive_crop_cpu --data STORE --val STORE --out RUN`
    Paper: `naive_crop` in miniature. Measured here: not measured.
    """
    return replace(seit_patch_cpu(), augment=(TokenCrop((14, 14), SMALL_AREA, standardise=True),))


@recipe
def naive_mixup_cpu() -> Run:
    """Small ViT on cuts of codes, with code maps mixed as they are.

    `tilework train naive_mixup_cpu --data STORE --val STORE --out RUN`
    Paper: `naive_mixup` in miniature. Measured here: not measured.
    """
    return naive_run(seit_patch_cpu(), Mixup())


@recipe
def mtm_cpu() -> Run:
    """Small masked token modelling.

    `tilework train mtm_cpu --data STORE --val STORE --out PRE`
    Paper: `mtm_vit_b` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_masked_run(adapt=False)


@recipe
def mtm_adapt_cpu() -> Run:
    """Small masked token modelling with geometry through TokenAdapt.

    `tilework train mtm_adapt_cpu --adapter adapt/token_adapt --data STORE --out PRE`
    Paper: `mtm_adapt_vit_b` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_masked_run(adapt=True)


@recipe
def mtm_tuned_cpu() -> Run:
    """Small ViT fine-tuned after masked token modelling with SeiT's augmentation.

    `tilework train mtm_tuned_cpu --start PRE --data STORE --val STORE --out RUN`
    Paper: `mtm_tuned_vit_b` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_classify_run(small_tuned_fit())


@recipe
def seitpp_tuned_cpu() -> Run:
    """Small ViT fine-tuned after masked token modelling with TokenAdapt and ColorAdapt.

    `tilework train seitpp_tuned_cpu --start PRE --adapter adapt/token_adapt --data STORE --val STORE --out RUN`
    Paper: `seitpp_tuned_vit_b` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return small_classify_run(small_tuned_fit(), colour=TUNED_COLOURS, adapt=TokenAdapt())


@chain
def mtm_to_seit_cpu() -> Chain:
    """Small masked token modelling, then SeiT.

    `tilework train mtm_to_seit_cpu --data STORE STORE --val none V.tok --out RUN`
    Paper: `mtm_to_seit` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return Chain((Link("pretrain", mtm_cpu()), Link("tune", mtm_tuned_cpu())))


@chain
def mtm_to_seitpp_cpu() -> Chain:
    """SeiT++ whole, small.

    `tilework train mtm_to_seitpp_cpu --adapter adapt/token_adapt --data STORE STORE --val none V.tok --out RUN`
    Paper: `mtm_to_seitpp` in miniature. Measured here: docs/results.md, SeiT++ on Imagenette.
    """
    return Chain((Link("pretrain", mtm_adapt_cpu()), Link("tune", seitpp_tuned_cpu())))


@recipe
def fine_grained_seitpp_cpu() -> Run:
    """Small ViT moved to other classes with TokenAdapt and ColorAdapt.

    `tilework train fine_grained_seitpp_cpu --start RUN --adapter adapt/token_adapt --data STORE`
    Paper: `fine_grained_seitpp` in miniature. Measured here: not measured (see SeiT++ in docs/results.md).
    """
    return small_classify_run(small_fit(400, 5e-4), colour=TUNED_COLOURS, adapt=TokenAdapt(), eda=0.0)
