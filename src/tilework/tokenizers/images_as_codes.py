"""A folder of images as codes, encoded batch by batch: nothing is stored.

B batch | H, W pixels | h, w code grid | K codes
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tilework.core.batch import Batch, Stage
from tilework.core.codebook import Codebook
from tilework.core.errors import InputError
from tilework.data import ImageSource
from tilework.store.code_map import CodeMap
from tilework.tokenizers.tokenizer import Tokenizer


@dataclass
class ImagesAsCodes:
    """What a store of the same images would give, its codes numbered by a codebook."""

    images: ImageSource  # of the size that the tokenizer takes
    tokenizer: Tokenizer
    codebook: Codebook
    device: torch.device
    together: int = 1
    number: Tensor = field(init=False, repr=False)  # (K of the tokenizer,) number of each in the codebook
    kept: Tensor = field(init=False, repr=False)  # (K of the tokenizer,) whether the codebook has it

    def __post_init__(self) -> None:
        self.number = torch.from_numpy(code_numbers(self.tokenizer, self.codebook)).to(self.device)
        self.kept = torch.zeros(len(self.number), dtype=torch.bool, device=self.device)
        self.kept[torch.from_numpy(self.codebook.used).long().to(self.device)] = True
        self.tokenizer.to(self.device).eval()
        self._grid = self.tokenizer.grid(self.images.grid)

    @property
    def stage(self) -> Stage:
        """Codes, or several at a position."""
        return "stacks" if self.tokenizer.stacked else "ids"

    @property
    def grid(self) -> tuple[int, int]:
        """Of codes."""
        return (self._grid[0], self._grid[1]) if len(self._grid) > 1 else (1, self._grid[0])

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of their numbers."""
        return self.images.classes

    @property
    def labels(self) -> np.ndarray:
        """Class number of each sample, (N,)."""
        return self.images.labels

    def __len__(self) -> int:
        return len(self.images)

    @torch.inference_mode()
    def batch(self, index: np.ndarray) -> Batch:
        """x: (B, h, w) int32, or (B, C, h, w) where a position has several codes."""
        batch = self.images.batch(index)
        ids = self.tokenizer.encode(batch.x.to(self.device) / 255)
        return batch.changed(x=self.sample(ids).cpu())

    def sample(self, ids: Tensor) -> Tensor:
        """The tokenizer's codes as a store would give them: (B, h, w) int32, or (B, C, h, w)."""
        x = self.number[ids].view(-1, *self.grid, *self._grid[2:])
        return x.permute(0, 3, 1, 2) if self.stage == "stacks" else x


def code_numbers(tokenizer: Tokenizer, codebook: Codebook) -> np.ndarray:
    """Number in a codebook of each code of its tokenizer, or of the nearest that is there, (K,); refuses others."""
    vectors, used = tokenizer.codebook.detach().cpu().float().numpy(), codebook.used
    fits = len(used) and used.max() < len(vectors) and vectors.shape[1:] == codebook.vectors.shape[1:]
    if not fits or not np.allclose(vectors[used], codebook.vectors, rtol=1e-4, atol=1e-6):
        raise InputError("the tokenizer has other codes than the run was trained on", "give the run's tokenizer")
    return CodeMap.of(used, vectors).number
