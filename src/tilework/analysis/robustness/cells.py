"""Figures of robustness, each in a file of its own with the answer to each image, and the runs that they are of.

N images
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tilework.core.config import Plain
from tilework.core.files import write_json
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

    def cell(self, name: str) -> Cell | None:
        """A figure that is known already."""
        file = self.folder / f"{name}.json"
        if not file.is_file():
            return None
        plain = json.loads(file.read_bytes())
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(plain["hits"]), np.uint8))
        return Cell(bits[: plain["images"]].astype(bool), plain["figures"])

    def keep(self, name: str, hits: Tensor, figures: Plain) -> Cell:
        """Write a figure."""
        bits = np.packbits(hits.cpu().numpy().astype(np.uint8))
        figures = {"accuracy": float(hits.double().mean()), **figures}
        plain = {"name": name, "images": len(hits), "figures": figures, "hits": bits.tobytes().hex()}
        write_json(self.folder / f"{name}.json", plain)
        return Cell(hits.cpu().numpy().astype(bool), figures)


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
        """Over all images; None where no batch gave any."""
        return float(torch.cat(self._parts[name]).mean()) if name in self._parts else None
