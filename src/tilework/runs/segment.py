"""Masks from a trained run: of the data that it is evaluated on, and of any photographs.

B batch | K classes | H, W input | h, w pixels of a photograph
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from tilework.augment import AnyStep, apply_all, build_all
from tilework.augment.adapter import Adapter
from tilework.core.batch import Batch, Shape, Target
from tilework.core.distributed import World, pick_device
from tilework.core.errors import ConfigError, InputError
from tilework.core.location import Location
from tilework.core.rng import Draws
from tilework.data.class_mask import ClassMask
from tilework.data.image_files import File, fit_image, open_image, to_rgb
from tilework.data.masked import COLUMN, PairSource
from tilework.data.pairs import PairFolder
from tilework.data.placement import canvas_affine
from tilework.data.source import Source, innermost
from tilework.evaluation import evaluate
from tilework.evaluation.dense_inference import Inference
from tilework.evaluation.segmentation import MeanIou, on_image
from tilework.models import DenseModel, Output
from tilework.runs.code_views import CodeViews
from tilework.runs.directory import CHAIN, SETTINGS, RunDirectory
from tilework.runs.start import DESCRIPTION
from tilework.runs.trained import OnData, Trained
from tilework.tokenizers.images_as_codes import ImagesAsCodes
from tilework.tokenizers.tokenizer import Tokenizer

LONGEST = 4  # times the short side, at scale 1 (mmsegmentation: 2048 of 512)
PIXELS_MULTIPLE = 32


@dataclass(frozen=True)
class Segmentation:
    """Figures of a run on a data set with masks."""

    classes: tuple[str, ...]
    figures: dict[str, float]
    by_class: tuple[float, ...]  # IoU; not a number where a class neither occurs nor is predicted
    by_image: np.ndarray  # (N, 3, K) pixels that are right, true and predicted
    images: int
    inference: Inference
    confusion: np.ndarray  # (K, K) pixels: rows are true classes, columns are predictions

    def summary(self) -> dict[str, object]:
        """What `tilework eval` shows."""
        return {
            "images": self.images,
            **self.figures,
            "per_class": {
                name: None if value != value else value for name, value in zip(self.classes, self.by_class, strict=True)
            },
            "mode": self.inference.mode,
            "scales": list(self.inference.scales),
            "flip": self.inference.flip,
        }


@dataclass(frozen=True)
class Segmenter:
    """A trained dense run, ready for inputs of any size."""

    trained: Trained
    device: torch.device
    inference: Inference = field(default_factory=Inference)
    tokenizer: Path | None = None  # for photographs, where the run was trained on codes
    adapter: Adapter | None = None  # TokenAdapt, which gives codes at other scales and mirrored
    naive: bool = False  # vectors of codes are scaled and mirrored as if they were pixels

    @staticmethod
    def open(
        run: Path | str,
        device: str = "auto",
        inference: Inference | None = None,
        tokenizer: Path | str | None = None,
        best: bool = False,
        adapter: Path | str | None = None,
        naive: bool = False,
    ) -> Segmenter:
        """Of a run's directory; refuses one that does not segment, and ways to see codes that do not fit.

        best: the checkpoint with the best validation figure, not the last. adapter, naive: how runs on codes see them
        at other scales and mirrored; where data are images they are scaled, mirrored and encoded instead.
        """
        trained, chosen = Trained.open(run, best), pick_device(device)
        if not isinstance(trained.network, DenseModel) or trained.run.objective.task.metric != "miou":
            raise InputError(f"{run} was not trained to segment", "give the run of a segmentation recipe")
        how = inference or Inference()
        if adapter is not None or naive:
            _check_ways(trained, how, adapter is not None and naive)
        moving = None
        if adapter is not None and trained.codebook is not None:
            moving = Adapter.open(Path(adapter), trained.codebook, chosen)
        trained.network.to(chosen).eval()
        return Segmenter(trained, chosen, how, None if tokenizer is None else Path(tokenizer), moving, naive)

    @property
    def classes(self) -> tuple[str, ...]:
        """In the order of their numbers."""
        return self.trained.spec.classes

    def _logits(self, x: Tensor) -> Tensor:
        found: Output = self.trained.network(x)
        return found.logits

    @property
    def _multiple(self) -> int:
        """Of sides and steps of the input: whole patches of codes, 32 pixels."""
        if self.trained.spec.stage == "pixels":
            return PIXELS_MULTIPLE
        strides = self.trained.encoder.stage_strides
        return max(1, int(max(strides)))

    def ask(self, x: Tensor, out: tuple[int, int] | None = None) -> Tensor:
        """Logits or probabilities of a prepared input, (B, K, *out). x: (B, C, H, W)."""
        whole = (x.shape[2], x.shape[3]) == self.trained.spec.grid
        multiple = 1 if whole and self.inference.plain and self.inference.mode == "whole" else self._multiple
        if self.inference.mode == "slide" and self.trained.spec.stage == "pixels":
            multiple = 1
        return self.inference(self._logits, x, self.trained.spec.grid, multiple, out)

    @cached_property
    def _views(self) -> CodeViews:
        """How codes are seen at other sizes and mirrored."""
        steps = self.trained.steps(self.device)
        return CodeViews(lambda ids: self._prepared(ids, steps), self.adapter)

    def ask_codes(self, ids: Tensor) -> Tensor:
        """Logits or probabilities of codes, each view of them through TokenAdapt or interpolated. ids: (B, H, W)."""
        grid, unit = (ids.shape[1], ids.shape[2]), self._multiple
        see = partial(self._views.see, ids)
        return self.inference.over(see, self._logits, grid, self.trained.spec.grid, unit, grid, unit)

    def on(self, data: Location) -> OnData:
        """Data with masks, as the run takes them."""
        return self.trained.on(data, self.device, self.tokenizer, columns=True)

    def evaluate(self, data: Location) -> Segmentation:
        """Figures on data with masks: on the run's canvas, or by photograph where there is more than one view."""
        opened = self.on(data)
        evaluator = MeanIou(len(self.classes))
        world = World(0, 1, self.device)
        images = _images_of(opened.source)
        if self.inference.plain and self.inference.mode == "whole":
            batch = min(256, self.trained.run.fit.batch)
            evaluate(lambda part: self.trained.network(part.x), opened.source, opened.steps, [evaluator], world, batch)
        elif self._moves_codes:
            evaluate(lambda part: self._output(self.ask_codes(part.x)), opened.source, (), [evaluator], world, 8)
        elif images is not None and not (self._codes and self.inference.plain):
            for number, (photograph, mask) in enumerate(_photographs(images)):
                batch_of_one, output = self._judged(photograph, mask, number)
                evaluator.update(batch_of_one, output)
        elif self._codes and not self.inference.plain:
            what = "codes of a scaled or mirrored image are others than its codes scaled or mirrored"
            raise ConfigError(what, "give --adapter TOKEN_ADAPT, the images themselves as --data, or --naive")
        else:  # windows
            evaluate(lambda part: self._output(self.ask(part.x)), opened.source, opened.steps, [evaluator], world, 8)
        found = evaluator.compute()
        by_image = evaluator.by_image.cpu().numpy()
        each = tuple(evaluator.by_class().tolist())
        counts = evaluator.counts.cpu().numpy()
        return Segmentation(self.classes, found, each, by_image, len(opened.source), self.inference, counts)

    @property
    def _codes(self) -> bool:
        return self.trained.spec.stage != "pixels"

    @property
    def _moves_codes(self) -> bool:
        """Whether codes themselves are scaled or mirrored."""
        return self._codes and not self.inference.plain and (self.adapter is not None or self.naive)

    def _output(self, scores: Tensor) -> Output:
        return Output(scores, scores, scores, self.trained.spec.grid)

    def _judged(self, photograph: Image.Image, mask: np.ndarray, number: int) -> tuple[Batch, Output]:
        scores = self.scores(photograph)
        index = torch.tensor([number], device=self.device)
        column = ClassMask.of([mask]).to(self.device)
        batch = Batch(scores, Target.hard(torch.zeros_like(index)), index, {COLUMN: column})
        return batch, self._output(scores)

    @cached_property
    def _tokenizer(self) -> tuple[Tokenizer, tuple[int, int]]:
        tokenizer, card = self.trained.find_tokenizer(self.tokenizer, "what is given")
        return tokenizer, self.trained.canvas(tokenizer, card)

    @cached_property
    def _keeping(self) -> tuple[AnyStep, ...]:
        """Steps of evaluation that leave the grid as it is: photographs come at their own size."""
        shape = Shape("pixels", 3, self.trained.run.size)
        kept = [step for step in self.trained.run.model_input if step.output(shape).grid == shape.grid]
        return build_all(kept, None, self.device)

    @torch.no_grad()
    def scores(self, photograph: Image.Image) -> Tensor:
        """Logits or probabilities of every pixel of a photograph, (1, K, h, w)."""
        size = (photograph.height, photograph.width)
        if self.trained.spec.stage == "pixels":
            short = min(self.trained.spec.grid)
            factor = min(short / min(size), LONGEST * short / max(size))
            scaled = photograph.resize(
                (max(1, round(size[1] * factor)), max(1, round(size[0] * factor))), Image.Resampling.BILINEAR
            )
            return self.ask(self._prepared(pixels_of(scaled, self.device), self._keeping), size)
        tokenizer, canvas = self._tokenizer
        if self.inference.plain:
            logits = self.ask(self._encoded(photograph, canvas, False))
        else:
            grid, unit = self.trained.spec.grid, self._multiple

            def see(sides: tuple[int, int], mirrored: bool) -> Tensor:
                return self._encoded(photograph, (sides[0] * tokenizer.patch, sides[1] * tokenizer.patch), mirrored)

            logits = self.inference.over(see, self._logits, grid, grid, unit, grid, unit)
        sides = torch.tensor([size], dtype=torch.float32)
        whole = ClassMask.of([np.zeros(size, np.uint8)], canvas_affine(sides, canvas, self.trained.spec.frame))
        return seen_from(logits, whole.to(self.device))

    def _encoded(self, photograph: Image.Image, canvas: tuple[int, int], mirrored: bool) -> Tensor:
        """A photograph as the network takes it, (1, C, H, W): fitted, mirrored, encoded. canvas: its size in pixels."""
        fitted = fit_image(photograph, canvas, self.trained.spec.frame)
        pixels = pixels_of(ImageOps.mirror(fitted) if mirrored else fitted, torch.device("cpu"))
        assert self.trained.codebook is not None
        source, codebook = OneImage(pixels, canvas), self.trained.codebook
        codes = ImagesAsCodes(source, self._tokenizer[0], codebook, self.device)  # type: ignore[arg-type]
        return self._prepared(codes.batch(np.arange(1)).x.to(self.device), self.trained.steps(self.device))

    def _prepared(self, x: Tensor, steps: Sequence[AnyStep]) -> Tensor:
        index = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return apply_all(steps, Batch(x, Target.hard(index), index), Draws(0, 0, index)).x

    def segment(self, photograph: Image.Image) -> np.ndarray:
        """The class of every pixel of a photograph, (h, w) uint8."""
        found: np.ndarray = self.scores(photograph)[0].argmax(0).cpu().numpy().astype(np.uint8)
        return found

    def masks(
        self, files: Sequence[File], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Iterator[tuple[Image.Image, np.ndarray]]:
        """Photographs in RGB, upright, and their masks, (h, w) uint8, one after another."""
        for number, file in enumerate(files, 1):
            photograph = read_photograph(file)
            yield photograph, self.segment(photograph)
            progress(number, len(files))

    def samples(
        self, data: Location, which: int | Sequence[int]
    ) -> Iterator[tuple[str, np.ndarray | None, np.ndarray, np.ndarray]]:
        """Name, photograph where there is one, (h, w, 3), true and predicted mask, (h, w), of some samples.

        which: their numbers, or how many.
        """
        opened = self.on(data)
        source, inner = opened.source, innermost(opened.source)
        images = _images_of(source)
        names = images.folder.keys if images is not None else list(inner.store.column("key"))  # type: ignore[attr-defined]
        spread = np.linspace(0, len(source) - 1, min(which, len(source))) if isinstance(which, int) else np.array(which)
        for number in spread.astype(np.int64).tolist():
            batch = source.batch(np.array([number])).to(self.device)
            prepared = apply_all(opened.steps, batch, Draws(0, 0, batch.index))
            column = prepared.columns[COLUMN]
            assert isinstance(column, ClassMask)
            photograph = None if images is None else read_photograph(images.file(number))
            shown = None if photograph is None else np.asarray(photograph)
            with torch.no_grad():
                if self._moves_codes:
                    predicted, _ = on_image(self.ask_codes(batch.x), column, 0)
                elif self._codes and not self.inference.plain and photograph is not None:
                    predicted = self.scores(photograph)[0].argmax(0)
                else:
                    predicted, _ = on_image(self.ask(prepared.x), column, 0)
            yield names[number], shown, column.of_row(0).cpu().numpy(), predicted.cpu().numpy().astype(np.uint8)


def _check_ways(trained: Trained, how: Inference, both: bool) -> None:
    """Refuse --adapter and --naive where they say nothing."""
    if trained.spec.stage == "pixels":
        raise ConfigError(
            "--adapter and --naive are for runs on tokens", "leave them out: pixels are scaled as they are"
        )
    if how.plain:
        raise ConfigError("one scale without --flip needs neither --adapter nor --naive", "leave them out")
    if both:
        raise ConfigError("--adapter and --naive are two ways to see codes", "give one of them")
    if trained.spec.stored not in (None, trained.spec.grid):
        raise ConfigError("the run crops codes when it is evaluated", "leave --adapter and --naive out")


def _images_of(source: Source) -> PairSource | None:
    """The images with masks that data come from, as they are or encoded."""
    inner = innermost(source)
    images = getattr(inner, "images", inner)
    return images if isinstance(images, PairSource) else None


def judged_by(path: Path) -> str:
    """The headline figure of a run's task; top1 of an exported model, which answers as a classifier does."""
    if (path / DESCRIPTION).is_file() or not any((path / name).is_file() for name in (SETTINGS, CHAIN)):
        return "top1"  # what is no run is refused where a model is opened
    return RunDirectory.find(path).settings().objective.task.metric


def seen_from(logits: Tensor, whole: ClassMask) -> Tensor:
    """Logits of a canvas at the pixels of the image on it, (1, K, h, w)."""
    return torch.nn.functional.grid_sample(logits.float(), whole.places(0), padding_mode="border", align_corners=False)


@dataclass(frozen=True)
class OneImage:
    """What `ImagesAsCodes` takes: an image at the tokenizer's size."""

    pixels: Tensor  # (1, 3, H, W) uint8
    grid: tuple[int, int]

    def batch(self, index: np.ndarray) -> Batch:
        """The image, whatever the number."""
        number = torch.from_numpy(index)
        return Batch(self.pixels, Target.hard(torch.zeros_like(number)), number)


def read_photograph(file: File) -> Image.Image:
    """An image upright in RGB."""
    try:
        with open_image(file) as upright:
            return to_rgb(upright)
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{file} cannot be read", " ".join(str(error).split())) from error


def _photographs(images: PairSource) -> Iterator[tuple[Image.Image, np.ndarray]]:
    folder = images.folder
    assert isinstance(folder, PairFolder)
    for number, path in enumerate(folder.paths):
        yield read_photograph(path), images.masks(np.array([number]))[0]


def pixels_of(image: Image.Image, device: torch.device) -> Tensor:
    """(1, 3, h, w) uint8."""
    return torch.from_numpy(np.array(image).transpose(2, 0, 1)[None].copy()).to(device)
