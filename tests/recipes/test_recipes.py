"""Every recipe builds, trains two steps, and survives YAML, chains too; senseless combinations are refused."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from small_data import CODE_DIM, write_images, write_objects, write_pairs, write_store
from tilework.augment import CentreCrop, Embed, Flip, MultiScale, Normalise, RandomResizedCrop, TokenCrop, apply_all
from tilework.augment.adapter import save_adapter
from tilework.core.batch import Shape
from tilework.core.config import decode, encode, read_yaml_text, resolve, to_yaml
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError
from tilework.core.files import locked, make_directory
from tilework.core.rng import Draws
from tilework.data import ImageFolder
from tilework.data.detected import pack_objects
from tilework.data.label_maps import MapsCard, write_maps
from tilework.data.objects import Objects
from tilework.layers.stems import TokenStemConfig
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import VitConfig
from tilework.models.detector import DetectorConfig
from tilework.objectives import ClassifyConfig, MaskedConfig
from tilework.recipes import find, recipes, small_forms
from tilework.runs import Artefacts, Chain, Extra, Run, check_links, equip, evaluate_run, plan, prepare, train
from tilework.runs.build import build_model, build_objective, data_spec
from tilework.runs.trained import Trained
from tilework.store import Store, StoreWriter
from tilework.store.label_maps import encode_map
from tilework.store.masks import encode_mask
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train import FitConfig, fit, time_steps

CPU = World(0, 1, torch.device("cpu"))


def small() -> Run:
    return Run(
        model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
        objective=ClassifyConfig(),
        augment=(Embed(),),
        evaluation=(Embed(),),
        fit=FitConfig(epochs=1, batch=12),
    )


RUNS = [name for name in recipes if isinstance(recipes[name].run, Run)]
CHAINS = [name for name in recipes if isinstance(recipes[name].run, Chain)]
UNLISTED = {form.name: form for form in small_forms.values() if form.name not in list(recipes)}


@pytest.mark.parametrize("name", RUNS)
def test_recipe_survives_yaml(name: str) -> None:
    run = recipes[name].run
    assert decode(Run, read_yaml_text(to_yaml(run), name)) == run


@dataclass(frozen=True)
class Tools:
    """A small tokenizer and a TokenAdapt for it; no test changes them."""

    tokenizer: Path
    adapter: Path
    codebook: np.ndarray  # (K, C)

    def given(self, run: Run) -> Run:
        """A recipe with the tools that its parts ask for."""
        return equip(run, Artefacts(self.tokenizer, self.adapter), strict=False)


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    root = tmp_path_factory.mktemp("tools")
    torch.manual_seed(0)
    config = VitVqConfig(patch=4, codes=32, code_dim=8, width=16, depth=1, heads=2)
    tokenizer = config.build(3, (32, 32), 0)
    save_tokenizer(root / "tokenizer", tokenizer, config, (32, 32))
    network = TokenAdaptNetwork(8, width=16, heads=2)
    network.fit_codes(tokenizer.codebook)
    save_adapter(root / "adapter", network, tokenizer.codebook, {})
    return Tools(root / "tokenizer", root / "adapter", tokenizer.codebook.detach().numpy())


def shrunk(run: Run) -> Run:
    """A recipe with its pipeline, schedule and grids, but networks, samples and a batch for a test."""
    settings = ["fit.epochs=0", "fit.steps=2", "fit.batch=4", "fit.precision=fp32"]
    settings += ["samples=6"] if run.samples else []
    settings += ["objective.warm_steps=1"] if hasattr(run.objective, "warm_steps") else []
    if getattr(run.objective, "adversarial", None):
        settings += ["objective.adversarial.start=1", "objective.adversarial.width=4", "size=[32,32]"]
    backbone: Any = getattr(run.model, "backbone", None)
    settings += ["model.channels=8"] if backbone is not None else []
    settings += ["objective.auxiliary_channels=8"] if hasattr(run.objective, "auxiliary_channels") else []
    if isinstance(run.model, DetectorConfig):  # canvases of two thousand positions and more
        settings += ["codes=[16,16]"] if run.codes else ["size=[64,96]"]
        scaled = any(isinstance(step, MultiScale) for step in run.augment)
        settings += [f"{part}.multi_scale.size=[64,96]" for part in ("augment", "evaluation") if scaled]
        settings += ["model.hidden=8", "objective.regions=8"] if hasattr(run.model, "hidden") else []
    parts: dict[str, Any] = {"objective": run.objective}  # the decoder of masked token modelling
    parts |= {"model": run.model} if backbone is None else {"model.backbone": backbone}
    for part, has in parts.items():
        sizes: dict[str, Any] = {"depth": 2, "width": 32, "heads": 2} if hasattr(has, "heads") else {"width": 16}
        if hasattr(has, "depths"):  # a pyramid
            stages = len(has.depths)
            sizes = {"depths": [1] * stages, "heads": [1, 1, 2, 2][:stages], "width": 8, "widths": [8, 8, 16, 16]}
        if hasattr(has, "multiples"):  # a VQGAN
            sizes = {"width": 32, "multiples": [1, 1, 1, 1, 1], "blocks": 1, "latent": 16, "code_dim": 16, "codes": 32}
        sizes |= {"moto_blocks": 1} if getattr(has, "moto_blocks", 0) else {}
        sizes |= {"hidden": 16} if hasattr(has, "outputs") else {}  # of MoCo v3
        settings += [f"{part}.{name}={size}" for name, size in sizes.items() if hasattr(has, name)]
    return resolve(run, None, settings)


def code_grid(run: Run) -> tuple[int, int] | None:
    """The grid of stored codes that a recipe is made for; None for pixels."""
    if run.codes is not None or not any(isinstance(step, Embed) for step in run.evaluation):
        return run.codes
    crops = [
        step.size
        for step in (*run.evaluation, *run.augment)
        if isinstance(step, CentreCrop | RandomResizedCrop | TokenCrop)
    ]
    if not crops:
        return 1, 12  # whatever is there: a sequence
    height, width = crops[0]
    cut = any(isinstance(step, CentreCrop) for step in run.evaluation)
    return (height * 8 // 7, width * 8 // 7) if cut else (height, width)


def data_for(run: Run, tools: Tools, path: Path) -> Path:
    """Eight random samples of the kind and grid a recipe asks for."""
    grid, masks = code_grid(run), "mask" in run.objective.task.columns
    boxes = {"boxes", "instances"} & set(run.objective.task.columns)
    if grid is None and boxes:
        return write_objects(path)
    if grid is None:
        return write_pairs(path) if masks else write_images(path, classes=2, count=4)
    rng, codes = np.random.default_rng(0), len(tools.codebook)
    with StoreWriter(path, tools.codebook, ["class0", "class1"]) as writer:
        labels = np.arange(8) % (1 if masks or boxes else 2)
        writer.add(rng.integers(0, codes, (8, *grid)), labels, [str(i) for i in range(8)])
    if masks:
        Store(path).add_column("mask", [encode_mask(np.eye(24, 32, i).astype(np.uint8)) for i in range(8)])
    if boxes:
        Store(path).add_column("boxes", [pack_objects(Objects.of([[9, 9, 60, 50]], [i % 2])) for i in range(8)])
        Store(path).add_column("sides", np.full((8, 2), 128, np.int32))
    return path


def with_maps(run: Run, data: Path) -> Run:
    """A recipe that learns from label maps gets random ones: in its store, or beside its images."""
    if "label_map" not in run.objective.task.columns:
        return run
    rng = np.random.default_rng(1)
    card = MapsCard(("class0", "class1"), (3, 4), 2, "chance", 32)
    records = [encode_map(np.argsort(rng.random((3, 4, 2)), -1), np.full((3, 4, 2), [0.6, 0.3])) for _ in range(8)]
    if code_grid(run) is None:
        write_maps(data.with_suffix(".maps"), card, ImageFolder.open(data).keys, [records])
        return replace(run, maps=str(data.with_suffix(".maps")))
    store = Store(data)
    store.add_column("label_map", records)
    store.add_column("label_map_card", [json.dumps(asdict(card))] * 8)
    return run


@pytest.mark.parametrize("name", [*RUNS, *UNLISTED])
def test_recipe_trains_two_steps(name: str, tools: Tools, tmp_path: Path) -> None:
    run = tools.given(shrunk(find(name).run))
    data = data_for(run, tools, tmp_path / "data")
    run = with_maps(run, data)
    job = prepare(run, data, None, tmp_path / "run", CPU, name, quiet=True)
    assert len(job.source) == (run.samples or 8)
    losses: list[float] = []
    job.objective.register_forward_hook(lambda module, inputs, out: losses.append(out["loss"].item()))
    before = [value.detach().clone() for value in job.objective.parameters()]
    assert sum(value.numel() for value in before) < 2_000_000
    time_steps(job, count=1)  # as in training, but nothing is saved
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    assert not all(map(torch.equal, before, job.objective.parameters()))
    assert all(value.isfinite().all() for value in job.objective.parameters())


@pytest.mark.parametrize("name", [name for name in RUNS if "adapter" in recipes[name].needs])
def test_recipes_that_ask_for_an_adapter_are_refused_without_one(name: str, tools: Tools, tmp_path: Path) -> None:
    run = shrunk(recipes[name].run)
    data = data_for(run, tools, tmp_path / "data")
    with pytest.raises(ConfigError, match="needs a trained TokenAdapt: give --adapter"):
        prepare(run, data, None, tmp_path / "run", CPU, name, quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", RUNS)
def test_recipe_says_which_tools_it_needs(name: str) -> None:
    recipe, run = recipes[name], recipes[name].run
    using = [step for step in run.augment if hasattr(step, "adapter")]
    assert ("--adapter ADAPTER" in recipe.command) == ("adapter" in recipe.needs) == bool(using)
    needing = [part for part in (*run.augment, run.objective) if hasattr(part, "tokenizer")]
    if not isinstance(run.objective, MaskedConfig):  # which does without, only its pictures do not
        assert ("--tokenizer TOKENIZER" in recipe.command) == ("tokenizer" in recipe.needs) == bool(needing)
    columns = run.objective.task.columns
    assert ("label maps" in recipe.needs) == ("label_map" in columns)
    assert ("masks" in recipe.needs) == ("mask" in columns)
    assert ("boxes" in recipe.needs, "outlines" in recipe.needs) == ("boxes" in columns, "instances" in columns)
    assert ("--maps MAPS" in recipe.command) == ("label_map" in columns and code_grid(run) is None)
    assert ("--start RUN" in recipe.command) == ("start" in recipe.needs) == recipe.start
    assert recipe.takes == ("pixels" if code_grid(run) is None else "tokens")


@pytest.mark.parametrize("name", CHAINS)
def test_chain_survives_yaml_and_its_links_fit(name: str, tools: Tools, tmp_path: Path) -> None:
    chain = recipes[name].run
    assert decode(Chain, read_yaml_text(to_yaml(chain), name)) == chain
    small = Chain(tuple(replace(link, run=tools.given(shrunk(link.run))) for link in chain.links))
    data = [data_for(link.run, tools, tmp_path / link.name) for link in small.links]
    check_links(small, data, data, None)
    assert [path.name for path in sorted(tmp_path.iterdir())] == sorted(link.name for link in chain.links)


@pytest.mark.parametrize("names", [(), ("a", "a"), ("a", "b/c"), ("..",)])
def test_links_have_names_that_can_be_directories(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="different names"):
        decode(Chain, {"links": [{"name": name, "run": encode(small())} for name in names]})


def test_train_writes_everything_beside_the_run(store: Path, val_store: Path, tmp_path: Path) -> None:
    result = train(small(), store, val_store, tmp_path / "run", quiet=True)
    written = json.loads((tmp_path / "run/results.json").read_text())
    assert written["top1"] == result.metrics["top1"]
    assert encode(small()) == read_yaml_text((tmp_path / "run/run.yaml").read_text(), "run")
    opened = Trained.open(tmp_path / "run")
    run, spec, model = opened.run, opened.spec, opened.network
    assert run == small()
    assert spec.classes == ("class0", "class1", "class2")
    for name, value in model.state_dict().items():
        assert torch.equal(value, result.model.state_dict()[name])
    assert evaluate_run(tmp_path / "run", val_store).top(1) == pytest.approx(result.metrics["top1"])


def test_paths_may_be_plain_text(store: Path, val_store: Path, tmp_path: Path) -> None:
    result = train(small(), str(store), str(val_store), str(tmp_path / "run"), quiet=True)
    assert evaluate_run(str(tmp_path / "run"), str(val_store)).top(1) == pytest.approx(result.metrics["top1"])


def test_evaluation_uses_averaged_weights(store: Path, val_store: Path, tmp_path: Path) -> None:
    run = replace(small(), fit=replace(small().fit, ema=0.5))
    result = train(run, store, val_store, tmp_path / "run", quiet=True)
    model = Trained.open(tmp_path / "run").network
    for name, value in model.state_dict().items():
        assert torch.equal(value, result.model.state_dict()[name])


def test_broken_images_are_listed_beside_the_run(images: Path, tmp_path: Path) -> None:
    (images / "class1/000.png").write_bytes(b"nothing")
    settings = ["size=[24,24]", "max_broken=0.2", "fit.batch=8", "fit.steps=3", "augment.1.size=[24,24]"]
    run = resolve(recipes["demo_pixel"].run, None, settings)
    train(run, images, None, tmp_path / "run", quiet=True)
    listed = json.loads((tmp_path / "run/quarantine.json").read_text())
    assert [entry["path"] for entry in listed] == ["class1/000.png"]
    assert "identify" in listed[0]["reason"]


def test_auxiliary_objectives_are_added_and_saved(store: Path, tmp_path: Path) -> None:
    run = replace(small(), extra=(Extra(ClassifyConfig(smoothing=0.0), 0.5),))
    job = prepare(run, store, None, tmp_path / "run", CPU, "x", quiet=True)
    batch = apply_all(job.augment, job.source.batch(np.arange(4)), Draws(0, 0, torch.arange(4)))
    out = job.objective(batch, Draws(0, 0, batch.index))
    plain, sharp = (ClassifyConfig(s).build(job.objective.model)(batch, Draws(0, 0, batch.index)) for s in (0.1, 0.0))
    torch.testing.assert_close(out["loss"], plain["loss"] + 0.5 * sharp["loss"])
    torch.testing.assert_close(out["classify"], sharp["loss"])
    first = fit(job)
    again = fit(prepare(run, store, None, tmp_path / "run", CPU, "x", quiet=True))
    for name, value in first.model.state_dict().items():  # a checkpoint of shared weights loads
        assert torch.equal(value, again.model.state_dict()[name])


def refuse(run: Run, data: Path, out: Path, val: Path | None = None) -> None:
    prepare(run, data, val, out, CPU, "x", quiet=True)


def test_chains_that_do_not_fit_are_refused(store: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"trains on images, but .* is a token store"):
        refuse(replace(small(), augment=(Normalise(), Embed())), store, out)
    with pytest.raises(ConfigError, match="end in ids but the model takes map"):
        refuse(replace(small(), augment=()), store, out)
    with pytest.raises(ConfigError, match="evaluation"):
        refuse(replace(small(), evaluation=()), store, out)
    with pytest.raises(
        ConfigError, match=r"trains on a token store, but .*images is an image folder: use one of .* tilework tok"
    ):
        refuse(small(), images, out)
    with pytest.raises(ConfigError, match="9x9 does not fit a grid of 8x8"):
        refuse(replace(small(), evaluation=(Embed(), CentreCrop((9, 9)))), store, out)
    with pytest.raises(ConfigError, match="5x5 has no even sides"):
        refuse(replace(small(), evaluation=(Embed(), CentreCrop((5, 5)))), store, out)
    assert Flip().probability == 0.5


def test_data_that_do_not_fit_are_refused(store: Path, val_store: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(InputError, match="no such data"):
        refuse(small(), tmp_path / "nowhere", out)
    with pytest.raises(InputError, match="one class only"):
        refuse(small(), write_store(tmp_path / "one.tok", classes=1), out)
    with pytest.raises(InputError, match="not of the same kind"):
        refuse(small(), store, out, images)
    with pytest.raises(InputError, match="other classes"):
        refuse(small(), store, out, write_store(tmp_path / "four.tok", classes=4))
    with StoreWriter(tmp_path / "other.tok", np.zeros((16, 8)), ["class0", "class1", "class2"]) as writer:
        writer.add(np.zeros((3, 8, 8), int), [0, 1, 2], list("abc"))
    with pytest.raises(InputError, match="another codebook"):
        refuse(small(), store, out, tmp_path / "other.tok")
    assert not out.exists()


def test_a_directory_of_another_run_is_refused(store: Path, tmp_path: Path) -> None:
    train(small(), store, None, tmp_path / "run", quiet=True)
    with pytest.raises(OutputError, match="another run"):
        refuse(resolve(small(), None, ["model.width=32"]), store, tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").write_text("dear")
    with pytest.raises(OutputError, match="other files"):
        refuse(small(), store, tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter.txt"]


def test_load_run_says_what_is_wrong(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in"):
        Trained.open(tmp_path)
    prepare(small(), store, None, tmp_path / "run", CPU, "x", quiet=True)
    with pytest.raises(InputError, match="no checkpoint yet"):
        Trained.open(tmp_path / "run")
    (tmp_path / "run/data.json").write_text("{")
    with pytest.raises(DamageError, match=r"data\.json"):
        Trained.open(tmp_path / "run")


def test_evaluating_a_token_model_on_images(images: Path, tmp_path: Path) -> None:
    settings = [
        "size=[32,32]",
        "model.patch=4",
        "model.codes=16",
        "fit.batch=8",
        "fit.steps=3",
        "objective.warm_steps=1",
    ]
    tokenizer_run = resolve(recipes["demo_tokenizer"].run, None, settings)
    trained = train(tokenizer_run, images, images, tmp_path / "tr", quiet=True)
    save_tokenizer(tmp_path / "tokenizer", trained.model, tokenizer_run.model, tokenizer_run.size)
    job = Tokenizing(*load_tokenizer(tmp_path / "tokenizer"), CPU.device)
    tokenize(ImageFolder.open(images), job, tmp_path / "x.tok")
    train(small(), tmp_path / "x.tok", None, tmp_path / "run", quiet=True)
    stored = evaluate_run(tmp_path / "run", tmp_path / "x.tok")
    direct = evaluate_run(tmp_path / "run", images, tmp_path / "tokenizer")
    np.testing.assert_allclose(stored.probabilities, direct.probabilities, atol=1e-6)
    found = evaluate_run(tmp_path / "run", images)  # the run keeps its tokenizer
    np.testing.assert_array_equal(found.probabilities, direct.probabilities)
    with pytest.raises(InputError, match="trained no classifier"):
        evaluate_run(tmp_path / "tr", images)
    (tmp_path / "run/codebook.safetensors").write_bytes(b"no")
    with pytest.raises(DamageError, match=r"codebook\.safetensors cannot be read"):
        evaluate_run(tmp_path / "run", images, tmp_path / "tokenizer")


def test_evaluating_on_other_data_is_refused(store: Path, tmp_path: Path) -> None:
    train(small(), store, None, tmp_path / "run", quiet=True)
    with pytest.raises(InputError, match="other classes"):
        evaluate_run(tmp_path / "run", write_store(tmp_path / "four.tok", classes=4))
    with StoreWriter(tmp_path / "other.tok", np.zeros((16, 8)), ["class0", "class1", "class2"]) as writer:
        writer.add(np.zeros((3, 8, 8), int), [0, 1, 2], list("abc"))
    with pytest.raises(InputError, match="has another codebook than the run"):
        evaluate_run(tmp_path / "run", tmp_path / "other.tok")


def test_plan_leaves_nothing_behind(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = plan(small(), store, None, "cpu")
    assert found["steps"] == 4
    assert found["samples"] == 48
    source = prepare(small(), store, None, tmp_path / "r", CPU, "x", quiet=True).source
    spec = data_spec(source, Shape("map", CODE_DIM, source.grid))
    model = build_model(small(), spec)
    assert found["parameters"] == sum(p.numel() for p in build_objective(small(), model).parameters())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "train.tok"]


@pytest.mark.parametrize("name", ["seit_cpu", "seit_vit_b", "seit_f16_cpu"])
def test_codes_of_another_grid_are_refused_before_the_first_step(name: str, tmp_path: Path) -> None:
    run = resolve(recipes[name].run, None, ["fit.batch=4"])
    with StoreWriter(tmp_path / "x.tok", np.eye(4, 8), ["a", "b"]) as writer:
        writer.add(np.zeros((8, 24, 24), int), np.arange(8) % 2, [str(i) for i in range(8)])
    with pytest.raises(ConfigError, match=r"made for .* codes, .* has 24x24"):
        prepare(run, tmp_path / "x.tok", None, tmp_path / "run", CPU, name, quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", ["[12,12]", "[15,15]"])
def test_training_and_evaluation_must_end_in_the_same_shape(size: str, tmp_path: Path) -> None:
    run = resolve(recipes["seit_cpu"].run, None, ["fit.batch=4", f"augment.1.size={size}"])
    with StoreWriter(tmp_path / "x.tok", np.eye(4, 8), ["a", "b"]) as writer:
        writer.add(np.zeros((8, 16, 16), int), np.arange(8) % 2, [str(i) for i in range(8)])
    with pytest.raises(ConfigError, match=r"training ends in 8 channels on .* evaluation in 8 channels on 14x14"):
        prepare(run, tmp_path / "x.tok", None, tmp_path / "run", CPU, "x", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_run_in_use_is_refused(store: Path, tmp_path: Path) -> None:
    make_directory(tmp_path / "run")
    with locked(tmp_path / "run"), pytest.raises(OutputError, match="in use by another process"):
        train(small(), store, None, tmp_path / "run", quiet=True)
