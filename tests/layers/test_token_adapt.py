"""TokenAdapt's network: the paper's size, grids, quantisation against a loop, standardised codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import TokenAdaptModelConfig

GRIDS = [(4, 4), (3, 5), (6, 2)]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(code_dim: int = 6) -> TokenAdaptNetwork:
    torch.manual_seed(0)
    return TokenAdaptNetwork(code_dim, width=16, heads=2).eval().requires_grad_(False)


@pytest.mark.parametrize("grid", [(32, 32), (14, 20)])
def test_published_size_whatever_the_grid_and_the_vocabulary(grid: tuple[int, int]) -> None:
    """SeiT++ says 3.7 million; counted by hand from figure 4."""
    width, code_dim, hidden = 384, 32, 1536
    block = 2 * 2 * width + (width + 1) * 3 * width + (width + 1) * width + (width + 1) * hidden + (hidden + 1) * width
    into, out = (code_dim + 1) * width, (width + 1) * code_dim
    spread, gather = 4 * width * code_dim + code_dim, 4 * code_dim * width + width
    assert 2 * block + into + out + spread + gather == 3_672_640
    for classes in (10, 1000):
        with torch.device("meta"):
            model = TokenAdaptModelConfig().build(3, grid, classes)
        assert sum(p.numel() for p in model.parameters()) == 3_672_640


@pytest.mark.parametrize("grid", GRIDS)
def test_f_doubles_the_grid_and_g_halves_it(grid: tuple[int, int]) -> None:
    one, z = network(), noise(2, 6, *grid)
    there = one.f(z)
    assert there.shape == (2, 6, 2 * grid[0], 2 * grid[1])
    assert one.g(there).shape == z.shape


@pytest.mark.parametrize("grid", GRIDS)
def test_samples_do_not_see_each_other(grid: tuple[int, int]) -> None:
    one, z = network(), noise(3, 6, *grid)
    for step in (one.f, lambda s: one.g(s.repeat_interleave(2, 2).repeat_interleave(2, 3))):
        torch.testing.assert_close(step(z), torch.cat([step(z[i : i + 1]) for i in range(3)]))


def test_places_are_told_apart() -> None:
    one, z = network(), noise(1, 6, 1, 1).expand(1, 6, 3, 3)  # the same code everywhere
    patches = one.f(z).unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(9, -1)
    assert len(patches.unique(dim=0)) == 9


@pytest.mark.parametrize("codes", [1, 7, 50])
@pytest.mark.parametrize("grid", GRIDS)
def test_nearest_is_the_least_distance(codes: int, grid: tuple[int, int]) -> None:
    """By a loop over places and codes."""
    one, z, codebook = network(), 2 * noise(2, 6, *grid) + 1, noise(codes, 6, seed=1) * 3 + 2
    one.fit_codes(codebook)
    found, logits = one.nearest(z, codebook), one.logits(z, codebook)
    assert logits.shape == (2, *grid, codes)
    for b in range(2):
        for row in range(grid[0]):
            for column in range(grid[1]):
                distances = [(z[b, :, row, column] - code).square().sum().item() for code in codebook]
                assert found[b, row, column] == min(range(codes), key=distances.__getitem__)
                likely = (torch.tensor(distances) / (-2 * one.deviation.square())).softmax(0)
                torch.testing.assert_close(logits[b, row, column].softmax(0), likely, atol=1e-4, rtol=1e-3)


def test_codes_are_standardised_over_all_channels() -> None:
    one, codebook = network(3), noise(50, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, 10.0, -3.0])
    one.fit_codes(codebook)
    torch.testing.assert_close(one.mean, codebook.mean(0))
    standard = (codebook - one.mean) / one.deviation
    assert standard.square().mean().item() == pytest.approx(1, abs=1e-4)
    assert standard.std(0)[1] / standard.std(0)[0] == pytest.approx(5, rel=0.5), "channels keep their proportions"


@pytest.mark.parametrize(("scale", "shift"), [(0.01, 0.0), (30.0, 7.0), (1.0, -5.0)])
def test_scale_and_place_of_a_codebook_do_not_matter(scale: float, shift: float) -> None:
    ids, codebook = torch.randint(20, (2, 5, 5), generator=torch.Generator().manual_seed(3)), noise(20, 6)
    found = []
    for book in (codebook, codebook * scale + shift):
        one = network()
        one.fit_codes(book)
        z = one.g(one.f(book[ids].permute(0, 3, 1, 2)))
        found.append((one.nearest(z, book), one.logits(z, book).softmax(-1)))
    assert torch.equal(found[0][0], found[1][0])
    assert len(found[0][0].unique()) > 1
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-3, rtol=1e-2)


def test_equal_codes_stay_finite() -> None:
    one, codebook = network(), torch.ones(4, 6)
    one.fit_codes(codebook)
    assert one.g(one.f(codebook[torch.zeros(1, 2, 2, dtype=torch.int64)].permute(0, 3, 1, 2))).isfinite().all()


def test_scale_of_the_codes_is_saved_but_not_trained() -> None:
    one = network()
    assert {"mean", "deviation"} <= set(one.state_dict())
    assert not {"mean", "deviation"} & {name for name, _ in one.named_parameters()}
