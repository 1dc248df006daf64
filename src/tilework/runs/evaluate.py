"""What trained models are worth on data: accuracy of classifiers, probes of features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from tilework.core.console import counted
from tilework.core.distributed import World, pick_device
from tilework.core.errors import TileworkError
from tilework.core.location import location
from tilework.data import Source
from tilework.data.masked import broken_files
from tilework.data.overlap import ENCODED, LOOKS, shared_images
from tilework.evaluation import Classification, Features, Probe, classify, evaluate
from tilework.evaluation.probe import Solver
from tilework.runs.export import open_model
from tilework.runs.trained import OnData, Trained
from tilework.tokenizers.images_as_codes import ImagesAsCodes


def evaluate_run(
    path: Path | str,
    data: Path | str,
    tokenizer: Path | str | None = None,
    device: str = "auto",
    best: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Classification:
    """Accuracy and confusion of a run or an exported model on a store or a folder; images are tokenized if needed.

    best: of the checkpoint with the best validation figure, not of the last. say: is told which files are left out,
    and if the run was trained on these images.
    """
    place = location(data)  # a URL that cannot be used is refused first
    trained, chosen = open_model(path, best), pick_device(device)
    model = trained.classifier
    opened = trained.on(place, chosen, None if tokenizer is None else Path(tokenizer))
    for told in (*_left_out(opened.source), _trained_on(trained, opened, chosen)):
        if told:
            say(told)
    return classify(model, opened.source, opened.steps, chosen)


def _left_out(source: Source) -> list[str]:
    """Files of a folder that do not count, in a sentence each."""
    images = source.images if isinstance(source, ImagesAsCodes) else source
    said = []
    if broken := broken_files(images):
        first = f"first: {broken[0].path}: {broken[0].reason}"
        said.append(f"{counted(len(broken), 'image')} cannot be read and left out ({first})")
    said += getattr(getattr(images, "folder", None), "notes", ())
    return said


def _trained_on(trained: Trained, judged: OnData, device: torch.device) -> str:
    """That some images are among those trained on, in a sentence; empty if none is, or the training data are gone."""
    told = trained.directory.places() if trained.exported == "no" else {}
    if "train" not in told:
        return ""
    try:
        train = trained.on(told["train"], device, classes="any").source
    except TileworkError:  # it has been changed or replaced since
        return ""
    looks = ENCODED if isinstance(judged.source, ImagesAsCodes) else LOOKS
    shared, looked = shared_images(train, judged.source, looks)
    if not shared:
        return ""
    said = f"{shared:,} of {counted(looked, 'image')} looked at are in the training data ({told['train']})"
    other = f"; validation data: {told['val']}" if "val" in told else ""
    return f"{said}: accuracy on them says little about new images{other}"


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
