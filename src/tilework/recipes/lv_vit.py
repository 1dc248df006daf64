"""LV-ViT and token labelling (Jiang et al., 2021; table 1, tables 2 to 4 of the supplement).

Label maps come from `tilework annotate`; runs on images take them by `--maps`, stores keep their own. The losses of the
class and of the tokens weigh 1 and 0.5, as in the paper; the published code has 1 and 1, and teaches the class by the
map too (objective.dense_weight=1 objective.class_target=map). Evaluation sees 0.9 of an image's side (T, S) or all of
it (M, L); larger images are for fine-tuning, at a constant rate and without averaged weights, as published. Table 5
compares `lv_vit_m_384` with CaiT: 36 blocks of width 384 and 12 heads, MLP ratio 4, drop path 0.2 in all blocks,
RandAugment, CutMix, mixup, LayerScale, class attention, distillation, 400 epochs; nothing of that is needed here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tilework.augment import (
    Augment,
    CentreCrop,
    Erase,
    Flip,
    MixToken,
    Mixup,
    Normalise,
    RandAugment,
    WholeCrop,
)
from tilework.core.config import resolve
from tilework.layers.stems import ConvStemConfig
from tilework.models import ModelConfig, VitConfig, preset
from tilework.objectives import ClassifyConfig, ObjectiveConfig, RelabelConfig, TokenLabelConfig
from tilework.recipes.recipe import Measured, add, add_small, run_of
from tilework.recipes.seit import MEAN
from tilework.recipes.small import small
from tilework.runs.run import Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig


def lv_fit(base: float, epochs: int = 300, batch: int = 1024) -> FitConfig:
    """AdamW at 1e-3 for `base` samples, five epochs of warm-up, cosine to 1e-5, averaged weights."""
    lr = 1e-3 * batch / base
    return FitConfig(
        epochs=epochs,
        batch=batch,
        precision="bf16",
        ema=0.99992,
        optim=OptimConfig(lr=lr, weight_decay=0.05),
        schedule=ScheduleConfig(warmup_epochs=5, floor=1e-5 / lr),
    )


def lv_run(
    model: ModelConfig,
    objective: ObjectiveConfig,
    *mixing: Augment,
    fit: FitConfig,
    crop: int = 224,
    seen: float = 0.9,
    ops: int = 2,
) -> Run:
    """Crop, flip, RandAugment and erasing of pixels; label maps move along. seen: share of a side in evaluation."""
    steps = (Flip(), RandAugment(ops, magnitude=9.0, deviation=0.5), Normalise(), Erase(0.25))
    side = int(crop / seen)
    return Run(
        model=model,
        objective=objective,
        augment=(WholeCrop((crop, crop)), *steps, *mixing),
        evaluation=(CentreCrop((crop, crop)), Normalise()),
        size=(side, side),
        fit=fit,
    )


def labelled(size: str, crop: int = 224, fit: FitConfig | None = None) -> Run:
    """A network of the paper with token labels and MixToken; L has a lower rate and one more operation."""
    return lv_run(
        preset(f"lv_vit_{size}"),
        TokenLabelConfig(),
        MixToken((crop // 16, crop // 16)),
        fit=fit or lv_fit(1024 if size == "l" else 640),
        crop=crop,
        seen=0.9 if size in "ts" else 1.0,
        ops=3 if size == "l" else 2,
    )


DEIT_S = VitConfig(width=384, depth=12, heads=6, drop_path=0.1)
UNLABELLED = preset("lv_vit_s", dense=False)
STANDARD = lv_run(UNLABELLED, ClassifyConfig(), Mixup(1.0, alpha=0.8), fit=lv_fit(1024))
FINE = replace(
    lv_fit(640),
    epochs=30,
    batch=512,
    ema=0.0,
    optim=OptimConfig(lr=5e-6, weight_decay=1e-8),
    schedule=ScheduleConfig("constant"),
)
MEASURED = partial(Measured, "Token labels on Imagenette")
CONVERGED = partial(Measured, "Converged tables: the protocol")
lv = partial(add, "LV-ViT")
# small forms: plain patches, crops and flips only, MixToken on half of the batches, images of the size of other rows
PLAIN = (MEAN, "model.stem={name: patch}")
SMALL = (*PLAIN, "size=[128,128]")
small_row = partial(add_small, without=(RandAugment, Erase, Mixup), mixed=0.5)

# fmt: off
# table 1: training by classes, ReLabel, token labelling
standard = lv(
    "lv_vit_s_standard", "class labels", "LV-ViT-S", STANDARD, "table 1, standard", {"top1": 82.4},
    note="mixup, no CutMix; the row of table 2 before token labelling")
relabel = lv(
    "lv_vit_s_relabel", "pooled label of each crop", "LV-ViT-S",
    lv_run(UNLABELLED, RelabelConfig(), fit=lv_fit(1024)), "table 1, ReLabel")
FIGURES: dict[str, dict[str, float]] = {
    "t": {"parameters": 8_534_720},
    "s": {"top1": 83.3, "parameters": 26_151_824},
    "m": {"parameters": 55_830_544},
    "l": {"parameters": 150_021_968},
}
labels = {
    size: lv(f"lv_vit_{size}", "token labels + MixToken", f"LV-ViT-{size.upper()}", labelled(size), "table 1",
             figures)
    for size, figures in FIGURES.items()
}
LARGER: tuple[tuple[str, int, str, dict[str, float]], ...] = (
    ("s", 384, "table 2", {"top1": 84.4, "parameters": 26_297_744}),
    ("m", 384, "table 5", {"top1": 85.4, "parameters": 56_025_104}),
    ("l", 448, "", {"parameters": 150_473_552}),
)
fine = [
    lv(f"lv_vit_{size}_{side}", f"token labels + MixToken, {side} px", f"LV-ViT-{size.upper()}",
       labelled(size, side, FINE), row, figures, start=True)
    for size, side, row, figures in LARGER
]

# the supplement's table 2, from DeiT-S to LV-ViT-S, row by row; the last rows are lv_vit_s and lv_vit_s_384
PATH: tuple[tuple[str, str, dict[str, Any], dict[str, float], str], ...] = (
    ("deeper", "16 blocks", {"depth": 16}, {"top1": 81.2, "parameters": 28e6}, ""),
    ("narrower", "16 blocks, MLP ratio 3", {"depth": 16, "mlp_ratio": 3.0}, {"top1": 81.1, "parameters": 25e6},
     "for table 3 set model.stem"),
    ("stem", "16 blocks, MLP ratio 3, convolutions", {"depth": 16, "mlp_ratio": 3.0, "stem": ConvStemConfig()},
     {"top1": 82.2}, "other rows of table 3 by settings: model.stem.kernels=[7,3,8] model.stem.strides=[2,1,8]"),
    ("divisor", "16 blocks, MLP ratio 3, convolutions, divisor 2",
     {"depth": 16, "mlp_ratio": 3.0, "divisor": 2.0, "stem": ConvStemConfig()}, {"top1": 82.4},
     "with 2; table 4 has 1, 2 and 3: model.divisor=3"),
)
for name, method, changes, figures, note in PATH:
    lv(f"lv_path_{name}", method, "DeiT-S", replace(STANDARD, model=replace(DEIT_S, **changes)), "table 2", figures,
       note=note)

# small forms
small_row(standard, "lv_class_cpu", *SMALL, method="class labels, no mixing", measured=CONVERGED({"top1": 46.2}),
          also=("good_plain_cpu",), note="plain patches of Good tokenizers' table 1 too (good_plain_cpu)")
lv("lv_mix_token_cpu", "class labels + MixToken", "small ViT",
   small(replace(labelled("s"), model=UNLABELLED, objective=ClassifyConfig()), *SMALL,
         without=(RandAugment, Erase), mixed=0.5), size="cpu", measured=CONVERGED({"top1": 51.9}))
small_row(labels["s"], "lv_labels_cpu", *SMALL, measured=CONVERGED({"top1": 52.5}))
for size in ("t", "m", "l"):
    small_row(labels[size], "", *SMALL)
for full in fine:
    small_row(full, "", *PLAIN)
small_row(relabel, "lv_relabel_cpu", *SMALL, measured=CONVERGED({"top1": 48.1}))
lv("token_labels_cpu", "token labels on tokens", "small ViT",
   replace(resolve(run_of("seit_plain_cpu"), None, ["model.dense=true"]), objective=TokenLabelConfig()), size="cpu",
   measured=MEASURED({"top1": 54.0}), note="of stores that 'tilework annotate IMAGES --store STORE' gave label maps; "
                                          "compared with token_class_cpu")
# fmt: on
