"""How well a run does on validation data: what its task is judged by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from tilework.augment import AnyStep
from tilework.core.distributed import World
from tilework.data import Source
from tilework.evaluation.accuracy import Accuracy
from tilework.evaluation.average_precision import AveragePrecision
from tilework.evaluation.averages import Averages
from tilework.evaluation.evaluator import Evaluator
from tilework.evaluation.loop import evaluate
from tilework.evaluation.segmentation import MeanIou
from tilework.models import Output
from tilework.objectives import Objective, Task

# headline figures that follow from the model's output and the batch; any other is a mean of the objective's scores
BY_METRIC: dict[str, Callable[[Source], Evaluator[Output]]] = {
    "top1": lambda source: Accuracy(),
    "miou": lambda source: MeanIou(len(source.classes)),
    "box_ap": AveragePrecision,
}


def validate(
    task: Task,
    objective: Objective,
    model: nn.Module,
    source: Source,
    steps: Sequence[AnyStep],
    world: World,
    batch: int = 256,
) -> dict[str, float]:
    """Figures of a model, the headline of the task among them. model: the objective's, or averaged weights of it."""
    objective.eval()  # its own layers may drop something in training
    model.eval()
    if task.metric in BY_METRIC:
        found = [BY_METRIC[task.metric](source)]
        return evaluate(lambda part: objective.output(model, part), source, steps, found, world, batch)
    return evaluate(lambda part: objective.score(model, part), source, steps, [Averages()], world, batch)
