"""A trained TokenAdapt: pixel augmentation of codes through a learnt map (SeiT++, eq. 2), and its files.

B batch | C code dim | H, W code grid | h, w output grid | K codes
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from tilework.augment.affine import warp
from tilework.augment.augment import CPU
from tilework.core.batch import Mix
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import new_directory, read_plain, sha256, write
from tilework.core.sealed import read_json, write_sealed
from tilework.core.torch_files import load_tensors, read_torch
from tilework.layers.positions import sincos_positions
from tilework.layers.token_adapt import TokenAdaptNetwork

WEIGHTS, SETTINGS, VERSION = "weights.safetensors", "token_adapt.json", 3
LARGEST = 1 << 14  # width, heads, code dim
MOST_CODES = 1 << 20
HEAD = 64  # channels of an attention head in the published network
# our names of its parts by theirs
PUBLISHED = {
    "conversion_function.0.": "inlet.",
    "conversion_function.1.transformer.layers.0.": "forth.",
    "conversion_function.1.transformer.norm.": "forth_norm.",
    "conversion_function.1.to_pixel.1.": "spread.",
    "reverse_transform.0.to_patch_embedding.0.": "gather.",
    "reverse_transform.0.transformer.layers.0.": "back.",
    "reverse_transform.0.transformer.norm.": "back_norm.",
    "reverse_transform.1.": "outlet.",
}
PUBLISHED_BLOCK = {
    "0.norm.": "norm1.",
    "0.fn.to_qkv.": "attn.qkv.",
    "0.fn.to_out.": "attn.proj.",
    "1.norm.": "norm2.",
    "1.fn.net.0.": "mlp.fc1.",
    "1.fn.net.2.": "mlp.fc2.",
}
POSITIONS = {"conversion_function.1.de_pos_embedding": (32, 32), "reverse_transform.0.en_pos_embedding": (28, 28)}


@dataclass(frozen=True, eq=False)
class Adapter:
    """A network and the code vectors of the data."""

    network: TokenAdaptNetwork
    vectors: Tensor  # (K, C)

    @staticmethod
    def open(path: Path, codebook: Codebook, device: torch.device = CPU) -> Adapter:
        """A trained one, for the codes of a store; refuses other codes, but any cut of its codebook is fine.

        path: a directory, or a file of the published weights, which does not say its codes: they are counted.
        """
        if path == Path():
            raise ConfigError("this recipe needs a trained TokenAdapt", "give --adapter OUT/token_adapt")
        if path.is_file():
            network = load_published(path)
            if (network.codes, len(network.mean)) != codebook.vectors.shape:
                raise ConfigError(
                    f"{path} is for {network.codes} codes of {len(network.mean)} dimensions, the data have "
                    f"{len(codebook)} of {codebook.code_dim}",
                    "train one with 'tilework train token_adapt'",
                )
            return Adapter(network.to(device), torch.from_numpy(codebook.vectors).to(device))
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
        head = {"format": "tilework token_adapt", "version": VERSION, "tokenizer": tokenizer}
        write_sealed(root / SETTINGS, {**head, **sizes, "sha256": sha256(root / WEIGHTS)})


def load_adapter(path: Path) -> tuple[TokenAdaptNetwork, Codebook]:
    """A network and the codebook it knows; no code in the files can run."""
    if not (path / SETTINGS).is_file():
        raise InputError(
            f"no TokenAdapt in '{path}'",
            "train one with 'tilework train token_adapt --tokenizer TOKENIZER', which leaves it in OUT/token_adapt",
        )
    try:
        settings = read_json(path / SETTINGS)
        version = settings["version"]
        if version == 2:
            what = f"{path} has TokenAdapt version 2, whose logits went by another distance"
            raise DamageError(what, "train it anew")
        if version not in (1, VERSION):
            raise DamageError(f"{path} has TokenAdapt version {version!r}, not {VERSION}", "update Tilework")
        code_dim, width, heads = sizes = [int(settings[name]) for name in ("code_dim", "width", "heads")]
        codes = int(settings.get("codes", 0))
        if not all(0 < size <= LARGEST for size in sizes) or not 0 <= codes <= MOST_CODES:
            raise ValueError(f"sizes {sizes}, {codes} codes")
        if version == 1 and codes:
            raise DamageError(
                f"{path} ends in logits in TokenAdapt version 1, which is no longer read", "train it anew"
            )
        if not (path / WEIGHTS).is_file() or sha256(path / WEIGHTS) != settings["sha256"]:
            raise DamageError(f"{path / WEIGHTS} is missing or damaged", "restore it")
        tensors = load_tensors(read_plain(path / WEIGHTS))
        codebook = tensors.pop("codebook").float()
        if codebook.ndim != 2 or codebook.shape[1] != code_dim:
            raise ValueError(f"a codebook of {tuple(codebook.shape)}")
        if codes not in (0, len(codebook)):
            raise ValueError(f"logits of {codes} codes, a codebook of {len(codebook)}")
        with torch.device("meta"):  # no memory is taken for sizes that are not the weights'
            network = TokenAdaptNetwork(code_dim, width, heads, codes)
        if version == 1:  # one deviation for all channels, and no temperature
            tensors["deviation"] = tensors["deviation"].expand(code_dim).contiguous()
            tensors["log_temperature"] = torch.zeros(())
        network.regression = bool(settings.get("regression", False))
        network.load_state_dict(tensors, assign=True)
    except (ArithmeticError, ValueError, KeyError, TypeError, RuntimeError, ConfigError) as error:
        raise DamageError(f"{path} is malformed", f"restore it ({' '.join(str(error).split())[:200]})") from error
    return network.float().eval().requires_grad_(False), Codebook.of(codebook.numpy())


def load_published(path: Path) -> TokenAdaptNetwork:
    """The network of SeiT++'s published code from its file of weights, known by their names; nothing in it can run."""
    found = read_torch(path)
    found = found.get("model", found) if isinstance(found, dict) else {}
    theirs = {
        name: tensor
        for name, tensor in (found.items() if isinstance(found, dict) else ())
        if isinstance(tensor, Tensor) and str(name).startswith(("conversion_function.", "reverse_transform."))
    }
    try:
        (width, code_dim), codes = theirs["conversion_function.0.weight"].shape, len(theirs["reverse_transform.1.bias"])
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path} is no TokenAdapt as SeiT++ published it", "give OUT/token_adapt of a run") from error
    if not (0 < width <= LARGEST and width % HEAD == 0 and 0 < code_dim <= LARGEST and 0 < codes <= MOST_CODES):
        raise DamageError(f"{path} has a width of {width}, {codes} codes of {code_dim} dimensions", "restore it")
    with torch.device("meta"):  # no memory is taken for sizes that are not the weights'
        network = TokenAdaptNetwork(code_dim, width, width // HEAD, codes)
    try:
        for name, grid in POSITIONS.items():  # fixed, and made anew for every grid
            fixed = sincos_positions(width, *grid)
            if theirs[name].shape != (1, *fixed.shape) or not torch.allclose(theirs.pop(name)[0], fixed, atol=1e-4):
                raise ValueError(f"{name} are other positions")
        for name, tensor in theirs.items():
            if tensor.layout != torch.strided or tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
                raise ValueError(f"{name} has fewer bytes than numbers")
        ours = {_renamed(name): tensor.detach().float().clone() for name, tensor in theirs.items()}
        network.load_state_dict({**ours, "mean": torch.zeros(code_dim), "deviation": torch.ones(code_dim)}, assign=True)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise DamageError(f"{path} is malformed", f"restore it ({' '.join(str(error).split())[:200]})") from error
    return network.eval().requires_grad_(False)


def _renamed(name: str) -> str:
    """Our name of a published tensor."""
    for their, our in PUBLISHED.items():
        if name.startswith(their):
            rest = name.removeprefix(their)
            for part, ours in PUBLISHED_BLOCK.items() if our in ("forth.", "back.") else ():
                if rest.startswith(part):
                    return our + ours + rest.removeprefix(part)
            return our + rest
    return name
