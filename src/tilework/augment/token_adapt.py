"""TokenAdapt in training: pixel augmentation of codes through a learnt map (SeiT++, section 3.3, eq. 2).

B batch | n samples adapted | C code dim | H, W code grid | h, w output grid | K codes
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

from tilework.augment.affine import Geometry, warp
from tilework.augment.augment import Augment
from tilework.augment.crop import RandomResizedCrop, warp_axes
from tilework.augment.mixing import CutMix, CutMixOrMixup
from tilework.core.batch import Batch, Mix, Stage
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import new_directory, sha256, write, write_json
from tilework.core.rng import Draws
from tilework.layers.token_adapt import TokenAdaptNetwork

WEIGHTS, SETTINGS = "weights.safetensors", "token_adapt.json"
LARGEST = 1 << 14  # width, heads, code dim


def save_adapter(path: Path, network: TokenAdaptNetwork, codebook: Tensor, tokenizer: dict[str, str]) -> None:
    """Write a trained network with the codebook it knows, (K, C), and the name and hash of its tokenizer."""
    tensors = {**network.state_dict(), "codebook": codebook}
    with new_directory(path) as root:
        write(root / WEIGHTS, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))
        sizes = {"code_dim": codebook.shape[1], "width": network.width, "heads": network.forth.attn.heads}
        head = {"format": "tilework token_adapt", "version": 1, "tokenizer": tokenizer}
        write_json(root / SETTINGS, {**head, **sizes, "sha256": sha256(root / WEIGHTS)})


def load_adapter(path: Path) -> tuple[TokenAdaptNetwork, Tensor]:
    """A network and its codebook, (K, C); no code in the files can run."""
    if not (path / SETTINGS).is_file():
        raise InputError(
            f"no TokenAdapt in {path}",
            "train one with 'tilework train token_adapt --tokenizer TOKENIZER', which leaves it in OUT/token_adapt",
        )
    try:
        settings = json.loads((path / SETTINGS).read_bytes())
        if settings["version"] != 1:
            raise DamageError(f"{path} has TokenAdapt version {settings['version']}, not 1", "update Tilework")
        sizes = [int(settings[name]) for name in ("code_dim", "width", "heads")]
        if not all(0 < size <= LARGEST for size in sizes):
            raise ValueError(f"sizes {sizes}")
        if not (path / WEIGHTS).is_file() or sha256(path / WEIGHTS) != settings["sha256"]:
            raise DamageError(f"{path / WEIGHTS} is missing or damaged", "restore it")
        tensors = load((path / WEIGHTS).read_bytes())
        codebook = tensors.pop("codebook").float()
        if codebook.ndim != 2 or codebook.shape[1] != sizes[0]:
            raise ValueError(f"a codebook of {tuple(codebook.shape)}")
        with torch.device("meta"):  # no memory is taken for sizes that are not the weights'
            network = TokenAdaptNetwork(*sizes)
        network.load_state_dict(tensors, assign=True)
    except (ArithmeticError, ValueError, KeyError, TypeError, RuntimeError, ConfigError, SafetensorError) as error:
        raise DamageError(f"{path} is malformed", f"restore it ({' '.join(str(error).split())[:200]})") from error
    return network.float().eval().requires_grad_(False), codebook


def check_codes(codebook: Tensor, known: Tensor, path: Path) -> None:
    """Refuse code vectors that the network was not trained for; any cut of the same codebook is fine.

    Not to the bit: codes of unit length are rounded differently from device to device.
    """
    codebook, known = codebook.cpu(), known.cpu()
    rows = {row.tobytes() for row in known.numpy()}
    strange = codebook[[row.tobytes() not in rows for row in codebook.numpy()]]
    same = not len(strange) or strange.shape[1] == known.shape[1]
    for part in strange.split(1024) if same else ():
        distance = torch.cdist(part, known, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
        same = same and bool((distance <= 1e-5 * part.norm(dim=1)).all())
    if not same:
        raise ConfigError(f"{path} was trained for another tokenizer", "train one for the tokenizer of the store")


@dataclass(frozen=True)
class Adapting:
    """Where each sample goes: the first ones through the network, the others as tokens."""

    affine: Tensor  # (n, 2, 3)
    box: Tensor  # (B - n, 2, 3)
    own: Tensor  # (B, 2 h, 2 w) share of the sample itself


@Augment.choices.add("token_adapt")
@dataclass(frozen=True)
class TokenAdapt(Augment):
    """Crop and mixing: for a share of every batch as of pixels, through TokenAdapt, for the rest as of tokens.

    Batches are shuffled, so that a fixed share of places is a random share of samples, and nothing is counted on the
    device. Takes code vectors as the tokenizer has them: standardise after it.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("map",)
    path: str = ""  # of a trained TokenAdapt
    share: float = 0.5
    size: tuple[int, int] = (28, 28)
    geometry: Geometry = field(default_factory=Geometry)
    mixing: CutMixOrMixup = field(default_factory=CutMixOrMixup)  # of adapted samples
    area: tuple[float, float] = (0.08, 1.0)  # of crops of the others
    cutmix: float = 1.0  # probability for the others
    network: TokenAdaptNetwork | None = field(default=None, init=False, repr=False, compare=False)
    codebook: Tensor | None = field(default=None, init=False, repr=False, compare=False)  # (K, C)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share} but must lie between 0 and 1")

    def bind(self, codebook: Tensor | None) -> TokenAdapt:
        """The same step with its network, for the codebook of the data."""
        if codebook is None or not codebook.shape[1]:
            raise ConfigError("augmentation 'token_adapt' needs code vectors", "train on a token store that has them")
        network, known = load_adapter(Path(self.path))
        check_codes(codebook, known, Path(self.path))
        bound = replace(self)
        object.__setattr__(bound, "network", network.to(codebook.device))
        object.__setattr__(bound, "codebook", codebook)
        return bound

    def sample(self, draws: Draws, batch: Batch) -> Adapting:
        """Places and shares of every sample."""
        count, (h, w) = round(self.share * len(batch.x)), self.size
        first, rest = (replace(draws, index=draws.index[part]) for part in (slice(count), slice(count, None)))
        own = self.mixing.own(first, (2 * h, 2 * w))
        coarse = CutMix(self.cutmix).own(rest, (h, w)).repeat_interleave(2, 1).repeat_interleave(2, 2)
        box = RandomResizedCrop(area=self.area).sample(rest, batch)
        return Adapting(self.geometry.sample(first, batch), box, torch.cat([own, coarse]))

    @torch.no_grad()
    def apply(self, batch: Batch, p: Adapting) -> Batch:
        """x: (B, C, H, W) to (B, C, h, w); labels and columns follow."""
        if self.network is None or self.codebook is None:
            raise ConfigError("augmentation 'token_adapt' was not given a codebook", "call bind(codebook) first")
        count, (h, w) = len(p.affine), self.size
        place = torch.arange(len(batch.x), device=batch.x.device)
        mix = Mix(torch.cat([place[:count].roll(1), place[count:].roll(1)]), p.own)
        inner, outer = (Mix(place[: len(own)].roll(1), own) for own in (p.own[:count], p.own[count:]))
        augmented = inner.apply(warp(self.network.f(batch.x[:count]), p.affine, (2 * h, 2 * w)))
        ids = self.network.nearest(self.network.g(augmented), self.codebook)  # (n, h, w)
        adapted = F.embedding(ids, self.codebook).permute(0, 3, 1, 2)
        plain = outer.apply(warp_axes(batch.x[count:], p.box, self.size))
        affine = torch.cat([p.affine, p.box])
        columns = {name: column.warp(affine, self.size).mix(mix) for name, column in batch.columns.items()}
        target = batch.target.mix(mix.partner, mix.own.mean((1, 2)))
        return batch.changed(x=torch.cat([adapted, plain]), target=target, columns=columns, mix=mix)
