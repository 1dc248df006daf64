"""Edges that are joined to strong ones, and distances to edges, for spatter.

B batch | H, W pixels
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit


@jit
def join(found: np.ndarray, thin: np.ndarray) -> int:
    """All thin edges that touch what is found, or one of themselves that does, in place. Both: (B, H, W) bool."""
    height, width = found.shape[1], found.shape[2]
    waiting = np.empty(height * width, np.int64)
    for image in range(len(found)):
        count = 0
        for row in range(height):
            for column in range(width):
                if found[image, row, column]:
                    waiting[count] = row * width + column
                    count += 1
        while count:
            count -= 1
            row, column = waiting[count] // width, waiting[count] % width
            for down in range(max(row - 1, 0), min(row + 2, height)):
                for right in range(max(column - 1, 0), min(column + 2, width)):
                    if thin[image, down, right] and not found[image, down, right]:
                        found[image, down, right] = True
                        waiting[count] = down * width + right
                        count += 1
    return -1


@jit
def distance(edge: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> int:
    """Length of the shortest way to an edge. edge: (B, H, W) bool; out: like it, float32.

    lengths: (n, n + 1) of the ways so many rows down and columns across, all of them at most the last.
    """
    height, width, farthest = edge.shape[1], edge.shape[2], len(lengths) - 1
    beside = np.empty((height, width), np.int64)  # columns to an edge of the same row
    for image in range(len(edge)):
        for row in range(height):
            since = farthest + 1
            for column in range(width):
                since = 0 if edge[image, row, column] else min(since + 1, farthest + 1)
                beside[row, column] = since
            for column in range(width - 1, -1, -1):
                since = 0 if edge[image, row, column] else min(since + 1, farthest + 1)
                beside[row, column] = min(beside[row, column], since)
        for row in range(height):
            for column in range(width):
                least = np.float32(farthest)
                for away in range(farthest + 1):
                    if least <= away:
                        break
                    nearest = farthest + 1
                    if row >= away:
                        nearest = beside[row - away, column]
                    if row + away < height:
                        nearest = min(nearest, beside[row + away, column])
                    least = min(least, lengths[away, nearest])
                out[image, row, column] = least
    return -1
