"""Token-EDA: codes replaced by synonyms, or two squares of codes exchanged (SeiT; after EDA, Wei and Zou, 2019).

B batch | H, W code grid | K codes | C code dim | n synonyms of a code
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import torch
from torch import Tensor

from tilework.augment.augment import CPU, Augment, Step, need_vectors
from tilework.augment.compiled import draw_seed, kernels_for, kernels_for_draws, over_samples
from tilework.core.batch import Batch, Stage
from tilework.core.codebook import Codebook
from tilework.core.rng import Draws


@dataclass(frozen=True)
class Squares:
    """Two squares of each sample that change places; a side of 0 leaves the sample alone."""

    side: Tensor  # (B,) int64
    first: Tensor  # (B, 2) row and column of the upper left corner
    second: Tensor  # (B, 2)


@dataclass(frozen=True)
class Edits:
    """What happens to the codes of each sample."""

    dense: Tensor  # (B, H, W) in [0, 1): what falls below n / factor chooses among n synonyms
    factor: Tensor  # (B,)
    count: int  # n
    squares: Squares

    @property
    def synonym(self) -> Tensor:
        """Which synonym a code gives way to, (B, H, W) int32; n: it stays."""
        return (self.dense * self.factor[:, None, None]).clamp_(max=self.count).int()


def replace_synonyms(ids: Tensor, table: Tensor, synonym: Tensor) -> Tensor:
    """Codes or their synonyms. ids: (B, H, W); table: (K, n + 1), each code itself last; synonym: (B, H, W)."""
    return table.view(-1).index_select(0, (ids * table.shape[1]).add_(synonym).view(-1)).view_as(ids)


def swap_source(p: Squares, grid: tuple[int, int], largest: int) -> Tensor:
    """Where each position takes its code from, flat. largest: bound of the sides; returns (B, H W) int64."""
    height, width = grid
    step = torch.arange(largest, device=p.side.device)
    inside = (step < p.side[:, None])[:, :, None] & (step < p.side[:, None])[:, None, :]  # (B, largest, largest)
    block = step[:, None] * width + step

    def places(corner: Tensor) -> Tensor:
        """Flat positions of a square; what is not of it lies just behind the grid."""
        at = (corner[:, 0] * width + corner[:, 1])[:, None, None] + block
        return torch.where(inside, at, height * width).flatten(1)

    first, second = places(p.first), places(p.second)
    source = torch.arange(height * width + 1, device=p.side.device).repeat(len(p.side), 1)
    return source.scatter_(1, torch.cat([first, second], 1), torch.cat([second, first], 1))[:, :-1]


def swap_squares(ids: Tensor, p: Squares) -> Tensor:
    """Exchange two equal squares of codes. ids: (B, H, W); returns a new tensor."""
    grid = (ids.shape[1], ids.shape[2])
    return ids.flatten(1).gather(1, swap_source(p, grid, min(grid))).view_as(ids)


def sample_squares(u: Tensor, side: Tensor, grid: tuple[int, int]) -> Squares:
    """Corners, each pair equally likely whose larger distance by row or column exceeds the side: they never overlap.

    u: (B, 3) in [0, 1): row and column of the first, choice of the second; side: (B,) int64.
    """
    if fast := kernels_for(side.int()):
        side, corners = side.clone(), torch.empty(2, len(side), 2, dtype=torch.int64)
        fast.squares(u.contiguous().numpy(), side.numpy(), *grid, *corners.numpy())
        return Squares(side, corners[0], corners[1])
    rows, columns = (n - side + 1 for n in grid)  # positions for a corner
    row, column = (u[:, 0] * rows).long(), (u[:, 1] * columns).long()
    top, left = (row - side).clamp(min=0), (column - side).clamp(min=0)
    high = torch.minimum(row + side + 1, rows) - top  # a block of corners too near
    wide = torch.minimum(column + side + 1, columns) - left
    free = columns - wide  # corners in a row that crosses the block
    above, beside = top * columns, high * free
    number = (u[:, 2] * (rows * columns - high * wide)).long()  # the second, counted row by row over the others
    at = number - above
    crosses = (at >= 0) & (at < beside)
    below = at >= beside
    across = torch.where(crosses, at % free.clamp(min=1), torch.where(below, at - beside, number) % columns)
    across = across + (crosses & (across >= left)) * wide
    down = torch.where(crosses, top + at // free.clamp(min=1), number // columns)
    down = torch.where(below, top + high + (at - beside) // columns, down)
    exists = rows * columns > high * wide  # else the grid is too small for two of them
    second = torch.stack([down, across], 1)
    return Squares(side * exists, torch.stack([row, column], 1), second)


def _uniforms(ids: Tensor, wanted: Tensor) -> Tensor:
    """A number in [0, 1) for each code of the samples wanted, (B, H, W). ids: (B, H, W); wanted: (B,)."""
    if not (fast := kernels_for_draws(ids.device)):
        return torch.rand(ids.shape, device=ids.device)
    out = torch.empty(ids.shape)
    over_samples(fast.uniforms, (torch.arange(len(out)), wanted, out.flatten(1)), draw_seed())
    return out


@Augment.choices.add("token_eda")
@dataclass(frozen=True)
class TokenEda(Augment):
    """One of: some codes give way to one of their nearest, two squares change places, nothing.

    The squares' side is uniform up to `side` of the grid's.
    """

    stages: ClassVar[tuple[Stage, ...]] = ("ids",)
    dense: ClassVar[bool] = True
    synonym: float = 0.25  # probability of a sample; 0: off
    swap: float = 0.25  # probability of a sample; 0: off
    replaced: float = 0.25  # share of the codes of such a sample
    nearest: int = 5  # synonyms of a code, by cosine
    side: float = 0.25

    def __post_init__(self) -> None:
        if min(self.synonym, self.swap) < 0 or self.synonym + self.swap > 1:
            raise ValueError(f"synonym {self.synonym} and swap {self.swap} are no probabilities of exclusive choices")
        if not (0 <= self.replaced <= 1 and 0 <= self.side <= 0.5 and self.nearest >= 1):
            raise ValueError("replaced must lie in [0, 1], side in [0, 0.5], nearest must be at least 1")

    def needs_grid(self) -> bool:
        """Squares have positions, synonyms do not."""
        return self.swap > 0

    def build(self, codebook: Codebook | None = None, device: torch.device = CPU) -> EditCodes:
        """With the synonyms of a codebook."""
        near = torch.from_numpy(need_vectors(codebook, self).nearest(self.nearest))
        itself = torch.arange(len(near), dtype=torch.int32)[:, None]
        return EditCodes(self, torch.cat([near, itself], 1).to(device))


@dataclass(frozen=True, eq=False)
class EditCodes(Step[Edits]):
    """Token-EDA with the synonyms of the data's codes."""

    config: TokenEda
    table: Tensor  # (K, n + 1) synonyms of each code, then itself

    def sample(self, draws: Draws, batch: Batch) -> Edits:
        """Which edit each sample gets, and its positions."""
        config, (height, width) = self.config, batch.x.shape[1:]
        u = draws.uniform("token_eda", 5)  # (B, 5): which edit, side, corners
        swapped = (u[:, 0] >= config.synonym) & (u[:, 0] < config.synonym + config.swap)
        side = (u[:, 1] * (config.side * min(height, width))).long() * swapped
        share = (u[:, 0] < config.synonym) * config.replaced
        dense = _uniforms(batch.x, u[:, 0] < config.synonym)
        count = self.table.shape[1] - 1
        squares = sample_squares(u[:, 2:], side, (height, width))
        return Edits(dense, count / share.clamp(min=1e-12), count, squares)

    def apply(self, batch: Batch, p: Edits) -> Batch:
        """x: (B, H, W) codes; columns follow the squares."""
        if not batch.columns and (fast := kernels_for(batch.x)):
            squares, out = p.squares, torch.empty_like(batch.x, memory_format=torch.contiguous_format)
            samples = batch.x, p.dense, p.factor, squares.side, squares.first, squares.second, out
            over_samples(fast.edit, samples, self.table)
            return batch.changed(x=out)
        grid = (batch.x.shape[1], batch.x.shape[2])
        source = swap_source(p.squares, grid, ceil(self.config.side * min(grid)))
        ids = replace_synonyms(batch.x, self.table, p.synonym)
        columns = {name: column.permute(source.view_as(ids)) for name, column in batch.columns.items()}
        return batch.changed(x=ids.flatten(1).gather(1, source).view_as(ids), columns=columns)
