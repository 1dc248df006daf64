"""Pixels displaced one after another, for glass blur.

B batch | H, W pixels | n pixels that are visited in a round
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit


@jit
def displace(x: np.ndarray, moves: np.ndarray, shifts: np.ndarray, reach: int, width: int) -> int:
    """Glass blur's sequence, in place.

    x: (B, H W) int32, the channels of a pixel in one number; moves: (B, rounds, n), as drawn; shifts: how far the
    pixel of each move lies from the one visited.
    """
    height = x.shape[1] // width
    for image in range(len(x)):
        pixels = x[image]
        for turn in range(moves.shape[1]):
            drawn = moves[image, turn]
            visit = 0
            for row in range(height - reach, reach, -1):
                for place in range(row * width + width - reach, row * width + reach, -1):
                    pixels[place] = pixels[place + shifts[drawn[visit]]]
                    visit += 1
    return -1


def check() -> None:
    """Raise if this machine does not compile or compute as it should."""
    x = np.arange(16, dtype=np.int32).reshape(1, 16)
    displace(
        x, np.zeros((1, 1, 4), np.int32), np.array([-5, -4, -1, 0]), 1, 4
    )  # each takes the pixel up and left of it
    if x[0].tolist() != [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5, 6, 12, 13, 9, 10]:
        raise RuntimeError("a compiled kernel gave a wrong result")
