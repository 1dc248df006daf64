"""TokenAdapt's training: the same augmentation for image and map, what is trained and kept, and its use afterwards."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from small_data import write_images
from tilework.augment import Embed, TokenAdapt
from tilework.augment.adapter import load_adapter
from tilework.augment.affine import Geometry
from tilework.core.batch import Batch, Mix, Target
from tilework.core.config import resolve
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.data import ImageFolder
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import TokenAdaptModelConfig, VitConfig
from tilework.objectives import AdaptConfig, ClassifyConfig
from tilework.objectives.adapt import Adapt, nearest_places
from tilework.recipes import recipes
from tilework.runs import Extra, Run, prepare, train
from tilework.store import Store
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.kmeans import kmeans
from tilework.tokenizers.tokenize import tokenize
from tilework.train import FitConfig

CPU = World(0, 1, torch.device("cpu"))


def write_tokenizer(path: Path, patch: int = 2, size: tuple[int, int] = (16, 16), cosine: bool = False) -> Path:
    """A tokenizer whose codes are colours: each patch has the one nearest to its mean."""
    torch.manual_seed(0)
    config = VitVqConfig(patch=patch, codes=12, code_dim=3, width=8, depth=1, heads=2, cosine=cosine)
    one = config.build(3, size, 0)
    with torch.no_grad():
        one.straight_in.weight.copy_(torch.eye(3)[..., None, None].expand(3, 3, patch, patch) / patch**2)
        one.straight_in.bias.zero_()  # type: ignore[union-attr]
        one.quantiser.table.uniform_(0, 1)
    save_tokenizer(path, one, config, size)
    return path


def objective(path: Path, code_dim: int = 3, codes: int = 0, **settings: Any) -> Adapt:
    torch.manual_seed(1)
    model = TokenAdaptModelConfig(code_dim, width=32, heads=2, codes=codes).build(3, (16, 16), 2)
    return AdaptConfig(tokenizer=str(path), **settings).build(model)


def make_batch(pixels: Tensor) -> Batch:
    index = torch.arange(len(pixels))
    return Batch(pixels, Target.hard(torch.zeros_like(index)), index)


def coloured(path: Path, count: int, height: int, width: int) -> Batch:
    """Images of whole patches, each in the colour of a code."""
    one = load_tokenizer(path)[0]
    ids = torch.randint(12, (count, height, width), generator=torch.Generator().manual_seed(4))
    x = one.codebook.detach()[ids].permute(0, 3, 1, 2)
    return make_batch(x.repeat_interleave(one.patch, 2).repeat_interleave(one.patch, 3))


def at(batch: Batch, step: int) -> Draws:
    return Draws(0, 0, batch.index, step)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "colours")


def repeated(network: TokenAdaptNetwork, z: Tensor) -> Tensor:
    """In place of f: each code vector four times."""
    return z.repeat_interleave(2, 2).repeat_interleave(2, 3)


def averaged(network: TokenAdaptNetwork, s: Tensor, codebook: Tensor) -> Tensor:
    """In place of g: how near the mean of four places lies to each code."""
    z = F.avg_pool2d(s, 2).permute(0, 2, 3, 1)
    return z @ codebook.T - codebook.square().sum(1) / 2  # as the tokenizer decides, also on a tie


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """f repeats and g averages: with patches of 2 px in colours of codes, f gives the image itself."""
    monkeypatch.setattr(TokenAdaptNetwork, "f", repeated)
    monkeypatch.setattr(TokenAdaptNetwork, "g", averaged)


# the loss


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("grid", [(8, 8), (8, 16), (6, 8)])
def test_image_and_map_are_augmented_alike(path: Path, grid: tuple[int, int], step: int) -> None:
    """Where the map is the image, g(A(f(codes of x))) are the codes of A(x), whatever A."""
    one, batch = objective(path, geometry=Geometry(turn=1.0), mix=1.0), coloured(path, 16, *grid)
    assert one(batch, at(batch, step))["agreement"] == 1
    affine = one.config.geometry.sample(at(batch, step), batch)
    moved = one.codes(one.image(batch.x, affine, grid))
    assert (moved != one.codes(batch.x)).float().mean() > 0.5, "and A does something"


def flipping(path: Path, codes: int, ends: list[Tensor]) -> tuple[Adapt, dict[str, Tensor], Tensor]:
    """A step whose A is a flip: the objective, what it gives, and the codes of the flipped images.

    ends: takes what the network's last layer gave for the same input, flattened.
    """
    one = objective(path, codes=codes, mix=0.0, geometry=Geometry(crop=0.0, flip=1.0, turn=0.0))
    batch = make_batch(torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    out = one(batch, at(batch, 0))
    tokenizer = load_tokenizer(path)[0]
    ids, target = tokenizer.encode(batch.x).clone(), tokenizer.encode(batch.x.flip(-1)).clone()
    one.model.outlet.register_forward_hook(lambda layer, taken, given: ends.append(given.flatten(0, 2)))
    one.model.g(one.model.f(tokenizer.codebook[ids].permute(0, 3, 1, 2)).flip(-1), tokenizer.codebook)
    return one, out, target.flatten()


def test_loss_is_the_cross_entropy_of_the_codes_of_the_augmented_image(path: Path) -> None:
    """By squared distances to codes whose channels are standardised (eq. 3), over the temperature."""
    ends: list[Tensor] = []
    one, out, target = flipping(path, 0, ends)
    codebook = one.tokenizer.codebook
    deviation = codebook.std(0, correction=0)
    unit = deviation.square().mean().sqrt()  # one for all channels: the distance that codes are chosen by
    distance = torch.cdist(ends[0] * deviation / unit, (codebook - codebook.mean(0)) / unit).square()
    logits = -distance / 2 / codebook.shape[1] ** 0.5 / one.model.log_temperature.exp()
    torch.testing.assert_close(out["loss"], F.cross_entropy(logits, target), atol=1e-3, rtol=1e-3)
    assert out["agreement"] == pytest.approx((distance.argmin(1) == target).float().mean().item(), abs=0.02)


def test_loss_of_logits_as_published(path: Path) -> None:
    ends: list[Tensor] = []
    one, out, target = flipping(path, 12, ends)
    assert ends[0].shape == (3 * 64, 12)
    torch.testing.assert_close(out["loss"], F.cross_entropy(ends[0], target))
    assert out["agreement"] == pytest.approx((ends[0].argmax(1) == target).float().mean().item(), abs=0.02)
    out["loss"].backward()
    assert all(p.grad is not None for p in one.parameters())


@pytest.mark.parametrize(
    ("sides", "odd"), [((16, 16), (7, 7)), ((32, 16), (14, 7)), ((12, 12), (6, 6)), ((16, 12), (8, 6))]
)
def test_odd_steps_give_seven_eighths_of_a_grid_that_has_eighths(
    path: Path, sides: tuple[int, int], odd: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, batch, shapes = objective(path), make_batch(torch.rand(2, 3, *sides)), []
    encode = one.codes
    monkeypatch.setattr(one, "codes", lambda x: shapes.append(encode(x).shape[1:]) or encode(x))
    whole = (sides[0] // 2, sides[1] // 2)
    for step in range(4):
        one(batch, at(batch, step))
    assert shapes == [whole, whole, odd, whole, whole, whole, odd, whole]  # of A(x), then of x


@pytest.mark.parametrize("patch", [2, 4, 8])
def test_boxes_end_at_the_same_place_in_image_and_map(tmp_path: Path, patch: int) -> None:
    one = objective(write_tokenizer(tmp_path / "large", patch))
    x = torch.stack([torch.zeros(3, 4 * patch, 4 * patch), torch.ones(3, 4 * patch, 4 * patch)])
    own = (torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    out = one.image(x, torch.eye(2, 3).repeat(2, 1, 1), (4, 4), Mix(torch.tensor([1, 0]), own))
    assert torch.equal(F.avg_pool2d(out[1, :1], patch // 2)[0], own[1])
    assert torch.equal(F.avg_pool2d(out[0, :1], patch // 2)[0], 1 - own[0])


def test_mixing_happens_as_often_as_it_should(path: Path) -> None:
    one = objective(path, mix=0.3, geometry=Geometry(crop=0.0, flip=0.0, turn=0.0))
    seen: list[Tensor] = []
    image = one.image
    one.image = lambda x, affine, size, mix: seen.append(mix.own) or image(x, affine, size, mix)  # type: ignore
    batch = make_batch(torch.rand(400, 3, 4, 4))
    one(batch, at(batch, 0))
    mixed = (seen[0] < 1).flatten(1).any(1).float().mean().item()
    assert mixed == pytest.approx(0.3, abs=0.06)


def test_codes_are_those_of_the_store_under_autocast(path: Path) -> None:
    one, x = objective(path), torch.rand(64, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        found = one.codes(x)
    assert torch.equal(found, load_tokenizer(path)[0].encode(x))


def test_loss_falls(tmp_path: Path) -> None:
    """Smooth images, codes by k-means of their patches, thirty steps."""
    torch.manual_seed(0)
    images = F.interpolate(torch.rand(16, 3, 4, 4), (16, 16), mode="bilinear")
    config = VitVqConfig(patch=4, codes=12, code_dim=4, width=8, depth=1, heads=2)
    tokenizer = config.build(3, (16, 16), 0)
    tokenizer.start(images)
    with torch.no_grad():
        tokenizer.quantiser.table.copy_(kmeans(tokenizer.features(images).flatten(0, 2), 12))
    save_tokenizer(tmp_path / "smooth", tokenizer, config, (16, 16))
    one, batch = objective(tmp_path / "smooth", code_dim=4), make_batch(images)
    with torch.no_grad():  # far from where it starts, which gives codes back as they are
        for parameter in one.parameters():
            parameter.normal_(std=0.2)
    before = one.score(one.model, batch)
    optimiser = torch.optim.AdamW(one.parameters(), 3e-3)
    losses = []
    for step in range(30):
        optimiser.zero_grad()
        out = one(batch, Draws(0, step, batch.index, step))
        out["loss"].backward()
        if step == 0:
            assert all(p.grad is not None for p in one.parameters())
        optimiser.step()
        losses.append(out["loss"].item())
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    after = one.score(one.model, batch)
    assert after["identity"].mean() > before["identity"].mean() + 0.3


# what is trained


def test_the_tokenizer_is_neither_trained_nor_saved(path: Path) -> None:
    one, batch = objective(path), make_batch(torch.rand(4, 3, 16, 16))
    one.train()
    model = {f"model.{name}" for name in one.model.state_dict()}
    assert set(one.state_dict()) == model
    assert {name for name, _ in one.named_parameters()} < model
    assert not one.tokenizer.training
    one(batch, at(batch, 0))["loss"].backward()
    assert all(p.grad is None and not p.requires_grad for p in one.tokenizer.parameters())
    torch.testing.assert_close(one.model.mean, one.tokenizer.codebook.mean(0))


# the score


@pytest.mark.usefixtures("plain")
def test_scores_of_a_perfect_map(path: Path) -> None:
    one, batch = objective(path), coloured(path, 6, 8, 8)
    scores = one.score(one.model, batch)
    kinds = ["identity", "flip", "affine", "crop"]
    ends = ("", "_grid", "_distance", "_grid_distance")
    assert sorted(scores) == sorted(f"{kind}{end}" for kind in kinds for end in ends)
    for kind in kinds:
        assert torch.equal(scores[kind], torch.ones(6))
        assert torch.equal(scores[f"{kind}_distance"], torch.zeros(6))
    for kind in ("identity_grid", "flip_grid"):  # colours of patches flip with the image
        assert torch.equal(scores[kind], torch.ones(6))
    assert scores["affine_grid"].mean() < 0.9
    assert scores["crop_grid"].mean() < 0.95
    assert scores["affine_grid_distance"].mean() > 0.05


def test_distance_of_codes(path: Path) -> None:
    """By a loop; two grids drawn at random lie 1 apart, by root mean square."""
    one, g = objective(path), torch.Generator().manual_seed(0)
    codebook = one.tokenizer.codebook
    a, b = (torch.randint(12, (4, 30, 20), generator=g) for _ in range(2))
    pairs = [(codebook[i] - codebook[j]).square().sum().item() for i in range(12) for j in range(12)]
    usual = (sum(pairs) / len(pairs)) ** 0.5
    for found, first, second in zip(one.distance(a, b), a, b, strict=True):
        by_hand = [
            (codebook[i] - codebook[j]).norm().item() for i, j in zip(first.flatten(), second.flatten(), strict=True)
        ]
        assert found.item() == pytest.approx(sum(by_hand) / len(by_hand) / usual, rel=1e-4)
        assert 0.8 < found < 1
    assert torch.equal(one.distance(a, a), torch.zeros(4))


def test_scores_are_of_the_given_model_and_of_each_image(path: Path) -> None:
    one, other, batch = objective(path), objective(path), make_batch(torch.rand(5, 3, 16, 16))
    with torch.no_grad():
        other.model.outlet.weight.mul_(30)
    scores, others = one.score(one.model, batch), one.score(other.model, batch)
    assert torch.equal(scores["identity_grid"], torch.ones(5))
    for name, values in scores.items():
        assert values.shape == (5,)
        if "_grid" in name or name.endswith("_distance"):  # shares of equal codes may be alike by chance
            assert torch.equal(values, others[name]) == ("_grid" in name)
    alone = one.score(one.model, batch.rows(slice(2, 3)))
    for name, values in alone.items():
        assert values.item() == pytest.approx(scores[name][2].item(), abs=1e-6)


def test_moving_codes_themselves() -> None:
    ids = torch.randint(8192, (2, 4, 4))
    flip, quarter = torch.tensor([[[-1.0, 0, 0], [0, 1, 0]], [[0, -1.0, 0], [1, 0, 0]]])
    assert torch.equal(nearest_places(ids, flip.repeat(2, 1, 1)), ids.flip(-1))
    assert torch.equal(nearest_places(ids, quarter.repeat(2, 1, 1)), torch.rot90(ids, 1, (1, 2)))


# a whole run


def adapting(path: Path, *settings: str) -> Run:
    """The recipe for two cores, smaller still."""
    small = ["model.code_dim=3", "model.width=16", "model.heads=2", "size=[16,16]", "fit.batch=4", "fit.steps=2"]
    run = resolve(recipes["token_adapt_cpu"].run, None, [f"objective.tokenizer={path}", *small])
    return resolve(run, None, settings)


def on_tokens(adapter: Path) -> Run:
    """A classifier of 8x8 codes that are augmented by a TokenAdapt."""
    return Run(
        model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
        objective=ClassifyConfig(),
        augment=(TokenAdapt(adapter=str(adapter), size=(8, 8)),),
        evaluation=(Embed(),),
        fit=FitConfig(epochs=0, steps=2, batch=8),
    )


def test_a_run_leaves_what_training_on_tokens_needs(path: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = train(adapting(path, "fit.ema=0.5"), images, images, out, quiet=True)
    scored = json.loads((out / "results.json").read_text())
    assert scored["identity_grid"] == 1
    assert 0 <= scored["affine"] <= 1
    network, codebook = load_adapter(out / "token_adapt")
    tokenizer, card = load_tokenizer(path)
    assert torch.equal(torch.from_numpy(codebook.vectors), tokenizer.codebook)
    settings = json.loads((out / "token_adapt/token_adapt.json").read_text())
    assert settings["tokenizer"] == {"name": "colours", "sha256": card.sha256}
    for name, value in result.model.state_dict().items():  # the averaged weights
        assert torch.equal(network.state_dict()[name], value)
    written = (out / "token_adapt/weights.safetensors").read_bytes()
    train(adapting(path, "fit.ema=0.5"), images, images, out, quiet=True)  # finished before: nothing changes
    assert (out / "token_adapt/weights.safetensors").read_bytes() == written

    tokenize(ImageFolder.open(images), Tokenizing(tokenizer, card, CPU.device), tmp_path / "x.tok")
    store = tmp_path / "x.tok"
    assert train(on_tokens(out / "token_adapt"), store, store, tmp_path / "tokens", quiet=True).steps == 2


def test_codes_of_unit_length_fit_their_own_store(images: Path, tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path / "unit", cosine=True)
    train(adapting(path), images, None, tmp_path / "run", quiet=True)
    tokenize(ImageFolder.open(images), Tokenizing(*load_tokenizer(path), CPU.device), tmp_path / "x.tok")
    prepare(on_tokens(tmp_path / "run/token_adapt"), tmp_path / "x.tok", None, tmp_path / "t", CPU, "x", quiet=True)


def test_logits_are_for_the_whole_codebook(path: Path, images: Path, tmp_path: Path) -> None:
    """They are kept and read as such, and a store that has cut its codes down is refused before the first step."""
    train(adapting(path, "model.codes=12"), images, None, tmp_path / "run", quiet=True)
    network, codebook = load_adapter(tmp_path / "run/token_adapt")
    assert (network.codes, len(codebook)) == (12, 12)
    store = tmp_path / "x.tok"
    tokenize(ImageFolder.open(images), Tokenizing(*load_tokenizer(path), CPU.device), store)
    assert len(Store(store).codebook) < 12
    with pytest.raises(ConfigError, match="ends in logits of another cut"):
        prepare(on_tokens(tmp_path / "run/token_adapt"), store, None, tmp_path / "t", CPU, "x", quiet=True)


def test_nothing_is_added_to_it(path: Path, images: Path, tmp_path: Path) -> None:
    run = adapting(path)
    with pytest.raises(ConfigError, match="Adapt asks the model its own way"):
        train(replace(run, extra=(Extra(run.objective, 0.5),)), images, None, tmp_path / "run", quiet=True)


def test_a_tokenizer_that_goes_away_meanwhile_does_not_matter(path: Path, tmp_path: Path) -> None:
    one = objective(path)
    shutil.rmtree(path)
    one.save_artefact(one.model, tmp_path / "run")
    assert torch.equal(torch.from_numpy(load_adapter(tmp_path / "run/token_adapt")[1].vectors), one.tokenizer.codebook)


# refusals


def test_what_does_not_fit_is_refused_before_the_first_step(path: Path, tmp_path: Path) -> None:
    images, out = write_images(tmp_path / "images", classes=2, count=4, side=16), tmp_path / "run"

    def refuse(run: Run) -> None:
        prepare(run, images, None, out, CPU, "x", quiet=True)

    with pytest.raises(InputError, match=r"no tokenizer in .*nowhere"):
        refuse(adapting(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="needs a tokenizer"):
        refuse(resolve(adapting(path), None, ["objective.tokenizer=''"]))
    with pytest.raises(ConfigError, match=r"codes have 3 dimensions, the model 4.*model\.code_dim"):
        refuse(adapting(path, "model.code_dim=4"))
    with pytest.raises(ConfigError, match=r"a Vit is no TokenAdapt.*'token_adapt'"):
        refuse(replace(adapting(path), model=VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(4))))
    with pytest.raises(ConfigError, match="divisible by 4"):
        refuse(adapting(path, "model.width=18"))
    assert not out.exists()


def test_images_that_are_no_whole_patches_are_refused(path: Path) -> None:
    batch = make_batch(torch.rand(2, 3, 15, 16))
    with pytest.raises(InputError, match="do not divide into 2 px patches"):
        objective(path)(batch, at(batch, 0))


@pytest.mark.parametrize("codes", [7, 20])
def test_logits_of_another_number_of_codes_than_the_tokenizers(tmp_path: Path, codes: int) -> None:
    config = VitVqConfig(patch=2, codes=12, code_dim=3, width=8, depth=1, heads=2)
    save_tokenizer(tmp_path / "t", config.build(3, (16, 16), 0), config, (16, 16))
    model = TokenAdaptModelConfig(3, 16, 2, codes).build(3, (16, 16), 2)
    with pytest.raises(ConfigError, match=f"has 12 codes, the model {codes}"):
        AdaptConfig(tokenizer=str(tmp_path / "t")).build(model)
