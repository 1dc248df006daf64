"""The small form of a run: the same method in minutes on two cores, on 128 px images or their 16x16 codes.

A network of about a million parameters, grids and crops of half the side, milder crops for short training, code
vectors of unit variance, 1,200 steps. What one recipe does differently stands beside it, in its paper's file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeVar

from tilework.augment import (
    Augment,
    CentreCrop,
    CodeCut,
    CutMix,
    CutMixOrMixup,
    Embed,
    LikePixels,
    MixToken,
    Mixup,
    RandomResizedCrop,
    Requantise,
    TokenCrop,
    TokenGeometry,
    TwoViews,
)
from tilework.augment.affine import Geometry
from tilework.core.config import resolve
from tilework.core.errors import ConfigError
from tilework.layers.stems import StemConfig
from tilework.models import ModelConfig, PvtV2Config, ResnetConfig, SwinConfig, TokenAdaptModelConfig, VitConfig
from tilework.objectives import (
    AdaptConfig,
    ClassifyCodesConfig,
    MaskedConfig,
    MocoConfig,
    ObjectiveConfig,
    TokenPropConfig,
)
from tilework.runs.run import Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

AREA = (0.35, 1.0)  # of random crops
STEM_SCALE = (
    0.1  # of the network's rate, for stems on pixels by AdamW: at all of it they learn too fast (docs/results.md)
)
Mixes = TypeVar("Mixes", CutMix, Mixup, MixToken)
Input = Literal["tokens", "pixels"]


def small(
    run: Run,
    *settings: str,
    without: tuple[type[Augment], ...] = (),
    mixed: float = 1.0,
    standardise: bool = True,
) -> Run:
    """The small form of a run, then `settings` over it as on the line.

    without: steps that are left out; mixed: of the samples mixed at full size; standardise: code vectors, which those
    that have units of their own do not need.
    """

    def steps(given: tuple[Augment, ...]) -> tuple[Augment, ...]:
        return tuple(step(one) for one in given if not isinstance(one, without))

    def mix(one: Mixes) -> Mixes:
        return replace(one, probability=one.probability * mixed)

    def either(one: CutMixOrMixup) -> CutMixOrMixup:
        return replace(one, cutmix=mix(one.cutmix), mixup=mix(one.mixup))

    def step(one: Augment) -> Augment:
        match one:
            case TokenCrop():
                return replace(one, size=half(one.size), area=AREA, standardise=standardise)
            case RandomResizedCrop():
                return replace(one, size=half(one.size), area=AREA)
            case CentreCrop() | CodeCut():
                return replace(one, size=half(one.size))
            case TokenGeometry():
                return replace(one, size=half(one.size), area=AREA, geometry=replace(one.geometry, area=AREA))
            case Requantise():
                return replace(one, steps=steps(one.steps))
            case LikePixels():
                geometry, mixing, cutmix = replace(one.geometry, area=AREA), either(one.mixing), mix(one.cutmix)
                one = replace(one, size=half(one.size), area=AREA, geometry=geometry, mixing=mixing, cutmix=cutmix)
                return replace(one, standardise=standardise)
            case Embed():
                return replace(one, standardise=standardise)
            case CutMix():
                return mix(one)
            case Mixup():
                return mix(one)
            case CutMixOrMixup():
                return either(one)
            case MixToken():
                return replace(mix(one), grid=half(one.grid))
            case TwoViews():
                return replace(one, views=steps(one.views), second=steps(one.second))
        return one

    form = replace(
        run,
        model=small_model(run.model),
        objective=small_objective(run.objective, standardise),
        augment=steps(run.augment),
        evaluation=steps(run.evaluation),
        extra=tuple(replace(one, objective=small_objective(one.objective, standardise)) for one in run.extra),
        size=run.size if run.codes else half(run.size),
        codes=half(run.codes) if run.codes else None,
        fit=small_schedule(run.fit),
    )
    if isinstance(form.model, VitConfig) and input_of(form) == "pixels":
        form = replace(form, fit=replace(form.fit, optim=replace(form.fit.optim, stem_scale=STEM_SCALE)))
    return resolve(form, None, settings)


def input_of(run: Run) -> Input:
    """What a run learns from."""
    return "tokens" if run.codes or any(isinstance(step, Embed) for step in run.evaluation) else "pixels"


def half(sides: tuple[int, int]) -> tuple[int, int]:
    """Of a grid."""
    return sides[0] // 2, sides[1] // 2


def small_vit(stem: StemConfig) -> VitConfig:
    """A ViT of 0.8 million parameters."""
    return VitConfig(width=128, depth=4, heads=4, pool="mean", stem=stem)


def small_fit(steps: int = 1200) -> FitConfig:
    """About four minutes on two cores."""
    return FitConfig(
        epochs=0,
        steps=steps,
        batch=64,
        evaluate_every=0,
        optim=OptimConfig(lr=1e-3, weight_decay=0.05, clip=1.0),
        schedule=ScheduleConfig(warmup_steps=60),
    )


def small_schedule(fit: FitConfig) -> FitConfig:
    """The small schedule; what belongs to the method stays: its shape, betas, slower lower layers."""
    form = small_fit()
    optim = replace(form.optim, betas=fit.optim.betas, layer_decay=fit.optim.layer_decay)
    return replace(form, optim=optim, schedule=replace(form.schedule, name=fit.schedule.name))


def small_model(model: ModelConfig) -> ModelConfig:
    """A network of the same kind with the same stem and heads."""
    match model:
        case VitConfig():
            form = replace(small_vit(model.stem), pool=model.pool, positions=model.positions)
            form = replace(form, head_start=model.head_start)
            return replace(form, dense=model.dense, moto_blocks=model.moto_blocks)
        case SwinConfig():  # 1.1 million parameters in three stages, from 28x28 tokens down to 7x7
            return SwinConfig(width=48, depths=(1, 1, 2), heads=(2, 4, 8), stem=model.stem)
        case PvtV2Config():  # 0.5 million parameters in the four stages of PVTv2-b0 at half its widths
            return PvtV2Config((16, 32, 80, 128), (2, 2, 2, 2), (1, 2, 5, 8), stem=model.stem)
        case ResnetConfig():
            return ResnetConfig(18, width=16, stem=model.stem)
        case TokenAdaptModelConfig():
            return replace(model, width=128, heads=2)
    raise ConfigError(f"no small form of a '{ModelConfig.choices.name_of(type(model))}' network", "train it as it is")


def small_objective(objective: ObjectiveConfig, standardise: bool) -> ObjectiveConfig:
    """Smaller parts that only training needs."""
    match objective:
        case MaskedConfig():  # a table that can answer sharply from the first step: there is no time to grow
            objective = replace(objective, width=128, depth=2, heads=4, standardise=standardise)
            return replace(objective, table_deviation=0.2)
        case ClassifyCodesConfig():
            return replace(objective, standardise=standardise)
        case MocoConfig():
            return replace(objective, hidden=512, outputs=64)
        case AdaptConfig():  # more of the simple changes
            return replace(objective, geometry=Geometry(crop=0.25, turn=0.25), mix=0.2)
        case TokenPropConfig():  # so that its decoder costs no more than the small ViT
            return replace(objective, wide=0.25)
    return objective
