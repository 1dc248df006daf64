"""Vector-quantised knowledge distillation: codes from which a teacher's feature map can be restored (BEiT v2, Peng et
al., 2022; section 2.2, eq. 2), beside or instead of pixels.

The teacher is a tokenizer of a frozen network's map ('tilework tokenizer teacher', or the one in the box). A decoder
that only training needs restores its map from code vectors; the loss is one minus the cosine at every position. The
warm steps, k-means start and revival of codes are those of `reconstruct`.

B batch | H, W pixels | h, w code grid | C code dim | D channels of the teacher | y, x grid of its map
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.layers.conv_block import ConvBlock
from tilework.layers.pixel_decoder import resized
from tilework.objectives.objective import ObjectiveConfig
from tilework.objectives.reconstruct import Reconstruct, ReconstructConfig
from tilework.objectives.task import Task
from tilework.tokenizers.teacher_codes import TeacherCodes
from tilework.tokenizers.tokenizer import Tokenizer, load_tokenizer


@ObjectiveConfig.choices.add("distil")
@dataclass(frozen=True)
class DistilConfig(ReconstructConfig):
    """Settings of vector-quantised knowledge distillation."""

    task: ClassVar[Task] = Task(labels=False, metric="cosine")
    teacher: str = "box"  # directory of a tokenizer of a frozen network's map
    teacher_scale: float = 1.0  # of the images that the teacher sees, beside those of the tokenizer
    feature: float = 1.0  # weight of the teacher's map
    pixel: float = 0.0  # weight of the pixels
    width: int = 192  # of the decoder that restores the map
    depth: int = 2
    heads: int = 8  # groups of its norm

    def check(self, classes: tuple[str, ...], steps: int) -> None:
        """Something must be restored."""
        super().check(classes, steps)
        if self.feature <= 0 or self.pixel < 0 or self.teacher_scale <= 0:
            what = f"objective.feature={self.feature:g}, pixel={self.pixel:g}, teacher_scale={self.teacher_scale:g}"
            raise ConfigError(what, "set feature and teacher_scale above 0; 'reconstruct' needs no teacher")

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> Distil:
        """The objective around a tokenizer."""
        super().build(model, codebook)  # refuses what has nothing to train
        assert isinstance(model, Tokenizer)
        model.check_grid()
        teacher, _ = load_tokenizer(self.teacher)
        if not isinstance(teacher, TeacherCodes):
            what = f"{self.teacher} is a {type(teacher).__name__}, without a teacher's map"
            raise ConfigError(what, "make one with 'tilework tokenizer teacher'")
        return Distil(model, self, teacher)


class Distil(Reconstruct):
    """Error of the teacher's map, and of the image where it counts, through the codes."""

    def __init__(self, model: Tokenizer, config: DistilConfig, teacher: TeacherCodes) -> None:
        super().__init__(model, config)
        self.distil = config
        self._frozen = [teacher.requires_grad_(False)]  # in a list: neither trained nor saved
        width = config.width
        self.decoder = nn.Sequential(
            nn.Conv2d(model.codebook.shape[1], width, 1),
            *(ConvBlock(width, config.heads) for _ in range(config.depth)),
            nn.Conv2d(width, teacher.channels, 1),
        )

    def map(self, pixels: Tensor) -> Tensor:
        """The teacher's map. pixels: (B, 3, H, W) in [0, 1]; returns (B, D, y, x)."""
        teacher, scale = self._frozen[0].to(pixels.device), self.distil.teacher_scale
        sides = [max(1, round(side * scale / teacher.patch)) * teacher.patch for side in pixels.shape[2:]]
        size = teacher.size or (sides[0], sides[1])
        with torch.no_grad(), torch.autocast(pixels.device.type, enabled=False):
            seen = pixels if pixels.shape[2:] == size else F.interpolate(
                pixels, size, mode="bilinear", antialias=True, align_corners=False)  # fmt: skip
            return teacher.map(seen.clamp(0, 1)).permute(0, 3, 1, 2)

    def restored(self, vectors: Tensor, grid: tuple[int, int]) -> Tensor:
        """The map as code vectors give it. vectors: (B, h, w, C); returns (B, D, y, x)."""
        return resized(self.decoder(vectors.permute(0, 3, 1, 2)), grid)

    def decoded(self, vectors: Tensor, batch: Batch, step: int) -> dict[str, Tensor]:
        """What is minimised of the map and of the image."""
        wanted = self.map(batch.x)
        cosine = F.cosine_similarity(self.restored(vectors, (wanted.shape[2], wanted.shape[3])), wanted, dim=1).mean()
        found = {"loss": self.distil.feature * (1 - cosine), "cosine": cosine.detach()}
        if self.distil.pixel:
            pixels = super().decoded(vectors, batch, step)
            found = {**pixels, **found, "loss": found["loss"] + self.distil.pixel * pixels["loss"]}
        else:  # the decoder of pixels has no part in this
            unused = sum(0 * p.sum() for name, p in self.model.named_parameters() if p.requires_grad)
            found["loss"] = found["loss"] + unused
        return found

    @torch.no_grad()
    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Cosine to the teacher's map of each image; and its squared error where pixels count."""
        assert isinstance(model, Tokenizer)
        wanted = self.map(batch.x)
        restored = self.restored(model.vectors(model.encode(batch.x).clone()), (wanted.shape[2], wanted.shape[3]))
        found = {"cosine": F.cosine_similarity(restored, wanted, dim=1).mean((1, 2))}
        return {**super().score(model, batch), **found} if self.distil.pixel else found

    def pictures(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Those of `reconstruct`, where pixels are restored."""
        return super().pictures(model, batch) if self.distil.pixel else {}
