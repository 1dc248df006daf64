"""Glass blur of ImageNet-C: blurred, pixels displaced one after another, blurred again.

B batch | H, W pixels | n pixels that are visited in a round
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tilework.core.compiled import kernels
from tilework.evaluation.corruptions.blur import gaussian
from tilework.evaluation.corruptions.kind import Corruption, in_unit, to_bytes
from tilework.evaluation.noise import Noise

FEW = 3  # images


def _reach(c: tuple[float, int, int], scale: float) -> int:
    return max(1, round(c[1] * scale))


def _moves(noise: Noise, x: Tensor, c: tuple[float, int, int], scale: float) -> Tensor:
    """Which pixel of a square of 2 reach x 2 reach, by rows, takes the place of each visited one, (B, rounds, n)."""
    reach = _reach(c, scale)
    visits = max(0, x.shape[2] - 2 * reach) * max(0, x.shape[3] - 2 * reach)
    return noise.small_integers(4 * reach**2, c[2], visits)


def _glass(x: Tensor, c: tuple[float, int, int], moves: Tensor, scale: float) -> Tensor:
    return _blurred(displace(_blurred(x, c[0] * scale), moves, _reach(c, scale)), c[0] * scale)


def _blurred(x: Tensor, sd: float) -> Tensor:
    """Bytes to bytes, a few images at a time: more than a cache holds are slow."""
    return torch.cat([to_bytes(gaussian(in_unit(part), sd)) for part in x.split(FEW)])


def displace(x: Tensor, moves: Tensor, reach: int) -> Tensor:
    """Every pixel replaced by a near one, from the lower right, in sequence. x: (B, 3, H, W) uint8; moves: as drawn.

    ImageNet-C means to swap both, but its assignment reads what it has just written.
    """
    fast = kernels("tilework.evaluation.kernels")
    if fast is None:
        return displace_lines(x, moves, reach)
    batch, _, height, width = x.shape
    packed = np.zeros((batch, height * width, 4), np.uint8)  # a pixel is one number
    packed[..., :3] = x.flatten(2).permute(0, 2, 1).numpy()
    down, right = np.divmod(np.arange(4 * reach**2), 2 * reach)
    shifts = (down - reach) * width + right - reach
    fast.displace(packed.view(np.int32)[..., 0], moves.contiguous().numpy(), shifts, reach, width)
    return torch.from_numpy(packed[..., :3]).permute(0, 2, 1).contiguous().view(x.shape)


def displace_lines(x: Tensor, moves: Tensor, reach: int) -> Tensor:
    """The same without a compiled kernel.

    Moves that touch no common pixel change places freely: pixels whose (2 reach + 1) * row + column agree, a slanted
    line, are replaced at once, and a round begins (2 reach + 1)^2 lines after the one before.
    """
    batch, _, height, width = x.shape
    rounds, apart = moves.shape[1], 2 * reach + 1
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    at = (rows[:, None] * width + columns).ravel()  # visited in this order, (n,)
    line = ((rows[:1] - rows)[:, None] * apart + (columns[:1] - columns)).ravel()
    line = (line + apart**2 * np.arange(rounds)[:, None]).ravel()  # (rounds n,)
    order = np.argsort(line, kind="stable")
    down, right = np.divmod(np.arange(4 * reach**2), 2 * reach)
    shifts = (((down - reach) * width + right - reach) * batch).astype(np.int32)
    shift = np.ascontiguousarray(shifts.take(moves.flatten(1).numpy()[:, order].T))  # (rounds n, B)
    packed = np.zeros((height * width, batch, 4), np.uint8)
    packed[..., :3] = x.flatten(2).permute(2, 0, 1).numpy()
    values = packed.view(np.int32)[..., 0]  # (H W, B): a pixel of all images lies together
    flat, visited, images = values.reshape(-1), np.tile(at, rounds)[order], np.arange(batch)
    start = 0
    for end in np.cumsum(np.bincount(line)).tolist():
        these = visited[start:end]
        values[these] = flat.take((these * batch)[:, None] + images + shift[start:end])
        start = end
    return torch.from_numpy(packed[..., :3]).permute(1, 2, 0).contiguous().view(x.shape)


GLASS = Corruption(((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)), _glass, _moves, together=16)
