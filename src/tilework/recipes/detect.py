"""Detection."""

from __future__ import annotations

from tilework.augment import Flip, Normalise
from tilework.layers.stems import OverlapStemConfig
from tilework.models import PvtV2Config, RetinanetConfig
from tilework.objectives import DetectConfig
from tilework.recipes.recipe import add
from tilework.runs.run import Run
from tilework.train import FitConfig, OptimConfig, ScheduleConfig

SMALL = PvtV2Config(widths=(16, 32, 80, 128), depths=(2, 2, 2, 2), heads=(1, 2, 5, 8), stem=OverlapStemConfig())
run = Run(
    model=RetinanetConfig(SMALL, channels=64, extra=0, convs=2, size=2.0),
    objective=DetectConfig(),
    augment=(Flip(), Normalise()),
    evaluation=(Normalise(),),
    size=(192, 256),
    frame="letterbox",
    fit=FitConfig(epochs=0, steps=400, batch=8, evaluate_every=0, optim=OptimConfig(lr=1e-3, weight_decay=0.05, clip=1.0),
                  schedule=ScheduleConfig("polynomial", warmup_steps=40)),
)
add("", "detect_cpu", "RetinaNet", "small", run, size="cpu")
