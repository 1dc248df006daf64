"""LV-ViT's recipes hold what the paper's tables hold; token labelling trains from `--maps` and annotated stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from small_data import write_images
from tilework.augment import (
    CentreCrop,
    CutMix,
    CutMixOrMixup,
    Embed,
    Erase,
    Flip,
    MixToken,
    Mixup,
    Normalise,
    RandAugment,
    WholeCrop,
)
from tilework.cli.main import main
from tilework.core.config import resolve
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, DamageError, InputError, TileworkError
from tilework.data import ImageFolder
from tilework.data.label_maps import COLUMN, Labelled, MapsCard, write_maps
from tilework.layers.stems import ConvStemConfig
from tilework.models import Model, VitConfig
from tilework.objectives import ClassifyConfig, RelabelConfig, TokenLabelConfig
from tilework.recipes import recipes
from tilework.recipes.lv_vit import DEIT_S
from tilework.runs import Run, prepare
from tilework.store import Store, StoreWriter
from tilework.store.label_maps import encode_map

CPU = World(0, 1, torch.device("cpu"))
NAMES = ("class0", "class1", "class2")
PATH = ("lv_path_deeper", "lv_path_narrower", "lv_path_stem", "lv_path_divisor")
LABELLED = ("lv_vit_t", "lv_vit_s", "lv_vit_m", "lv_vit_l")
FINER = ("lv_vit_s_384", "lv_vit_m_384", "lv_vit_l_448")
LARGE = ("lv_vit_s_standard", "lv_vit_s_relabel", *LABELLED, *PATH)


def network(run: Run) -> Model:
    """The network at its full size, without memory."""
    crop = next(step.size for step in run.evaluation if isinstance(step, CentreCrop))
    tokens = any(isinstance(step, Embed) for step in run.evaluation)
    with torch.device("meta"):
        model = run.model.build(32 if tokens else 3, crop, 1000)
    assert isinstance(model, Model)
    return model


def millions(run: Run) -> float:
    return sum(p.numel() for p in network(run).parameters()) / 1e6


# table 1


@pytest.mark.parametrize("name", LARGE)
def test_table_1(name: str) -> None:
    run = recipes[name].run
    fit, labels = run.fit, name in LABELLED
    assert (fit.epochs, fit.steps, fit.batch, fit.accumulate, fit.repeats) == (300, 0, 1024, 1, 1)
    assert (fit.optim.name, fit.optim.weight_decay, fit.optim.clip, fit.ema) == ("adamw", 0.05, 0.0, 0.99992)
    assert fit.optim.lr == pytest.approx(1e-3 * 1024 / 640 if labels and name != "lv_vit_l" else 1e-3)
    assert (fit.schedule.name, fit.schedule.warmup_epochs, fit.schedule.warmup_steps) == ("cosine", 5, 0)
    assert fit.schedule.factor(1.0, 5 / 300) * fit.optim.lr == pytest.approx(1e-5)
    mixing = {"lv_vit_s_relabel": ()}.get(name, (MixToken((14, 14)),) if labels else (run.augment[-1],))
    operations = RandAugment(3 if name == "lv_vit_l" else 2, magnitude=9.0, deviation=0.5)
    steps = (WholeCrop((224, 224)), Flip(), operations, Normalise(), Erase(0.25))
    assert run.augment == (*steps, *mixing)
    assert run.evaluation == (CentreCrop((224, 224)), Normalise())
    side = 224 if name in ("lv_vit_m", "lv_vit_l") else 248  # timm's floor(224 / 0.9)
    assert (run.size, run.maps, run.extra) == ((side, side), "", ())


def test_mixup_stands_in_the_standard_column_only() -> None:
    standard = Mixup(1.0, alpha=0.8)
    for name in (*LARGE, *FINER):
        mixing = [step for step in recipes[name].run.augment if isinstance(step, CutMix | Mixup | CutMixOrMixup)]
        assert mixing == ([standard] if name in ("lv_vit_s_standard", *PATH) else []), name


def test_objectives_and_their_weights() -> None:
    for name in (*LABELLED, *FINER, "lv_labels_cpu", "token_labels_cpu"):
        objective = recipes[name].run.objective
        assert isinstance(objective, TokenLabelConfig)
        assert (objective.class_weight, objective.dense_weight) == (1.0, 0.5)
        assert recipes[name].run.model.dense, "a head for every token"  # type: ignore[attr-defined]
    others = {"lv_vit_s_standard": ClassifyConfig(), "lv_vit_s_relabel": RelabelConfig()}
    for name, objective in {**others, **dict.fromkeys(PATH, ClassifyConfig())}.items():
        assert recipes[name].run.objective == objective
        assert not recipes[name].run.model.dense  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("size", "side", "image", "parameters"),
    [("s", 384, 426, 26_297_744), ("m", 384, 384, 56_025_104), ("l", 448, 448, 150_473_552)],
)
def test_larger_images(size: str, side: int, image: int, parameters: int) -> None:
    run, base, grid = recipes[f"lv_vit_{size}_{side}"].run, recipes[f"lv_vit_{size}"].run, (side // 16, side // 16)
    assert (run.fit.batch, run.fit.epochs, run.fit.steps, run.fit.ema) == (512, 30, 0, 0.0)
    assert (run.fit.optim.lr, run.fit.optim.weight_decay) == (5e-6, 1e-8)
    assert [run.fit.schedule.factor(progress, 0.0) for progress in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]
    assert run.augment == (WholeCrop((side, side)), *base.augment[1:-1], MixToken(grid))
    assert run.evaluation == (CentreCrop((side, side)), Normalise())
    assert (run.model, run.objective) == (base.model, base.objective)
    assert run.size == (image, image)
    assert network(run).grid == grid
    assert sum(p.numel() for p in network(run).parameters()) == parameters
    assert recipes[f"lv_vit_{size}_{side}"].start


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("lv_vit_t", 8_534_720), ("lv_vit_s", 26_151_824), ("lv_vit_m", 55_830_544), ("lv_vit_l", 150_021_968)],
)
def test_sizes_of_table_1(name: str, parameters: int) -> None:
    model = network(recipes[name].run)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model.grid == (14, 14), "as MixToken's"


# the supplement's tables


def test_path_from_deit_s() -> None:
    path = [replace(recipes["lv_path_deeper"].run, model=DEIT_S), *(recipes[name].run for name in PATH)]
    sizes = [millions(run) for run in path]
    assert sizes == pytest.approx([22, 28, 25, 26, 26], abs=1.2), "as printed"
    assert sizes == pytest.approx([22.051, 29.147, 24.424, 25.785, 25.785], abs=0.002), "as built"
    assert millions(path[0]) == pytest.approx(millions(recipes["deit_s"].run), abs=1e-6)
    models: list[Any] = [run.model for run in path]
    changes = [
        {name for name in asdict(one) if getattr(one, name) != getattr(other, name)} for one, other in pairwise(models)
    ]
    assert changes == [{"depth"}, {"mlp_ratio"}, {"stem"}, {"divisor"}], "one thing at a time"
    assert (models[-1].depth, models[-1].mlp_ratio, models[-1].divisor) == (16, 3.0, 2.0)
    assert models[-1].stem == ConvStemConfig((7, 3, 3, 8), (2, 1, 1, 8), 64)
    assert len({replace(run, model=DEIT_S) for run in path}) == 1, "all else is alike"


@pytest.mark.parametrize(
    ("kernels", "strides"), [([16], [16]), ([7, 8], [2, 8]), ([7, 3, 8], [2, 1, 8]), ([7, 3, 3, 8], [2, 2, 1, 4])]
)
def test_other_stems_are_settings(kernels: list[int], strides: list[int]) -> None:
    settings = [f"model.stem.kernels={kernels}", f"model.stem.strides={strides}"]
    assert network(resolve(recipes["lv_path_stem"].run, None, settings)).grid == (14, 14)


@pytest.mark.parametrize("divisor", [1, 2, 3])
def test_other_divisors_are_settings(divisor: int) -> None:
    run = resolve(recipes["lv_path_divisor"].run, None, [f"model.divisor={divisor}"])
    assert network(run).get_submodule("blocks.3").divisor == divisor


def test_drop_path_rises_linearly() -> None:
    blocks = network(recipes["lv_vit_s"].run).get_submodule("blocks")
    drops = [block.drop_path for block in blocks]  # type: ignore[union-attr]
    assert drops == pytest.approx([0.1 * i / 15 for i in range(16)])


def test_small_recipes_differ_by_what_they_compare() -> None:
    names = ("lv_class_cpu", "lv_mix_token_cpu", "lv_labels_cpu", "lv_relabel_cpu", "token_class_cpu")
    by_class, mixed, labels, relabel, tokens = (recipes[name].run for name in names)
    assert replace(mixed, augment=mixed.augment[:-1]) == by_class
    assert mixed.augment[-1] == MixToken((7, 7), probability=0.5)
    assert replace(labels, objective=mixed.objective, model=mixed.model) == mixed
    assert replace(relabel, objective=by_class.objective) == by_class
    both: Any = recipes["token_labels_cpu"].run
    assert replace(both, objective=tokens.objective, model=replace(both.model, dense=False)) == tokens
    for run in (by_class, labels, both):
        assert network(run).grid == (7, 7)
        assert millions(replace(run, model=replace(run.model, dense=False))) == pytest.approx(0.9, abs=0.15)


# from end to end

TINY = ["model.width=16", "model.depth=1", "model.heads=2", "fit.batch=4", "fit.epochs=0", "fit.steps=2"]


def tiny(name: str, maps: Path | None = None) -> Run:
    return replace(resolve(recipes[name].run, None, TINY), maps=str(maps) if maps else "")


@dataclass(frozen=True)
class Data:
    """Images, a store that says it was made from them, and a run that can annotate them; no test changes them."""

    images: Path
    store: Path
    annotator: Path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    root = tmp_path_factory.mktemp("lv")
    images = write_images(root / "images", count=4)
    assert command("train", "lv_class_cpu", *TINY, "--data", images, "--out", root / "run") == 0
    return Data(images, image_store(root / "x.tok", images), root / "run")


def image_store(path: Path, images: Path) -> Path:
    folder = ImageFolder.open(images)
    rng = np.random.default_rng(0)
    with StoreWriter(path, rng.normal(size=(16, 8)).astype(np.float32), list(NAMES)) as writer:
        writer.add(rng.integers(0, 16, (len(folder), 16, 16)), folder.labels, list(folder.keys))
    return path


def command(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*(str(a) for a in arguments), "--json", "--device", "cpu"])
    return int(ended.value.code or 0)


def results(name: str, run: Path, *arguments: object) -> dict[str, Any]:
    assert command("train", name, *TINY, *arguments, "--out", run) == 0
    return json.loads((run / "results.json").read_text())


def test_pixels_with_maps_beside_them(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps, run = tmp_path / "1", tmp_path / "run"  # a name that is a number, too, in YAML
    assert command("annotate", data.images, "--model", data.annotator, "--top", 2, "--out", maps) == 0
    found = results("lv_labels_cpu", run, "--maps", maps, "--data", data.images, "--val", data.images)
    assert found["steps"] == 2
    assert 0 <= found["top1"] <= 1
    capsys.readouterr()
    assert command("eval", run, "--data", data.images) == 0
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(found["top1"])
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert any({"loss", "class", "dense"} <= line.keys() for line in lines)
    relabelled = results("lv_relabel_cpu", tmp_path / "other", "--maps", maps, "--data", data.images)
    assert relabelled["steps"] == 2
    assert "holds another run" in refused(capsys, 7, "lv_labels_cpu", "--data", data.images, "--out", run)


def test_tokens_with_maps_in_their_store(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, run = image_store(tmp_path / "x.tok", data.images), tmp_path / "run"
    assert command("annotate", data.images, "--model", data.annotator, "--top", 2, "--store", store) == 0
    found = results("token_labels_cpu", run, "--data", store, "--val", data.store)
    assert found["steps"] == 2
    capsys.readouterr()
    assert command("eval", run, "--data", data.store) == 0, "evaluation needs no maps"
    assert json.loads(capsys.readouterr().out)["top1"] == pytest.approx(found["top1"])
    part = results("token_labels_cpu", tmp_path / "part", "samples=8", "--data", store)
    assert part["steps"] == 2


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """The one line that an error prints."""
    capsys.readouterr()
    assert command("train", *arguments, *TINY) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tilework: error: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("name", ["lv_labels_cpu", "lv_relabel_cpu"])
def test_pixels_without_maps(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    line = refused(capsys, 4, name, "--data", data.images, "--out", tmp_path / "run")
    assert "'tilework annotate', add --maps" in line
    missing = ("--maps", tmp_path / "none", "--data", data.images, "--out", tmp_path / "run")
    assert "make them with 'tilework annotate" in refused(capsys, 3, name, *missing)
    assert not list(tmp_path.iterdir())


def test_tokens_without_maps(data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, 3, "token_labels_cpu", "--data", data.store, "--out", tmp_path / "run")
    assert "label_map" in line.replace(" ", "_")
    assert not list(tmp_path.iterdir())


def record(rows: int = 5, columns: int = 5, best: int = 0) -> bytes:
    ids = np.tile([best, 1], (rows, columns, 1))
    return encode_map(ids, np.tile([0.7, 0.2], (rows, columns, 1)))


CARD = MapsCard(NAMES, (5, 5), 2, "nobody", 32)
Change = Callable[[list[str], list[bytes]], tuple[MapsCard, list[str], list[bytes]]]
FAULTS: dict[str, tuple[type[TileworkError], Change]] = {
    "another grid": (DamageError, lambda keys, _: (CARD, keys, [record(5, 6)] * len(keys))),
    "transposed": (DamageError, lambda keys, _: (replace(CARD, grid=(6, 5)), keys, [record(5, 6)] * len(keys))),
    "more classes": (DamageError, lambda keys, records: (replace(CARD, top=3), keys, records)),
    "unknown class": (DamageError, lambda keys, _: (CARD, keys, [record(best=3)] * len(keys))),
    "too few": (InputError, lambda keys, records: (CARD, keys[1:], records[1:])),
    "other images": (InputError, lambda keys, records: (CARD, [f"x/{key}" for key in keys], records)),
    "other classes": (InputError, lambda keys, records: (replace(CARD, classes=NAMES[::-1]), keys, records)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_maps_that_do_not_fit_are_refused_before_training(data: Data, tmp_path: Path, fault: str) -> None:
    keys = list(ImageFolder.open(data.images).keys)
    kind, change = FAULTS[fault]
    card, names, records = change(keys, [record()] * len(keys))
    write_maps(tmp_path / "maps", card, names, [records])
    with pytest.raises(kind):
        prepare(tiny("lv_labels_cpu", tmp_path / "maps"), data.images, None, tmp_path / "run", CPU, "x", quiet=True)
    assert not (tmp_path / "run").exists()


def test_damaged_maps_are_refused_before_training(data: Data, tmp_path: Path) -> None:
    keys = list(ImageFolder.open(data.images).keys)
    write_maps(tmp_path / "maps", CARD, keys, [[record()] * len(keys)])
    shard = tmp_path / "maps/columns/label_map/00000.tiles"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DamageError):
        prepare(tiny("lv_labels_cpu", tmp_path / "maps"), data.images, None, tmp_path / "run", CPU, "x", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_head_for_every_token_is_needed(data: Data, tmp_path: Path) -> None:
    keys = list(ImageFolder.open(data.images).keys)
    write_maps(tmp_path / "maps", CARD, keys, [[record()] * len(keys)])
    run = resolve(tiny("lv_labels_cpu", tmp_path / "maps"), None, ["model.dense=false"])
    with pytest.raises(ConfigError, match=r"model\.dense=true"):
        prepare(run, data.images, None, tmp_path / "run", CPU, "x", quiet=True)


def test_maps_of_a_directory_go_before_those_of_the_store(data: Data, tmp_path: Path) -> None:
    """Each sample of a job has its own map, also where some of the samples are drawn."""
    store = Store(image_store(tmp_path / "x.tok", data.images))
    keys = list(store.column("key"))
    store.add_column(COLUMN, [record()] * len(keys))
    store.add_column("label_map_card", [json.dumps(asdict(CARD))] * len(keys))
    records = [record(best=2 * (i % 2)) for i in range(len(keys))]
    write_maps(tmp_path / "maps", CARD, keys, [records])
    for maps, best in ((None, [0] * len(keys)), (tmp_path / "maps", [2 * (i % 2) for i in range(len(keys))])):
        run = replace(tiny("token_labels_cpu", maps), samples=8)
        job = prepare(run, store.path, None, tmp_path / f"run{bool(maps)}", CPU, "x", quiet=True)
        assert len(job.source) == 8
        assert isinstance(job.source.source, Labelled)  # type: ignore[attr-defined]
        batch = job.source.batch(np.arange(8))
        found: Tensor = batch.columns[COLUMN].ids[:, 0, 0, 0]  # type: ignore[attr-defined]
        assert found.tolist() == [best[i] for i in batch.index.tolist()]


def test_recipes_without_label_maps_ask_for_none(data: Data, tmp_path: Path) -> None:
    job = prepare(tiny("token_class_cpu"), data.store, None, tmp_path / "run", CPU, "x", quiet=True)
    assert not job.source.batch(np.arange(2)).columns
    assert isinstance(tiny("lv_class_cpu").model, VitConfig)
