"""Weights that a run begins with: another run's, an exported model's, or other people's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, InputError, TileworkError
from tilework.core.hub import local
from tilework.core.location import PathOrHub
from tilework.core.sealed import read_json
from tilework.models import Model
from tilework.models.weights import adopt, read_weights
from tilework.objectives import Objective
from tilework.objectives.masked_published import embeds_codes, published_encoder
from tilework.runs.directory import RunDirectory
from tilework.train.checkpoint import model_tensors
from tilework.train.log import notice

DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"  # of an exported model


@dataclass(frozen=True)
class Start:
    """Weights to begin with, and where they come from."""

    path: PathOrHub
    tensors: dict[str, Tensor]
    classes: tuple[str, ...] | None = None  # that its head tells apart, where known
    grid: tuple[int, int] | None = None  # of its tokens, where known
    codebook: Codebook | None = None  # that it was trained on, where known
    table: np.ndarray | None = None  # (K, C) vectors that it learnt for codes that it does not tell
    rest: Mapping[str, Tensor] = field(default_factory=dict)  # all of other people's checkpoint, where more is of use

    @staticmethod
    def read(path: PathOrHub) -> Start:
        """Of a run, an exported model, or a file of weights, other people's too; from the hub if it is a name there."""
        place = local(path)
        if not place.exists():
            raise InputError(f"no weights at {path}", "give a run or a checkpoint file")
        if (place / DESCRIPTION).is_file():
            place = place / WEIGHTS
        if place.is_file():
            beside = place.parent / DESCRIPTION  # of an exported model
            known = read_json(beside).get("codebook") if beside.is_file() else None
            tensors = read_weights(place)
            if embeds_codes(tensors):
                return Start._published(path, tensors)
            return Start(path, tensors, codebook=Codebook.read(place.parent, known) if known else None)
        directory = RunDirectory.find(place)
        run, spec = directory.settings(), directory.data()
        with torch.device("meta"):
            model = run.model.build(spec.channels, spec.grid, len(spec.classes))
        grid = model.grid if isinstance(model, Model) else None
        return Start(path, model_tensors(directory.checkpoint()), spec.classes, grid, directory.codebook())

    @staticmethod
    def _published(path: PathOrHub, tensors: dict[str, Tensor]) -> Start:
        """Of a checkpoint of SeiT++'s code, which has a table of its own for the codes."""
        try:
            encoder, table = published_encoder(tensors)
        except TileworkError as error:
            raise type(error)(f"{path}: {error.what}", error.hint) from error
        return Start(path, encoder, table=table.numpy(), rest=tensors)

    def codebook_for(self, codebook: Codebook | None, quiet: bool = True) -> Codebook | None:
        """The codebook of the data with the vectors that were learnt for its codes; refuses other codes for those."""
        if self.table is not None and codebook is not None:
            if self.table.shape != codebook.vectors.shape:
                known, wide = self.table.shape
                raise ConfigError(
                    f"{self.path} is for {known} codes of {wide} dimensions, the data have {len(codebook)} of "
                    f"{codebook.code_dim}",
                    "give data of the tokenizer that it was trained with, or leave out --start",
                )
            return codebook.with_learnt(self.table)
        if self.codebook is None or codebook is None:
            return codebook
        if self.codebook.learnt is None:
            if codebook.positions_in(self.codebook) is None:
                notice(
                    f"{self.path} was trained on another codebook: its stem does not know the codes of the data", quiet
                )
            return codebook
        learnt = self.codebook.learnt_for(codebook)
        if learnt is None:
            raise InputError(
                f"{self.path} learnt vectors for other codes than the data have",
                "give data of the tokenizer that it was trained with, or leave out --start",
            )
        return codebook.with_learnt(learnt)

    def fill(self, model: nn.Module, classes: tuple[str, ...], quiet: bool = True) -> None:
        """Copy the weights; the stem, the head and the positions may be of other sizes."""
        if not isinstance(model, Model):
            raise ConfigError(f"a {type(model).__name__} cannot start from {self.path}", "leave out --start")
        tensors = self.tensors
        if self.classes not in (None, classes):  # as many, perhaps, but others
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(model.head_names)}
        try:
            adopted = adopt(model, tensors, self.grid)
        except TileworkError as error:
            raise type(error)(f"{self.path}: {error.what}", error.hint) from error
        fresh, resized = (
            ", ".join(sorted({name.split(".")[0] for name in names})) or "nothing"
            for names in (adopted.replaced, adopted.resized)
        )
        notice(f"starts from {self.path} (fresh: {fresh}; resized: {resized})", quiet)

    def finish(self, objective: Objective) -> None:
        """Copy what lies beside the model, where the objective knows what to do with it."""
        try:
            objective.adopt(self.rest)
        except TileworkError as error:
            raise type(error)(f"{self.path}: {error.what}", error.hint) from error
