"""A trained TokenAdapt: pixel augmentation of codes through a learnt map (SeiT++, eq. 2), and its files.

B batch | C code dim | H, W code grid | h, w output grid | K codes
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from tilework.augment.affine import warp
from tilework.core.batch import Mix
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import new_directory, sha256, write, write_json
from tilework.layers.token_adapt import TokenAdaptNetwork

WEIGHTS, SETTINGS = "weights.safetensors", "token_adapt.json"
LARGEST = 1 << 14  # width, heads, code dim
MOST_CODES = 1 << 20


@dataclass(frozen=True)
class Adapter:
    """A network and the codebook of the data."""

    network: TokenAdaptNetwork
    codebook: Tensor  # (K, C)

    @staticmethod
    def open(path: Path, codebook: Tensor | None) -> Adapter:
        """A trained one, for the codes of a store."""
        if codebook is None or not codebook.shape[1]:
            raise ConfigError("TokenAdapt needs code vectors", "train on a token store that has them")
        if path == Path():
            raise ConfigError("this recipe needs a trained TokenAdapt", "give --adapter OUT/token_adapt")
        network, known = load_adapter(path)
        check_codes(codebook, known, path, numbered=network.codes > 0)
        return Adapter(network.to(codebook.device), codebook)

    @torch.no_grad()
    def __call__(self, z: Tensor, affine: Tensor, size: tuple[int, int], mix: Mix | None = None) -> Tensor:
        """Codes of samples moved and mixed like pixels. z: (B, C, H, W); affine: (B, 2, 3); returns (B, h, w).

        A network that was trained by regression gives vectors, (B, C, h, w).
        """
        moved = warp(self.network.f(z), affine, (2 * size[0], 2 * size[1]))
        moved = moved if mix is None else mix.apply(moved)
        if self.network.regression:
            return self.network.vectors(moved)
        return self.network.g(moved, self.codebook).argmax(-1)


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


def load_adapter(path: Path) -> tuple[TokenAdaptNetwork, Tensor]:
    """A network and its codebook, (K, C); no code in the files can run."""
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
    return network.float().eval().requires_grad_(False), codebook


def check_codes(codebook: Tensor, known: Tensor, path: Path, numbered: bool = False) -> None:
    """Refuse code vectors that the network was not trained for; any cut of the same codebook is fine.

    Not to the bit: codes of unit length are rounded differently from device to device. numbered: the network ends in
    logits, so that the codes must be the same ones in the same order.
    """
    codebook, known = codebook.detach().cpu(), known.detach().cpu()
    if numbered and (codebook.shape != known.shape or not torch.allclose(codebook, known, rtol=1e-5, atol=1e-7)):
        raise ConfigError(f"{path} ends in logits of another cut of the codebook", "train one without model.codes")
    rows = {row.tobytes() for row in known.numpy()}
    strange = codebook[[row.tobytes() not in rows for row in codebook.numpy()]]
    same = not len(strange) or strange.shape[1] == known.shape[1]
    for part in strange.split(1024) if same else ():
        distance = (part - known[nearest_codes(part, known)]).norm(dim=1)
        same = same and bool((distance <= 1e-5 * part.norm(dim=1)).all())
    if not same:
        raise ConfigError(f"{path} knows other codes than the data", "give one made for the tokenizer of the data")


def nearest_codes(codebook: Tensor, known: Tensor) -> Tensor:
    """The place of each code vector among known ones, (K,), whatever their offset."""
    parts = codebook.detach().cpu().split(1024)
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cat([torch.cdist(part, known.detach().cpu(), compute_mode=exact).argmin(1) for part in parts])
