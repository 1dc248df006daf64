"""Training on codes of a teacher's map (`tilework tokenize` without --tokenizer): 7x7 codes that are features already.

Ours. A linear classifier of the mean of code vectors beside a small ViT over the codes, both with random crops of the
map and mixtures, which need nothing of the teacher.
"""

from __future__ import annotations

from functools import partial

from tilework.augment import CutMix, Embed, EmbeddingNoise, Mixup, TokenCrop
from tilework.layers.stems import TokenPatchStemConfig
from tilework.models import LinearConfig, VitConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes.recipe import Measured, add
from tilework.runs.run import Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

MEASURED = partial(Measured, "Codes of a teacher: flowers17")
LINEAR = Run(
    model=LinearConfig(),
    objective=ClassifyConfig(),
    augment=(Embed(standardise=True), Mixup(0.5, alpha=0.4)),
    evaluation=(Embed(standardise=True),),
    fit=FitConfig(
        epochs=0,
        steps=1500,
        batch=128,
        evaluate_every=0,
        optim=OptimConfig(lr=2e-3, weight_decay=3.0),
        schedule=ScheduleConfig(warmup_steps=50),
    ),
)
CODES = Run(
    model=VitConfig(
        width=192, depth=2, heads=4, pool="mean", positions="sincos", drop_path=0.1, stem=TokenPatchStemConfig(1)
    ),
    objective=ClassifyConfig(smoothing=0.1),
    augment=(TokenCrop((7, 7), (0.35, 1.0), standardise=True), CutMix(0.5), EmbeddingNoise(0.5)),
    evaluation=(Embed(standardise=True),),
    codes=(7, 7),
    fit=FitConfig(
        epochs=0,
        steps=1200,
        batch=64,
        evaluate_every=0,
        optim=OptimConfig(lr=1e-3, weight_decay=0.1, clip=1.0),
        schedule=ScheduleConfig(warmup_steps=60),
    ),
)
note = "the one to begin with for stores of 'tilework tokenize' without --tokenizer"
add("", "linear_cpu", "linear classifier of the mean of code vectors", "linear", LINEAR, size="cpu", note=note,
    measured=MEASURED({"top1": 93.8}))  # fmt: skip
add("", "teacher_vit_cpu", "crops, CutMix and noise on a teacher's codes", "small ViT", CODES, size="cpu",
    measured=MEASURED({"top1": 93.0}),
    note="stores of 7x7 codes; others by codes=null and the size of the crop")  # fmt: skip
