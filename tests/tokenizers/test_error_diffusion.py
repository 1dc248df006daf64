"""Error diffusion: against a slow oracle of Floyd and Steinberg's rule, and the property that it is for."""

from __future__ import annotations

import numpy as np
import torch

from tilework.tokenizers.error_diffusion import diffuse


def slow(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """One image at a time, in float64: the textbook loop, rows in turn from both sides. x: (h, w, C)."""
    left, ids = x.astype(np.float64).copy(), np.zeros(x.shape[:2], int)
    height, width = ids.shape
    for i in range(height):
        s = 1 if i % 2 == 0 else -1
        for j in range(width) if s == 1 else reversed(range(width)):
            ids[i, j] = np.square(table - left[i, j]).sum(1).argmin()
            error = left[i, j] - table[ids[i, j]]
            targets = {(i, j + s): 7, (i + 1, j - s): 3, (i + 1, j): 5, (i + 1, j + s): 1}
            targets = {at: w for at, w in targets.items() if at[0] < height and 0 <= at[1] < width}
            for at, weight in targets.items():
                left[at] += error * weight / sum(targets.values())
    return ids


def codes_of(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return diffuse(x, lambda y: torch.cdist(y, table).argmin(-1), lambda ids: table[ids])


def test_as_the_textbook_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    x, table = torch.randn(3, 4, 5, 2, generator=generator), torch.randn(9, 2, generator=generator)
    found = codes_of(x, table)
    for image, ids in zip(x.numpy(), found.numpy(), strict=True):
        np.testing.assert_array_equal(ids, slow(image, table.numpy()))


def test_the_mean_is_kept_where_the_nearest_code_errs_everywhere_alike() -> None:
    x, table = torch.full((1, 8, 8, 1), 0.3), torch.tensor([[0.0], [1.0]])
    nearest = torch.cdist(x, table).argmin(-1)
    assert float(table[nearest].mean()) == 0.0
    assert abs(float(table[codes_of(x, table)].mean()) - 0.3) < 1 / 64


def test_the_input_stays_and_a_single_position_is_the_nearest_code() -> None:
    x, table = torch.randn(2, 1, 1, 3), torch.randn(5, 3)
    before = x.clone()
    assert torch.equal(codes_of(x, table), torch.cdist(x, table).argmin(-1))
    assert torch.equal(x, before)
