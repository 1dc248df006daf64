"""TokenAdapt's network: sizes of paper and published code, the latter from its formulas, grids, logits, code scales."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import TokenAdaptModelConfig

GRIDS = [(4, 4), (3, 5), (6, 2)]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(code_dim: int = 6, codes: int = 0, width: int = 16) -> TokenAdaptNetwork:
    torch.manual_seed(0)
    return TokenAdaptNetwork(code_dim, width=width, heads=2, codes=codes).eval().requires_grad_(False)


def block_size(width: int) -> int:
    """Parameters of a block, counted by hand: two norms, attention, MLP."""
    hidden = 4 * width
    return 2 * 2 * width + (width + 1) * 3 * width + (width + 1) * width + (width + 1) * hidden + (hidden + 1) * width


@pytest.mark.parametrize("grid", [(32, 32), (14, 20)])
def test_published_size_whatever_the_grid_and_the_vocabulary(grid: tuple[int, int]) -> None:
    """SeiT++ says 3.7 million; counted by hand from figure 4."""
    width, code_dim = 384, 32
    into, out = (code_dim + 1) * width, (width + 1) * code_dim
    spread, gather = 4 * width * code_dim + code_dim, 4 * code_dim * width + width
    assert 2 * block_size(width) + into + out + spread + gather == 3_672_640
    temperature = 1
    for classes in (10, 1000):
        with torch.device("meta"):
            model = TokenAdaptModelConfig().build(3, grid, classes)
        assert sum(p.numel() for p in model.parameters()) == 3_672_640 + temperature


@pytest.mark.parametrize("codes", [391, 8192])
def test_size_of_the_published_code(codes: int) -> None:
    """It ends in a linear map to the vocabulary; its blocks have no bias of qkv, but a norm after them.

    391 codes are SeiT's.
    """
    width, code_dim = 384, 32
    into, out = (code_dim + 1) * width, (width + 1) * codes
    spread, gather = 4 * width * code_dim + code_dim, 4 * code_dim * width + width
    expected = 2 * (block_size(width) - 3 * width + 2 * width) + into + out + spread + gather
    assert expected == 3_810_087 or codes != 391
    with torch.device("meta"):
        model = TokenAdaptModelConfig(codes=codes).build(3, (32, 32), 1000)
    assert sum(p.numel() for p in model.parameters()) == expected


def published_block(state: dict[str, Tensor], name: str, x: Tensor, heads: int) -> Tensor:
    """Positions, attention, MLP with tanh and a last norm, from the formulas. x: (B, H, W, D); returns (B, H, W, D)."""
    height, columns, width = x.shape[1:]
    rate = 10000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    across, down = torch.arange(columns)[None, :, None] * rate, torch.arange(height)[:, None, None] * rate
    places = torch.cat(
        [part.expand(height, columns, -1) for part in (across.sin(), across.cos(), down.sin(), down.cos())], -1
    )
    x = (x + places).flatten(1, 2)

    def norm(y: Tensor, part: str) -> Tensor:
        away = y - y.mean(-1, keepdim=True)
        scaled = away / (away.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * state[f"{part}.weight"] + state[f"{part}.bias"]

    q, k, v = (norm(x, f"{name}.norm1") @ state[f"{name}.attn.qkv.weight"].T).split(width, -1)
    seen = []
    for a, b, c in zip(*(part.split(width // heads, -1) for part in (q, k, v)), strict=True):
        seen.append((a @ b.mT / (width // heads) ** 0.5).softmax(-1) @ c)
    x = x + F.linear(torch.cat(seen, -1), state[f"{name}.attn.proj.weight"], state[f"{name}.attn.proj.bias"])
    y = F.linear(norm(x, f"{name}.norm2"), state[f"{name}.mlp.fc1.weight"], state[f"{name}.mlp.fc1.bias"]).tanh()
    x = x + F.linear(y, state[f"{name}.mlp.fc2.weight"], state[f"{name}.mlp.fc2.bias"])
    return norm(x, f"{name}_norm").unflatten(1, (height, columns))


@pytest.mark.parametrize("grid", GRIDS)
def test_the_network_of_the_published_code(grid: tuple[int, int]) -> None:
    """Against its formulas in double precision, all weights at random; code vectors enter as they are."""
    one, z, codebook = network(codes=9), noise(2, 6, *grid), noise(9, 6, seed=1) * 3 + 2
    for number, parameter in enumerate(one.parameters()):
        parameter.add_(0.3 * noise(*parameter.shape, seed=number))
    one.fit_codes(codebook)
    state = {name: tensor.double() for name, tensor in one.state_dict().items()}
    x = F.linear(z.permute(0, 2, 3, 1).double(), state["inlet.weight"], state["inlet.bias"])
    x = published_block(state, "forth", x, 2)
    there = torch.einsum("bhwd,dcij->bchiwj", x, state["spread.weight"]).reshape(2, 6, 2 * grid[0], 2 * grid[1])
    there = there + state["spread.bias"][:, None, None]
    torch.testing.assert_close(one.f(z).double(), there, atol=1e-5, rtol=1e-5)
    squares = there.reshape(2, 6, grid[0], 2, grid[1], 2)
    x = torch.einsum("bchiwj,dcij->bhwd", squares, state["gather.weight"]) + state["gather.bias"]
    logits = F.linear(published_block(state, "back", x, 2), state["outlet.weight"], state["outlet.bias"])
    found = one.g(there.float(), codebook)
    torch.testing.assert_close(found.double(), logits, atol=1e-5, rtol=1e-5)
    assert torch.equal(found.argmax(-1), logits.argmax(-1))
    assert len(found.argmax(-1).unique()) > 1


@pytest.mark.parametrize("codes", [0, 9])
@pytest.mark.parametrize("grid", GRIDS)
def test_f_doubles_the_grid_and_g_halves_it(grid: tuple[int, int], codes: int) -> None:
    one, codebook = network(codes=codes), noise(9, 6, seed=1)
    there = one.f(noise(2, 6, *grid))
    assert there.shape == (2, 6, 2 * grid[0], 2 * grid[1])
    assert one.g(there, codebook).shape == (2, *grid, 9)


@pytest.mark.parametrize("codes", [0, 9])
@pytest.mark.parametrize("grid", GRIDS)
def test_samples_do_not_see_each_other(grid: tuple[int, int], codes: int) -> None:
    one, z, codebook = network(codes=codes), noise(3, 6, *grid), noise(9, 6, seed=1)
    for step in (one.f, lambda s: one.g(s.repeat_interleave(2, 2).repeat_interleave(2, 3), codebook)):
        torch.testing.assert_close(step(z), torch.cat([step(z[i : i + 1]) for i in range(3)]))


def test_places_are_told_apart() -> None:
    one, z = network(), noise(1, 6, 1, 1).expand(1, 6, 3, 3)  # the same code everywhere
    patches = one.f(z).unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(9, -1)
    assert len(patches.unique(dim=0)) == 9


@pytest.mark.parametrize("codes", [0, 9])
def test_each_place_of_the_code_grid_reads_its_four_places_of_the_map(codes: int) -> None:
    """One block sees everything; without what it adds, a change stays where it is."""
    one, codebook, s = network(codes=codes), noise(9, 6, seed=1), noise(1, 6, 8, 6)
    for last in (one.back.attn.proj, one.back.mlp.fc2):
        last.weight.zero_()
    for row in range(8):
        for column in range(6):
            other = s.clone()
            other[0, :, row, column] += 1
            changed = (one.g(other, codebook) != one.g(s, codebook)).any(-1)[0]
            assert changed.nonzero().tolist() == [[row // 2, column // 2]]


@pytest.mark.parametrize("codes", [1, 7, 50])
@pytest.mark.parametrize("grid", GRIDS)
def test_logits_are_squared_distances_to_the_codes(codes: int, grid: tuple[int, int]) -> None:
    """Eqs. 2 and 3 by a loop over places and codes, from what the last layer gives, in the tokenizer's own distance."""
    one, codebook = network(), noise(codes, 6, seed=1) * 3 + 2
    one.fit_codes(codebook)
    one.log_temperature.fill_(0.3)
    one.outlet.weight.mul_(5)  # vectors that differ
    ends: list[Tensor] = []
    one.outlet.register_forward_hook(lambda layer, taken, given: ends.append(given))
    logits = one.g(noise(2, 6, 2 * grid[0], 2 * grid[1], seed=2), codebook)
    unit = codebook.var(0, correction=0).mean().sqrt().clamp(min=1e-5)  # one for all channels
    z = (ends[0] * codebook.std(0, correction=0) + codebook.mean(0)) / unit
    assert logits.shape == (2, *grid, codes)
    for b in range(2):
        for row in range(grid[0]):
            for column in range(grid[1]):
                distances = [(z[b, row, column] - code).square().sum().item() for code in codebook / unit]
                assert logits[b, row, column].argmax() == min(range(codes), key=distances.__getitem__)
                likely = (torch.tensor(distances) / (-2 * 6**0.5 * math.exp(0.3))).softmax(0)
                torch.testing.assert_close(logits[b, row, column].softmax(0), likely, atol=1e-4, rtol=1e-3)
    assert codes == 1 or len(logits.argmax(-1).unique()) > 1


def test_each_code_has_its_logits_whatever_the_cut() -> None:
    one, codebook, s, cut = network(), noise(30, 6, seed=1), noise(2, 6, 8, 8), [21, 3, 17, 4]
    one.fit_codes(codebook)
    torch.testing.assert_close(one.g(s, codebook[cut]), one.g(s, codebook)[..., cut])


def test_numbered_codes_end_in_the_linear_map_alone() -> None:
    one, s = network(codes=9), noise(2, 6, 8, 8)
    one.fit_codes(noise(9, 6, seed=1))
    ends: list[Tensor] = []
    one.outlet.register_forward_hook(lambda layer, taken, given: ends.append(given))
    logits = one.g(s, noise(9, 6, seed=1))
    assert torch.equal(logits, ends[0])
    assert torch.equal(logits, one.g(s, noise(4, 6, seed=2))), "the codebook does not matter"


def test_every_channel_of_the_codes_is_standardised() -> None:
    one, codebook = network(3), noise(50, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, 10.0, -3.0])
    one.fit_codes(codebook)
    torch.testing.assert_close(one.mean, codebook.mean(0))
    standard = (codebook - one.mean) / one.deviation
    torch.testing.assert_close(standard.square().mean(0), torch.ones(3), atol=1e-4, rtol=1e-4)


def test_a_channel_that_hardly_varies_is_not_blown_up() -> None:
    one, codebook = network(3), noise(50, 3) * torch.tensor([1.0, 1e-7, 0.0]) + 0.1
    one.fit_codes(codebook)
    assert ((codebook - one.mean) / one.deviation)[:, 1:].abs().max() < 0.01


@pytest.mark.parametrize("codes", [2, 50, 3000])
@pytest.mark.parametrize("code_dim", [2, 6, 32])
@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_at_first_a_perfect_vector_costs_half_a_nat(codes: int, code_dim: int, scale: float) -> None:
    """By the softmax over squared distances, a code at a time; guessing costs log K, and it stays below a third."""
    one, codebook = network(code_dim), noise(codes, code_dim) * scale
    one.fit_codes(codebook)
    standard = ((codebook - one.mean) / one.deviation.square().mean().sqrt()).double()
    costs = []
    for number, code in enumerate(standard):
        near = -(standard - code).square().sum(1) / 2 / code_dim**0.5 / one.log_temperature.exp()
        costs.append(-near.log_softmax(0)[number].item())
    assert sum(costs) / codes == pytest.approx(min(0.5, math.log(codes) / 3), rel=0.2)


def test_codes_that_stand_there_twice_leave_a_temperature() -> None:
    """They cost log 2 whatever the temperature; it is as of single ones then."""
    once, twice, codebook = network(), network(), noise(40, 6)
    once.fit_codes(codebook)
    twice.fit_codes(codebook.repeat(2, 1))
    assert twice.log_temperature.item() == pytest.approx(once.log_temperature.item(), abs=0.01)


@pytest.mark.parametrize("width", [24, 32, 96])
def test_at_first_codes_come_back_where_the_map_moved_them(width: int) -> None:
    """Blocks add nothing yet: still, flipped and shifted by whole positions, whatever the scale of each channel."""
    codebook = noise(40, 6) * torch.tensor([1.0, 5.0, 0.1, 1.0, 0.3, 2.0]) + 3
    one, ids = network(6, width=width), torch.randint(40, (2, 5, 7), generator=torch.Generator().manual_seed(3))
    one.fit_codes(codebook)
    there = one.f(codebook[ids].permute(0, 3, 1, 2))
    for moved, wanted in ((there, ids), (there.flip(3), ids.flip(2)), (there.roll(4, 2), ids.roll(2, 1))):
        assert (one.g(moved, codebook).argmax(-1) == wanted).float().mean() > 0.98
    left, right = there[..., ::2], there[..., 1::2]
    assert (left - right).abs().mean() > 0.1 * there.std(), "a flip can be seen"


def test_logits_are_in_full_precision_whatever_the_rest() -> None:
    one, codebook, s = network(), noise(9, 6, seed=1), noise(2, 6, 8, 8)
    one.fit_codes(codebook)
    with torch.autocast("cpu", torch.bfloat16):
        assert one.g(s, codebook).dtype == torch.float32


def test_the_temperature_is_learnt() -> None:
    one, codebook, s = network().requires_grad_(), noise(9, 6, seed=1), noise(2, 6, 8, 8)
    one.fit_codes(codebook)
    one.g(s, codebook).logsumexp(-1).sum().backward()
    assert one.log_temperature.grad is not None
    assert one.log_temperature.grad != 0


@pytest.mark.parametrize(("scale", "shift"), [(0.01, 0.0), (30.0, 7.0), (1.0, -5.0)])
def test_scale_and_place_of_a_codebook_do_not_matter(scale: float, shift: float) -> None:
    ids, codebook = torch.randint(20, (2, 5, 5), generator=torch.Generator().manual_seed(3)), noise(20, 6)
    found = []
    for book in (codebook, codebook * scale + shift):
        one = network()
        one.fit_codes(book)
        found.append(one.g(one.f(book[ids].permute(0, 3, 1, 2)), book))
    assert torch.equal(found[0].argmax(-1), found[1].argmax(-1))
    assert len(found[0].argmax(-1).unique()) > 1
    torch.testing.assert_close(found[0].softmax(-1), found[1].softmax(-1), atol=1e-3, rtol=1e-2)


def test_equal_codes_stay_finite() -> None:
    one, codebook = network(), torch.ones(4, 6)
    one.fit_codes(codebook)
    z = codebook[torch.zeros(1, 2, 2, dtype=torch.int64)].permute(0, 3, 1, 2)
    assert one.g(one.f(z), codebook).isfinite().all()


def test_scale_of_the_codes_is_saved_but_not_trained() -> None:
    one = network()
    assert {"mean", "deviation"} <= set(one.state_dict())
    assert not {"mean", "deviation"} & {name for name, _ in one.named_parameters()}
