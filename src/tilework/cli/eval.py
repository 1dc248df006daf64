"""`tilework eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Device, Json, OptionalPath
from tilework.cli.output import progress_bar, show

if TYPE_CHECKING:
    from tilework.core.location import Location


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    /,
    data: Data,
    tokenizer: OptionalPath = None,
    mode: Literal["whole", "slide"] = "whole",
    scales: tuple[float, ...] = (1.0,),
    flip: Annotated[bool, arg(help_behavior_hint="")] = False,
    out: OptionalPath = None,
    pictures: int = 8,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Evaluate a trained model on a token store or an image folder.

    Try:
      tilework eval runs/token --data val.tok
      tilework eval runs/token --data photos/val --tokenizer tokenizer
      tilework eval runs/seg --data camvid/val --out predictions
      tilework eval runs/seg --data camvid/val --mode slide --scales 0.5 0.75 1 1.25 1.5 1.75 --flip

    Args:
        run: Directory that 'tilework train' wrote.
        data: Token store or image folder; with masks, for a model that segments.
        tokenizer: Directory of the tokenizer, to evaluate a model of tokens on an image folder.
        mode: Segmentation: the whole image at once, or windows of the size trained on, two thirds of it apart.
        scales: Segmentation of pixels: sizes at which every image is seen; probabilities are averaged.
        flip: Segmentation of pixels: every image is seen mirrored as well.
        out: Segmentation: directory for masks, overlays, counts by image and a page of predictions.
        pictures: Predictions on that page.
    """
    from tilework.runs import evaluate_run
    from tilework.runs.directory import RunDirectory

    segments = RunDirectory.find(run).settings().objective.task.metric == "miou"
    if segments:
        _segment(run, data, tokenizer, (mode, scales, flip), out, pictures, device, json)
        return
    if (mode, scales, flip, out) != ("whole", (1.0,), False, None):
        from tilework.core.errors import ConfigError

        raise ConfigError("--mode, --scales, --flip and --out are for runs that segment", "leave them out")
    result = evaluate_run(run, data, tokenizer, device)
    summary = result.summary()
    if not json:
        summary.pop("confusion")
        if len(result.classes) > 20:
            summary.pop("per_class")
    show(summary, json)


def _segment(
    run: Path,
    data: Location,
    tokenizer: Path | None,
    views: tuple[Literal["whole", "slide"], tuple[float, ...], bool],
    out: Path | None,
    pictures: int,
    device: str,
    json: bool,
) -> None:
    from time import monotonic

    from tilework.analysis.segment import write_segmentation
    from tilework.core.errors import OutputError
    from tilework.evaluation.dense_inference import Inference
    from tilework.runs.segment import Segmenter

    if out is not None and out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    segmenter = Segmenter.open(run, device, Inference(*views), tokenizer)
    begun = monotonic()
    result = segmenter.evaluate(data)
    summary = {**result.summary(), "seconds": monotonic() - begun}
    if out is not None:
        with progress_bar("masks", quiet=json, unit="images") as progress:
            summary |= write_segmentation(segmenter, data, result, out, pictures, progress)
    if not json and len(result.classes) > 20:
        summary.pop("per_class")
    show(summary, json)
