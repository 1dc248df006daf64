"""A trained run, opened on data: one way for evaluation, probes, export, explanations and every analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from tilework.augment import AnyStep, build_all, output_shape
from tilework.core.batch import Shape
from tilework.core.codebook import Codebook
from tilework.core.errors import DamageError, InputError
from tilework.core.location import Location, Url, is_store
from tilework.data import Broken, ImageFolder, ImageSource, Part, Source, TokenSource
from tilework.data.detected import ObjectFolder, ObjectSource, open_objects
from tilework.data.masked import PairSource
from tilework.data.pairs import PairFolder, open_pairs
from tilework.data.part import part_of
from tilework.data.renumbered import Renumbered
from tilework.data.source import shape_of
from tilework.models import Detector, Model, Network
from tilework.runs.build import build_model, check_there, open_source, with_columns
from tilework.runs.directory import DataSpec, RunDirectory
from tilework.runs.run import Run
from tilework.tokenizers import Tokenizer, box
from tilework.tokenizers.find import find_tokenizer
from tilework.tokenizers.images_as_codes import ImagesAsCodes
from tilework.tokenizers.tokenizer import Card
from tilework.train.checkpoint import trained_model

STAGES = {  # in words, of data
    "ids": "one code at each position",
    "stacks": "several codes at each position, as pooled codes are",
    "pixels": "images",
}


@dataclass(frozen=True)
class OnData:
    """A data set as a trained run takes it."""

    source: Source
    steps: tuple[AnyStep, ...]  # from a sample to what the model takes


@dataclass(frozen=True)
class Trained:
    """A run that has a checkpoint: its settings, what it expects of data, and the weights that evaluation uses."""

    directory: RunDirectory
    run: Run
    spec: DataSpec
    network: Network
    exported: Codebook | Literal["pixels", "no"] = "no"  # whether it is an exported model, and its codes
    measured: Mapping[str, float] | None = None  # figures of an exported model

    @staticmethod
    def open(path: Path | str, best: bool = False) -> Trained:
        """Of a directory that training wrote; of a chain, its last run. best: by validation, not the last."""
        directory = RunDirectory.find(Path(path))
        run, spec, checkpoint = directory.settings(), directory.data(), directory.checkpoint(best)
        return Trained(directory, run, spec, trained_model(checkpoint, lambda: build_model(run, spec)))

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.directory.path

    @property
    def name(self) -> str:
        """What it is called in tables and pictures."""
        return self.directory.name

    @cached_property
    def codebook(self) -> Codebook | None:
        """The codes it was trained on, with learnt vectors; None for pixels."""
        if self.exported == "no":
            return self.directory.codebook()
        return self.exported if isinstance(self.exported, Codebook) else None

    @property
    def encoder(self) -> Model:
        """The network, refused if it gives no features of images."""
        if not isinstance(self.network, Model):
            what = f"{self.path} trained a {type(self.network).__name__}"
            raise InputError(what, "give the run of a classifier or an encoder")
        return self.network

    @property
    def classifier(self) -> Model:
        """The network, refused if it was not trained to tell classes apart."""
        if isinstance(self.network, Detector):
            raise InputError(f"{self.path} finds objects", "give the run itself, not an exported model of it")
        if not isinstance(self.network, Model) or not self.run.objective.task.labels:
            raise InputError(f"{self.path} trained no classifier", "give a classifier's run, or use 'tilework probe'")
        return self.network

    @property
    def predictor(self) -> Model:
        """The network, refused if it tells no classes apart: of images or of their pixels."""
        if isinstance(self.network, Detector) or (isinstance(self.network, Model) and self.run.objective.task.classes):
            return self.network
        return self.classifier

    @property
    def figures(self) -> dict[str, float]:
        """What validation gave when it was trained."""
        return self.directory.figures() if self.measured is None else dict(self.measured)

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer of its codes, where it is at hand."""
        return find_tokenizer(self.spec.tokenizer, self.path)

    @property
    def has_tokenizer(self) -> bool:
        """Whether it encodes images by itself: it holds its tokenizer, or the one in the box made its codes."""
        return box.ENCODER in self.spec.tokenizer or self.tokenizer is not None

    def steps(self, device: torch.device) -> tuple[AnyStep, ...]:
        """From a sample to what the model takes, with the codes of the run; refuses settings that lead elsewhere."""
        spec, codebook = self.spec, self.codebook
        if spec.stored is not None:  # runs of older versions do not know it
            start = Shape(spec.stage, 3 if codebook is None else codebook.code_dim, spec.stored)
            end = output_shape(self.run.model_input, start).stage
            if end != self.network.takes:
                what = f"the settings of {self.path} do not fit its network"
                raise DamageError(what, f"evaluation ends in {end}, and it takes {self.network.takes}; restore the run")
        return build_all(self.run.model_input, self.codebook, device)

    def on(
        self,
        data: Location,
        device: torch.device,
        tokenizer: Path | None = None,
        samples: int = 0,
        classes: tuple[str, ...] | Literal["same", "any"] = "same",
        columns: bool = False,
    ) -> OnData:
        """Data for the run; refuses another kind, codebook, grid, and other classes than the run's or those given.

        tokenizer: turns a folder of images into codes. samples: drawn at random; 0: all. A store of a part of the
        run's codes is fine. columns: with those that evaluation needs.
        """
        names = self.spec.classes if classes == "same" else None if classes == "any" else classes
        source = self._open(data, device, tokenizer, samples, names)
        source = with_columns(self.run, source, data) if columns else source
        return OnData(self._numbered(source, data), self.steps(device))

    def _open(
        self,
        data: Location,
        device: torch.device,
        tokenizer: Path | None,
        samples: int,
        classes: tuple[str, ...] | None,
    ) -> Source:
        check_there(data)
        run, codes, stored = self.run, self.spec.stage != "pixels", isinstance(data, Url) or is_store(data)
        if not codes and stored:
            raise InputError(f"{self.path} was trained on images, {data} is a token store", "give a folder of images")
        if codes and not stored:
            assert isinstance(data, Path)  # what is behind a URL is a store
            encoder, card = self.find_tokenizer(tokenizer, str(data))
            dense = open_pairs(data, classes) or open_objects(data, classes)
            folder = dense or ImageFolder.open(data, classes, run.classes)
            images = folder.take(part_of(len(folder), samples)) if samples else folder
            return self._encoded(images, encoder, card, device, run.max_broken)
        source = open_source(data, run.size, run.max_broken, classes, True, samples, level=run.classes, frame=run.frame)
        return Part(source, samples) if samples and isinstance(source, TokenSource) else source

    def photographs(
        self, folder: ImageFolder, device: torch.device, tokenizer: Path | None = None
    ) -> tuple[OnData, tuple[Broken, ...]]:
        """Images without labels for the run, and those that cannot be read."""
        if self.spec.stage == "pixels":
            images = ImageSource.read(folder, self.run.size, 1.0, frame=self.run.frame)
            return OnData(self._numbered(images, folder.root), self.steps(device)), images.broken
        encoder, card = self.find_tokenizer(tokenizer, str(folder.root))
        codes = self._encoded(folder, encoder, card, device, 1.0)
        return OnData(self._numbered(codes, folder.root), self.steps(device)), codes.images.broken

    def find_tokenizer(self, given: Path | None, data: str) -> tuple[Tokenizer, Card]:
        """The one given, or the run's own; the one in the box takes the codes of the run. data: for messages."""
        known = self.spec.tokenizer
        path = given or self.tokenizer or (Path(box.NAME) if box.ENCODER in known else None)
        if path is None:
            which = f" '{known['name']}' (SHA-256 {known['sha256'][:12]}...)" if known.get("sha256") else ""
            what = f"{self.path} was trained on tokens, {data} holds images"
            raise InputError(what, f"add --tokenizer with its tokenizer{which}, or tokenize them")
        return box.open_tokenizer(path, str(self.path), known, None if self.codebook is None else self.codebook.vectors)

    def canvas(self, tokenizer: Tokenizer, card: Card) -> tuple[int, int]:
        """The size of images whose codes have the grid that the run was trained on."""
        if tokenizer.length is not None or self.spec.stored is None:
            return card.size
        return self.spec.stored[0] * tokenizer.patch, self.spec.stored[1] * tokenizer.patch

    def _encoded(
        self, folder: ImageFolder, tokenizer: Tokenizer, card: Card, device: torch.device, max_broken: float
    ) -> ImagesAsCodes:
        assert self.codebook is not None
        size, frame = self.canvas(tokenizer, card), self.spec.frame
        if isinstance(folder, PairFolder):
            images: ImageSource = PairSource.scan(folder, size, frame, max_broken)
        elif isinstance(folder, ObjectFolder):
            images = ObjectSource.scan(folder, size, frame, max_broken)
        else:
            images = ImageSource.read(folder, size, max_broken, frame=frame)
        return ImagesAsCodes(images, tokenizer, self.codebook, device)

    def _numbered(self, source: Source, data: Location) -> Source:
        """The data with their codes by the run's numbers."""
        other = f"{data} is not like the data of {self.path}"
        if source.stage != self.spec.stage:
            found, wanted = (STAGES[stage] for stage in (source.stage, self.spec.stage))
            raise InputError(f"{other}: {found}, not {wanted}", "give data of the same tokenizer")
        if source.codebook is not None and self.codebook is not None and source.codebook is not self.codebook:
            positions = source.codebook.positions_in(self.codebook)
            if positions is None:
                raise InputError(
                    f"{data} has another codebook than the run {self.path} was trained on",
                    "tokenize its images with the tokenizer of the run, and --like its training store",
                )
            if not np.array_equal(positions, np.arange(len(self.codebook))):
                source = Renumbered(source, self.codebook, positions)
        grid = output_shape(self.run.model_input, shape_of(source)).grid
        if grid != self.spec.grid or self.spec.stored not in (None, source.grid):
            found, wanted = (f"{g[0]}x{g[1]}" for g in (source.grid, self.spec.stored or self.spec.grid))
            raise InputError(f"{other}: a grid of {found}, not {wanted}", "give data of the same tokenizer and size")
        return source
