"""Every registered augmentation: it applies, is pure, and is a function of (seed, epoch, index); chains are checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from tilework.augment import (
    Augment,
    CentreCrop,
    CutMix,
    Embed,
    Flip,
    Normalise,
    RandomResizedCrop,
    TokenGeometry,
    apply_all,
    output_shape,
)
from tilework.augment.adapter import save_adapter
from tilework.augment.scale import Scale
from tilework.core.batch import Batch, Shape, Stage, Target
from tilework.core.codebook import Codebook
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.tokenizers import VitVqConfig, save_tokenizer

NAMES = list(Augment.choices)
STAGES: tuple[Stage, ...] = ("ids", "stacks", "map", "pixels")
CODES, CODE_DIM, SIDE = 20, 6, 32  # two coefficients of three channels, for what acts on those
CODEBOOK = torch.randn(CODES, CODE_DIM, generator=torch.Generator().manual_seed(9))
INDEX = torch.tensor([3, 1_000_003, 14, 15, 92, 65])


PLACES: dict[str, str] = {}  # of trained parts, by the field that names them


@pytest.fixture(scope="module", autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A TokenAdapt and a tokenizer for the codebook here."""
    root = tmp_path_factory.mktemp("trained")
    save_adapter(root / "adapter", TokenAdaptNetwork(CODE_DIM, width=16, heads=2), CODEBOOK, {})
    config = VitVqConfig(patch=2, codes=CODES, code_dim=CODE_DIM, width=8, depth=1, heads=2)
    tokenizer = config.build(3, (2 * SIDE, 2 * SIDE), 0)
    with torch.no_grad():
        tokenizer.quantiser.table.copy_(CODEBOOK)
    save_tokenizer(root / "tokenizer", tokenizer, config, (2 * SIDE, 2 * SIDE))
    PLACES.update({name: str(root / name) for name in ("adapter", "tokenizer")})
    yield
    PLACES.clear()


def made(name: str) -> Augment:
    """An augmentation with its own settings, and a path where it needs one."""
    choice = Augment.choices[name]
    return choice(**{f.name: PLACES[f.name] for f in fields(choice) if f.name in PLACES})  # type: ignore[arg-type]


def make_batch(stage: Stage, index: Tensor = INDEX) -> Batch:
    """Samples that depend on their index only, as a source gives them at a stage."""
    rows = []
    for number in index.tolist():
        g = torch.Generator().manual_seed(number)
        if stage == "ids":
            rows.append(torch.randint(CODES, (SIDE, SIDE), generator=g, dtype=torch.int32))
        elif stage == "stacks":
            rows.append(torch.randint(CODES, (CODE_DIM, SIDE, SIDE), generator=g, dtype=torch.int32))
        elif stage == "map":
            rows.append(torch.randn(CODE_DIM, SIDE, SIDE, generator=g))
        else:
            rows.append(torch.rand(3, SIDE, SIDE, generator=g))
    return Batch(torch.stack(rows), Target.hard(index % 7), index, deviation=1.0 if stage == "map" else None)


def run(augment: Augment, batch: Batch, seed: int = 0, epoch: int = 0) -> Batch:
    torch.manual_seed(0)  # dense noise, if any, comes from torch's generator
    return apply_all([augment.build(Codebook.of(CODEBOOK))], batch, Draws(seed, epoch, batch.index))


def cases() -> list[tuple[str, Stage]]:
    return [(name, stage) for name in NAMES for stage in Augment.choices[name].stages]


def test_the_registry_is_not_empty() -> None:
    assert {"embed", "random_resized_crop", "centre_crop", "flip", "cutmix", "normalise", "scale"} <= set(NAMES)
    assert {"token_adapt", "decode_encode", "token_geometry", "code_cut", "token_colour"} <= set(NAMES)


@pytest.mark.parametrize(("name", "stage"), cases())
def test_applies_and_keeps_the_promise_of_its_stage(name: str, stage: Stage) -> None:
    out = run(made(name), make_batch(stage))
    gives = Augment.choices[name].gives or stage
    assert out.x.ndim == (3 if gives == "ids" else 4)
    assert len(out.x) == len(INDEX)
    assert out.x.is_floating_point() == (gives not in ("ids", "stacks"))
    assert torch.isfinite(out.x.float()).all()
    assert torch.equal(out.index, INDEX)
    assert torch.allclose(out.target.weight.sum(-1), torch.ones(len(INDEX)))
    assert out.target.ids.shape == out.target.weight.shape


@pytest.mark.parametrize(("name", "stage"), cases())
def test_leaves_its_input_unchanged(name: str, stage: Stage) -> None:
    batch, untouched = make_batch(stage), make_batch(stage)
    run(made(name), batch)
    assert torch.equal(batch.x, untouched.x)
    assert torch.equal(batch.target.ids, untouched.target.ids)
    assert torch.equal(batch.target.weight, untouched.target.weight)
    assert torch.equal(batch.index, untouched.index)
    assert batch.mix is None


@pytest.mark.parametrize(("name", "stage"), cases())
def test_same_draws_give_the_same_result(name: str, stage: Stage) -> None:
    augment = made(name)
    first, second = (run(augment, make_batch(stage), seed=4, epoch=2) for _ in range(2))
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.target.weight, second.target.weight)


@pytest.mark.parametrize(("name", "stage"), cases())
def test_sample_does_not_depend_on_its_neighbours(name: str, stage: Stage) -> None:
    augment = made(name)
    if augment.dense:
        pytest.skip("dense noise belongs to the step, not to the sample")
    if run(augment, make_batch(stage)).mix is not None:
        pytest.skip("mixes with a neighbour by definition")
    shared = isinstance(augment, TokenGeometry)  # one part or the other: who is in which depends on the others
    for one in [replace(augment, share=share) for share in (0.0, 1.0)] if shared else [augment]:  # type: ignore[call-arg]
        whole = run(one, make_batch(stage)).x.float()
        turned = run(one, make_batch(stage, INDEX.flip(0))).x.flip(0)
        alone = torch.cat([run(one, make_batch(stage, INDEX[i : i + 1])).x for i in range(len(INDEX))])
        assert torch.allclose(whole, turned.float(), atol=1e-5)
        assert torch.allclose(whole, alone.float(), atol=1e-5)


@pytest.mark.parametrize("augment", [RandomResizedCrop(), Flip(), CutMix()])
def test_random_ones_change_with_seed_and_epoch(augment: Augment) -> None:
    batch = make_batch("map", torch.arange(32))
    first = run(augment, batch, seed=0, epoch=0).x
    assert not torch.equal(first, run(augment, batch, seed=1, epoch=0).x)
    assert not torch.equal(first, run(augment, batch, seed=0, epoch=1).x)


def test_crop_takes_the_bytes_that_a_pixel_source_gives() -> None:
    chain = [RandomResizedCrop(size=(8, 8)), Normalise()]
    assert output_shape(chain, Shape("pixels", 3, (32, 32))).stage == "pixels"
    pixels = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    batch = Batch(pixels, Target.hard(torch.zeros(2, dtype=torch.int64)), torch.arange(2))
    draws = Draws(0, 0, batch.index)
    expected = apply_all(chain, replace(batch, x=pixels.float()), draws)
    assert torch.allclose(apply_all(chain, batch, draws).x, expected.x)


def test_apply_all_runs_in_order() -> None:
    batch, draws = make_batch("pixels"), Draws(0, 0, INDEX)
    out = apply_all([Normalise(), CentreCrop(size=(8, 8)), Flip(probability=1.0)], batch, draws)
    expected = run(Normalise(), batch).x[..., 12:20, 12:20].flip(-1)
    assert torch.equal(out.x, expected)


@pytest.mark.parametrize("name", NAMES)
def test_settings_survive_the_configuration(name: str) -> None:
    augment = made(name)
    assert decode(Augment, encode(augment)) == augment
    assert encode(augment)["name"] == name


# chains


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stage", STAGES)
def test_chain_takes_exactly_the_stages_of_each(name: str, stage: Stage) -> None:
    augment = made(name)
    if stage in augment.stages:
        assert output_shape([augment], Shape(stage, 3, (32, 32))).stage == (augment.gives or stage)
    else:
        with pytest.raises(ConfigError, match=f"'{name}' takes .* (but gets {stage}|these data have several)"):
            assert output_shape([augment], Shape(stage, 3, (32, 32))).stage == stage


def test_good_chains_are_accepted() -> None:
    assert output_shape([Embed(), RandomResizedCrop(), CutMix()], Shape("ids", 3, (32, 32))).stage == "map"
    assert output_shape([Normalise(), RandomResizedCrop(), Flip()], Shape("pixels", 3, (32, 32))).stage == "pixels"
    assert output_shape([Scale(), Flip()], Shape("pixels", 3, (32, 32))).stage == "pixels"
    assert output_shape([], Shape("ids", 3, (32, 32))).stage == "ids"


@pytest.mark.parametrize(
    ("chain", "stage", "culprit"),
    [
        ([RandomResizedCrop(), Embed()], "ids", "random_resized_crop"),
        ([Embed(), Embed()], "ids", "embed"),
        ([Embed(), Normalise()], "ids", "normalise"),
        ([Normalise(), Embed()], "pixels", "embed"),
        ([CutMix(), Embed()], "ids", "cutmix"),
    ],
)
def test_wrong_order_names_the_culprit(chain: list[Augment], stage: Stage, culprit: str) -> None:
    with pytest.raises(ConfigError, match=f"augmentation '{culprit}'"):
        assert output_shape(chain, Shape(stage, 3, (32, 32))).stage == "map"
