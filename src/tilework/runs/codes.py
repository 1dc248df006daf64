"""The codes a run was trained on: their vectors, their numbers in the tokenizer, and what was learnt to stand for them.

K codes | C code dim
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tilework.augment.adapter import check_codes, nearest_codes
from tilework.core.errors import DamageError
from tilework.core.files import write

CODEBOOK = "codebook.safetensors"


def digest(codebook: Tensor | None) -> str:
    """SHA-256 of code vectors; empty for pixels."""
    return "" if codebook is None else hashlib.sha256(codebook.numpy().tobytes()).hexdigest()


@dataclass(frozen=True)
class Codes:
    """What is kept in codebook.safetensors."""

    codebook: Tensor  # (K, C)
    used: Tensor  # (K,) number of each in the tokenizer
    table: Tensor | None = None  # (K, C) learnt vectors, where there are any

    def write(self, path: Path) -> None:
        """Write them into a directory."""
        tensors = {"codebook": self.codebook, "used": self.used}
        if self.table is not None:
            tensors["table"] = self.table.detach().cpu().contiguous()
        write(path / CODEBOOK, save(tensors))

    @staticmethod
    def read(path: Path, expected: str) -> Codes:
        """Those of a directory. expected: digest of the code vectors."""
        file = path / CODEBOOK
        try:
            tensors = load(file.read_bytes())
            codes = Codes(tensors["codebook"], tensors["used"], tensors.get("table"))
        except (OSError, KeyError, SafetensorError) as error:
            raise DamageError(f"{file} cannot be read", f"restore it ({error})") from error
        codebook, table = codes.codebook, codes.table
        if codebook.ndim != 2 or codebook.dtype != torch.float32 or codes.used.shape != codebook.shape[:1]:
            raise DamageError(f"{file} holds no codebook", "restore it")
        if table is not None and (table.shape != codebook.shape or not table.isfinite().all()):
            raise DamageError(f"{file} holds a table that does not fit its codebook", "restore it")
        if digest(codebook) != expected:
            raise DamageError(f"{file} is not the codebook that the model was trained with", "restore it")
        return codes

    def table_for(self, codebook: Tensor, path: Path) -> Tensor | None:
        """The learnt vectors of another cut of the same codebook, (K', C); refuses another tokenizer's."""
        if self.table is None:
            return None
        check_codes(codebook, self.codebook, path)
        return self.table[nearest_codes(codebook, self.codebook)]
