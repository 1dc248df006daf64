"""TL-Align, TransMix and labels by area (Xiao et al., 2023; the supplement's table 1 and mixing strategies).

Row 2 of table 1, mixup or CutMix for DeiT-S, is `deit_s`. Rows of one block differ in the label rule alone: `classify`
goes by area, `trans_mix` by the class token's attention as well, `tl_align` by the tokens. Boxes of row 4 consist of
whole patches, as in the published code. Runs on pixels and those for a CPU read a class token, which TransMix needs;
SeiT's read the mean, as does Swin, whose first tokens cover 4 px, as PVT's do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilework.augment import (
    Augment,
    BlockMix,
    CutMix,
    CutMixOrMixup,
    EmbeddingNoise,
    Erase,
    Mixup,
    PatchCutMix,
    RandAugment,
    RandomMix,
    TokenEda,
)
from tilework.models import preset
from tilework.objectives import (
    ClassifyConfig,
    ObjectiveConfig,
    TlAlignConfig,
    TlAlignTokenLabelConfig,
    TransMixConfig,
)
from tilework.recipes.lv_vit import SMALL as SMALL_LV
from tilework.recipes.lv_vit import small_row as small_lv_row
from tilework.recipes.recipe import Measured, add, add_small, run_in, run_of
from tilework.recipes.seit import DEIT, fit_of, pixel_run
from tilework.recipes.seitpp import PATCHES
from tilework.runs.run import Run
from tilework.train import FitConfig

AREA, TRANS_MIX, TL_ALIGN = ClassifyConfig(), TransMixConfig(), TlAlignConfig()
BOXES, RANDOM, BLOCKS = PatchCutMix(16, even=True), RandomMix(16), BlockMix(16)
SMALL_BOXES = PatchCutMix(4, even=True)
ROUNDED = "augment.patch_cutmix.even=false"  # boxes of small forms, as they were measured
# of networks in stages: no copies of images; Swin with clipping and a long warm-up, as its authors train it
PVT = replace(DEIT, repeats=1)
SWIN = replace(PVT, optim=replace(DEIT.optim, clip=5.0), schedule=replace(DEIT.schedule, warmup_epochs=20))


def aligned_run(objective: ObjectiveConfig, *mixing: Augment, name: str = "deit_s", fit: FitConfig = DEIT) -> Run:
    """DeiT's pipeline on pixels with a label rule and a mixture; 300 epochs."""
    run = pixel_run(preset(name), fit)
    return replace(run, objective=objective, augment=(*run.augment[:-1], *mixing))


def averaged_run(objective: ObjectiveConfig) -> Run:
    """Row 3, TransMix's own settings: 310 epochs, batches of 256, averaged weights, mixup or CutMix, no erasing.

    Evaluation sees 0.9 of a side, as in its code.
    """
    fit = fit_of(310, 256, 0.001, 0.03)
    fit = replace(fit, ema=0.99996, schedule=replace(fit.schedule, warmup_epochs=20))
    mixing = CutMixOrMixup(CutMix(1.0), Mixup(1.0, alpha=0.8), switch=0.8)
    run = pixel_run(preset("deit_s"), fit, erase=0.0)
    return replace(run, objective=objective, augment=(*run.augment[:-1], mixing), size=(248, 248))


def on_codes(run: Run) -> Run:
    """A run of SeiT with aligned labels; boxes of whole tokens, two codes wide."""
    augment = tuple(PatchCutMix(2) if isinstance(step, CutMix) else step for step in run.augment)
    return replace(run, objective=TL_ALIGN, augment=augment)


MEASURED = partial(Measured, "Labels that follow the tokens: TL-Align on Imagenette")
CONVERGED = partial(Measured, "Converged tables: the protocol")
align = partial(add, "TL-Align")
small_row = partial(add_small, without=(RandAugment, Erase))  # small forms: crops, flips, a mixture

# fmt: off
# table 1 of the supplement, then other mixtures; below, the small form and its accuracy
for name, method, network, run, row, top1, small_name, measured in (
    ("deit_s_unmixed", "no mixture", "DeiT-S", aligned_run(AREA), "table 1, row 1", 76.4, "", None),
    ("deit_s_averaged", "averaged weights", "DeiT-S", averaged_run(AREA), "table 1, row 3", 80.3, "", None),
    ("deit_s_averaged_trans_mix", "averaged weights + TransMix", "DeiT-S", averaged_run(TRANS_MIX), "table 1, row 3",
     80.7, "", None),
    ("deit_s_cutmix", "CutMix", "DeiT-S", aligned_run(AREA, BOXES), "table 1, row 4", 79.8, "cutmix_cpu", 49.9),
    ("deit_s_trans_mix", "CutMix + TransMix", "DeiT-S", aligned_run(TRANS_MIX, BOXES), "table 1, row 4", 80.1,
     "trans_mix_cpu", 50.3),
    ("deit_s_tl_align", "CutMix + TL-Align", "DeiT-S", aligned_run(TL_ALIGN, BOXES), "table 1, row 4", 80.6,
     "tl_align_cpu", 50.0),
    ("deit_ti_tl_align", "CutMix + TL-Align", "DeiT-Ti", aligned_run(TL_ALIGN, BOXES, name="deit_ti"), "", None,
     "", None),
    ("deit_b_tl_align", "CutMix + TL-Align", "DeiT-B", aligned_run(TL_ALIGN, BOXES, name="deit_b"), "", None,
     "", None),
    ("swin_t_tl_align", "CutMix + TL-Align", "Swin-T", aligned_run(TL_ALIGN, SMALL_BOXES, name="swin_t", fit=SWIN), "",
     None, "", None),
    ("swin_s_tl_align", "CutMix + TL-Align", "Swin-S", aligned_run(TL_ALIGN, SMALL_BOXES, name="swin_s", fit=SWIN), "",
     None, "", None),
    ("pvt_small_tl_align", "CutMix + TL-Align", "PVT-Small",
     aligned_run(TL_ALIGN, SMALL_BOXES, name="pvt_small", fit=PVT), "", None, "", None),
    ("pvt_medium_tl_align", "CutMix + TL-Align", "PVT-Medium",
     aligned_run(TL_ALIGN, SMALL_BOXES, name="pvt_medium", fit=PVT), "", None, "", None),
    ("deit_s_random", "random patches", "DeiT-S", aligned_run(AREA, RANDOM), "mixtures", None, "random_mix_cpu", None),
    ("deit_s_random_tl_align", "random patches + TL-Align", "DeiT-S", aligned_run(TL_ALIGN, RANDOM), "mixtures", None,
     "tl_align_random_cpu", None),
    ("deit_s_blocks", "blocks", "DeiT-S", aligned_run(AREA, BLOCKS), "mixtures", 80.0, "block_mix_cpu", None),
    ("deit_s_blocks_tl_align", "blocks + TL-Align", "DeiT-S", aligned_run(TL_ALIGN, BLOCKS), "mixtures", 80.3,
     "tl_align_block_cpu", None),
):
    full = align(name, method, network, run, row, {"top1": top1} if top1 else {},
                 note="below the 80.0 of blocks" if name == "deit_s_random" else "")
    if not network.startswith("PVT"):  # which has no small form
        rounded = [ROUNDED] if any(isinstance(step, PatchCutMix) for step in run.augment) else []
        small_row(full, small_name, *rounded, measured=CONVERGED({"top1": measured}) if measured else None)

# tokens, and token labels: combinations that no paper has
seit_s = align("seit_vit_s_tl_align", "SeiT + TL-Align", "ViT-S", on_codes(run_of("seit_vit_s")))
seit_b = align("seit_vit_b_tl_align", "SeiT + TL-Align", "ViT-B", on_codes(run_of("seit_vit_b")))
seitpp_s = align(
    "seitpp_vit_s_tl_align", "SeiT++ + TL-Align", "ViT-S", replace(run_of("seitpp_vit_s"), objective=TL_ALIGN),
    note="mixtures through TokenAdapt are followed too")
labels_s = align(
    "lv_vit_s_tl_align", "token labels + MixToken + TL-Align", "LV-ViT-S",
    replace(run_of("lv_vit_s"), objective=TlAlignTokenLabelConfig()), note="the class label is aligned")

PLAIN = (TokenEda, EmbeddingNoise)  # left out of small forms: crops and boxes only
on_tokens = add_small(seit_s, "token_tl_align_cpu", "model.pool=class", without=PLAIN,
                      method="CutMix + TL-Align on tokens", measured=MEASURED({"top1": 46.8}))
for name, method, rule, found in (
    ("token_cutmix_cpu", "CutMix on tokens", AREA, MEASURED({"top1": 46.9})),
    ("token_trans_mix_cpu", "CutMix + TransMix on tokens", TRANS_MIX, None),
):
    align(name, method, "small ViT", replace(run_in(on_tokens), objective=rule), size="cpu", measured=found)
add_small(seit_b, "", "model.pool=class", without=PLAIN)
add_small(seitpp_s, "seitpp_tl_align_cpu", *PATCHES, mixed=0.5)
small_lv_row(labels_s, "", *SMALL_LV)
# fmt: on
