"""Label maps that follow their images: top classes and scores of each position, moved and mixed as they are (LV-ViT).

B batch | h, w map | k classes of a position | H, W token grid | N = H W | p, q points of a token | M classes per target
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.affine import follow
from tilework.core.batch import Mix, Target
from tilework.core.errors import ConfigError

FINE = 4  # steps in each direction by which the filled part of a point's cell is measured


@dataclass(frozen=True)
class ScoreMap:
    """A map of the whole image, row = y, and where the input lies on it; looked up once, on the grid of the tokens."""

    ids: Tensor  # (B, h, w, k)
    weight: Tensor  # (B, h, w, k) beyond the class's part of the spread
    spread: Tensor  # (B, h, w) shared by all classes alike, elsewhere included; with the weights of a position: 1
    affine: Tensor | None = None  # (B, 2, 3) from the input to the map; None: the whole
    frames: tuple[Tensor, ...] = ()  # (B, 2, 3) each, from the input to an image beyond whose edges nothing is shown
    mixed: Mix | None = None

    @staticmethod
    def of_scores(ids: Tensor, scores: Tensor, classes: int, elsewhere: Tensor | None = None) -> ScoreMap:
        """What scores leave of 1 is spread evenly over the other classes, but no class gets more than a named one.

        A class keeps its score unless it lies below the level of the others: then it is one of them. So where nothing
        is recognised the label is flat. Rounded scores may sum to more than 1 by their steps: they are divided by it.
        elsewhere: (B, h, w), the share of what the data do not have; it speaks for no class, so all get the same of it,
        and scores keep what they have beyond that, however few classes there are.
        ids, scores: (B, h, w, k), scores descending, classes distinct where they are above 0; classes: of the data.
        """
        apart = torch.zeros_like(scores[..., 0]) if elsewhere is None else elsewhere  # (B, h, w)
        whole = (scores.sum(-1) + apart).clamp(min=1)
        scores, apart = scores / whole[..., None], apart / whole
        most = min(scores.shape[-1], classes - 1)
        left = 1 - apart
        level = left / classes  # (B, h, w), if no class keeps its score
        for i in range(most):  # if i + 1 of them do: the lowest of these levels is where all fits
            left = left - scores[..., i]
            level = torch.minimum(level, left / (classes - 1 - i))
        level = level.clamp(min=0)
        return ScoreMap(ids, (scores - level[..., None]).clamp(min=0), classes * level + apart)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> ScoreMap:
        """Crop, flip or turn: maps are composed, nothing is interpolated yet."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be moved", "put crops and flips before mixing")
        frames = tuple(follow(frame, affine) for frame in self.frames)
        return replace(
            self,
            affine=affine if self.affine is None else follow(self.affine, affine),
            frames=(*frames, affine) if filled else frames,
        )

    def permute(self, source: Tensor) -> ScoreMap:
        """Positions of the input take each other's labels. source: (B, H, W) flat positions."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be permuted", "put swaps before mixing")
        target = self.target(source.shape[1], source.shape[2])
        assert target.spread is not None
        image, position = torch.arange(len(source), device=source.device)[:, None, None], source.long()
        return ScoreMap(target.ids[image, position], target.weight[image, position], target.spread[image, position, 0])

    def mix(self, mix: Mix) -> ScoreMap:
        """Follow a mixture of samples."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be mixed again", "leave one of them out")
        return replace(self, mixed=mix)

    def to(self, device: torch.device) -> ScoreMap:
        """The same maps on a device."""
        affine = None if self.affine is None else self.affine.to(device, non_blocking=True)
        ids, weight, spread, *frames = (
            part.to(device, non_blocking=True) for part in (self.ids, self.weight, self.spread, *self.frames)
        )
        mixed = None if self.mixed is None else self.mixed.to(device)
        return ScoreMap(ids, weight, spread, affine, tuple(frames), mixed)

    def rows(self, which: slice) -> ScoreMap:
        """Some of the samples."""
        if self.mixed is not None:
            raise ConfigError("a mixture cannot be split", "split before mixing")
        affine = None if self.affine is None else self.affine[which]
        ids, weight, spread, *frames = (part[which] for part in (self.ids, self.weight, self.spread, *self.frames))
        return ScoreMap(ids, weight, spread, affine, tuple(frames))

    def target(self, height: int, width: int) -> Target:
        """Soft labels of every token, (B, N, M), by bilinear pooling of its box; filled parts have no label.

        Every token looks at as many points in each direction as it covers positions of a whole map.
        """
        batch, rows, columns = self.ids.shape[:3]
        points = (max(1, round(rows / height)), max(1, round(columns / width)))
        centres, shown = self._shown(height * points[0], width * points[1])  # (B, H p, W q, 2), (B, H p, W q)
        places = centres if self.affine is None else _moved(self.affine, centres)
        x = ((places[..., 0] + 1) * columns / 2 - 0.5).clamp(0, columns - 1)
        y = ((places[..., 1] + 1) * rows / 2 - 0.5).clamp(0, rows - 1)
        left, top = x.floor().clamp(max=max(0, columns - 2)), y.floor().clamp(max=max(0, rows - 2))
        image = torch.arange(batch, device=x.device)[:, None, None]
        ids, weights, spreads = [], [], []
        for down in (0, 1):
            for right in (0, 1):
                row, column = (top + down).clamp(max=rows - 1).long(), (left + right).clamp(max=columns - 1).long()
                share = (1 - (y - top - down).abs()).clamp(min=0) * (1 - (x - left - right).abs()).clamp(min=0)
                share = share * shown / (points[0] * points[1])
                ids.append(self.ids[image, row, column])  # (B, H p, W q, k)
                weights.append(self.weight[image, row, column] * share[..., None])
                spreads.append(self.spread[image, row, column] * share)
        parts = (torch.cat(ids, -1), torch.cat(weights, -1), torch.stack(spreads, -1))
        labels, weight, spread = (_by_token(part, points) for part in parts)  # (B, N, p q 4 k), ..., (B, N, p q 4)
        target = Target(labels, weight, spread.sum(-1, keepdim=True))
        return target if self.mixed is None else target.mix(self.mixed.partner, self.mixed.at(height, width).flatten(1))

    def _shown(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Where to look for each cell of the input, x before y, (B, height, width, 2), and how much of it is shown.

        A cell that is filled in part looks at the middle of the rest.
        """
        device = self.ids.device
        y, x = _steps(height, device), _steps(width, device)
        centres = torch.stack([x.expand(height, -1), y[:, None].expand(-1, width)], -1)  # (height, width, 2)
        if not self.frames:
            return centres.expand(len(self.ids), -1, -1, -1), torch.ones((), device=device)
        down, across = _steps(height * FINE, device), _steps(width * FINE, device)
        far = torch.zeros(len(self.ids), len(down), len(across), device=device)  # from the middle of each image
        for frame in self.frames:  # (B, 2, 3)
            rows = frame[:, :, 1:2] * down + frame[:, :, 2:]  # (B, 2, H)
            places = rows[..., None] + (frame[:, :, :1] * across)[:, :, None]  # (B, 2, H, W)
            far = torch.maximum(far, torch.maximum(*places.abs().unbind(1)))
        inside = (far < 1).float()
        parts = torch.stack([inside, inside * across, inside * down[:, None]], 1)
        shown, *seen = F.avg_pool2d(parts, FINE).unbind(1)  # (B, height, width) each
        middle = torch.stack(seen, -1) / shown.clamp(min=1e-6)[..., None]
        partly = (shown > 0) & (shown < 1)
        return torch.where(partly[..., None], middle, centres), shown


def _steps(count: int, device: torch.device) -> Tensor:
    """Centres of equal parts of [-1, 1], (count,)."""
    return (torch.arange(count, device=device) * 2 + 1) / count - 1


def _moved(affine: Tensor, places: Tensor) -> Tensor:
    """Positions seen through a map. affine: (B, 2, 3); positions: (B, H, W, 2), x before y."""
    across, down, shift = affine[:, None, None].unbind(-1)  # (B, 1, 1, 2)
    return places[..., :1] * across + places[..., 1:] * down + shift


def _by_token(x: Tensor, points: tuple[int, int]) -> Tensor:
    """Entries of all points of a token together. x: (B, H p, W q, m); returns (B, H W, p q m)."""
    p, q = points
    return x.unflatten(2, (-1, q)).unflatten(1, (-1, p)).transpose(2, 3).flatten(3).flatten(1, 2)
