"""Objects from a trained run: of the data that it is evaluated on, and of any photographs.

N images | h, w pixels of a photograph
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tilework.augment import apply_all
from tilework.core.batch import Batch, Target
from tilework.core.distributed import World, pick_device
from tilework.core.errors import InputError
from tilework.core.location import Location
from tilework.core.rng import Draws
from tilework.data.boxes import Boxes
from tilework.data.detected import COLUMN, ObjectFolder, ObjectSource
from tilework.data.image_files import File, fit_image
from tilework.data.objects import Objects
from tilework.data.placement import canvas_affine
from tilework.data.source import innermost
from tilework.evaluation import evaluate
from tilework.evaluation.average_precision import AveragePrecision, Found
from tilework.models import Detector, Output
from tilework.runs.segment import OneImage, pixels_of, read_photograph
from tilework.runs.trained import OnData, Trained
from tilework.tokenizers.images_as_codes import ImagesAsCodes
from tilework.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Detection:
    """Figures of a run on a data set with boxes, and what it found."""

    classes: tuple[str, ...]
    figures: dict[str, float]
    by_class: dict[str, np.ndarray]  # AP of boxes, and of outlines; not a number where a class has no object
    found: tuple[Found, ...]  # on each image, in pixels of the image

    def summary(self) -> dict[str, object]:
        """What `tilework eval` shows."""
        each = {
            kind: {name: None if ap != ap else float(ap) for name, ap in zip(self.classes, values, strict=True)}
            for kind, values in self.by_class.items()
        }
        more = {"per_class_mask": each["mask"]} if "mask" in each else {}
        return {"images": len(self.found), **self.figures, "per_class": each["box"], **more}


@dataclass(frozen=True)
class Finder:
    """A trained detector, ready for photographs of any size."""

    trained: Trained
    device: torch.device
    tokenizer: Path | None = None  # for photographs, where the run was trained on codes

    @staticmethod
    def open(run: Path | str, device: str = "auto", tokenizer: Path | str | None = None, best: bool = False) -> Finder:
        """Of a run's directory; refuses one that finds no objects. best: by validation, not the last checkpoint."""
        trained, chosen = Trained.open(run, best), pick_device(device)
        if not isinstance(trained.network, Detector):
            raise InputError(f"{run} was not trained to find objects", "give the run of a detection recipe")
        trained.network.to(chosen).eval()
        return Finder(trained, chosen, None if tokenizer is None else Path(tokenizer))

    @property
    def classes(self) -> tuple[str, ...]:
        """In the order of their numbers."""
        return self.trained.spec.classes

    def on(self, data: Location) -> OnData:
        """Data with boxes, as the run takes them."""
        return self.trained.on(data, self.device, self.tokenizer, columns=True)

    def _answer(self, batch: Batch) -> Output:
        network, column = self.trained.network, batch.columns[COLUMN]
        assert isinstance(network, Detector)
        assert isinstance(column, Boxes)
        return network.answer(batch.x, column.place.extent(batch.x.shape[-2], batch.x.shape[-1]))

    def evaluate(self, data: Location, by: type[AveragePrecision] = AveragePrecision) -> Detection:
        """Average precision on data with boxes."""
        opened = self.on(data)
        evaluator = by(opened.source)
        batch = min(256, self.trained.run.fit.batch)
        evaluate(self._answer, opened.source, opened.steps, [evaluator], World(0, 1, self.device), batch)
        figures, each = evaluator.judge()
        return Detection(self.classes, figures, each, tuple(evaluator.found()))

    def names(self, data: Location) -> tuple[list[str], list[Path] | None, list[Objects]]:
        """Names of the images of data, their files where there are any, and what lies on them."""
        source = self.on(data).source
        inner = innermost(source)
        images = inner if isinstance(inner, ObjectSource) else getattr(inner, "images", None)
        objects = source.objects(np.arange(len(source)))  # type: ignore[attr-defined]
        if isinstance(images, ObjectSource) and isinstance(images.folder, ObjectFolder):
            return list(images.folder.keys), list(images.folder.paths), objects
        return list(inner.store.column("key")), None, objects  # type: ignore[attr-defined]

    @cached_property
    def _tokenizer(self) -> tuple[Tokenizer, tuple[int, int]]:
        tokenizer, card = self.trained.find_tokenizer(self.tokenizer, "what is given")
        return tokenizer, self.trained.canvas(tokenizer, card)

    @torch.no_grad()
    def find(self, photograph: Image.Image) -> Found:
        """Objects of a photograph, in its pixels."""
        trained, codes = self.trained, self.trained.spec.stage != "pixels"
        canvas, frame = (self._tokenizer[1], trained.spec.frame) if codes else (trained.run.size, trained.run.frame)
        x = pixels_of(fit_image(photograph, canvas, frame), torch.device("cpu"))
        if codes:
            assert trained.codebook is not None
            one = OneImage(x, canvas)
            x = ImagesAsCodes(one, self._tokenizer[0], trained.codebook, self.device).batch(np.arange(1)).x  # type: ignore[arg-type]
        sides = torch.tensor([[photograph.height, photograph.width]], dtype=torch.float32)
        index = torch.zeros(1, dtype=torch.int64)
        column = Boxes.of([Objects.of([], [])], sides, canvas_affine(sides, canvas, frame))
        batch = Batch(x, Target.hard(index), index, {COLUMN: column}).to(self.device)
        batch = apply_all(trained.steps(self.device), batch, Draws(0, 0, batch.index))
        found, placed = self._answer(batch).found, batch.columns[COLUMN]
        assert found is not None
        assert isinstance(placed, Boxes)
        there = found.scores[0] > 0
        edges = placed.place.boxes_on_image(found.boxes, batch.x.shape[-2], batch.x.shape[-1])[0, there]
        masks = None if found.masks is None else (found.masks[0, there] * 255).round().byte().cpu().numpy()
        scores, labels = found.scores[0, there].cpu().numpy(), found.labels[0, there].cpu().numpy()
        return Found(edges.cpu().numpy(), scores, labels, masks)

    def photographs(
        self, files: Sequence[File], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Iterator[tuple[Image.Image, Found]]:
        """Photographs in RGB, upright, and their objects, one after another."""
        for number, file in enumerate(files, 1):
            photograph = read_photograph(file)
            yield photograph, self.find(photograph)
            progress(number, len(files))
