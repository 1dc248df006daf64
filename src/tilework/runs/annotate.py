"""Annotators by name, and label maps of a folder of images."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from tilework.augment import Augment, CentreCrop, Normalise, build_all
from tilework.core.config import Plain
from tilework.core.errors import InputError, OutputError
from tilework.core.hub import exactly
from tilework.core.location import Location, PathOrHub
from tilework.data.images import ImageFolder
from tilework.data.label_maps import COLUMN, MapsCard, write_maps
from tilework.evaluation.annotate import Annotator, annotate, match_classes
from tilework.models import EfficientnetLite0Config, Model, create_model
from tilework.models.efficientnet_lite import published_weights
from tilework.models.weights import adopt, read_weights
from tilework.runs.export import open_model
from tilework.runs.teacher import timm_weights
from tilework.store import Store
from tilework.train.log import Bar

IMAGENET = 1000  # classes


def open_annotator(
    name: str, weights: PathOrHub | None, classes: Path | None, names: tuple[str, ...], size: int, top: int
) -> Annotator:
    """A model of ours on pixels, EfficientNet-Lite0, or a network of timm. names: classes of the data."""
    told = None if classes is None else _read_classes(classes)
    steps: tuple[Augment, ...]
    if name == "efficientnet_lite0":
        config = EfficientnetLite0Config()
        model: Model = config.build(3, (size, size), IMAGENET)
        model.load_state_dict(published_weights())
        return Annotator(model, (Normalise(config.mean, config.std),), match_classes(names, None, told), size, top)
    if name.startswith("timm:"):
        known = timm_weights(name, weights)
        model = create_model(known.model, grid=(size, size), classes=IMAGENET)
        adopt(model, read_weights(known.file))
        return Annotator(model, (known.normalise,), match_classes(names, None, told), size, top)
    trained = open_model(name)
    run, spec, model = trained.run, trained.spec, trained.classifier
    if spec.stage != "pixels":
        raise InputError(f"{name} is no classifier of pixels", "give a run on images, efficientnet_lite0 or timm:NAME")
    if any(isinstance(step, CentreCrop) and step.size != run.size for step in run.evaluation):
        steps = tuple(step for step in run.evaluation if not isinstance(step, CentreCrop))  # it sees the whole
        side = spec.grid[0]
    else:
        steps, side = run.evaluation, run.size[0]
    if spec.grid[0] != spec.grid[1]:
        raise InputError(f"{name} takes images of {spec.grid[0]}x{spec.grid[1]}", "give one that takes squares")
    return Annotator(model, build_all(steps), match_classes(names, spec.classes, told), side, top)


def annotate_images(
    images: Path,
    name: str,
    weights: PathOrHub | None,
    classes: Path | None,
    size: int,
    top: int,
    out: Path | None,
    store: Location | None,
    device: torch.device,
    quiet: bool = False,
) -> Plain:
    """Write label maps into a directory, a store of the same images, or both; returns what there is to tell."""
    known = None if store is None else Store(store)
    if known is not None:
        known.check_writable()
    there = () if known is None else tuple(column.name for column in known.manifest.columns)
    if taken := next((column for column in there if column.startswith(COLUMN)), None):
        raise OutputError(
            f"{store} has a column '{taken}'", "it was annotated before; add maps beside it with --out MAPS"
        )
    if out is not None and out.exists():
        raise OutputError(f"{out} exists", "choose another --out")
    folder = ImageFolder.open(images, None if known is None else known.classes)
    annotator = open_annotator(name, weights, classes, folder.classes, size, top)
    first = annotator.scores(torch.zeros(1, 3, annotator.size, annotator.size, dtype=torch.uint8))[0]
    grid = (first.shape[1], first.shape[2])
    card = MapsCard(folder.classes, grid, top, exactly(name), annotator.size, elsewhere=first.shape[3] > top)
    bar = Bar("annotate", len(folder), quiet=quiet)
    sizes: list[int] = []

    def records() -> Iterator[list[bytes]]:
        for part in annotate(annotator, folder, device, progress=bar.update):
            sizes.extend(map(len, part))
            yield part

    try:
        if known is None:
            assert out is not None
            write_maps(out, card, folder.keys, records())
        else:
            number = {key: number for number, key in enumerate(folder.keys)}
            keys = known.column("key")
            if missing := next((key for key in keys if key not in number), None):
                raise InputError(f"{images} has no image '{missing}' of {store}", "give the images it was made from")
            everything = [record for part in records() for record in part]
            if out is not None:
                write_maps(out, card, folder.keys, [everything])
            known.add_column(COLUMN, [everything[number[key]] for key in keys])
            known.add_column(f"{COLUMN}_card", [json.dumps(asdict(card)), *[""] * (len(keys) - 1)])  # once
    finally:
        bar.close()
    return {
        **{name: str(path) for name, path in (("out", out), ("store", store)) if path is not None},
        "images": len(folder),
        "grid": list(grid),
        "classes_per_place": top,
        "bytes_per_image": sum(sizes) / len(sizes),
        "raw_bytes_per_image": grid[0] * grid[1] * top * 4,
    }


def _read_classes(path: Path) -> dict[str, int]:
    """Lines NAME,NUMBER."""
    try:
        with path.open(newline="") as file:
            return {name: int(number) for name, number in csv.reader(file)}
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} is no list of classes", f"write lines NAME,NUMBER ({error})") from error
