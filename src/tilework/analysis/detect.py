"""Pictures, files and a page of what a detector finds on data or on photographs.

OUT/pictures/NAME.png, OUT/detections.json (every object: image, class, bbox as COCO, score, outline), OUT/report.html,
OUT/results.json.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tilework.analysis.draw_objects import draw_objects
from tilework.analysis.segment import file_names
from tilework.core.config import Plain
from tilework.core.files import new_directory, write, write_json
from tilework.core.location import Location
from tilework.data.objects import Objects
from tilework.evaluation.average_precision import Found, paste, run_length
from tilework.report import Page
from tilework.runs.detect import Detection, Finder
from tilework.runs.segment import read_photograph

GAP = 12  # pixels between the two pictures of an image
Progress = Callable[[int, int], None]


def detect_photographs(
    finder: Finder,
    files: Sequence[Path],
    out: Path,
    least: float = 0.3,
    progress: Progress = lambda done, total: None,
) -> list[Plain]:
    """Write pictures with objects; returns, for each, its file, the objects, and how many there are of every class."""
    names, told = file_names([path.stem for path in files]), []
    with new_directory(out) as root:
        for name, path, (photograph, found) in zip(names, files, finder.photographs(files, progress), strict=True):
            picture = f"pictures/{name}.png"
            write(root / picture, _png(draw_objects(np.asarray(photograph), found, finder.classes, least)))
            objects = listed(str(path), found, finder.classes, (photograph.height, photograph.width), least)
            counts = dict(Counter(one["class"] for one in objects).most_common())
            told.append({"photograph": str(path), "picture": str(out / picture), "counts": counts, "objects": objects})
        write_json(root / "detections.json", [one for each in told for one in each["objects"]])
    return told


def write_detection(
    finder: Finder, data: Location, result: Detection, out: Path, pictures: int = 8, least: float = 0.3
) -> Plain:
    """Everything found on data whose figures are known, and a page of some of it."""
    names, files, truth = finder.names(data)
    chosen = np.linspace(0, len(names) - 1, min(pictures, len(names))).astype(int).tolist()
    everything: list[dict[str, Any]] = []
    page = Page(f"Objects: {finder.trained.name}", f"What it finds on {data}, beside the annotations.")
    page.heading("Average precision (%)")
    page.table(["figure", "boxes", "outlines"], figure_rows(result))
    page.heading("By class (%)")
    kinds = [("box", "boxes"), ("mask", "outlines")]
    columns = [result.by_class[kind] for kind, _ in kinds if kind in result.by_class]
    rows = [[name, *(_percent(values[i]) for values in columns)] for i, name in enumerate(finder.classes)]
    page.table(["class", *(title for kind, title in kinds if kind in result.by_class)], rows)
    page.heading(f"Predictions with a score of {least:g} or more")
    with new_directory(out) as root:
        for i, (name, found) in enumerate(zip(names, result.found, strict=True)):
            photograph = None if files is None or i not in chosen else np.asarray(read_photograph(files[i]))
            sides = None if photograph is None else photograph.shape[:2]
            everything += listed(name, found, finder.classes, sides, 0.0)
            if photograph is None:
                continue
            both = [
                draw_objects(photograph, _as_found(truth[i]), finder.classes),
                draw_objects(photograph, found, finder.classes, least),
            ]
            between = np.full((both[0].shape[0], GAP, 3), 255, np.uint8)
            picture = _png(np.concatenate([both[0], between, both[1]], 1))
            (stem,) = file_names([name.rpartition(".")[0] or name])
            file = root / f"pictures/{stem}.png"
            write(file.with_stem(f"{stem}-{i}") if file.exists() else file, picture)
            page.picture(picture, f"{name}: objects as annotated, and as found.")
        write_json(root / "detections.json", everything)
        write_json(root / "results.json", result.summary())
        write(root / "report.html", page.html().encode())
    return {"detections": str(out / "detections.json"), "report": str(out / "report.html")}


def figure_rows(result: Detection) -> list[list[str]]:
    """Figures of boxes and of outlines beside each other."""
    names = {"ap": "AP", "ap50": "AP at 0.5", "ap75": "AP at 0.75", "ap_small": "small", "ap_medium": "medium"}
    names["ap_large"] = "large"
    return [
        [title, *(_percent(result.figures.get(f"{kind}_{name}", float("nan"))) for kind in ("box", "mask"))]
        for name, title in names.items()
    ]


def listed(
    image: str, found: Found, classes: Sequence[str], sides: tuple[int, int] | None, least: float
) -> list[dict[str, Any]]:
    """Objects as plain values; outlines where the size of the image is given. bbox: x, y, width, height."""
    objects = []
    for i in np.flatnonzero(found.scores >= least):
        x0, y0, x1, y1 = (round(float(edge), 3) for edge in found.edges[i])
        one: dict[str, Any] = {
            "image": image,
            "class": classes[found.labels[i]],
            "bbox": [x0, y0, round(x1 - x0, 3), round(y1 - y0, 3)],
            "score": round(float(found.scores[i]), 5),
        }
        if found.masks is not None and sides is not None:
            one["segmentation"] = run_length(paste(found.masks[i], found.edges[i], sides))
        objects.append(one)
    return objects


def _as_found(objects: Objects) -> Found:
    return Found(objects.edges, np.ones(len(objects)), objects.labels)


def _percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.1f}"


def _png(picture: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()
