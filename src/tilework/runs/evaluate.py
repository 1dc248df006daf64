"""What trained models are worth on data: accuracy of classifiers, probes of features."""

from __future__ import annotations

from pathlib import Path

from tilework.core.distributed import World, pick_device
from tilework.core.location import location
from tilework.evaluation import Classification, Features, Probe, classify, evaluate
from tilework.evaluation.probe import Solver
from tilework.runs.export import open_model


def evaluate_run(
    path: Path | str,
    data: Path | str,
    tokenizer: Path | str | None = None,
    device: str = "auto",
    best: bool = False,
) -> Classification:
    """Accuracy and confusion of a run or an exported model on a store or a folder; images are tokenized if needed.

    best: of the checkpoint with the best validation figure, not of the last.
    """
    place = location(data)  # a URL that cannot be used is refused first
    trained, chosen = open_model(path, best), pick_device(device)
    model = trained.classifier
    opened = trained.on(place, chosen, None if tokenizer is None else Path(tokenizer))
    return classify(model, opened.source, opened.steps, chosen)


def probe_run(
    path: Path | str,
    data: Path | str,
    val: Path | str,
    device: str = "auto",
    neighbours: int = 20,
    solver: Solver = "lbfgs",
) -> dict[str, float]:
    """What the frozen features of a run know of labelled data: accuracy of a linear classifier and of neighbours."""
    trained, chosen = open_model(path), pick_device(device)
    model = trained.encoder.to(chosen).eval()
    train = trained.on(location(data), chosen, classes="any")
    validation = trained.on(location(val), chosen, classes=train.source.classes)
    seen = Features()
    for one, evaluator in ((train, seen), (validation, Probe(seen, neighbours, solver))):
        found = evaluate(lambda batch: model(batch.x), one.source, one.steps, [evaluator], World(0, 1, chosen))
    return found
