"""What every tokenizer can do, and how it is kept on disk: weights as safetensors, settings as JSON.

B batch | H, W pixels | h, w code grid, or T codes of a sequence | K codes | C code dim
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from tilework.core.batch import Stage
from tilework.core.codebook import Codebook
from tilework.core.config import Plain, decode, encode
from tilework.core.errors import ConfigError, DamageError, InputError, TileworkError
from tilework.core.files import new_directory, sha256, write
from tilework.core.hub import local
from tilework.core.location import PACKAGED, TOKENIZER, PathOrHub, packaged, path_or_hub
from tilework.core.sealed import read_json, write_sealed
from tilework.core.torch_files import load_tensors
from tilework.data.image_files import framing
from tilework.models.model import ModelConfig, Network
from tilework.models.without_memory import without_memory
from tilework.tokenizers.quantise import Quantiser

WEIGHTS, SETTINGS, SCALE = "weights.safetensors", TOKENIZER, ".scale"
SMALLEST = 1 << 20  # numbers that a tokenizer may have beside its weights
WHOLE = 1 << 28  # numbers of a teacher that is built whole before it is cut


class Tokenizer(Network):
    """Images in [0, 1] to a grid or a sequence of codes and back."""

    takes: Stage = "pixels"
    stacked = False  # whether a position has several codes, each with channels of its own: ids (B, h, w, G)
    patch: int  # pixels per code and axis
    size: tuple[int, int] | None = None  # pixels that images must have, where no others fit
    length: int | None = None  # codes of an image, where they are a sequence: they have no positions in it
    sequence: str = ""  # what the codes of a sequence stand for
    quantiser: Quantiser

    @property
    def codebook(self) -> Tensor:
        """Code vectors as a classifier sees them, (K, C)."""
        return self.quantiser.codebook

    @property
    def stack(self) -> int:
        """Codes of a position where stacked: each stands for C / G channels."""
        return self.codebook.shape[1]

    def grid(self, size: tuple[int, int]) -> tuple[int, ...]:
        """Codes of an image of H, W pixels: rows and columns, and codes of a position, or the length of a sequence."""
        if min(size) < 1 or size[0] % self.patch or size[1] % self.patch:
            raise InputError(f"images of {size[0]}x{size[1]} do not divide into {self.patch} px patches", "resize them")
        if self.size is not None and self.size != size:
            needed = f"{self.size[0]}x{self.size[1]}"
            raise InputError(f"images of {size[0]}x{size[1]} for a {type(self).__name__} of {needed}", "resize them")
        if self.length is not None:
            return (self.length,)
        return (size[0] // self.patch, size[1] // self.patch, *((self.stack,) if self.stacked else ()))

    def check_grid(self) -> None:
        """Refuse to work on positions of the image where codes have none."""
        if self.length is not None:
            raise ConfigError(
                f"the codes of a {type(self).__name__} are a sequence of {self.length}, without positions in the image",
                "give a tokenizer with a grid of codes",
            )

    @property
    def last_layer(self) -> Tensor:
        """The weight that gives the decoded pixels: where an adversarial loss is weighed."""
        raise ConfigError(f"a {type(self).__name__} has no decoder to train", "leave the adversarial loss out")

    def features(self, pixels: Tensor) -> Tensor:
        """Vectors before quantisation. pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, C) or (B, T, C)."""
        raise NotImplementedError

    def nearest(self, features: Tensor) -> Tensor:
        """Codes of the features of images, (B, h, w) or (B, T) int64."""
        return self.quantiser.nearest(features)

    def vectors(self, ids: Tensor) -> Tensor:
        """Code vectors of codes. ids: (B, h, w), (B, T), or (B, h, w, C) where stacked; returns (..., C)."""
        return self.codebook[ids.long()]

    def pixels(self, vectors: Tensor) -> Tensor:
        """Images from code vectors. vectors: (B, h, w, C) or (B, T, C); returns (B, 3, H, W), about [0, 1]."""
        raise ConfigError(f"a {type(self).__name__} has no decoder", "give a tokenizer that has one, or none")

    @property
    def decodes(self) -> bool:
        """Whether it has a decoder."""
        return type(self).pixels is not Tokenizer.pixels

    def start(self, pixels: Tensor) -> None:
        """A first look at data before training, for those that start better with one. pixels: (B, 3, H, W)."""

    @torch.inference_mode()
    def encode(self, pixels: Tensor) -> Tensor:
        """Codes of images in [0, 1]. Returns (B, h, w) or (B, T) int64, or (B, h, w, C) where stacked."""
        self.grid((pixels.shape[-2], pixels.shape[-1]))  # refuses sizes that do not fit
        return self.nearest(self.features(pixels))

    @torch.inference_mode()
    def encode_pooled(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Codes as of `encode`, and the mean over positions of what is before them, (B, D)."""
        features = self.features(pixels)
        return self.nearest(features), features.flatten(1, -2).mean(1)

    @torch.inference_mode()
    def decode(self, ids: Tensor) -> Tensor:
        """Images of codes, clipped to [0, 1]. ids: as of `vectors`."""
        return self.pixels(self.vectors(ids)).clamp(0, 1)


@dataclass(frozen=True)
class Card:
    """Where a tokenizer comes from and how images must reach it."""

    name: str
    sha256: str  # of its weights
    size: tuple[int, int]  # pixels it was trained on
    origin: str = ""
    place: Path | None = None  # its directory
    encoder: str = ""  # SHA-256 of the weights of the tokenizer in the box, where codes of other images replace its own
    form: str = ""  # of those codes, where they are not of a grid

    @property
    def made_by(self) -> dict[str, str]:
        """What a store says of its tokenizer."""
        more = {key: value for key, value in (("encoder", self.encoder), ("form", self.form)) if value}
        return {"name": self.name, "sha256": self.sha256, **more}

    @property
    def preprocessing(self) -> str:
        """The resize policy as a sentence."""
        return f"{framing(self.size, 'cover')}, values from 0 to 1"

    @property
    def squashing(self) -> str:
        """The same where an image is squashed: its aspect is not kept, nothing is cut off."""
        return f"{framing(self.size, 'squash')}, values from 0 to 1"


def save_tokenizer(
    path: Path,
    tokenizer: Tokenizer,
    config: ModelConfig,
    size: tuple[int, int],
    origin: str = "trained by Tilework",
    small: bool = False,
) -> None:
    """Write a tokenizer as a directory. small: large weights as bytes with a scale for every output channel."""
    with new_directory(path) as root:
        tensors = {k: v.contiguous() for k, v in tokenizer.state_dict().items()}
        write(root / WEIGHTS, save_tensors(_packed(tensors) if small else tensors))
        settings: Plain = {"format": "tilework tokenizer", "version": 1, "name": path.stem, "size": list(size)}
        settings |= {"origin": origin, "sha256": sha256(root / WEIGHTS), "model": encode(config)}
        write_sealed(root / SETTINGS, settings)


def _packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of layers as int8, rounded to 127 steps of each output channel's largest; codes as float16."""
    found = {}
    for name, tensor in tensors.items():
        if name.startswith("quantiser."):
            found[name] = tensor.half()
        elif tensor.ndim > 1 and tensor.is_floating_point():
            scale = tensor.flatten(1).abs().amax(1).clamp(min=1e-12) / 127  # (outputs,)
            found[name] = (tensor / scale.view(-1, *[1] * (tensor.ndim - 1))).round().to(torch.int8)
            found[name + SCALE] = scale
        elif tensor.is_floating_point() or name.endswith("num_batches_tracked"):
            found[name] = tensor
    return found


def _unpacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `_packed`, up to rounding; other tensors as they are."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith(SCALE):
            continue
        if tensor.dtype == torch.int8 and name + SCALE in tensors:
            tensor = tensor.float() * tensors[name + SCALE].view(-1, *[1] * (tensor.ndim - 1))
        found[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
    return found


def load_tokenizer(given: PathOrHub | str) -> tuple[Tokenizer, Card]:
    """Read a tokenizer directory, or one of the package or the hub by its name; no code in it can run."""
    path = local(path_or_hub(given))
    if not path.exists() and str(path) in packaged():
        path = PACKAGED / path
    if not (path / SETTINGS).is_file():
        raise InputError(f"no tokenizer in {path}", "train one with 'tilework tokenizer train IMAGES'")
    try:
        settings = read_json(path / SETTINGS)
        if settings["version"] != 1:
            raise DamageError(f"{path} has tokenizer version {settings['version']}, not 1", "update Tilework")
        config = decode(ModelConfig, settings["model"], "model")
        size = decode(tuple[int, int], settings["size"], "size")
        card = Card(settings["name"], settings["sha256"], size, str(settings.get("origin", "")), path)
    except (ArithmeticError, ValueError, KeyError, TypeError, RuntimeError, ConfigError) as error:
        raise DamageError(f"{path / SETTINGS} is malformed", f"restore it ({error!r})") from error
    if not (path / WEIGHTS).is_file() or sha256(path / WEIGHTS) != card.sha256:
        raise DamageError(f"{path / WEIGHTS} is missing or damaged", "restore it")
    try:
        tensors = _unpacked(load_tensors((path / WEIGHTS).read_bytes()))
        most = 2 * sum(value.numel() for value in tensors.values()) + SMALLEST
        with without_memory(most + WHOLE, len(tensors)):
            sizes = sum(value.numel() for value in config.build(3, card.size, 0).state_dict().values())
        if sizes > most:
            raise ValueError(f"{sizes:,} numbers are asked for")
        tokenizer = config.build(3, card.size, 0)
        tokenizer.load_state_dict(tensors)
    except (ArithmeticError, ValueError, TypeError, RuntimeError, ConfigError) as error:
        raise DamageError(f"{path / WEIGHTS} does not fit its settings", " ".join(str(error).split())) from error
    if not isinstance(tokenizer, Tokenizer):
        raise TileworkError(f"{path} holds a {type(tokenizer).__name__}, not a tokenizer")
    return tokenizer.eval(), card


def decoder_of(path: PathOrHub | str, codebook: Codebook) -> tuple[Tokenizer, Tensor]:
    """The tokenizer of a data set's codes, and its number of each of them, (K,); refuses another tokenizer."""
    tokenizer, _ = load_tokenizer(path)
    tokenizer.check_grid()
    if not tokenizer.decodes:
        raise ConfigError(f"the tokenizer {path} has no decoder", "give a tokenizer that has one")
    positions = codebook.positions_in(Codebook.of(tokenizer.codebook.detach().cpu().numpy()))
    if positions is None:
        raise ConfigError(f"{path} has other codes than the data", "give the tokenizer that the data were made with")
    return tokenizer.requires_grad_(False), torch.from_numpy(positions)
