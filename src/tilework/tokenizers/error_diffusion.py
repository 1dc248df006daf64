"""Error diffusion over feature maps: what a code misses is handed to the positions after it (Floyd & Steinberg, 1976).

Nearest codes err alike at all positions of an image whose subject the codebook does not know, and the mean of their
vectors keeps that error. Diffused, the errors cancel as long as the mean lies within the hull of the codes; outside it
they pile up, and the mean can become worse than that of the nearest codes.

B batch | h, w code grid | C code dim
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WEIGHTS = ((0, 1, 7.0), (1, -1, 3.0), (1, 0, 5.0), (1, 1, 1.0))  # rows below, columns ahead, sixteenths of the error


def diffuse(features: Tensor, nearest: Callable[[Tensor], Tensor], vectors: Callable[[Tensor], Tensor]) -> Tensor:
    """Codes of a map, position by position, every second row backwards. features: (B, h, w, C); returns (B, h, w, ...).

    nearest: (B, C) to codes; vectors: codes to (B, C). At the edges the positions that are left share the whole error.
    """
    height, width = features.shape[1:3]
    left = [list(row.unbind(1)) for row in features.unbind(1)]  # of each position (B, C)
    codes: dict[tuple[int, int], Tensor] = {}
    for row in range(height):
        ahead = -1 if row % 2 else 1
        for column in range(width)[::ahead]:
            here = left[row][column]
            codes[row, column] = nearest(here)
            error = here - vectors(codes[row, column])
            after = [(row + down, column + ahead * across, weight) for down, across, weight in WEIGHTS]
            after = [(r, c, weight) for r, c, weight in after if r < height and 0 <= c < width]
            for r, c, weight in after:
                left[r][c] = left[r][c] + error * (weight / sum(share for *_, share in after))
    rows = [torch.stack([codes[row, column] for column in range(width)], 1) for row in range(height)]
    return torch.stack(rows, 1)
