"""Segmentation by UPerNet: rows of SeiT++ (table 4, appendix C) and of Good tokenizers (tables 1 and 14, B.4).

ADE20K: 'tilework train seg_deit_s --data ADE/images/training --val ADE/images/validation --start RUN', where RUN is the
classifier of the row (its name without seg_, as seit_vit_b or good_deit_s_moto). Token rows: 'tilework tokenize
ADE/images/training --masks --size 512x512 --frame squash --tokenizer ... --tiles'. No row was run at full size here.

What the papers leave open. SeiT++ builds on mmsegmentation, whose only DeiT-B configuration of 80,000 steps has no neck
(45.2 on pixels): so have ours; DeiT-S fits without one too (43.8; with it 45.1): model.neck=multilevel. Weight decay of
Good tokenizers is 0.001 in its text, 0.01 in Swin's configuration: ours is the text's. TokenProp in a row means that
the classifier was trained with it: the run is that of the row without, under another name. MoTo and frozen
patches are part of the stem, so they are in both. SeiT++ says that tokens are neither mixed nor cropped nor exchanged
and that TokenAdapt moves them, not how far: ours moves half of the samples, zooms to two at most, flips and turns
half of them.

Validation during training sees images squashed to 512x512 at one scale. The papers' figures for pixels are of
'tilework eval RUN --data ADE/images/validation --mode slide --scales 0.5 0.75 1 1.25 1.5 1.75 --flip' (Swin: --mode
whole), for tokens of the whole image at one scale. Rows of TL-Align and of other stems: the same with another --start.

Small forms are for CamVid: 144x192 px or 18x24 codes, 9x12 tokens, a ViT of 0.8 million parameters, 32 channels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tilework.augment import Augment, Embed, Flip, Normalise, Photometric, Resize, ScaleCrop, TokenGeometry
from tilework.augment.affine import Geometry
from tilework.core.config import resolve
from tilework.layers.stem_frozen import FrozenStemConfig
from tilework.layers.stem_moto import MotoStemConfig
from tilework.layers.stem_refined import RefinedStemConfig
from tilework.layers.stems import StemConfig
from tilework.models import ModelConfig, UpernetConfig, preset
from tilework.objectives import SegmentConfig
from tilework.recipes.good_tokenizers import TOKEN_PROP
from tilework.recipes.recipe import Recipe, add, add_small, run_in
from tilework.recipes.seit import vit
from tilework.recipes.seitpp import tuned_vit
from tilework.recipes.small import small_model
from tilework.runs.run import Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

SIDE = 512


def segment_fit(steps: int, decay: float) -> FitConfig:
    """AdamW at 6e-5, 1,500 steps of warm-up, then linear to 0; batches of 16."""
    return FitConfig(
        epochs=0,
        steps=steps,
        batch=16,
        precision="bf16",
        evaluate_every=16,
        save_every=4000,
        optim=OptimConfig(lr=6e-5, weight_decay=decay),
        schedule=ScheduleConfig("polynomial", warmup_steps=1500),
    )


def pixel_run(backbone: ModelConfig, auxiliary_stage: int = -1) -> Run:
    """Scale, crop, flip and photometric distortion; 160,000 steps."""
    return Run(
        model=UpernetConfig(backbone),
        objective=SegmentConfig(auxiliary_stage=auxiliary_stage),
        augment=(ScaleCrop((SIDE, SIDE)), Flip(), Photometric(), Normalise()),
        evaluation=(Resize((SIDE, SIDE)), Normalise()),
        size=(768, 768),  # what crops are cut from
        frame="squash",
        fit=segment_fit(160_000, 0.001),
    )


def token_run(backbone: ModelConfig, *moved: Augment) -> Run:
    """Codes of 8 px; 80,000 steps."""
    return Run(
        model=UpernetConfig(backbone),
        objective=SegmentConfig(finer=8),
        augment=(*moved, Embed()),
        evaluation=(Embed(),),
        codes=(SIDE // 8, SIDE // 8),
        frame="squash",
        fit=segment_fit(80_000, 0.01),
    )


def with_stem(backbone: ModelConfig, stem: StemConfig) -> ModelConfig:
    """The same network with another stem."""
    model: Any = backbone
    return replace(model, stem=stem)


def with_moto(backbone: ModelConfig) -> ModelConfig:
    """The same network with MoTo around its stem."""
    model: Any = backbone
    return with_stem(backbone, MotoStemConfig(model.stem))


# small forms
STEPS, BATCH, CHANNELS = 1000, 8, 32
CANVAS, CODES = (144, 192), (18, 24)
GEOMETRY = Geometry(area=(0.25, 1.0))


def small_segment(run: Run, *settings: str) -> Run:
    """The same method for CamVid on one core."""

    def step(one: Augment) -> Augment | None:
        match one:
            case ScaleCrop():
                return replace(one, size=CANVAS, short=CANVAS[0], long=4 * CANVAS[0])
            case TokenGeometry():
                return replace(one, size=CODES)
            case Resize():
                return None
            case Embed():
                return replace(one, standardise=True)
        return one

    model, objective = run.model, run.objective
    assert isinstance(model, UpernetConfig)
    assert isinstance(objective, SegmentConfig)
    form = replace(
        run,
        model=replace(model, backbone=small_model(model.backbone), channels=CHANNELS),
        objective=replace(objective, auxiliary_channels=CHANNELS, finer=min(4, objective.finer), over="labelled"),
        augment=tuple(new for one in run.augment if (new := step(one)) is not None),
        evaluation=tuple(new for one in run.evaluation if (new := step(one)) is not None),
        size=CANVAS,
        codes=CODES if run.codes else None,
        fit=FitConfig(
            epochs=0,
            steps=STEPS,
            batch=BATCH,
            evaluate_every=0,
            optim=OptimConfig(lr=1.5e-3, weight_decay=0.05, clip=1.0),
            schedule=ScheduleConfig("polynomial", warmup_steps=60),
        ),
    )
    return resolve(form, None, settings)


MEAN = "model.backbone.pool=mean"  # as the small classifiers, whose weights it may start from
PATCHES = ("model.backbone.stem={name: token_patch}", "model.backbone.positions=sincos_learnt")
seitpp, good, lv = (partial(add, paper, start=True) for paper in ("SeiT++", "Good tokenizers", "LV-ViT"))


def small_row(full: Recipe, name: str = "", *settings: str, note: str = "") -> Recipe:
    """File the small form of a row."""
    return add_small(full, name, run=small_segment(run_in(full), *settings), note=note)


# fmt: off
# SeiT++, table 4
seit_row = seitpp(
    "seg_seit_vit_b", "SeiT, UPerNet on tokens", "ViT-B", token_run(vit("vit_b")), "table 4", {"miou": 39.0},
    note="starts from seit_vit_b; no augmentation")
seitpp_row = seitpp(
    "seg_seitpp_vit_b", "SeiT++, UPerNet on tokens", "ViT-B",
    token_run(tuned_vit("vit_b"), TokenGeometry(size=(64, 64), geometry=GEOMETRY, area=(1.0, 1.0))), "table 4",
    {"miou": 43.2}, note="starts from seitpp_tuned_vit_b, whose vectors of the codes it keeps; half of the samples "
                         "move through TokenAdapt")
small_row(seit_row, "seg_token_cpu", MEAN, *PATCHES, note="starts from seit_patch_cpu or mtm_cpu, or from nothing")
small_row(seitpp_row, "seg_token_adapt_cpu", MEAN, *PATCHES)

# Good tokenizers, table 14 and the segmentation columns of table 1
DROP = {"deit_s": 0.1, "deit_b": 0.1, "swin_t": 0.3, "swin_s": 0.3}
NAMES = {"deit_s": "DeiT-S", "deit_b": "DeiT-B", "swin_t": "Swin-T", "swin_s": "Swin-S"}
VARIANTS = (("", "plain patches", "token_prop"), ("_moto", "MoTo", "both"))
PAPER: dict[str, tuple[tuple[float, ...], ...]] = {  # mIoU without TokenProp and with it: plain patches, MoTo
    "deit_s": ((44.0, 44.3), (44.5, 44.7)),
    "deit_b": ((45.2,),),
    "swin_t": ((45.8, 46.4), (46.3, 46.7)),
    "swin_s": ((49.1, 49.4), (49.4, 49.6)),
}
SMALL = {"seg_deit_s": "seg_cpu", "seg_deit_s_moto": "seg_moto_cpu", "seg_swin_t": "seg_swin_cpu",
         "seg_deit_s_frozen": "seg_frozen_cpu"}


def backbone_of(name: str, variant: str = "") -> ModelConfig:
    """A backbone of table 14."""
    plain = preset(name, drop_path=DROP[name])
    return with_moto(plain) if variant in ("_moto", "_both") else plain


def pixel_row(name: str, method: str, backbone: ModelConfig, network: str, row: str, figures: dict[str, float],
              note: str = "", also: tuple[str, ...] = ()) -> None:
    """A row and its small form; Swin's auxiliary head reads its third stage."""
    swin = network.startswith("Swin")
    full = good(f"seg_{name}", f"{method}, UPerNet", network, pixel_run(backbone, 2 if swin else -1), row,
                figures, note=note, also=also)
    small_row(full, SMALL.get(full.name, ""), *(["objective.auxiliary_stage=1"] if swin else [MEAN]))


for name, figures in PAPER.items():
    for (variant, method, other), both in zip(VARIANTS, figures, strict=False):
        start, two = f"starts from good_{name}{variant}", len(both) > 1
        pixel_row(f"{name}{variant}", method, backbone_of(name, variant), NAMES[name],
                  "table 14" if two else "table 1", {"miou": both[0], **({f"miou_{other}": both[1]} if two else {})},
                  f"{start}; as seg_{name}_{other} from good_{name}_{other}" if two else start,
                  (f"seg_{name}_{other}",) if two else ())
intra = RefinedStemConfig((4, 8, 16, 32), patch=16)
for name, method, stem, miou in (
    ("frozen", "frozen random patches", FrozenStemConfig(), 42.9),
    ("intra", "windows of four sizes", intra, 44.3),
    ("intra_local", "windows of four sizes, twice as wide", replace(intra, local=True), 44.6),
    ("refined", "windows + attention among tokens", replace(intra, local=True, inter=True), 45.0),
):
    pixel_row(f"deit_s_{name}", method, with_stem(backbone_of("deit_s"), stem), "DeiT-S", "table 1", {"miou": miou},
              "starts from good_deit_s_" + ("intra_local_inter" if name == "refined" else name))

# transfer of token labelling
lv_row = lv("seg_lv_vit_s", "token labels, UPerNet", "LV-ViT-S", pixel_run(preset("lv_vit_s", dense=False)), "ADE20K",
            note="starts from lv_vit_s; its paper's figures are for other settings")
small_row(lv_row, "", MEAN)

# TokenProp beside segmentation too: the second reading of table 14
extra_row = good(
     "seg_deit_s_token_prop_extra", "TokenProp beside UPerNet", "DeiT-S",
     replace(pixel_run(backbone_of("deit_s")), extra=TOKEN_PROP), "table 14",
     note="the other reading of TokenProp's row: the decoder is trained here as well")
small_row(extra_row, "seg_token_prop_cpu", MEAN, "extra.token_prop.objective.wide=0.25")
# fmt: on
