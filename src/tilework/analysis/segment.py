"""Masks, overlays and a page of what a segmentation run says of data or of photographs.

OUT/masks/NAME.png (class numbers, colours as a palette), OUT/overlays/NAME.png, OUT/report.html, OUT/results.json,
OUT/by_image.safetensors (counts, (N, 3, K)).
N images | K classes | h, w pixels
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import save

from tilework.analysis.segment_page import Shown, add_figures, add_masks
from tilework.core.config import Plain
from tilework.core.errors import InputError
from tilework.core.files import new_directory, write, write_json
from tilework.core.location import Location
from tilework.data.class_mask import VOID
from tilework.data.pairs import coloured, mask_png
from tilework.report import Page
from tilework.runs.segment import Segmentation, Segmenter

BLEND = 0.55  # of the colours in an overlay
Progress = Callable[[int, int], None]


def segment_photographs(
    segmenter: Segmenter, files: Sequence[Path], out: Path, progress: Progress = lambda done, total: None
) -> list[Plain]:
    """Write masks and overlays of photographs; returns, for each, its files and the share of every class there."""
    names = file_names([path.stem for path in files])
    found: list[Plain] = []
    with new_directory(out) as root:
        for name, path, (photograph, mask) in zip(names, files, segmenter.masks(files, progress), strict=True):
            files_of_it = _write(root, name, mask, np.asarray(photograph), len(segmenter.classes))
            written = {kind: str(out / file) for kind, file in files_of_it.items()}
            found.append({"photograph": str(path), **written, "classes": shares(mask, segmenter.classes)})
    return found


def write_segmentation(
    segmenter: Segmenter,
    data: Location,
    result: Segmentation,
    out: Path,
    pictures: int = 8,
    progress: Progress = lambda done, total: None,
) -> Plain:
    """Masks and overlays of data whose figures are known, and a page of some of them."""
    classes, shown, names = len(segmenter.classes), [], set()
    chosen = set(np.linspace(0, result.images - 1, min(pictures, result.images)).astype(int).tolist())
    with new_directory(out) as root:
        for number, (key, photograph, true, predicted) in enumerate(segmenter.samples(data, result.images)):
            (name,) = file_names([key.rpartition(".")[0] or key])
            name = f"{name}-{number}" if name in names else name
            names.add(name)
            _write(root, name, predicted, photograph, classes)
            if number in chosen:
                shown.append((key, photograph, true, predicted))
            progress(number + 1, result.images)
        write(root / "by_image.safetensors", save({"counts": np.ascontiguousarray(result.by_image)}))
        write_json(root / "results.json", result.summary())
        write(root / "report.html", _page(segmenter, data, result, shown).encode())
    return {"masks": str(out / "masks"), "report": str(out / "report.html")}


def _page(segmenter: Segmenter, data: Location, result: Segmentation, shown: Sequence[Shown]) -> str:
    page = Page(f"Segmentation by {segmenter.trained.name}", f"{result.images} images of {data}")
    add_figures(page, result, result.classes)
    how = result.inference
    page.text(f"Inference: {how.mode}, scales {', '.join(f'{s:g}' for s in how.scales)}, flip: {how.flip}.")
    page.heading("Predictions")
    add_masks(page, [(sample, "") for sample in shown], result.classes)
    return page.html()


def overlay(photograph: np.ndarray, mask: np.ndarray, classes: int) -> np.ndarray:
    """A photograph with the colours of its mask over it, (h, w, 3) uint8; void stays as it is."""
    colours = coloured(mask, classes)
    blended = (1 - BLEND) * photograph + BLEND * colours
    return np.where((mask == VOID)[..., None], photograph, blended.round()).astype(np.uint8)


def shares(mask: np.ndarray, classes: Sequence[str]) -> dict[str, float]:
    """Share of the pixels that each class has, those that occur, the largest first."""
    counts = np.bincount(mask.reshape(-1), minlength=len(classes))[: len(classes)]
    order = np.argsort(-counts, kind="stable")
    return {classes[i]: float(counts[i] / mask.size) for i in order if counts[i]}


def _write(root: Path, name: str, mask: np.ndarray, photograph: np.ndarray | None, classes: int) -> dict[str, str]:
    """Files of a mask, below the root."""
    files = {"mask": f"masks/{name}.png"}
    write(root / files["mask"], mask_png(mask, classes))
    if photograph is not None:
        files["overlay"] = f"overlays/{name}.png"
        data = io.BytesIO()
        Image.fromarray(overlay(photograph, mask, classes)).save(data, "PNG")
        write(root / files["overlay"], data.getvalue())
    return files


def file_names(wanted: Sequence[str]) -> list[str]:
    """File names of samples, one each: folders become part of the name."""
    names = [name.replace("/", "-").replace("\\", "-").lstrip(".") or "image" for name in wanted]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two images are called '{twice}'", "give one at a time, or rename one")
    return names
