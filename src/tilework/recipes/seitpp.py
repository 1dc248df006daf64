"""SeiT++: masked token modelling, TokenAdapt, ColorAdapt (Lee et al., 2024; tables 1-3, 6-8, A, B, appendix C).

Table 2's storage sizes are 100, 80, 60, 40 and 20 % of ImageNet-1k, table 6's numbers of images 100, 60, 20 and 10 % of
ImageNet-100: `tilework subset` makes such stores, or `samples=N` takes a part; epochs stay, so that steps shrink with
the data, as in the paper. Table 8's VQGAN row is the same recipe on a store of that tokenizer's codes. Recipes that say
`--adapter` use a TokenAdapt of the same tokenizer (recipe `token_adapt`, OUT/token_adapt).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilework.augment import (
    Augment,
    CentreCrop,
    CodeCut,
    CutMix,
    Embed,
    Flip,
    LikePixels,
    Mixup,
    RandomResizedCrop,
    Requantise,
    TokenAdapt,
    TokenColour,
    TokenCrop,
    TokenEda,
    TokenGeometry,
)
from tilework.augment.affine import Geometry
from tilework.augment.scale import Scale
from tilework.layers.stems import TokenF16StemConfig, TokenPatchStemConfig
from tilework.models import ModelConfig, TokenAdaptModelConfig, preset
from tilework.objectives import AdaptConfig, ClassifyCodesConfig, ClassifyConfig, MaskedConfig
from tilework.recipes.recipe import Measured, add, add_small, linked
from tilework.recipes.seit import DEIT, SCRATCH, TUNED, vit
from tilework.recipes.small import small
from tilework.runs.run import Run
from tilework.tokenizers import DecodeEncode
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

# SeiT's step; SeiT++'s from scratch and in fine-tuning. The published code draws 0.5 / 0.25 and 0.75 / 0.25 for a batch
# and then changes half of its samples
NOISE, COLOURS, TUNED_COLOURS = TokenColour(0.5, 0.0), TokenColour(0.25, 0.125), TokenColour(0.375, 0.125)


def classify_run(
    model: ModelConfig,
    fit: FitConfig = SCRATCH,
    *,
    colour: TokenColour = COLOURS,
    adapt: LikePixels | None = None,
    eda: float = 0.25,
    crop: int = 28,
) -> Run:
    """Token-EDA, then crop, colour and mixing: through `adapt` for a part of each batch where there is one."""
    edits: tuple[Augment, ...] = (TokenEda(eda, eda),) if eda else ()
    size = (crop, crop)
    if adapt is None:
        steps: tuple[Augment, ...] = (TokenCrop(size), colour, CutMix(1.0))
    else:
        steps = (replace(adapt, size=size, colour=colour, cutmix=CutMix(1.0)),)
    return Run(
        model=model,
        objective=ClassifyConfig(smoothing=0.1),
        augment=(*edits, *steps),
        evaluation=(Embed(), CentreCrop(size)),
        codes=(crop * 8 // 7, crop * 8 // 7),
        fit=fit,
    )


def codes_run(model: ModelConfig, fit: FitConfig, colour: TokenColour, adapt: LikePixels | None = None) -> Run:
    """Without Token-EDA; all that augmentation changes becomes codes again, whose vectors are trained."""
    size = (28, 28)
    if adapt is None:
        step: Augment = Requantise((RandomResizedCrop(size), colour, CutMix(1.0)))
    else:
        step = replace(adapt, size=size, colour=colour, cutmix=CutMix(1.0), requantise=True)
    return Run(model, ClassifyCodesConfig(smoothing=0.1), (step,), (CentreCrop(size),), codes=(32, 32), fit=fit)


def masked_run(moved: Augment, objective: MaskedConfig | None = None) -> Run:
    """Masked token modelling: 400 epochs in batches of 4,096, base rate 1.5e-4 for 256 samples."""
    fit = FitConfig(
        epochs=400,
        batch=4096,
        precision="bf16",
        optim=OptimConfig(lr=1.5e-4 * 4096 / 256, weight_decay=0.05, betas=(0.9, 0.95)),
        schedule=ScheduleConfig(warmup_epochs=40),
    )
    model, evaluation = patch_vit("vit_b"), (CentreCrop((28, 28)),)
    return Run(model, objective or MaskedConfig(), (moved,), evaluation, codes=(32, 32), fit=fit)


def patch_vit(name: str) -> ModelConfig:
    """A ViT over 2x2 patches of codes with fixed positions; its class token is read in pre-training."""
    return preset(name, pool="class", drop_path=0.0, positions="sincos", stem=TokenPatchStemConfig())


def tuned_vit(name: str) -> ModelConfig:
    """The same in fine-tuning: positions learn, and a head that starts small reads the mean."""
    stem = TokenPatchStemConfig()
    return preset(name, pool="mean", drop_path=0.1, positions="sincos_learnt", head_start=2e-5, stem=stem)


def naive_run(*steps: Augment) -> Run:
    """ViT-B with pixel augmentations applied to code vectors as they are, on cuts of whole codes (figure 3b)."""
    return replace(classify_run(vit("vit_b")), augment=steps or (CodeCut((28, 28)), Embed()))


ADAPT = Run(
    model=TokenAdaptModelConfig(),
    objective=AdaptConfig(),
    augment=(Scale(),),
    evaluation=(Scale(),),
    size=(256, 256),
    fit=FitConfig(
        epochs=1, batch=128, optim=OptimConfig(lr=1e-3, weight_decay=0.05), schedule=ScheduleConfig(warmup_steps=100)
    ),
)
# a tenth of the steps of all images: steps in proportion to the images would be eight
FEW = replace(ADAPT, samples=1000, fit=replace(ADAPT.fit, epochs=0, steps=1000, save_every=250, evaluate_every=0))
# 100 epochs in batches of 1,024, base rate 1e-3 for 256 samples, lower layers slower; weight decay, warm-up and lowest
# rate, 1e-6, of the published code
TUNE = FitConfig(
    epochs=100,
    batch=1024,
    precision="bf16",
    optim=OptimConfig(lr=1e-3 * 1024 / 256, weight_decay=0.1, layer_decay=0.65),
    schedule=ScheduleConfig(warmup_epochs=5, floor=1e-6 / 4e-3),
)
# as MAGE does it: more is hidden, and some of it enters the encoder as a vector
MAGE = MaskedConfig(ratio=(0.5, 1.0), mean=0.55, hidden="partly", fill="class", detach=False, smoothing=0.1)
CROPPED = Requantise((RandomResizedCrop((28, 28), area=(0.2, 1.0)),))
MEASURED = partial(Measured, "SeiT++ on Imagenette")
seitpp = partial(add, "SeiT++")
# small forms mix half of their samples, and all cut 2x2 patches of codes, so that rows with and without MTM compare
small_row = partial(add_small, mixed=0.5)
PATCHES = ("model.positions=sincos", "model.stem={name: token_patch}")

# fmt: off
# TokenAdapt (table A)
adapt = seitpp(
    "token_adapt", "TokenAdapt, for one tokenizer", "", ADAPT, "appendix C",
    note="one epoch of ImageNet; leaves OUT/token_adapt, the ADAPTER of other recipes")
adapt_1k = seitpp(
    "token_adapt_1k", "TokenAdapt from 1,000 images", "", FEW, "table A", {"top1_with_it": 75.4},
    note="75.5 with all images")
adapt_100 = seitpp(
    "token_adapt_100", "TokenAdapt from 100 images", "", replace(FEW, samples=100, fit=replace(FEW.fit, batch=100)),
    "table A", {"top1_with_it": 75.1}, note="75.5 with all images")
adapt_5k = seitpp(
    "token_adapt_5k", "TokenAdapt from 5,000 images", "", replace(FEW, samples=5000), "table A", {"top1_with_it": 75.4})
adapt_256k = seitpp(
    "token_adapt_256k", "TokenAdapt from 256,000 images", "", replace(ADAPT, samples=256_000), "table A",
    {"top1_with_it": 75.4}, note="one epoch of them")

# tables 1, 2, 6-8, B: from scratch
seitpp_vit_b = seitpp(
    "seitpp_vit_b", "SeiT + TokenAdapt + ColorAdapt", "ViT-B", classify_run(vit("vit_b"), adapt=TokenAdapt()),
    "table 2", {"top1": 75.5, "storage_gb": 1.4, "top1_from_0.3_gb": 51.2}, note="its warm-up is not told: SeiT's")
seitpp_vit_s = seitpp(
    "seitpp_vit_s", "SeiT + TokenAdapt + ColorAdapt", "ViT-S", classify_run(vit("vit_s"), adapt=TokenAdapt()),
    "tables 6-8", {"top1_imagenet100": 81.4, "top1_imagenet100_vqgan": 83.9, "top1_imagenet100_13k_images": 52.3})
f16 = seitpp(
    "seitpp_vit_s_f16", "SeiT + TokenAdapt + ColorAdapt, f16 codes", "ViT-S",
    classify_run(vit("vit_s", stem=TokenF16StemConfig()), adapt=TokenAdapt(), crop=14),
    note="table 8 with VQGAN f16; the paper's VQGAN codes are 32x32")
colour = seitpp(
    "color_adapt_vit_s", "SeiT + ColorAdapt", "ViT-S", classify_run(vit("vit_s")), "table 7, row 2",
    {"top1_imagenet100": 78.3})
adapted = seitpp(
    "token_adapt_vit_s", "SeiT + TokenAdapt", "ViT-S", classify_run(vit("vit_s"), colour=NOISE, adapt=TokenAdapt()),
    "table 7", {"top1_imagenet100": 80.4})
decoded = seitpp(
    "decode_encode_vit_s", "SeiT + augmentation of decoded pixels", "ViT-S",
    classify_run(vit("vit_s"), colour=NOISE, adapt=DecodeEncode()), "table B",
    {"top1_imagenet100": 80.1, "hours_over_seit": 8.3})

# figure 3(b): pixel augmentations applied to code vectors as they are; drawn, no numbers
NAIVE = {
    "none": ("cuts of whole codes only", naive_run()),
    "flip": ("code maps flipped as they are", naive_run(CodeCut((28, 28)), Embed(), Flip())),
    "crop": ("code maps cropped as they are", naive_run(TokenCrop((28, 28)))),
    "mixup": ("code maps mixed as they are", naive_run(CodeCut((28, 28)), Embed(), Mixup())),
}
for name, (method, run) in NAIVE.items():
    add_small(seitpp(f"naive_{name}", method, "ViT-B", run, "figure 3b"), f"naive_{name}_cpu", *PATCHES)

# masked token modelling, then fine-tuning (tables 1, 2; appendix C) as published: crops, masks and norms
masked = seitpp(
    "mtm_vit_b", "masked token modelling", "ViT-B", masked_run(CROPPED), "table 2", {"top1_tuned": 75.1})
mage = seitpp(
    "mtm_mage_vit_b", "masked token modelling, MAGE's masks", "ViT-B", masked_run(CROPPED, MAGE),
    note="MAGE's ratios, smoothing and masks instead of the published ones")
masked_adapt = seitpp(
    "mtm_adapt_vit_b", "masked token modelling + TokenAdapt", "ViT-B",
    masked_run(TokenGeometry(size=(28, 28), geometry=Geometry(area=(0.2, 1.0)))), "tables 1, 2", {"top1_tuned": 77.8})
tuned = seitpp(
    "mtm_tuned_vit_b", "SeiT after masked token modelling", "ViT-B",
    codes_run(tuned_vit("vit_b"), TUNE, NOISE), "table 2", {"top1": 75.1, "storage_gb": 1.4},
    start=True)
tuned_both = seitpp(
    "seitpp_tuned_vit_b", "SeiT++ after masked token modelling", "ViT-B",
    codes_run(tuned_vit("vit_b"), TUNE, TUNED_COLOURS, TokenAdapt()), "tables 1, 2",
    {"top1": 77.8, "storage_gb": 1.4, "top1_from_0.3_gb": 60.6}, start=True)
to_seit = seitpp(
    "mtm_to_seit", "masked token modelling, then SeiT", "ViT-B", linked(pretrain=masked, tune=tuned), "table 2",
    {"top1": 75.1, "storage_gb": 1.4})
to_seitpp = seitpp(
    "mtm_to_seitpp", "SeiT++ whole", "ViT-B", linked(pretrain=masked_adapt, tune=tuned_both), "table 1",
    {"top1": 77.8, "storage_gb": 1.4})
moved = seitpp(
    "fine_grained_seitpp", "SeiT++ moved to other classes", "ViT-B",
    codes_run(tuned_vit("vit_b"), replace(DEIT, repeats=1), TUNED_COLOURS, TokenAdapt()), "table 3",
    {"top1_flowers": 95.2, "top1_cars": 86.9}, start=True,
    note="starts from a run of seitpp_tuned_vit_b, with the TokenAdapt of ImageNet and DeiT's schedule")

# small forms
ADAPT_FIT = (
    "fit.steps=1500", "fit.batch=16", "fit.optim.lr=2e-3", "fit.save_every=250", "fit.schedule.warmup_steps=50",
    "objective.geometry.crop=0.35", "objective.geometry.turn=0.3",
)
MASKED_FIT, TUNE_FIT = "fit.steps=1000", "fit.optim.lr=2e-3"
add_small(adapt, "token_adapt_cpu", *ADAPT_FIT, measured=Measured("TokenAdapt and the cost of a step"))
add_small(adapt_1k, "token_adapt_1k_cpu", *ADAPT_FIT)
add_small(adapt_100, "token_adapt_100_cpu", *ADAPT_FIT)
add_small(adapt_5k, "", *ADAPT_FIT)
add_small(adapt_256k, "", *ADAPT_FIT)
seitpp(
    "seit_patch_cpu", "SeiT", "small ViT", small(classify_run(vit("vit_s"), colour=NOISE), *PATCHES, mixed=0.5),
    "table 7, row 1", size="cpu", measured=MEASURED({"top1": 47.5}), note="the row that others are compared with")
small_row(colour, "color_adapt_cpu", *PATCHES, measured=MEASURED({"top1": 44.8}))
small_row(adapted, "token_adapted_cpu", *PATCHES, measured=MEASURED({"top1": 46.2}))
small_row(seitpp_vit_s, "seitpp_cpu", *PATCHES, measured=MEASURED({"top1": 43.7}))
small_row(seitpp_vit_b, "", *PATCHES)
small_row(f16)
small_row(decoded, "decode_encode_cpu", *PATCHES, measured=MEASURED({"top1": 45.6}))
small_masked = small_row(masked, "mtm_cpu", MASKED_FIT, measured=MEASURED({"hidden_codes": 11.3}))
small_row(mage, "mtm_mage_cpu", MASKED_FIT)
small_masked_adapt = small_row(masked_adapt, "mtm_adapt_cpu", MASKED_FIT, measured=MEASURED())
small_tuned = small_row(tuned, "mtm_tuned_cpu", TUNE_FIT, measured=MEASURED({"top1": 53.2}))
small_tuned_both = small_row(tuned_both, "seitpp_tuned_cpu", TUNE_FIT, measured=MEASURED({"top1": 44.5}))
add_small(to_seit, "mtm_to_seit_cpu", run=linked(pretrain=small_masked, tune=small_tuned),
          measured=MEASURED({"top1": 53.2}))
add_small(to_seitpp, "mtm_to_seitpp_cpu", run=linked(pretrain=small_masked_adapt, tune=small_tuned_both),
          measured=MEASURED({"top1": 44.5}))
small_row(moved, "fine_grained_seitpp_cpu", *TUNED, note="see SeiT++ in docs/results.md")
# fmt: on
