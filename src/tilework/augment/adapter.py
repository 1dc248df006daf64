"""A trained TokenAdapt: pixel augmentation of codes through a learnt map (SeiT++, eq. 2), and its files.

B batch | C code dim | H, W code grid | h, w output grid | K codes
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tilework.augment.affine import warp
from tilework.augment.augment import CPU
from tilework.core.batch import Mix
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import new_directory, sha256, write, write_json
from tilework.layers.token_adapt import TokenAdaptNetwork

WEIGHTS, SETTINGS = "weights.safetensors", "token_adapt.json"
LARGEST = 1 << 14  # width, heads, code dim
MOST_CODES = 1 << 20


@dataclass(frozen=True, eq=False)
class Adapter:
    """A network and the code vectors of the data."""

    network: TokenAdaptNetwork
    vectors: Tensor  # (K, C)

    @staticmethod
    def open(path: Path, codebook: Codebook, device: torch.device = CPU) -> Adapter:
        """A trained one, for the codes of a store; refuses other codes, but any cut of its codebook is fine."""
        if path == Path():
            raise ConfigError("this recipe needs a trained TokenAdapt", "give --adapter OUT/token_adapt")
        network, known = load_adapter(path)
        positions = codebook.positions_in(known)
        if positions is None:
            raise ConfigError(f"{path} knows other codes than the data", "give one made for the tokenizer of the data")
        if network.codes and not np.array_equal(positions, np.arange(len(known))):
            raise ConfigError(f"{path} ends in logits of another cut of the codebook", "train one without model.codes")
        return Adapter(network.to(device), torch.from_numpy(codebook.vectors).to(device))

    @torch.no_grad()
    def __call__(self, z: Tensor, affine: Tensor, size: tuple[int, int], mix: Mix | None = None) -> Tensor:
        """Codes of samples moved and mixed like pixels. z: (B, C, H, W); affine: (B, 2, 3); returns (B, h, w).

        A network that was trained by regression gives vectors, (B, C, h, w).
        """
        moved = warp(self.network.f(z), affine, (2 * size[0], 2 * size[1]))
        moved = moved if mix is None else mix.apply(moved)
        if self.network.regression:
            return self.network.vectors(moved)
        return self.network.g(moved, self.vectors).argmax(-1)


def save_adapter(path: Path, network: TokenAdaptNetwork, codebook: Tensor, tokenizer: dict[str, str]) -> None:
    """Write a trained network with the codebook it knows, (K, C), and the name and hash of its tokenizer."""
    tensors = {**network.state_dict(), "codebook": codebook}
    with new_directory(path) as root:
        write(root / WEIGHTS, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))
        sizes = {
            "code_dim": codebook.shape[1],
            "width": network.width,
            "heads": network.forth.attn.heads,
            "codes": network.codes,
            "regression": network.regression,
        }
        head = {"format": "tilework token_adapt", "version": 1, "tokenizer": tokenizer}
        write_json(root / SETTINGS, {**head, **sizes, "sha256": sha256(root / WEIGHTS)})


def load_adapter(path: Path) -> tuple[TokenAdaptNetwork, Codebook]:
    """A network and the codebook it knows; no code in the files can run."""
    if not (path / SETTINGS).is_file():
        raise InputError(
            f"no TokenAdapt in '{path}'",
            "train one with 'tilework train token_adapt --tokenizer TOKENIZER', which leaves it in OUT/token_adapt",
        )
    try:
        settings = json.loads((path / SETTINGS).read_bytes())
        if settings["version"] != 1:
            raise DamageError(f"{path} has TokenAdapt version {settings['version']}, not 1", "update Tilework")
        code_dim, width, heads = sizes = [int(settings[name]) for name in ("code_dim", "width", "heads")]
        codes = int(settings.get("codes", 0))
        if not all(0 < size <= LARGEST for size in sizes) or not 0 <= codes <= MOST_CODES:
            raise ValueError(f"sizes {sizes}, {codes} codes")
        if not (path / WEIGHTS).is_file() or sha256(path / WEIGHTS) != settings["sha256"]:
            raise DamageError(f"{path / WEIGHTS} is missing or damaged", "restore it")
        tensors = load((path / WEIGHTS).read_bytes())
        codebook = tensors.pop("codebook").float()
        if codebook.ndim != 2 or codebook.shape[1] != code_dim:
            raise ValueError(f"a codebook of {tuple(codebook.shape)}")
        if codes not in (0, len(codebook)):
            raise ValueError(f"logits of {codes} codes, a codebook of {len(codebook)}")
        with torch.device("meta"):  # no memory is taken for sizes that are not the weights'
            network = TokenAdaptNetwork(code_dim, width, heads, codes)
        network.regression = bool(settings.get("regression", False))
        network.load_state_dict(tensors, assign=True)
    except (ArithmeticError, ValueError, KeyError, TypeError, RuntimeError, ConfigError, SafetensorError) as error:
        raise DamageError(f"{path} is malformed", f"restore it ({' '.join(str(error).split())[:200]})") from error
    return network.float().eval().requires_grad_(False), Codebook.of(codebook.numpy())
