"""Stems: shapes, refusals, and their linear maps written the slow way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tilework.core.errors import ConfigError
from tilework.layers.stem_frozen import FrozenStemConfig
from tilework.layers.stem_refined import RefinedStemConfig, TokenRefinedStemConfig
from tilework.layers.stem_zoo import stems
from tilework.layers.stems import (
    OverlapStem,
    OverlapStemConfig,
    PatchStem,
    PatchStemConfig,
    StemConfig,
    TokenF16Stem,
    TokenF16StemConfig,
    TokenFineStem,
    TokenFineStemConfig,
    TokenPatchStem,
    TokenPatchStemConfig,
    TokenStem,
    TokenStemConfig,
)
from tilework.models import create_model

PIXELS = [name for name in stems if stems[name].build(3, (32, 32), 12).takes == "pixels"]


@pytest.mark.parametrize("name", list(StemConfig.choices))
@pytest.mark.parametrize("grid", [(32, 32), (32, 64)])
def test_every_stem_gives_the_grid_it_promises(name: str, grid: tuple[int, int]) -> None:
    stem = StemConfig.choices[name]().build(3, grid, 10)
    shape = (2, *grid) if stem.takes == "ids" else (2, 3, *grid)
    x = torch.zeros(shape, dtype=torch.int64) if stem.takes == "ids" else torch.randn(shape)
    assert stem(x).shape == (2, 10, *stem.grid)


@pytest.mark.parametrize("name", list(stems))
def test_every_stem_takes_another_grid_as_one_built_for_it(name: str) -> None:
    stem, other = (stems[name].build(3, grid, 12).eval() for grid in ((32, 32), (64, 32)))
    other.load_state_dict(stem.state_dict())
    x = torch.randn(2, 3, 64, 32)
    assert torch.equal(stem(x), other(x))
    assert stem.token_grid(x) == other.grid == tuple(round(side / stem.stride) for side in (64, 32))
    assert other.grid != stem.grid


@pytest.mark.parametrize("name", [name for name in stems if stems[name].build(3, (32, 32), 12).stride > 1])
def test_every_stem_refuses_grids_that_it_does_not_divide(name: str) -> None:
    with pytest.raises(ConfigError, match="a grid of 33x32 does not divide into patches of "):
        stems[name].build(3, (32, 32), 12).token_grid(torch.randn(1, 3, 33, 32))


@pytest.mark.parametrize(
    ("config", "takes", "grid"),
    [
        (PatchStemConfig(patch=8), "pixels", (4, 6)),
        (OverlapStemConfig(patch=8), "pixels", (4, 6)),
        (TokenStemConfig(), "map", (16, 24)),
        (TokenF16StemConfig(), "map", (32, 48)),
        (TokenFineStemConfig(), "map", (64, 96)),
        (TokenPatchStemConfig(), "map", (16, 24)),
        (TokenPatchStemConfig(patch=4), "map", (8, 12)),
    ],
)
def test_grids_and_stages(config: StemConfig, takes: str, grid: tuple[int, int]) -> None:
    stem = config.build(3, (32, 48), 10)
    assert (stem.takes, stem.grid) == (takes, grid)


def test_patch_stem_is_one_linear_map_per_patch() -> None:
    torch.manual_seed(0)
    stem, x = PatchStem(3, (8, 12), 5, patch=4), torch.randn(2, 3, 8, 12)
    weight = stem.proj.weight.flatten(1)  # (D, 3 p p)
    out = stem(x)
    for row in range(2):
        for column in range(3):
            patch = x[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].flatten(1)
            assert torch.allclose(out[:, :, row, column], patch @ weight.T + stem.proj.bias, atol=1e-5)


def test_overlap_stem_reaches_one_less_than_a_patch_beyond_its_corner() -> None:
    torch.manual_seed(0)
    stem, x = OverlapStem(3, (8, 12), 5, patch=4), torch.randn(2, 3, 8, 12)
    padded, weight = F.pad(x, (3, 3, 3, 3)), stem.proj.weight.flatten(1)
    window = padded[:, :, 4:11, 8:15].flatten(1)  # of row 1, column 2
    assert torch.allclose(stem(x)[:, :, 1, 2], window @ weight.T + stem.proj.bias, atol=1e-5)
    with pytest.raises(ConfigError, match="8x13 does not divide into patches of 4"):
        OverlapStem(3, (8, 13), 5, patch=4)


def test_token_fine_stem_adds_what_each_code_says_of_the_4x4_tokens_around_it() -> None:
    torch.manual_seed(0)
    stem, x = TokenFineStem(3, (2, 3), 5), torch.randn(2, 3, 2, 3)
    wanted = torch.zeros(2, 5, 6, 8)  # with a margin of one token
    for row in range(2):
        for column in range(3):
            said = torch.einsum("bc,cdij->bdij", x[:, :, row, column], stem.proj.weight)
            wanted[:, :, 2 * row : 2 * row + 4, 2 * column : 2 * column + 4] += said
    assert stem.proj.bias is not None
    wanted = wanted[:, :, 1:-1, 1:-1] + stem.proj.bias[:, None, None]
    assert torch.allclose(stem(x), wanted, atol=1e-5)


def test_token_stem_is_one_linear_map_per_overlapping_window() -> None:
    torch.manual_seed(0)
    stem, x = TokenStem(3, (8, 12), 5), torch.randn(2, 3, 8, 12)
    windows = F.unfold(x, kernel_size=4, stride=2, padding=1)  # (B, C 4 4, N)
    expected = stem.proj.weight.flatten(1) @ windows + stem.proj.bias[:, None]
    assert torch.allclose(stem(x), expected.view(2, 5, 4, 6), atol=1e-5)


def test_f16_stem_is_one_linear_map_per_code_and_its_neighbours_right_and_below() -> None:
    torch.manual_seed(0)
    stem, x = TokenF16Stem(3, (4, 5), 6), torch.randn(2, 3, 4, 5)
    padded = torch.zeros(2, 3, 5, 6)
    padded[:, :, :4, :5] = x
    out, weight = stem(x), stem.proj.weight.flatten(1)  # (D, C 2 2)
    for row in range(4):
        for column in range(5):
            window = padded[:, :, row : row + 2, column : column + 2].flatten(1)
            assert torch.allclose(out[:, :, row, column], window @ weight.T + stem.proj.bias, atol=1e-5)


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_token_patch_stem_is_one_linear_map_per_patch_of_codes(patch: int) -> None:
    torch.manual_seed(0)
    stem, x = TokenPatchStem(3, (8, 12), 5, patch), torch.randn(2, 3, 8, 12)
    patches = F.unfold(x, kernel_size=patch, stride=patch)  # (B, C p p, N)
    expected = stem.proj.weight.flatten(1) @ patches + stem.proj.bias[:, None]
    torch.testing.assert_close(stem(x), expected.view(2, 5, 8 // patch, 12 // patch), atol=1e-5, rtol=1e-5)


def test_tokens_of_the_patch_stem_know_nothing_of_their_neighbours() -> None:
    torch.manual_seed(0)
    stem, x = TokenPatchStemConfig().build(3, (8, 12), 5), torch.randn(1, 3, 8, 12, requires_grad=True)
    (slope,) = torch.autograd.grad(stem(x)[0, :, 1, 2].sum(), x)
    seen = slope[0].abs().sum(0).nonzero().tolist()
    assert seen == [[2, 4], [2, 5], [3, 4], [3, 5]]


def test_token_stem_of_seit_has_its_size() -> None:
    stem = TokenStem(32, (28, 28), 768)
    assert stem.grid == (14, 14)
    assert sum(p.numel() for p in stem.parameters()) == 32 * 16 * 768 + 768


@pytest.mark.parametrize("grid", [(30, 32), (32, 30)])
def test_image_that_is_no_whole_number_of_patches_is_refused(grid: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"{grid[0]}x{grid[1]} does not divide into patches of 16"):
        PatchStemConfig(patch=16).build(3, grid, 8)


@pytest.mark.parametrize("grid", [(7, 8), (8, 7)])
def test_code_grid_that_is_no_whole_number_of_patches_is_refused(grid: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"{grid[0]}x{grid[1]} does not divide into patches of 2"):
        TokenPatchStemConfig().build(3, grid, 8)


def test_pooled_codes_are_refused_by_their_name() -> None:
    with pytest.raises(ConfigError, match=r"1x1 has no even sides.*pooled codes have no positions: use linear_cpu"):
        TokenStemConfig().build(32, (1, 1), 8)


@pytest.mark.parametrize("grid", [(27, 28), (28, 27)])
def test_code_grid_that_cannot_be_halved_is_refused(grid: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=f"{grid[0]}x{grid[1]} has no even sides.*linear_cpu"):
        TokenStemConfig().build(32, grid, 8)


def test_unknown_stem_names_a_near_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'patch'"):
        StemConfig.choices["patches"]


@pytest.mark.parametrize("name", list(stems))
def test_every_named_stem_trains_a_deit_and_an_lv_vit(name: str) -> None:
    for model, grid in (("deit_ti", (32, 32)), ("lv_vit_t", (32, 64))):
        inputs = {"input": "pixels"} if name in PIXELS else {"input": "tokens", "code_dim": 3}
        network = create_model(model, stem=name, grid=grid, classes=4, width=12, depth=1, heads=2, **inputs)
        out = network(torch.randn(2, 3, *grid))
        out.logits.square().mean().backward()
        stem = network.patch_embed
        assert out.stem.shape == (2, stem.width, *stem.grid)
        untrained = [n for n, p in stem.named_parameters() if p.requires_grad and p.grad is None]
        assert not untrained
        assert any(p.requires_grad for p in stem.parameters()) == (name not in ("frozen", "token_frozen"))


def test_refined_stem_of_one_window_is_the_plain_one_and_with_overlap_the_stem_adapter() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 48)
    plain, same = PatchStem(3, (32, 48), 5, 16), RefinedStemConfig(windows=(16,)).build(3, (32, 48), 5)
    same.scales[0].load_state_dict(plain.proj.state_dict())
    torch.testing.assert_close(same(x), plain(x))
    adapter, same = TokenStem(3, (32, 48), 5), TokenRefinedStemConfig(windows=(2,), local=True).build(3, (32, 48), 5)
    same.scales[0].load_state_dict(adapter.proj.state_dict())
    torch.testing.assert_close(same(x), adapter(x))


def test_windows_lie_around_the_patch_local_doubles_them_inter_sees_everything() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 128, 128, requires_grad=True)
    tiled = RefinedStemConfig()
    reach = {}
    for name, config in {
        "tiles": tiled,
        "tiles+local": replace(tiled, local=True),
        **{name: stems[name] for name in ("intra", "intra+local", "intra+local+inter")},
    }.items():
        (slope,) = torch.autograd.grad(config.build(3, (128, 128), 12)(x)[0, :, 3, 3].sum(), x)
        seen = slope[0].abs().sum(0).nonzero()
        reach[name] = (seen.amin(0).tolist(), seen.amax(0).tolist())
    assert reach == {
        "tiles": ([48, 48], [63, 63]),
        "tiles+local": ([40, 40], [71, 71]),
        "intra": ([40, 40], [71, 71]),
        "intra+local": ([24, 24], [87, 87]),
        "intra+local+inter": ([0, 0], [127, 127]),
    }


def test_windows_around_patches_written_the_slow_way() -> None:
    torch.manual_seed(0)
    stem, x = RefinedStemConfig((2, 4, 8), patch=4).build(3, (8, 12), 6), torch.randn(2, 3, 8, 12)
    padded = F.pad(x, (2, 2, 2, 2))
    for row in range(2):
        for column in range(3):
            parts = []
            for conv, k in zip(stem.scales, (2, 4, 8), strict=True):
                top, left = (4 * i + 2 - k // 2 + 2 for i in (row, column))  # the middle, less half a window
                window = padded[:, :, top : top + k, left : left + k].flatten(1)
                parts.append(window @ conv.weight.flatten(1).T + conv.bias)
            wanted = torch.cat(parts, 1) @ stem.proj.weight.flatten(1).T + stem.proj.bias
            torch.testing.assert_close(stem(x)[:, :, row, column], wanted, atol=1e-5, rtol=1e-5)


def millions(stem: str, depth: int = 12) -> tuple[float, float]:
    """Parameters of DeiT-S with a stem, and multiply-adds of a forward pass at 224 px, by torch's counter."""
    with torch.device("meta"):
        model = create_model("deit_s", stem=stem, depth=depth)
        with FlopCounterMode(display=False) as counter:
            model(torch.randn(1, 3, 224, 224))
    return sum(p.numel() for p in model.parameters()) / 1e6, counter.get_total_flops() / 2e6


def test_four_windows_have_the_size_and_cost_of_table_1() -> None:
    """Table 1: 22.3 million parameters and 4.7 G; plain patches have 22.1 and 4.6. torch counts products alone."""
    parameters, cost = millions("intra")
    assert parameters == pytest.approx(22.295, abs=0.001)
    assert cost - millions("plain")[1] == pytest.approx(196 * 384 * (3 * 1360 / 4 + 384 - 768) / 1e6)
    assert cost == pytest.approx(4647, abs=1)


def test_early_convolutions_cost_about_the_block_that_is_left_out() -> None:
    """Xiao et al.: as many operations as with patches and one block more."""
    assert millions("early_conv", depth=11)[1] == pytest.approx(millions("plain")[1], rel=0.03)


def test_intra_written_the_slow_way() -> None:
    torch.manual_seed(0)
    stem, x = RefinedStemConfig(windows=(2, 4)).build(3, (4, 8), 6), torch.randn(1, 3, 4, 8)
    for column in range(2):
        patch, parts = x[..., 4 * column : 4 * column + 4], []
        for conv, k in zip(stem.scales, (2, 4), strict=True):
            tiles = [patch[..., r : r + k, c : c + k].flatten(1) for r in range(0, 4, k) for c in range(0, 4, k)]
            found = [F.gelu(tile @ conv.weight.flatten(1).T + conv.bias) for tile in tiles]
            parts.append(torch.stack(found).mean(0))
        wanted = torch.cat(parts, 1) @ stem.proj.weight.flatten(1).T + stem.proj.bias
        torch.testing.assert_close(stem(x)[:, :, 0, column], wanted, atol=1e-5, rtol=1e-5)


def test_early_convolutions_double_their_channels_up_to_the_width() -> None:
    stem = stems["early_conv"].build(3, (224, 224), 384)
    assert [layer.out_channels for layer in stem.convs if isinstance(layer, torch.nn.Conv2d)] == [48, 96, 192, 384]
    assert stem.grid == (14, 14)


def test_frozen_stem_has_the_names_of_the_plain_one() -> None:
    frozen = FrozenStemConfig(PatchStemConfig(8)).build(3, (32, 32), 5)
    assert set(frozen.state_dict()) == {"proj.weight", "proj.bias"}
    assert not any(p.requires_grad for p in frozen.parameters())


def test_windows_that_do_not_tile_the_patch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"windows \(3, 16\) do not tile"):
        RefinedStemConfig(windows=(3, 16))
    with pytest.raises(ValueError, match="no such ones"):
        RefinedStemConfig(windows=(4, 8), patch=-16)
