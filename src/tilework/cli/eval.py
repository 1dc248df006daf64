"""`tilework eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Best, Data, Device, Json, Local, Names, OptionalLocal, OptionalPath
from tilework.cli.output import check_png, progress_bar, show

if TYPE_CHECKING:
    from tilework.core.location import Location


def evaluate(
    run: Annotated[Positional[Local], arg(metavar="RUN|MODEL")],
    /,
    data: Data,
    tokenizer: OptionalLocal = None,
    best: Best = False,
    picture: OptionalPath = None,
    names: Names = None,
    mode: Literal["whole", "slide"] = "whole",
    scales: tuple[float, ...] = (1.0,),
    flip: Annotated[bool, arg(help_behavior_hint="")] = False,
    adapter: OptionalPath = None,
    naive: Annotated[bool, arg(help_behavior_hint="")] = False,
    out: OptionalPath = None,
    pictures: int = 8,
    score: float = 0.3,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Evaluate a trained model on a token store or an image folder.

    Try:
      tilework eval runs/token --data val.tok
      tilework eval runs/token --data photos/val --picture confusion.png
      tilework eval model --data val.tok
      tilework eval runs/seg --data camvid/val --out predictions
      tilework eval runs/cells --data bccd/ImageSets/Main/val.txt --out boxes
      tilework eval runs/seg --data camvid/val --mode slide --scales 0.5 0.75 1 1.25 1.5 1.75 --flip

    Args:
        run: Directory that 'tilework train' or 'tilework export' wrote, or hf://OWNER/NAME.
        data: Token store, image folder or label file; images with masks, for a model that segments; a COCO file or a
            list of VOC, for one that finds objects.
        tokenizer: Directory of the tokenizer, to evaluate a model of tokens on images, if the run does not hold it.
        picture: PNG file for the confusion matrix.
        mode: Segmentation: the whole image at once, or windows of the size trained on, two thirds of it apart.
        scales: Segmentation: sizes at which every image is seen; probabilities are averaged. For a model of tokens give
            images, which are scaled and encoded, or --adapter.
        flip: Segmentation: every image is seen mirrored as well.
        adapter: TokenAdapt (OUT/token_adapt of its training), which gives the codes of scaled and mirrored images.
        naive: Scale and mirror code vectors as if they were pixels, where there is no TokenAdapt.
        out: Segmentation and detection: directory for masks or boxes, figures and a page of predictions.
        pictures: Predictions on that page.
        score: Detection: how sure an object must be to be drawn, from 0 to 1.
    """
    from dataclasses import replace
    from functools import partial

    from tilework.core.console import notice
    from tilework.core.errors import ConfigError
    from tilework.core.files import write
    from tilework.data.class_names import shown_names
    from tilework.runs import evaluate_run
    from tilework.runs.segment import judged_by

    judged = judged_by(run)
    if judged == "box_ap":
        if (mode, scales, flip, adapter, naive, picture, names) != ("whole", (1.0,), False, None, False, None, None):
            what = "--mode, --scales, --flip, --adapter, --naive, --picture and --names are not for detection"
            raise ConfigError(what, "leave them out; --out draws boxes")
        _detect(run, data, tokenizer, out, pictures, score, device, json, best)
        return
    if judged == "miou":
        if picture is not None or names is not None:
            raise ConfigError("--picture and --names are for classifiers", "give --out for predicted masks")
        _segment(run, data, tokenizer, (mode, scales, flip), out, pictures, device, json, best, adapter, naive)
        return
    if (mode, scales, flip, adapter, naive, out) != ("whole", (1.0,), False, None, False, None):
        said = "--mode, --scales, --flip, --adapter, --naive and --out are for runs that segment or find objects"
        raise ConfigError(said, "leave them out")
    if picture is not None:
        check_png(picture, "--picture")
    result = evaluate_run(run, data, tokenizer, device, best, partial(notice, quiet=json))
    result = replace(result, classes=shown_names(result.classes, names))
    summary = result.summary()
    if picture is not None:
        from tilework.report import confusion

        write(picture, confusion({run.name: result.confusion}, result.classes))
        summary["picture"] = str(picture)
    if json:
        show(summary, True)
        return
    del summary["confusion"]
    each, counts = summary.pop("per_class"), result.confusion.sum(1).tolist()
    show(summary, False)
    width = max(map(len, each))
    print(f"\nper class{'':<{max(0, width - 9)}}  images  accuracy")
    for (name, accuracy), count in zip(each.items(), counts, strict=True):
        print(f"{name:<{max(9, width)}}  {count:>6,}  {'-' if accuracy is None else f'{accuracy:8.1%}'}")


def _segment(
    run: Path,
    data: Location,
    tokenizer: Path | None,
    views: tuple[Literal["whole", "slide"], tuple[float, ...], bool],
    out: Path | None,
    pictures: int,
    device: str,
    json: bool,
    best: bool,
    adapter: Path | None,
    naive: bool,
) -> None:
    from time import monotonic

    from tilework.analysis.segment import write_segmentation
    from tilework.core.errors import OutputError
    from tilework.evaluation.dense_inference import Inference
    from tilework.runs.segment import Segmenter

    if out is not None and out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    segmenter = Segmenter.open(run, device, Inference(*views), tokenizer, best, adapter, naive)
    begun = monotonic()
    result = segmenter.evaluate(data)
    summary = {**result.summary(), "seconds": monotonic() - begun}
    if out is not None:
        with progress_bar("masks", quiet=json, unit="images") as progress:
            summary |= write_segmentation(segmenter, data, result, out, pictures, progress)
    if not json and len(result.classes) > 20:
        summary.pop("per_class")
    show(summary, json)


def _detect(
    run: Path,
    data: Location,
    tokenizer: Path | None,
    out: Path | None,
    pictures: int,
    least: float,
    device: str,
    json: bool,
    best: bool,
) -> None:
    from time import monotonic

    from tilework.analysis.detect import write_detection
    from tilework.core.errors import OutputError
    from tilework.runs.detect import Finder

    if out is not None and out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    finder = Finder.open(run, device, tokenizer, best)
    begun = monotonic()
    result = finder.evaluate(data)
    summary = {**result.summary(), "seconds": monotonic() - begun}
    if out is not None:
        summary |= write_detection(finder, data, result, out, pictures, least)
    if not json and len(result.classes) > 20:
        summary.pop("per_class")
    show(summary, json)
