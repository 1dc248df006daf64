"""What makes for good tokenizers: stems, MoTo, TokenProp (Qian et al., 2022; tables 1, 2, 4 to 13 and 17).

Settings of DeiT and Swin are those of table 17; T2T-ViT and PVT take DeiT's, the former for 310 epochs. The columns of
segmentation and detection are not here. The paper's parameters and operations of MoTo fit no single placement: ours is
before the patches unless `model.stem.place=token` says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tilework.augment import (
    ColourJitter,
    CutMixOrMixup,
    Erase,
    Flip,
    GaussianBlur,
    Greyscale,
    Normalise,
    RandAugment,
    Solarise,
    TwoViews,
    WholeCrop,
)
from tilework.layers.stem_early_conv import EarlyConvStemConfig
from tilework.layers.stem_frozen import FrozenStemConfig
from tilework.layers.stem_moto import MotoStemConfig
from tilework.layers.stem_refined import RefinedStemConfig
from tilework.layers.stems import StemConfig
from tilework.models import preset
from tilework.objectives import MocoConfig, TokenPropConfig
from tilework.recipes.recipe import Measured, add, add_small
from tilework.recipes.seit import MEAN, pixel_run
from tilework.runs.run import Extra, Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

TOKEN_PROP = (Extra(TokenPropConfig(), 0.001),)


def deit_fit(epochs: int = 300) -> FitConfig:
    """DeiT's column of table 17: averaged weights and three copies of each image."""
    return FitConfig(
        epochs=epochs,
        batch=1024,
        repeats=3,
        precision="bf16",
        ema=0.99996,
        optim=OptimConfig(lr=1e-3, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_epochs=5, floor=0.01),
    )


def swin_fit(epochs: int = 300) -> FitConfig:
    """Swin's column of table 17: half the batch and rate, a long warm-up, clipped gradients."""
    return FitConfig(
        epochs=epochs,
        batch=512,
        precision="bf16",
        optim=OptimConfig(lr=5e-4, weight_decay=0.05, clip=5.0),
        schedule=ScheduleConfig(warmup_epochs=20, floor=0.01),
    )


def with_moto(run: Run, **settings: Any) -> Run:
    """The same run with MoTo around its stem."""
    model: Any = run.model
    return replace(run, model=replace(model, stem=MotoStemConfig(model.stem, **settings)))


def with_stem(run: Run, stem: StemConfig) -> Run:
    """The same run with another stem."""
    model: Any = run.model
    return replace(run, model=replace(model, stem=stem))


def with_convolutions(run: Run) -> Run:
    """The same run with early convolutions in place of the patches and of one block (Xiao et al., 2021)."""
    model: Any = run.model
    return replace(run, model=replace(model, stem=EarlyConvStemConfig(), depth=model.depth - 1))


def with_blocks(run: Run, count: int) -> Run:
    """The same run with MoTo in its first blocks."""
    model: Any = run.model
    return replace(run, model=replace(model, moto_blocks=count))


BACKBONES = {
    "deit_s": deit_fit(),
    "deit_b": deit_fit(),
    "t2t_vit_14": deit_fit(310),
    "t2t_vit_19": deit_fit(310),
    "pvt_small": deit_fit(),
    "pvt_medium": deit_fit(),
    "pvt_v2_b2": deit_fit(),
    "swin_t": swin_fit(),
    "swin_s": swin_fit(),
}
PAPER: dict[
    str, tuple[float | None, ...]
] = {  # top-1: plain, with MoTo (table 2), with TokenProp (table 10), with both (table 12); None: no such row
    "deit_s": (79.8, 81.6, 80.7, 82.6),
    "deit_b": (81.8, 82.9, 82.5, None),
    "t2t_vit_14": (81.5, 82.3, 82.2, 82.8),
    "t2t_vit_19": (None, None, 82.8, None),
    "pvt_small": (79.8, 81.0, 80.9, None),
    "pvt_medium": (81.2, 82.1, 81.8, None),
    "pvt_v2_b2": (82.0, 82.7, None, None),
    "swin_t": (81.2, 82.2, 82.3, 82.9),
    "swin_s": (83.0, 83.7, None, None),
}
VARIANTS = (  # and where the paper has them
    ("", "plain patches", "table 2"),
    ("_moto", "MoTo", "table 2"),
    ("_token_prop", "TokenProp", "table 10"),
    ("_both", "MoTo + TokenProp", "table 12"),
)


def supervised(backbone: str, variant: str = "") -> Run:
    """A backbone on pixels by class labels; variant: '', '_moto', '_token_prop' or '_both'."""
    run = pixel_run(preset(backbone), BACKBONES[backbone])
    run = with_moto(run) if variant in ("_moto", "_both") else run
    return replace(run, extra=TOKEN_PROP) if variant in ("_token_prop", "_both") else run


def by_sgd(run: Run) -> Run:
    """The same run by SGD; the paper tunes rate and decay of each row and does not say them: these are our choice."""
    return replace(run, fit=replace(run.fit, optim=OptimConfig(name="sgd", lr=0.5, weight_decay=1e-4, clip=1.0)))


def contrastive(run: Run) -> Run:
    """MoCo v3: two views of each image, fixed positions, no dropped blocks, a momentum that rises from 0.99 to 1.

    The first view is always blurred, the second rarely and sometimes solarised, as its published code has it.
    """
    model: Any = run.model
    fit = FitConfig(
        epochs=300,
        batch=4096,
        precision="bf16",
        optim=OptimConfig(lr=2.4e-3, weight_decay=0.1),
        schedule=ScheduleConfig(warmup_steps=10_000),
    )
    start, end = (WholeCrop((224, 224)), ColourJitter(), Greyscale()), (Flip(), Normalise())
    first = (*start, GaussianBlur(probability=1.0), *end)
    second = (*start, GaussianBlur(probability=0.1), Solarise(), *end)
    model = replace(model, drop_path=0.0, positions="sincos")
    return replace(run, model=model, objective=MocoConfig(rise="cosine"), augment=(TwoViews(first, second),), fit=fit)


NAMES = {
    "deit_s": "DeiT-S",
    "deit_b": "DeiT-B",
    "t2t_vit_14": "T2T-ViT-14",
    "t2t_vit_19": "T2T-ViT-19",
    "pvt_small": "PVT-Small",
    "pvt_medium": "PVT-Medium",
    "pvt_v2_b2": "PVTv2-B2",
    "swin_t": "Swin-T",
    "swin_s": "Swin-S",
}
MEASURED = partial(Measured, "Converged tables: the protocol")
good = partial(add, "Good tokenizers")
small_row = partial(add_small, without=(RandAugment, Erase, CutMixOrMixup))  # small forms: crops and flips only
SMALL_NAMES = {  # and accuracy; the plain one is good_plain_cpu, another name of lv_class_cpu
    "good_deit_s_frozen": ("good_frozen_cpu", 46.6),
    "good_deit_s_intra": ("good_intra_cpu", None),
    "good_deit_s_intra_local": ("good_intra_local_cpu", None),
    "good_deit_s_intra_local_inter": ("good_intra_local_inter_cpu", None),
    "good_deit_s_moto": ("good_moto_cpu", 47.6),
    "good_deit_s_token_prop": ("good_token_prop_cpu", 46.0),
    "good_deit_s_both": ("good_both_cpu", 47.7),
    "good_swin_t": ("good_swin_cpu", None),
    "good_swin_t_both": ("good_swin_both_cpu", None),
}
TILED = "docs/results.md has it with model.stem.windows=[4,8,16], at the full rate in the patch embedding"
SMALL_NOTES = {
    "good_intra_cpu": TILED,
    "good_intra_local_cpu": TILED,
    "good_intra_local_inter_cpu": TILED,
    "good_moto_cpu": "measured with model.stem.place=token, after the patches; model.stem.norm=none: thin map alone",
    "good_both_cpu": "measured with model.stem.place=token, after the patches",
}


def good_row(
    name: str,
    method: str,
    run: Run,
    row: str,
    figures: dict[str, float],
    note: str = "",
    network: str = "DeiT-S",
    sgd: bool = False,
) -> None:
    """A row of a table and its small form; T2T-ViT and PVT have none."""
    full = good(f"good_{name}", method, network, by_sgd(run) if sgd else run, row, figures, note=note)
    if network.startswith(("DeiT", "Swin")):
        small_name, top1 = SMALL_NAMES.get(full.name, ("", None))
        settings = [MEAN] if network.startswith("DeiT") else []
        settings += ["fit.optim={name: sgd, lr: 0.5, weight_decay: 1e-4, clip: 1.0}"] if sgd else []
        note = SMALL_NOTES.get(small_name, "")
        measured = MEASURED({"top1": top1}) if top1 else None
        small_row(full, small_name, *settings, measured=measured, note=note)


# fmt: off
# tables 2, 10 and 12
for backbone, published in PAPER.items():
    for (variant, method, table), top1 in zip(VARIANTS, published, strict=True):
        if top1 is not None:
            good_row(f"{backbone}{variant}", method, supervised(backbone, variant), table, {"top1": top1},
                     network=NAMES[backbone])

# table 1: designs of the stem; the plain one is good_deit_s; windows of 4, 8, 16 and 32 px, local ones of twice that
intra = RefinedStemConfig((4, 8, 16, 32), patch=16)
plain, moto, prop = (supervised("deit_s", variant) for variant in ("", "_moto", "_token_prop"))
for name, method, stem, row, top1 in (
    ("frozen", "frozen random patches", FrozenStemConfig(), "tables 1, 11", 79.4),
    ("intra", "windows of four sizes", intra, "table 1", 80.5),
    ("intra_local", "windows of four sizes, twice as wide", replace(intra, local=True), "table 1", 80.9),
    ("intra_local_inter", "windows + attention among tokens", replace(intra, local=True, inter=True), "table 1", 82.0),
):
    good_row(f"deit_s_{name}", method, with_stem(plain, stem), row, {"top1": top1})
moco = good(
    "good_moco_deit_s", "MoCo v3", "DeiT-S", contrastive(plain), "table 1, linear", {"linear_top1": 68.1},
    note="then 'tilework probe OUT --solver sgd'; with 'model.stem={name: frozen}' 69.0, intra 68.4, and local 68.5, "
         "and inter 68.7; the paper sweeps rate and decay")
add_small(moco, "good_moco_cpu", MEAN, note="then 'tilework probe OUT'")

# tables 4 to 6: MoTo by parts; the row with eight entities in the stem is good_deit_s_moto
good_row("deit_s_moto_hard", "MoTo, hard entities", with_moto(plain, entities=16, hard=True), "table 4",
         {"top1": 80.5, "top1_32_entities": 80.8},
         "32 by model.stem.entities=32; soft, by good_deit_s_moto model.stem.entities=N: 80.8 with 2, 81.1 with 4, "
         "81.6 with 8, 81.7 with 16")
good_row("deit_s_moto_blocks", "MoTo in stem and first 4 blocks", with_blocks(moto, 4), "table 5",
         {"top1": 81.8, "top1_8_blocks": 81.9, "top1_12_blocks": 81.4}, "others by model.moto_blocks=8 and 12")
good_row("deit_s_norm", "instance norm in MoTo's position", with_moto(plain, norm="instance"), "table 6",
         {"top1": 80.1, "top1_batch_norm": 79.5, "top1_layer_norm": 79.6}, "others by model.stem.norm=batch and layer")

# tables 7 to 9: TokenProp by parts; the row with L2 at 64 px is good_deit_s_token_prop
good_row("deit_s_token_prop_l1", "TokenProp by L1",
         replace(plain, extra=(Extra(TokenPropConfig(kind="l1"), 0.001),)), "tables 7-9", {"top1": 80.2},
         "80.4 with extra.token_prop.objective.kind=perceptual, 80.8 with contextual, both with the file of a VGG as "
         "extra.token_prop.objective.perceptual_weights; of good_deit_s_token_prop: 80.4 and 80.6 with "
         "extra.token_prop.weight=0.01 and 0.1, not a number with 1; 80.4 and 77.3 with "
         "extra.token_prop.objective.size=128 and 256; 80.4 and 80.5 with extra.token_prop.objective.wide=2 and 4")

# table 11: SGD in place of AdamW
for name, method, run, top1 in (
    ("sgd", "plain patches, SGD", plain, 76.7),
    ("frozen_sgd", "frozen patches, SGD", with_stem(plain, FrozenStemConfig()), 76.0),
    ("conv_sgd", "early convolutions, SGD", with_convolutions(plain), 78.2),
    ("token_prop_sgd", "TokenProp, SGD", prop, 78.9),
    ("conv_token_prop_sgd", "early convolutions + TokenProp, SGD", with_convolutions(prop), 79.6),
):
    note = "a sweep: tilework table \"a: NAME fit.optim.lr=0.5\" \"b: NAME fit.optim.weight_decay=3e-4\" --data ..."
    good_row(f"deit_s_{name}", method, run, "table 11", {"top1": top1}, note if name == "sgd" else "", sgd=True)

# table 13: a part of the data, 100 epochs
for name, method, variant, shares in (
    ("swin_t_part", "plain patches, a tenth of ImageNet", "", (43.5, 61.2, 71.6, 73.7)),
    ("swin_t_both_part", "MoTo + TokenProp, a tenth of ImageNet", "_both", (46.5, 63.9, 73.2, 75.1)),
):
    good(f"good_{name}", method, "Swin-T", replace(supervised("swin_t", variant), samples=128_116, fit=swin_fit(100)),
         "table 13", dict(zip(("top1", "top1_20_percent", "top1_40_percent", "top1_50_percent"), shares, strict=True)),
         note="20 % by samples=256233")
# fmt: on
