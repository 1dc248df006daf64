"""TokenAdapt's training: codes of augmented images from augmented maps of codes (SeiT++, eqs. 2 and 3).

Where a position has several codes, as DCT coefficients, there is no codebook to choose from: vectors are regressed.

B batch | C code dim | H, W pixels | h, w code grid | K codes
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.augment.adapter import save_adapter
from tilework.augment.affine import Geometry, warp
from tilework.augment.mixing import CutMixOrMixup
from tilework.core.artefact import artefact
from tilework.core.batch import Batch, Mix
from tilework.core.bounds import check_shares
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import ModelConfig, TokenAdaptModelConfig
from tilework.objectives.objective import Objective, ObjectiveConfig
from tilework.objectives.task import Task
from tilework.tokenizers import Tokenizer, load_tokenizer
from tilework.tokenizers.decode_encode import mixed
from tilework.tokenizers.tokenizer import Card


@ObjectiveConfig.choices.add("adapt")
@dataclass(frozen=True)
class AdaptConfig(ObjectiveConfig):
    """Settings of TokenAdapt's training."""

    task: ClassVar[Task] = Task(labels=False, metric="crop")  # of one code per position; see `score`
    tokenizer: str = artefact("tokenizer")  # directory
    geometry: Geometry = field(default_factory=lambda: Geometry(crop=0.5))
    mixing: CutMixOrMixup = field(default_factory=CutMixOrMixup)
    mix: float = 0.3  # probability of mixing at all

    def __post_init__(self) -> None:
        check_shares(self, "mix")

    def suit(self, model: ModelConfig, size: tuple[int, int]) -> tuple[ModelConfig, tuple[int, int]]:
        """The tokenizer's code dimension and size of images."""
        if not self.tokenizer or not isinstance(model, TokenAdaptModelConfig):
            return model, size
        tokenizer, card = load_tokenizer(self.tokenizer)
        return replace(model, code_dim=tokenizer.codebook.shape[1]), card.size

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Adapt:
        """The objective around a network, with its tokenizer."""
        if not isinstance(model, TokenAdaptNetwork):
            raise ConfigError(f"a {type(model).__name__} is no TokenAdapt", "set model to 'token_adapt'")
        if not self.tokenizer:
            raise ConfigError("objective 'adapt' needs a tokenizer", "add --tokenizer TOKENIZER")
        return Adapt(model, self, *load_tokenizer(self.tokenizer))


class Adapt(Objective):
    """Cross-entropy between the codes of A(x) and g(A(f(codes of x))), with the same A for image and map."""

    model: TokenAdaptNetwork

    def __init__(self, model: TokenAdaptNetwork, config: AdaptConfig, tokenizer: Tokenizer, card: Card) -> None:
        super().__init__()
        tokenizer.check_grid()
        if tokenizer.codebook.shape[1] != len(model.mean):
            raise ConfigError(
                f"the tokenizer's codes have {tokenizer.codebook.shape[1]} dimensions, the model {len(model.mean)}",
                "set model.code_dim",
            )
        if model.codes not in (0, len(tokenizer.codebook)):
            raise ConfigError(
                f"the tokenizer has {len(tokenizer.codebook)} codes, the model {model.codes}", "set model.codes"
            )
        if tokenizer.stacked and model.codes:
            raise ConfigError("a folder has several codes: there is no one to choose", "leave model.codes at 0")
        self.model = model
        model.regression = tokenizer.stacked
        self.config, self.card = config, card
        self._frozen = [tokenizer.requires_grad_(False)]  # in a list: neither trained nor saved
        if not tokenizer.stacked:  # those come in units of their own deviation
            model.fit_codes(tokenizer.codebook)
        elif not model.codes:
            model.log_temperature.requires_grad_(False)  # vectors are regressed without it

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer whose codes are learnt."""
        return self._frozen[0]

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean loss over all positions. Every second step gives seven eighths of the grid, as classifiers take them."""
        x, patch = batch.x, self._on(batch.x.device).patch
        size = (x.shape[2] // patch, x.shape[3] // patch)  # h, w
        if draws.step % 2 and size[0] % 8 == size[1] % 8 == 0:
            size = (size[0] * 7 // 8, size[1] * 7 // 8)
        affine = self.config.geometry.sample(draws, batch)
        mixed = draws.uniform("adapt")[:, :, None] < self.config.mix  # (B, 1, 1)
        own = torch.where(mixed, self.config.mixing.own(draws, (2 * size[0], 2 * size[1])), 1.0)
        mix = Mix(torch.arange(len(x), device=x.device).roll(1), own)
        target = self.codes(self.image(x, affine, size, mix))  # (B, h, w)
        if self.tokenizer.stacked:
            found = self.model.vectors(self.moved(self.model, self.codes(x), affine, size, mix))
            return {"loss": (found - self.vectors(target)).square().mean()}
        logits = self.predict(self.model, self.codes(x), affine, size, mix)
        return {
            "loss": F.cross_entropy(logits.flatten(0, 2), target.flatten()),
            "agreement": (logits.argmax(-1) == target).float().mean(),
        }

    def codes(self, pixels: Tensor) -> Tensor:
        """Codes of images, (B, h, w) or (B, h, w, C), in full precision as stores have them."""
        with torch.autocast(pixels.device.type, enabled=False):
            return self._on(pixels.device).encode(pixels).clone()  # a copy may take part in training

    def image(self, x: Tensor, affine: Tensor, size: tuple[int, int], mix: Mix | None = None) -> Tensor:
        """A(x) in pixels, for a code grid of `size`; boxes of a mixture end where they do on the map."""
        patch = self.tokenizer.patch
        return mixed(warp(x, affine, (size[0] * patch, size[1] * patch)), mix)

    def vectors(self, ids: Tensor) -> Tensor:
        """Code vectors as a map. ids: (B, h, w) or (B, h, w, C); returns (B, C, h, w)."""
        return self._on(ids.device).vectors(ids).permute(0, 3, 1, 2)

    def moved(
        self, model: TokenAdaptNetwork, ids: Tensor, affine: Tensor, size: tuple[int, int], mix: Mix | None = None
    ) -> Tensor:
        """A(f(codes of x)), (B, C, 2 h', 2 w')."""
        moved = warp(model.f(self.vectors(ids)), affine, (2 * size[0], 2 * size[1]))
        return moved if mix is None else mix.apply(moved)

    def predict(
        self, model: TokenAdaptNetwork, ids: Tensor, affine: Tensor, size: tuple[int, int], mix: Mix | None = None
    ) -> Tensor:
        """Logits of the codes of A(x) from the codes of x. ids: (B, h, w); returns (B, h', w', K)."""
        return model.g(self.moved(model, ids, affine, size, mix), self._on(ids.device).codebook)

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Share of equal codes for identity, flip, affine and crop: through the model, and of the grid itself.

        `_distance`: how far their vectors lie from the right ones, which near-synonyms hardly do; 1 is the distance of
        two codes drawn at random. Where a position has several codes: the squared error of their vectors instead.
        """
        assert isinstance(model, TokenAdaptNetwork)
        x, draws = batch.x, Draws(0, 0, batch.index)
        ids, size = self.codes(x), (x.shape[2] // self.tokenizer.patch, x.shape[3] // self.tokenizer.patch)
        still = Geometry(crop=0.0, flip=0.0, turn=0.0)
        kinds = {
            "identity": still,
            "flip": Geometry(crop=0.0, flip=1.0, turn=0.0),
            "affine": Geometry(crop=0.0, flip=0.0, turn=1.0),
            "crop": Geometry(crop=1.0, flip=0.0, turn=0.0),
        }
        found = {}
        for name, geometry in kinds.items():
            affine = geometry.sample(draws, batch)
            target = self.codes(self.image(x, affine, size))
            if self.tokenizer.stacked:
                wanted, known = self.vectors(target), self.vectors(ids)
                there = model.vectors(self.moved(model, ids, affine, size))
                found[f"{name}_error"] = (there - wanted).square().mean((1, 2, 3))
                found[f"{name}_grid_error"] = (warp(known, affine, size) - wanted).square().mean((1, 2, 3))
                continue
            there = self.predict(model, ids, affine, size).argmax(-1)
            grid = nearest_places(ids, affine)
            found[name] = (there == target).float().mean((1, 2))
            found[f"{name}_grid"] = (grid == target).float().mean((1, 2))
            found[f"{name}_distance"] = self.distance(there, target)
            found[f"{name}_grid_distance"] = self.distance(grid, target)
        return found

    def distance(self, one: Tensor, other: Tensor) -> Tensor:
        """Mean distance of code vectors over that of two codes drawn at random (root mean square). Both (B, h, w)."""
        codebook = self._on(one.device).codebook
        usual = (2 * codebook.var(0, correction=0).sum()).sqrt().clamp(min=1e-12)
        return (codebook[one] - codebook[other]).norm(dim=-1).mean((1, 2)) / usual

    def save_artefact(self, model: nn.Module, out: Path) -> None:
        """OUT/token_adapt, for the augmentation of that name."""
        assert isinstance(model, TokenAdaptNetwork)
        folder = out / "token_adapt"
        if not folder.exists():
            card = {"name": self.card.name, "sha256": self.card.sha256}
            save_adapter(folder, model, self.tokenizer.codebook, card)

    def _on(self, device: torch.device) -> Tokenizer:
        return self.tokenizer.to(device)


def nearest_places(ids: Tensor, affine: Tensor) -> Tensor:
    """The grid itself moved, each position taking the nearest code. ids: (B, h, w)."""
    places = F.affine_grid(affine, [len(ids), 1, *ids.shape[1:]], align_corners=False)
    moved = F.grid_sample(ids[:, None].float(), places, mode="nearest", padding_mode="border", align_corners=False)
    return moved[:, 0].long()
