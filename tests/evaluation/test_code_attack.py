"""Swapped codes: exhaustive search is the bound."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from tilework.core.rng import Draws
from tilework.evaluation.code_attack import random_codes, swap_codes


def world() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A 4x4 grid of 6 codes, read by a network that is not linear."""
    generator = torch.Generator().manual_seed(3)
    table, w = torch.randn(6, 3, generator=generator), torch.randn(4, 3 * 16, generator=generator)
    ids = torch.randint(0, 6, (6, 4, 4), generator=generator)
    return table, w, ids, (vectors_of(table, ids).flatten(1).tanh() @ w.T).argmax(1)


def vectors_of(table: Tensor, ids: Tensor) -> Tensor:
    return table[ids].permute(0, 3, 1, 2)


def test_one_swap_with_all_pairs_is_the_exhaustive_best() -> None:
    table, w, ids, y = world()

    def ask(x: Tensor) -> Tensor:
        return x.flatten(1).tanh() @ w.T

    found, needed = swap_codes(ask, table, ids, y, 1, tries=16 * 6)
    for i in range(len(ids)):
        losses = {}
        for place, code in product(range(16), range(6)):
            if code != ids[i].flatten()[place]:
                other = ids[i].flatten().clone()
                other[place] = code
                losses[place, code] = float(
                    torch.nn.functional.cross_entropy(ask(vectors_of(table, other.view(1, 4, 4))), y[i : i + 1])
                )
        got = float(torch.nn.functional.cross_entropy(ask(vectors_of(table, found[i : i + 1])), y[i : i + 1]))
        assert got >= max(losses.values()) - 1e-5
        assert (found[i] != ids[i]).sum() == 1
        assert (needed[i] == 1) == bool(ask(vectors_of(table, found[i : i + 1])).argmax(1) != y[i])


def test_positions_change_once_and_only_to_allowed_codes() -> None:
    table, w, ids, y = world()

    def ask(x: Tensor) -> Tensor:
        return x.flatten(1).tanh() @ w.T * 0.01 + torch.tensor([10.0, 0, 0, 0])  # never wrong

    allowed = torch.tensor([[1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 1]])
    y[:] = 0
    found, needed = swap_codes(ask, table, ids, y, 5, allowed)
    assert (needed == 6).all()
    changed = found != ids
    assert (changed.flatten(1).sum(1) == 5).all()
    assert all(new in allowed[old] for old, new in zip(ids[changed].tolist(), found[changed].tolist(), strict=True))


def test_random_swaps_are_as_many_as_asked_and_a_function_of_the_image() -> None:
    _, _, ids, _ = world()
    whole = random_codes(ids, 3, 6, Draws(0, 0, torch.arange(6)))
    assert ((whole != ids).flatten(1).sum(1) == 3).all()
    some = torch.tensor([4, 1])
    assert torch.equal(random_codes(ids[some], 3, 6, Draws(0, 0, some)), whole[some])
