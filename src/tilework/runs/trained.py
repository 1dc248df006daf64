"""A trained run, opened on data: one way for evaluation, probes, export, explanations and every analysis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from tilework.augment import AnyStep, build_all, output_shape
from tilework.core.codebook import Codebook
from tilework.core.distributed import World, pick_device
from tilework.core.errors import InputError
from tilework.core.location import Location, Url, is_store, location
from tilework.data import Part, Source, TokenSource
from tilework.data.renumbered import Renumbered
from tilework.data.source import shape_of
from tilework.evaluation import Classification, Features, Probe, classify, evaluate
from tilework.evaluation.probe import Solver
from tilework.models import Model, Network
from tilework.runs.build import build_model, check_there, open_source
from tilework.runs.directory import DataSpec, RunDirectory
from tilework.runs.run import Run
from tilework.tokenizers import box, load_tokenizer
from tilework.tokenizers.images_as_codes import ImagesAsCodes
from tilework.train.checkpoint import load_model_weights


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

    @staticmethod
    def open(path: Path | str) -> Trained:
        """Of a directory that training wrote; of a chain, its last run."""
        directory = RunDirectory.find(Path(path))
        run, spec, checkpoint = directory.settings(), directory.data(), directory.checkpoint()
        network = build_model(run, spec)
        load_model_weights(checkpoint, network)
        return Trained(directory, run, spec, network)

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
        return self.directory.codebook()

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
        if not isinstance(self.network, Model) or not self.run.objective.task.labels:
            raise InputError(f"{self.path} trained no classifier", "give a classifier's run, or use 'tilework probe'")
        return self.network

    def steps(self, device: torch.device) -> tuple[AnyStep, ...]:
        """From a sample to what the model takes, with the codes of the run."""
        return build_all(self.run.model_input, self.codebook, device)

    def on(
        self,
        data: Location,
        device: torch.device,
        tokenizer: Path | None = None,
        samples: int = 0,
        classes: tuple[str, ...] | Literal["same", "any"] = "same",
    ) -> OnData:
        """Data for the run; refuses another kind, codebook, grid, and other classes than the run's or those given.

        tokenizer: turns a folder of images into codes. samples: drawn at random; 0: all. A store of a part of the
        run's codes is fine.
        """
        names = self.spec.classes if classes == "same" else None if classes == "any" else classes
        source = self._open(data, device, tokenizer, samples, names)
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
            if tokenizer is None:
                what = f"{self.path} was trained on tokens, {data} holds images"
                raise InputError(what, "add --tokenizer, or tokenize them")
            encoder, card = load_tokenizer(tokenizer)
            assert self.codebook is not None
            if str(tokenizer) == box.NAME and self.codebook.code_dim == encoder.codebook.shape[1]:
                encoder, card = box.with_codes(torch.from_numpy(self.codebook.vectors))  # fitted to the run's images
            images = open_source(data, card.size, run.max_broken, classes, quiet=True, samples=samples)
            assert not isinstance(images, TokenSource)
            return ImagesAsCodes(images, encoder, self.codebook, device)
        source = open_source(data, run.size, run.max_broken, classes, quiet=True, samples=samples)
        return Part(source, samples) if samples and isinstance(source, TokenSource) else source

    def _numbered(self, source: Source, data: Location) -> Source:
        """The data with their codes by the run's numbers."""
        other = f"{data} is not like the data of {self.path}"
        if source.stage != self.spec.stage:
            raise InputError(f"{other}: {source.stage}, not {self.spec.stage}", "give data of the same tokenizer")
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


def evaluate_run(
    path: Path | str, data: Path | str, tokenizer: Path | str | None = None, device: str = "auto"
) -> Classification:
    """Accuracy and confusion of a trained run on a store or a folder; images are tokenized if the run needs it."""
    trained, chosen = Trained.open(path), pick_device(device)
    model = trained.classifier
    opened = trained.on(location(data), chosen, None if tokenizer is None else Path(tokenizer))
    return classify(model, opened.source, opened.steps, chosen)


def probe_run(
    path: Path | str,
    data: Path | str,
    val: Path | str,
    device: str = "auto",
    neighbours: int = 20,
    solver: Solver = "lbfgs",
) -> dict[str, float]:
    """What the frozen features of a run know of labelled data: accuracy of a linear classifier and of neighbours."""
    trained, chosen = Trained.open(path), pick_device(device)
    model = trained.encoder.to(chosen).eval()
    train = trained.on(location(data), chosen, classes="any")
    validation = trained.on(location(val), chosen, classes=train.source.classes)
    seen = Features()
    for one, evaluator in ((train, seen), (validation, Probe(seen, neighbours, solver))):
        found = evaluate(lambda batch: model(batch.x), one.source, one.steps, [evaluator], World(0, 1, chosen))
    return found
