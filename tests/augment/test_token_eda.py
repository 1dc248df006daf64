"""Token-EDA against loops over samples and tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tilework.augment import TokenEda, apply_all
from tilework.augment.token_eda import Squares, replace_synonyms, sample_squares, swap_source, swap_squares
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws

K, C = 40, 6
CODEBOOK = torch.randn(K, C, generator=torch.Generator().manual_seed(1))


def make_batch(count: int, grid: tuple[int, int] = (16, 16)) -> Batch:
    ids = torch.randint(0, K, (count, *grid), dtype=torch.int32, generator=torch.Generator().manual_seed(2))
    return Batch(ids, Target.hard(torch.zeros(count, dtype=torch.int64)), torch.arange(count))


def run(augment: TokenEda, batch: Batch, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return apply_all([augment.build(Codebook.of(CODEBOOK))], batch, Draws(seed, 0, batch.index)).x


def slow_synonyms(code: int, count: int) -> set[int]:
    """The nearest codes by cosine, one by one."""
    unit = [v / np.linalg.norm(v) for v in CODEBOOK.numpy()]
    others = [k for k in range(K) if k != code]
    return set(sorted(others, key=lambda k: -float(unit[code] @ unit[k]))[:count])


def test_off_changes_nothing() -> None:
    batch = make_batch(50)
    assert torch.equal(run(TokenEda(synonym=0, swap=0), batch), batch.x)


def test_replaced_codes_are_among_the_nearest_five() -> None:
    batch = make_batch(40)
    out = run(TokenEda(synonym=1, swap=0), batch)
    assert out.dtype == batch.x.dtype
    near = {k: slow_synonyms(k, 5) for k in range(K)}
    changed = (out != batch.x).nonzero().tolist()
    assert all(int(out[b, i, j]) in near[int(batch.x[b, i, j])] for b, i, j in changed)
    assert len(changed) / batch.x.numel() == pytest.approx(0.25, abs=0.02)
    chosen = {(int(batch.x[b, i, j]), int(out[b, i, j])) for b, i, j in changed}
    assert len(chosen) == K * 5  # every synonym of every code occurs


def test_synonyms_are_equally_likely() -> None:
    batch = make_batch(400).changed(x=torch.full((400, 16, 16), 7, dtype=torch.int32))
    out = run(TokenEda(synonym=1, swap=0, replaced=1.0), batch)
    counts = torch.bincount(out.flatten().long(), minlength=K)
    assert (counts > 0).sum() == 5
    assert counts[counts > 0].float().div(out.numel()).numpy() == pytest.approx(np.full(5, 0.2), abs=0.01)


def test_edits_exclude_each_other_and_have_their_rates() -> None:
    augment = TokenEda().build(Codebook.of(CODEBOOK))
    batch = make_batch(4000)
    torch.manual_seed(0)
    p = augment.sample(Draws(0, 0, batch.index), batch)
    edited = (p.synonym != 5).flatten(1).any(1)
    swapped = p.squares.side > 0
    assert not (edited & swapped).any()
    assert edited.float().mean() == pytest.approx(0.25, abs=0.03)
    assert swapped.float().mean() == pytest.approx(0.25 * 3 / 4, abs=0.03)  # one side in four is zero


@pytest.mark.parametrize("grid", [(16, 16), (8, 20)])
def test_swap_against_a_loop(grid: tuple[int, int]) -> None:
    batch = make_batch(200, grid)
    p = TokenEda(synonym=0, swap=1).build(Codebook.of(CODEBOOK)).sample(Draws(3, 1, batch.index), batch).squares
    out = swap_squares(batch.x, p)
    for before, after, side, (y, x), (v, u) in zip(
        batch.x, out, p.side.tolist(), p.first.tolist(), p.second.tolist(), strict=True
    ):
        expected = before.clone()
        for i in range(side):
            for j in range(side):
                expected[y + i, x + j], expected[v + i, u + j] = before[v + i, u + j], before[y + i, x + j]
        assert torch.equal(after, expected)
        assert side < min(grid) / 4
        assert side == 0 or max(abs(y - v), abs(x - u)) > side
    assert torch.equal(swap_squares(out, p), batch.x)  # twice is nothing


def test_every_allowed_pair_of_squares_is_equally_likely() -> None:
    side, grid, count = 1, (4, 5), 200_000
    u = torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
    p = sample_squares(u, torch.full((count,), side), grid)
    spots = [(y, x) for y in range(4) for x in range(5)]
    allowed = [(a, b) for a in spots for b in spots if max(abs(a[0] - b[0]), abs(a[1] - b[1])) > side]
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for a, b in zip(p.first.tolist(), p.second.tolist(), strict=True):
        found[tuple(a), tuple(b)] = found.get((tuple(a), tuple(b)), 0) + 1
    assert found.keys() == set(allowed)
    for a, b in allowed:  # the first is even over the grid, the second over what is allowed with it
        expected = count / len(spots) / sum(first == a for first, _ in allowed)
        assert found[a, b] == pytest.approx(expected, rel=0.15)


def test_a_grid_too_small_for_two_squares_is_left_alone() -> None:
    p = sample_squares(torch.rand(50, 3), torch.full((50,), 2), (4, 4))
    assert (p.side == 0).all()


def test_source_names_the_places_for_columns() -> None:
    p = Squares(torch.tensor([2]), torch.tensor([[0, 0]]), torch.tensor([[2, 3]]))
    ids = torch.arange(30).view(1, 5, 6)
    source = swap_source(p, (5, 6), 4).view(1, 5, 6)
    assert torch.equal(source, swap_squares(ids, p))


def test_table_keeps_codes_that_stay() -> None:
    table = torch.cat([torch.zeros(K, 2, dtype=torch.int32), torch.arange(K, dtype=torch.int32)[:, None]], 1)
    ids = make_batch(3).x
    assert torch.equal(replace_synonyms(ids, table, torch.full_like(ids, 2)), ids)
    assert (replace_synonyms(ids, table, torch.ones_like(ids)) == 0).all()


def test_few_codes_have_few_synonyms() -> None:
    batch = make_batch(8)
    batch = batch.changed(x=batch.x % 2)
    torch.manual_seed(0)
    augment = TokenEda(synonym=1, swap=0, replaced=1.0).build(Codebook.of(CODEBOOK[:2]))
    assert torch.equal(apply_all([augment], batch, Draws(0, 0, batch.index)).x, 1 - batch.x)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="needs a codebook"):
        TokenEda().build(None)
    with pytest.raises(ConfigError, match="needs code vectors"):
        TokenEda().build(Codebook.of(torch.zeros(4, 0)))
    with pytest.raises(ValueError, match="exclusive"):
        TokenEda(synonym=0.7, swap=0.7)
    with pytest.raises(ValueError, match="side"):
        TokenEda(side=0.9)
