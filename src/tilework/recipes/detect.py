"""Detection and outlines of objects: table 15 of Good tokenizers (appendix B.3), on COCO.

'tilework train mask_swin_t --data COCO/annotations/instances_train2017.json --val
COCO/annotations/instances_val2017.json --start RUN', where RUN is the classifier of the row (good_swin_t, ...). No row
was run at full size here.

What the paper leaves open. Its text has AdamW at 1e-4, weight decay 0.05 and several scales for all rows; the plain
rows of PVTv2 are the figures of the PVT repository, whose settings are others: one scale, weight decay 1e-4, and 2e-4
as the rate of Mask R-CNN. Ours is the text; the repository's: fit.optim.weight_decay=1e-4 'augment.multi_scale.short=
[800]' augment.multi_scale.crop=0 (Mask R-CNN: fit.optim.lr=2e-4). Swin's rows draw scales and crops as DETR does, and
its Cascade has the box head of four normed convolutions with a GIoU loss: so have ours. TokenProp in a row means that
the classifier was trained with it: the run is that of the row without, under another name. MoTo is part of the stem.

Every image lies on a canvas of 1344x1344, some 2.5 times the pixels of mmdetection's batches, which are padded to
their largest image and grouped by aspect; order is a function of the seed here. 'size=[1024,1024]
augment.multi_scale.size=[1024,1024] evaluation.multi_scale.size=[1024,1024]' is cheaper: larger images are shrunk.

Small forms are for blood cells (BCCD): 192x256 px, PVTv2-b0 at half its widths, three levels, anchors from 2 strides
on, since platelets are 16 px there. Those with outlines are for images of 128 px.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilework.augment import Augment, Embed, Flip, MultiScale, Normalise
from tilework.core.config import resolve
from tilework.models import CascadeMaskRcnnConfig, MaskRcnnConfig, ModelConfig, RetinanetConfig, preset
from tilework.models.detector import DetectorConfig
from tilework.models.rcnn import Proposals
from tilework.objectives import DetectConfig, ObjectiveConfig, RcnnConfig
from tilework.objectives.matching import Matching
from tilework.objectives.rcnn import Step
from tilework.recipes.good_tokenizers import TOKEN_PROP
from tilework.recipes.recipe import Recipe, add, add_small, run_in
from tilework.recipes.segment import with_moto
from tilework.recipes.small import small_model
from tilework.runs.run import Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

CANVAS = (1344, 1344)
ALL = Matching(ignored=0)  # crowds are background, as in mmdetection
RETINA = DetectConfig(matching=ALL)
MASKS = RcnnConfig(
    anchors=Matching(0.7, 0.3, best_from=0.3, ignored=0), steps=(Step(Matching(0.5, 0.5, best_from=0.5, ignored=0)),)
)
CASCADE = replace(
    MASKS,
    anchors_inside=True,
    beta=1 / 9,
    proposals=Proposals(of_level=2000, most=2000),
    steps=tuple(
        Step(Matching(overlap, overlap, best=False, ignored=0), weight)
        for overlap, weight in ((0.5, 1.0), (0.6, 0.5), (0.7, 0.25))
    ),
    box_loss="giou",
    box_weight=10.0,
)


def detect_run(model: DetectorConfig, objective: ObjectiveConfig) -> Run:
    """12 epochs of batches of 16, the rate a tenth after 8 and 11."""
    return Run(
        model=model,
        objective=objective,
        augment=(MultiScale(CANVAS), Flip(), Normalise()),
        evaluation=(MultiScale(CANVAS, short=(800,), crop=0.0), Normalise()),
        size=CANVAS,
        frame="letterbox",
        fit=FitConfig(
            epochs=12,
            batch=16,
            precision="bf16",
            optim=OptimConfig(lr=1e-4, weight_decay=0.05),
            schedule=ScheduleConfig("steps", warmup_steps=500),
        ),
    )


# small forms
SMALL_CANVAS, CODES, CHANNELS, BATCH, STEPS = (192, 256), (24, 32), 64, 8, 400


def small_detect(run: Run, *settings: str) -> Run:
    """The same method on one core."""
    model, objective = run.model, run.objective
    assert isinstance(model, DetectorConfig)
    canvas, form = SMALL_CANVAS, replace(model, backbone=small_model(model.backbone), channels=CHANNELS)
    if isinstance(form, RetinanetConfig):
        form = replace(form, levels=3, convs=2, size=2.0)
    if isinstance(form, MaskRcnnConfig):
        canvas = (128, 128)
        form = replace(form, hidden=128, norm="group", size=4.0, proposals=Proposals(200, most=100))
    if isinstance(objective, RcnnConfig):
        objective = replace(objective, anchors_sampled=128, regions=64, proposals=Proposals(200, most=100))
    small = replace(
        run,
        model=form,
        objective=objective,
        augment=small_steps(run.augment),
        evaluation=small_steps(run.evaluation),
        size=canvas,
        codes=CODES if run.codes else None,
        fit=FitConfig(
            epochs=0,
            steps=STEPS,
            batch=BATCH,
            evaluate_every=0,
            optim=OptimConfig(lr=1e-3, weight_decay=0.05, clip=1.0),
            schedule=ScheduleConfig("polynomial", warmup_steps=40),
        ),
    )
    return resolve(small, None, settings)


def small_steps(steps: tuple[Augment, ...]) -> tuple[Augment, ...]:
    """One scale; code vectors of unit variance."""
    kept = (step for step in steps if not isinstance(step, MultiScale))
    return tuple(replace(step, standardise=True) if isinstance(step, Embed) else step for step in kept)


good = partial(add, "Good tokenizers", start=True, row="table 15")


def small_row(full: Recipe, name: str = "", *settings: str, note: str = "") -> Recipe:
    """File the small form of a row."""
    return add_small(full, name, run=small_detect(run_in(full), *settings), note=note)


# fmt: off
VARIANTS = (("", "plain patches", "token_prop"), ("_moto", "MoTo", "both"))
NETWORKS = {"pvt_v2_b1": "PVTv2-B1", "swin_t": "Swin-T"}
Figures = tuple[tuple[float, ...], ...]  # box AP, and mask AP: plain, MoTo, TokenProp, both
PAPER: dict[str, tuple[str, str, DetectorConfig, ObjectiveConfig, Figures]] = {
    "retina_pvt_v2_b1": ("RetinaNet", "pvt_v2_b1", RetinanetConfig(), RETINA, ((41.2, 41.8, 41.5, 42.0),)),
    "mask_pvt_v2_b1": ("Mask R-CNN", "pvt_v2_b1", MaskRcnnConfig(), MASKS,
                       ((41.8, 42.4, 42.3, 42.9), (38.8, 39.1, 39.4, 39.4))),
    "mask_swin_t": ("Mask R-CNN", "swin_t", MaskRcnnConfig(), MASKS,
                    ((43.7, 44.1, 44.2, 44.6), (39.8, 40.1, 40.0, 40.4))),
    "cascade_swin_t": ("Cascade Mask R-CNN", "swin_t", CascadeMaskRcnnConfig(), CASCADE,
                       ((48.1, 48.7, 48.6, 49.1), (41.7, 42.1, 41.9, 42.4))),
}
CLASSIFIERS = {"pvt_v2_b1": "good_pvt_v2_b2", "swin_t": "good_swin_t"}
NOT_FILED = {"pvt_v2_b1": " (both with model.depths=[2,2,2,2]: no table of classifiers has PVTv2-B1)"}
DROP = {"cascade_swin_t": 0.0}  # as published there; 0.1 elsewhere
SMALL = {"retina_pvt_v2_b1": "detect_cpu", "retina_pvt_v2_b1_moto": "detect_moto_cpu", "mask_pvt_v2_b1": "mask_cpu",
         "cascade_swin_t": "cascade_cpu"}


def backbone_of(name: str, network: str, variant: str) -> ModelConfig:
    """A backbone of table 15."""
    plain = preset(network, drop_path=DROP.get(name, 0.1))
    return with_moto(plain) if variant == "_moto" else plain


def figures_of(figures: Figures, row: int, other: str) -> dict[str, float]:
    """Published figures of a row, and of its twin with TokenProp."""
    kinds = dict(zip(("box_ap", "mask_ap"), figures, strict=False))
    plain = {kind: each[row] for kind, each in kinds.items()}
    return plain | {f"{kind}_{other}": each[row + 2] for kind, each in kinds.items()}


for name, (method, network, model, objective, figures) in PAPER.items():
    for row, (variant, stem, other) in enumerate(VARIANTS):
        full = good(
            f"{name}{variant}", f"{stem}, {method}", NETWORKS[network],
            detect_run(replace(model, backbone=backbone_of(name, network, variant)), objective),
            published=figures_of(figures, row, other), also=(f"{name}_{other}",),
            note=f"starts from {CLASSIFIERS[network]}{variant}; as {name}_{other} from its twin with TokenProp"
                 + NOT_FILED.get(network, ""))
        small_row(full, SMALL.get(full.name, ""))

# TokenProp beside detection too: the second reading of table 15
for variant, stem, name in (("", "TokenProp", "token_prop"), ("_moto", "MoTo and TokenProp", "both")):
    full = good(
        f"retina_pvt_v2_b1_{name}_extra", f"{stem} beside RetinaNet", "PVTv2-B1",
        replace(detect_run(RetinanetConfig(backbone_of("", "pvt_v2_b1", variant)), RETINA), extra=TOKEN_PROP),
        note="the other reading of TokenProp's row: the decoder is trained here as well")
    small_row(full, f"detect_{name}_cpu", "extra.token_prop.objective.wide=0.25")

# tokens: no paper has it. Codes of 8 px, two positions for each, so the finest level has a stride of 4 px
tokens = add(
    "", "retina_token_pvt_v2_b1", "RetinaNet on tokens", "PVTv2-B1",
    replace(detect_run(RetinanetConfig(preset("pvt_v2_b1").for_tokens()), replace(RETINA, smallest=0.125)),
            augment=(Embed(),), evaluation=(Embed(),), frame="squash", codes=(128, 128)),
    note="no paper has it: codes of 8 px of 1024x1024 px images, neither scaled nor flipped")
small_row(tokens, "detect_token_cpu")
# fmt: on
