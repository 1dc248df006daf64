"""Label maps that follow their images: top classes and scores of each place, moved and mixed like the input (LV-ViT).

B batch | h, w map | k classes of a place | H, W token grid | N = H W | M classes of a target
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.affine import follow
from tilework.core.batch import Mix, Target
from tilework.core.errors import ConfigError


@dataclass(frozen=True)
class ScoreMap:
    """A map of the whole image, row = y, and where the input lies on it; looked up once, on the grid of the tokens."""

    ids: Tensor  # (B, h, w, k)
    scores: Tensor  # (B, h, w, k); those of a place sum to at most 1
    affine: Tensor | None = None  # (B, 2, 3) from the input to the map; None: the whole
    mixed: Mix | None = None

    def warp(self, affine: Tensor, grid: tuple[int, int]) -> ScoreMap:
        """Crop, flip or turn: maps are composed, nothing is interpolated yet."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be moved", "put crops and flips before mixing")
        return replace(self, affine=affine if self.affine is None else follow(self.affine, affine))

    def permute(self, source: Tensor) -> ScoreMap:
        """Places of the input take each other's labels. source: (B, H, W) flat places."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be permuted", "put swaps before mixing")
        target = self.target(source.shape[1], source.shape[2])
        index = source.flatten(1)[..., None].expand(-1, -1, target.ids.shape[2])
        ids, scores = (part.gather(1, index).unflatten(1, source.shape[1:]) for part in (target.ids, target.weight))
        return ScoreMap(ids, scores)

    def mix(self, mix: Mix) -> ScoreMap:
        """Follow a mixture of samples."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be mixed again", "leave one of them out")
        return replace(self, mixed=mix)

    def to(self, device: torch.device) -> ScoreMap:
        """The same maps on a device."""
        affine = None if self.affine is None else self.affine.to(device, non_blocking=True)
        ids, scores = (part.to(device, non_blocking=True) for part in (self.ids, self.scores))
        return ScoreMap(ids, scores, affine, None if self.mixed is None else self.mixed.to(device))

    def rows(self, which: slice) -> ScoreMap:
        """Some of the samples."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be split", "split before mixing")
        return ScoreMap(self.ids[which], self.scores[which], None if self.affine is None else self.affine[which])

    def target(self, height: int, width: int) -> Target:
        """Soft labels of every token, (B, N, M), each summing to one: bilinear pooling of the box of each token.

        Every token looks at as many points in each direction as it covers places of a whole map.
        """
        batch, rows, columns = self.ids.shape[:3]
        points = (max(1, round(rows / height)), max(1, round(columns / width)))
        whole = torch.eye(2, 3, device=self.ids.device).expand(batch, 2, 3) if self.affine is None else self.affine
        fine = (height * points[0], width * points[1])
        places = F.affine_grid(whole, [batch, 1, *fine], align_corners=False)  # (B, H p, W q, 2), x before y
        x = ((places[..., 0] + 1) * columns / 2 - 0.5).clamp(0, columns - 1)
        y = ((places[..., 1] + 1) * rows / 2 - 0.5).clamp(0, rows - 1)
        left, top = x.floor().clamp(max=max(0, columns - 2)), y.floor().clamp(max=max(0, rows - 2))
        image = torch.arange(batch, device=x.device)[:, None, None]
        ids, weights = [], []
        for down in (0, 1):
            for right in (0, 1):
                row, column = (top + down).clamp(max=rows - 1).long(), (left + right).clamp(max=columns - 1).long()
                share = (1 - (y - top - down).abs()).clamp(min=0) * (1 - (x - left - right).abs()).clamp(min=0)
                ids.append(self.ids[image, row, column])  # (B, H p, W q, k)
                weights.append(self.scores[image, row, column] * share[..., None])
        labels, weight = (_by_token(torch.cat(parts, -1), points) for parts in (ids, weights))  # (B, N, p q 4 k)
        weight = weight / weight.sum(-1, keepdim=True).clamp(min=1e-12)
        target = Target(labels, weight)
        return target if self.mixed is None else target.mix(self.mixed.partner, self.mixed.at(height, width).flatten(1))


def _by_token(x: Tensor, points: tuple[int, int]) -> Tensor:
    """Entries of all points of a token together. x: (B, H p, W q, m); returns (B, H W, p q m)."""
    p, q = points
    return x.unflatten(2, (-1, q)).unflatten(1, (-1, p)).transpose(2, 3).flatten(3).flatten(1, 2)
