"""Figures of robustness, each in a file of its own with the answer to each image, and the runs that they are of.

N images
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tilework.core.config import Plain
from tilework.core.errors import DamageError
from tilework.core.sealed import read_json, write_sealed
from tilework.evaluation.apgd import Norm
from tilework.evaluation.from_pixels import FromPixels


@dataclass(frozen=True)
class Cell:
    """One figure: the answer to each image, and what is known of it."""

    hits: np.ndarray  # (N,) bool
    figures: Plain

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(self.hits.mean())


@dataclass(frozen=True)
class Subject:
    """A run that is measured."""

    name: str
    ask: FromPixels
    classes: tuple[str, ...]
    folder: Path  # of its cells

    _known: dict[str, Cell] = field(default_factory=dict, compare=False)

    def cell(self, name: str) -> Cell | None:
        """A figure that is known already."""
        file = self.folder / f"{name}.json"
        if name not in self._known and file.is_file():
            self._known[name] = _read(file)
        return self._known.get(name)

    def cells(self) -> dict[str, Cell]:
        """All that are known, also from earlier commands."""
        names = sorted(file.stem for file in self.folder.glob("*.json"))
        return {name: cell for name in names if (cell := self.cell(name)) is not None}

    def keep(self, name: str, hits: Tensor, figures: Plain) -> Cell:
        """Write a figure."""
        bits = np.packbits(hits.cpu().numpy().astype(np.uint8))
        figures = {"accuracy": float(hits.double().mean()), **figures}
        plain = {"name": name, "images": len(hits), "figures": figures, "hits": bits.tobytes().hex()}
        write_sealed(self.folder / f"{name}.json", plain)
        self._known[name] = Cell(hits.cpu().numpy().astype(bool), figures)
        return self._known[name]


def _read(file: Path) -> Cell:
    plain = read_json(file)
    try:
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(plain["hits"]), np.uint8))
        count, figures = int(plain["images"]), dict(plain["figures"])
        if not 0 < count <= len(bits) or not isinstance(figures["accuracy"], float):
            raise ValueError("it has fewer answers than images")
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(
            f"{file} is no figure of robustness", f"remove it, and it is measured again ({error})"
        ) from error
    return Cell(bits[:count].astype(bool), figures)


def show_eps(eps: float, norm: Norm) -> str:
    """A radius as people write it."""
    return f"{eps * 255:.4g}/255" if norm == "linf" else f"{eps:.4g}"


class Means:
    """Means over images of what some batches gave."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor | None) -> None:
        """Numbers of the images of a batch, by name; None: there are none."""
        for name, value in values.items():
            if value is not None:
                self._parts.setdefault(name, []).append(value)

    def mean(self, name: str) -> float | None:
        """Over all images; None where there were none."""
        found = torch.cat(self._parts[name]) if name in self._parts else torch.empty(0)
        return float(found.mean()) if len(found) else None
