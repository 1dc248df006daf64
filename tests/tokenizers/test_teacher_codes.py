"""Codes of a teacher's map: any image size, residual and rounded codes, fitting, the file in bytes, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tilework.augment.embed import look_up
from tilework.core.errors import ConfigError, InputError
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import MlpMixerConfig, ResnetConfig, VitConfig
from tilework.tokenizers import TeacherCodes, TeacherCodesConfig, VitVqConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.kmeans import kmeans
from tilework.tokenizers.teacher_codes import fit, fit_codes

SMALL = {"size": (64, 64), "code_dim": 6, "codes": 8}
CPU = torch.device("cpu")


def made(**settings: object) -> TeacherCodes:
    torch.manual_seed(0)
    return TeacherCodesConfig(**{**SMALL, **settings}).build(3, (64, 64), 0).eval()


def pictures(count: int = 12, size: int = 64) -> torch.Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("diffusion", [True, False])
def test_any_multiple_of_the_patch_is_taken(diffusion: bool) -> None:
    tokenizer = made(diffusion=diffusion)
    fit(tokenizer, pictures().split(5), CPU)
    assert tokenizer.patch == 32
    assert tokenizer.encode(pictures(2)).shape == (2, 2, 2)
    assert tokenizer.encode(torch.rand(1, 3, 96, 160)).shape == (1, *tokenizer.grid((96, 160))) == (1, 3, 5)
    with pytest.raises(InputError, match="do not divide into 32 px patches"):
        tokenizer.encode(torch.rand(1, 3, 20, 20))


def test_the_projection_is_the_principal_components() -> None:
    tokenizer, x = made(), pictures()
    fit(tokenizer, [x], CPU)
    points = tokenizer.map(x).flatten(0, 2).double()
    values = torch.linalg.svdvals(points - points.mean(0))[:6]
    spread = (points - points.mean(0)).float() @ tokenizer.directions.T
    torch.testing.assert_close(spread.norm(dim=0).double(), values, rtol=1e-3, atol=1e-3)


def test_fitting_leaves_the_generator_alone_and_repeats_itself() -> None:
    state, found = torch.get_rng_state(), []
    for _ in range(2):
        tokenizer = made()
        torch.set_rng_state(state)
        fit(tokenizer, [pictures()], CPU)
        assert torch.equal(torch.get_rng_state(), state)
        found.append(tokenizer.codebook.clone())
    assert torch.equal(*found)
    assert torch.equal(found[0].half().float(), found[0])  # as stores keep them


def test_residual_codes_lie_side_by_side_and_add_up() -> None:
    tokenizer = made(depth=3, diffusion=False)
    fit(tokenizer, [pictures()], CPU)
    ids = tokenizer.encode(pictures(2))
    assert (tokenizer.stacked, tokenizer.stack, ids.shape) == (True, 3, (2, 2, 2, 3))
    assert tokenizer.codebook.shape == (8, 18)
    vectors = tokenizer.vectors(ids)  # (B, h, w, G C)
    stacks = look_up(ids.permute(0, 3, 1, 2), tokenizer.codebook).permute(0, 2, 3, 1)
    torch.testing.assert_close(vectors, stacks)
    total, features = vectors.unflatten(-1, (3, 6)).sum(-2), tokenizer.features(pictures(2))
    torch.testing.assert_close(tokenizer.quantiser.added(ids), total)  # type: ignore[attr-defined]
    first = vectors[..., :6]
    assert (total - features).square().sum() < (first - features).square().sum()


def test_rounded_codes_need_no_codebook() -> None:
    tokenizer = made(quantiser="fsq", levels=(5, 4), code_dim=2, codes=20)
    fit(tokenizer, [pictures()], CPU)
    ids = tokenizer.encode(pictures())
    assert ids.max() < 20
    assert len(ids.unique()) > 4  # of unit variance before they are rounded


def test_pooled_positions() -> None:
    tokenizer = made(pool=2)
    assert tokenizer.patch == 64
    assert tokenizer.encode(torch.rand(1, 3, 128, 128)).shape == (1, 2, 2)


def test_codes_of_a_store_replace_its_own() -> None:
    tokenizer = made()
    fit(tokenizer, [pictures()], CPU)
    expected = tokenizer.encode(pictures())
    other = made().with_codes(torch.zeros(3, 6))
    assert len(other.codebook) == 3
    other.centre.copy_(tokenizer.centre)
    other.directions.copy_(tokenizer.directions)
    assert torch.equal(other.with_codes(tokenizer.codebook).encode(pictures()), expected)
    with pytest.raises(ConfigError, match=r"codes of \(8, 7\) for 1 x 6 channels"):
        tokenizer.with_codes(torch.zeros(8, 7))


def test_weights_in_bytes_round_once(tmp_path: Path) -> None:
    tokenizer = made()
    fit(tokenizer, [pictures()], CPU)
    for name in ("a", "b"):
        save_tokenizer(tmp_path / name, tokenizer, tokenizer.config, (64, 64), small=True)
        tokenizer = load_tokenizer(tmp_path / name)[0]  # type: ignore[assignment]
    one, other = ((tmp_path / name / "weights.safetensors").stat().st_size for name in "ab")
    assert one == other < 3_500_000
    first, second = (load_tokenizer(tmp_path / name)[0].state_dict() for name in "ab")
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(first["directions"], tokenizer.directions, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("teacher", "stage"),
    [(VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(16)), None), (ResnetConfig(18, width=8), -2)],
)
def test_other_teachers(teacher: object, stage: int | None) -> None:
    tokenizer = made(teacher=teacher, stage=stage)
    fit(tokenizer, [pictures()], CPU)
    assert tokenizer.encode(pictures(1)).shape == (1, 64 // tokenizer.patch, 64 // tokenizer.patch)
    assert not any(parameter.requires_grad for parameter in tokenizer.parameters())


def test_teachers_that_are_none() -> None:
    with pytest.raises(ConfigError, match="'vit_vq' gives no spatial map of images"):
        made(teacher=VitVqConfig())
    with pytest.raises(ConfigError, match="gives no spatial map"):
        made(teacher=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()))
    with pytest.raises(ConfigError, match="has 4 stages, and stage 7 is asked for"):
        made(stage=7)
    with pytest.raises(ConfigError, match="400 channels of a map of 320"):
        made(code_dim=400)
    with pytest.raises(ConfigError, match="levels"):
        made(quantiser="fsq", levels=(2, 2))
    with pytest.raises(ConfigError, match="two codes at least"):
        made(codes=1)
    mixer = made(teacher=MlpMixerConfig(width=16, depth=1, stem=PatchStemConfig(16)), stage=None)
    with pytest.raises(ConfigError, match="weights for each position"):
        mixer.encode(torch.rand(1, 3, 96, 96))


def test_no_picture_without_a_decoder_and_nothing_finite_without_finite_weights() -> None:
    tokenizer = made()
    with pytest.raises(ConfigError, match="has no decoder"):
        tokenizer.decode(torch.zeros(1, 2, 2, dtype=torch.int64))
    next(tokenizer.teacher.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        fit(tokenizer, [pictures()], CPU)


def test_codes_are_the_k_means_of_features() -> None:
    tokenizer, points = made(), torch.randn(200, 6, generator=torch.Generator().manual_seed(3))
    fit_codes(tokenizer, points)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = kmeans(points[torch.randperm(200)], 8)
    torch.testing.assert_close(tokenizer.codebook, expected.half().float())
