"""`tilework predict`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Best, Data, Device, Json, Local, Names, OptionalLocal, OptionalPath

if TYPE_CHECKING:
    from tilework.runs import Prediction, Trained

SHEET = 60  # pictures on a contact sheet
WIDE = 60  # letters of a path in a table, its end


def predict(
    run: Annotated[Positional[Local], arg(metavar="RUN|MODEL")],
    photographs: Annotated[
        Positional[tuple[Data, ...]], arg(metavar="PHOTO|FOLDER|STORE ...", help_behavior_hint="(required)")
    ],
    /,
    *,
    top: int = 5,
    format: Literal["auto", "table", "csv", "json"] = "auto",
    out: OptionalPath = None,
    picture: OptionalPath = None,
    tokenizer: OptionalLocal = None,
    score: float = 0.3,
    names: Names = None,
    best: Best = False,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Predict classes, masks or boxes of photographs with a run or an exported model.

    A model of tokens tokenizes photographs itself: its run or export holds its tokenizer.

    Try:
      tilework predict runs/token photo.jpg other.png
      tilework predict model photos --top 3 --out answers.csv
      tilework predict runs/token photos --picture sheet.png
      tilework predict runs/seg photos --out masks
      tilework predict runs/cells photos --out boxes --score 0.5

    Args:
        run: Directory that 'tilework train' or 'tilework export' wrote, or hf://OWNER/NAME.
        photographs: Image files, folders (everything below them), or one token store.
        top: Number of classes to show for each image.
        format: Aligned columns, CSV or JSON; auto: what the name of --out ends in, else columns.
        out: File to write instead of the screen; of a run that segments, directory for masks and overlays; of one that
            finds objects, directory for pictures with boxes.
        picture: PNG file for a contact sheet of the first images with their classes.
        tokenizer: Directory of the tokenizer, if the run does not hold it.
        score: Detection: how sure an object must be, from 0 to 1.
    """
    from tilework.cli.output import check_png, check_replaceable
    from tilework.core.errors import ConfigError, OutputError

    if picture is not None:
        check_png(picture, "--picture")
    if top < 1:
        raise ConfigError(f"--top {top}", "give 1 or more")
    from tilework.core.console import notice
    from tilework.core.files import write
    from tilework.data.class_names import shown_names
    from tilework.runs import open_model
    from tilework.runs import predict as answer
    from tilework.runs.segment import judged_by

    judged = judged_by(run)
    if judged in ("miou", "box_ap"):
        dense = _segment if judged == "miou" else partial(_detect, least=score)
        dense(run, photographs, out, tokenizer, best, device, json)
        return
    by_name = {".csv": "csv", ".json": "json", ".txt": "table", "": "table"}.get(out.suffix.lower() if out else "")
    kind = "json" if json else by_name if format == "auto" else format
    if kind is None:
        raise ConfigError(f"--out {out} is no CSV, JSON or text file", "end its name in .csv, .json or .txt")
    if out is not None:
        if out.is_dir():
            raise OutputError(f"{out} is a directory", "give --out a file name")
        check_replaceable(out, "--out", {"csv": b"image,class_1,", "json": b'[\n{"image": '}.get(kind))
    model = open_model(run, best)
    shown = dict(zip(model.spec.classes, shown_names(model.spec.classes, names), strict=True))
    found = [
        one.named(shown) for one in answer(model, photographs, top, device, tokenizer, partial(notice, quiet=json))
    ]
    text = {"table": _table, "csv": _csv, "json": _json}[kind](found)
    if out is None:
        print(text, end="")
    else:
        write(out, text.encode())
        notice(f"wrote {out}", json)
    if picture is not None:
        write(picture, _sheet(model, found, photographs, tokenizer))
        notice(f"wrote {picture}", json)


def _segment(
    run: Path,
    photographs: tuple[object, ...],
    out: Path | None,
    tokenizer: Path | None,
    best: bool,
    device: str,
    json: bool,
) -> None:
    """Masks and overlays of photographs; the share of every class on the screen."""
    from tilework.analysis.segment import segment_photographs
    from tilework.cli.output import progress_bar, show
    from tilework.core.errors import ConfigError
    from tilework.data import ImageFolder
    from tilework.runs.segment import Segmenter

    if out is None:
        raise ConfigError(f"{run} segments photographs", "add --out DIRECTORY for masks and overlays")
    paths = ImageFolder.loose([path for path in photographs if isinstance(path, Path)]).paths
    segmenter = Segmenter.open(run, device, tokenizer=tokenizer, best=best)
    with progress_bar("segment", quiet=json, unit="images") as progress:
        found = segment_photographs(segmenter, paths, out, progress)
    if json:
        show({"out": str(out), "photographs": found}, True)
        return
    shares = [{name: f"{share:.1%}" for name, share in one["classes"].items()} for one in found]
    show(dict(zip((one["photograph"] for one in found), shares, strict=True)), False, files=True)


def _detect(
    run: Path,
    photographs: tuple[object, ...],
    out: Path | None,
    tokenizer: Path | None,
    best: bool,
    device: str,
    json: bool,
    least: float,
) -> None:
    """Pictures with boxes; the number of objects of every class on the screen."""
    from tilework.analysis.detect import detect_photographs
    from tilework.cli.output import progress_bar, show
    from tilework.core.errors import ConfigError
    from tilework.data import ImageFolder
    from tilework.runs.detect import Finder

    if out is None:
        raise ConfigError(f"{run} finds objects", "add --out DIRECTORY for pictures with boxes")
    if not 0 <= least <= 1:
        raise ConfigError(f"--score {least:g}", "give a share from 0 to 1")
    paths = ImageFolder.loose([path for path in photographs if isinstance(path, Path)]).paths
    finder = Finder.open(run, device, tokenizer, best)
    with progress_bar("detect", quiet=json, unit="images") as progress:
        found = detect_photographs(finder, paths, out, least, progress)
    if json:
        show({"out": str(out), "photographs": found}, True)
        return
    show({one["photograph"]: one["counts"] or "nothing" for one in found}, False, files=True)


def _table(found: list[Prediction]) -> str:
    shown = [one.image if len(one.image) <= WIDE else f"...{one.image[3 - WIDE :]}" for one in found]
    wide = max(map(len, shown))
    names = max((len(name) for one in found for name in one.classes), default=0)
    lines = []
    for name, one in zip(shown, found, strict=True):
        pairs = zip(one.classes, one.probabilities, strict=True)
        words = one.error or "  ".join(f"{share:6.1%} {name:<{names}}" for name, share in pairs)
        lines.append(f"{name:<{wide}}  {words}".rstrip())
    return "\n".join(lines) + "\n"


def _csv(found: list[Prediction]) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ranks = range(1, 1 + max(len(one.classes) for one in found))
    writer.writerow(["image", *(f"{what}_{rank}" for rank in ranks for what in ("class", "probability")), "error"])
    for one in found:
        cells = [cell for pair in zip(one.classes, one.probabilities, strict=True) for cell in pair]
        writer.writerow([one.image, *cells, *[""] * (2 * len(ranks) - len(cells)), one.error])
    return text.getvalue()


def _json(found: list[Prediction]) -> str:
    from json import dumps

    lines = []
    for one in found:
        values: dict[str, object] = {"image": one.image}
        if one.error:
            values["error"] = one.error
        else:
            values["classes"] = dict(zip(one.classes, one.probabilities, strict=True))
        if one.truth is not None:
            values["truth"] = one.truth
        lines.append(dumps(values, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _sheet(model: Trained, found: list[Prediction], photographs: tuple[object, ...], tokenizer: Path | None) -> bytes:
    """The first images with what was said of them."""
    from tilework.report import captioned_pictures
    from tilework.runs.pictures import pictures_of

    shown = [i for i, one in enumerate(found) if not one.error][:SHEET]
    pictures = pictures_of(model, photographs, shown, tokenizer)
    words = [[f"{n} {p:.0%}" for n, p in zip(found[i].classes, found[i].probabilities, strict=True)] for i in shown]
    right = [None if found[i].truth is None else found[i].truth == found[i].classes[0] for i in shown]
    titles = ["/".join(Path(found[i].image).parts[-2:]) for i in shown]
    return captioned_pictures(pictures, titles, [line[:3] for line in words], right)
