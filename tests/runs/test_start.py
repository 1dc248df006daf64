"""A run that starts from other weights: what is taken over, what stays fresh, what is refused before the first step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from small_data import CODE_DIM, write_images, write_store
from tilework.augment import CentreCrop, Embed, EmbeddingNoise, Flip, Normalise, TokenCrop
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError, TileworkError
from tilework.core.files import sha256
from tilework.layers.positions import resize_positions
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import ResnetConfig, VitConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes import recipes
from tilework.runs import Run, export_run, job, plan, prepare, train
from tilework.runs.trained import Trained
from tilework.store import Store, StoreWriter
from tilework.train import FitConfig, Job, OptimConfig, Result
from tilework.train.checkpoint import latest_checkpoint

CPU = World(0, 1, torch.device("cpu"))
TOKENS = Run(
    model=VitConfig(width=16, depth=2, heads=2, drop_path=0.2, stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(TokenCrop((8, 8)), EmbeddingNoise()),
    evaluation=(Embed(), CentreCrop((8, 8))),
    fit=FitConfig(epochs=0, steps=3, batch=12, save_every=2, ema=0.5, optim=OptimConfig(lr=1e-2)),
)
PIXELS = replace(
    TOKENS,
    model=replace(TOKENS.model, stem=PatchStemConfig(8)),
    augment=(Flip(), Normalise()),
    evaluation=(Normalise(),),
    size=(32, 32),
)


@dataclass(frozen=True)
class Made:
    """Data and a run to start from; no test changes them."""

    store: Path
    images: Path
    run: Path

    def weights(self, part: str = "ema") -> dict[str, Tensor]:
        """Of the last checkpoint: averaged, or as training left them ('objective')."""
        file = checkpoint(self.run) / f"{part}.safetensors"
        return {name.split(".", 1)[1]: tensor for name, tensor in load_file(file).items() if name != "n_averaged"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("start")
    found = Made(write_store(root / "x.tok"), write_images(root / "images"), root / "run")
    train(TOKENS, found.store, None, found.run, "cpu", quiet=True)
    return found


def checkpoint(run: Path) -> Path:
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None
    return found


def begin(run: Run, data: Path, out: Path, start: Path | None) -> dict[str, Tensor]:
    """The weights before the first step."""
    return prepare(run, data, None, out, CPU, "x", quiet=True, start=start).objective.model.state_dict()


def kept(found: dict[str, Tensor], old: dict[str, Tensor]) -> set[str]:
    return {name for name in found if found[name].shape == old[name].shape and torch.equal(found[name], old[name])}


def starting(names: object, *starts: str) -> set[str]:
    return {name for name in names if name.startswith(starts)}  # type: ignore[attr-defined]


def renamed(made: Made, path: Path, classes: tuple[str, ...]) -> Path:
    """The same codes under other class names."""
    store = Store(made.store)
    with StoreWriter(path, store.codebook.vectors, classes) as writer:
        writer.add(store.batch(np.arange(48)), store.column("label"), store.column("key"))
    return path


# what is taken over


def test_all_is_taken_over_by_the_same_task_and_the_average_at_that(made: Made, tmp_path: Path) -> None:
    averaged, last = made.weights(), made.weights("objective")
    found = begin(TOKENS, made.store, tmp_path / "run", made.run)
    assert kept(found, averaged) == set(averaged) == set(found)
    assert not kept(averaged, last)
    fresh = begin(TOKENS, made.store, tmp_path / "fresh", None)
    assert not kept(found, fresh)
    assert not any(tensor.data_ptr() == found[name].data_ptr() for name, tensor in averaged.items())


def test_without_an_average_the_last_weights_are_taken(made: Made, tmp_path: Path) -> None:
    run = replace(TOKENS, fit=replace(TOKENS.fit, ema=0.0))
    train(run, made.store, None, tmp_path / "first", "cpu", quiet=True)
    last = Trained.open(tmp_path / "first").network.state_dict()
    assert kept(begin(TOKENS, made.store, tmp_path / "run", tmp_path / "first"), last) == set(last)


@pytest.mark.parametrize(
    "classes", [("other", "class1", "class2"), ("class1", "class0", "class2"), ("a", "b", "c", "d")]
)
def test_the_head_is_fresh_where_class_names_differ(classes: tuple[str, ...], made: Made, tmp_path: Path) -> None:
    data, old = renamed(made, tmp_path / "x.tok", classes), made.weights()
    found = begin(TOKENS, data, tmp_path / "run", made.run)
    fresh = begin(TOKENS, data, tmp_path / "fresh", None)
    head = {"head.weight", "head.bias"}
    assert kept(found, old) == set(old) - head
    assert kept(found, fresh) == head


def test_from_tokens_to_pixels_only_the_stem_is_fresh(made: Made, tmp_path: Path) -> None:
    old = made.weights()
    found = begin(PIXELS, made.images, tmp_path / "run", made.run)
    stem = {"patch_embed.proj.weight", "patch_embed.proj.bias"}
    assert kept(found, old) == set(old) - stem
    assert kept(found, begin(PIXELS, made.images, tmp_path / "fresh", None)) == stem


def test_positions_are_resized_for_another_grid(made: Made, tmp_path: Path) -> None:
    oblong = replace(TOKENS, augment=(TokenCrop((4, 8)),), evaluation=(Embed(), CentreCrop((4, 8))))
    train(oblong, made.store, None, tmp_path / "oblong", "cpu", quiet=True, start=made.run)
    first = begin(oblong, made.store, tmp_path / "x", made.run)["pos_embed"]
    assert torch.equal(first, resize_positions(made.weights()["pos_embed"], (4, 4), (2, 4)))
    old = Trained.open(tmp_path / "oblong").network.state_dict()
    found = begin(PIXELS, made.images, tmp_path / "run", tmp_path / "oblong")  # the run says that it was 2x4
    assert torch.equal(found["pos_embed"], resize_positions(old["pos_embed"], (2, 4), (4, 4)))
    assert "blocks.1.mlp.fc2.weight" in kept(found, old)


def timm_names(width: int = 16, depth: int = 2, classes: int = 5, places: int = 9) -> dict[str, Tensor]:
    """A ViT of 8 px patches as timm names and shapes it."""
    generator = torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + places, width),
        "patch_embed.proj.weight": (width, 3, 8, 8),
        "patch_embed.proj.bias": (width,),
    }
    for i in range(depth):
        for layer, outputs, inputs in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.fc1", 4 * width, width),
            ("mlp.fc2", width, 4 * width),
        ):
            shapes |= {f"blocks.{i}.{layer}.weight": (outputs, inputs), f"blocks.{i}.{layer}.bias": (outputs,)}
        for layer in ("norm1", "norm2"):
            shapes |= {f"blocks.{i}.{layer}.weight": (width,), f"blocks.{i}.{layer}.bias": (width,)}
    shapes |= {"norm.weight": (width,), "norm.bias": (width,), "head.weight": (classes, width), "head.bias": (classes,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def test_a_file_of_other_people(made: Made, tmp_path: Path) -> None:
    theirs = timm_names()  # 3x3 places and five classes
    torch.save({"model": theirs, "epoch": 9}, tmp_path / "theirs.pth")
    found = begin(PIXELS, made.images, tmp_path / "run", tmp_path / "theirs.pth")
    assert set(found) == set(theirs)
    assert kept(found, theirs) == set(theirs) - {"pos_embed"} - starting(theirs, "head.")
    assert torch.equal(found["pos_embed"], resize_positions(theirs["pos_embed"], (3, 3), (4, 4)))
    pooled = replace(PIXELS, model=replace(PIXELS.model, pool="mean"))
    found = begin(pooled, made.images, tmp_path / "pooled", tmp_path / "theirs.pth")
    assert torch.equal(found["fc_norm.weight"], theirs["norm.weight"])


def test_an_exported_model_gives_what_its_run_gives(made: Made, tmp_path: Path) -> None:
    export_run(made.run, tmp_path / "model")
    for number, (run, data) in enumerate(((TOKENS, made.store), (PIXELS, made.images))):
        found = begin(run, data, tmp_path / f"a{number}", tmp_path / "model/model.safetensors")
        wanted = begin(run, data, tmp_path / f"b{number}", made.run)
        assert kept(found, wanted) == set(wanted)


def test_a_resnet_moves_too(made: Made, tmp_path: Path) -> None:
    tokens = replace(TOKENS, model=ResnetConfig(18, width=16, stem="token"))
    train(tokens, made.store, None, tmp_path / "first", "cpu", quiet=True)
    pixels = replace(PIXELS, model=ResnetConfig(18, width=16))
    found = begin(pixels, made.images, tmp_path / "run", tmp_path / "first")
    old = Trained.open(tmp_path / "first").network.state_dict()
    assert kept(found, old) >= set(old) - starting(old, "conv1.", "bn1.")
    assert "conv1.weight" not in kept(found, old)


def test_the_start_is_spoken_of(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(PIXELS, made.images, None, tmp_path / "run", CPU, "x", quiet=False, start=made.run)
    assert f"starts from {made.run} (fresh: patch_embed; resized: nothing)" in capsys.readouterr().err
    assert json.loads((tmp_path / "run/data.json").read_text())["start"]
    assert plan(PIXELS, made.images, None, "cpu", made.run)["steps"] == 3


# going on


class Kill(BaseException):
    pass


def test_killed_and_resumed_is_bit_identical(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def go(out: str, kill: int = 0) -> Result:
        def dying(job: Job) -> Result:
            job.after_step = after
            return fit(job)

        def after(step: int) -> None:
            if step == kill:
                raise Kill

        with monkeypatch.context() as patch:
            fit = job.fit
            patch.setattr(job, "fit", dying)
            return train(PIXELS, made.images, made.images, tmp_path / out, "cpu", quiet=True, start=made.run)

    whole = go("whole")
    for step in (1, 2, 3):
        with pytest.raises(Kill):
            go(f"killed{step}", step)
        assert go(f"killed{step}").metrics == whole.metrics
        for part in ("objective", "optimiser", "ema"):
            files = [checkpoint(tmp_path / name) / f"{part}.safetensors" for name in ("whole", f"killed{step}")]
            assert sha256(files[0]) == sha256(files[1])
    train(PIXELS, made.images, None, tmp_path / "fresh", "cpu", quiet=True)
    fresh = Trained.open(tmp_path / "fresh").network.state_dict()
    assert not torch.equal(fresh["cls_token"], whole.model.state_dict()["cls_token"])


def test_going_on_with_another_start_is_refused(made: Made, tmp_path: Path) -> None:
    first, plain, other = tmp_path / "first", tmp_path / "plain", tmp_path / "other"
    begin(TOKENS, made.store, first, made.run)
    begin(TOKENS, made.store, plain, None)
    shutil.copytree(made.run, other)
    before = (first / "data.json").read_bytes()
    for out, start in ((first, other), (first, None), (plain, made.run)):
        with pytest.raises(OutputError, match=r"holds a run with another --start: choose another --out, or repeat it"):
            begin(TOKENS, made.store, out, start)
    assert (first / "data.json").read_bytes() == before
    begin(TOKENS, made.store, first, made.run)


def test_a_start_may_be_given_by_another_path(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.run.parent)
    begin(TOKENS, made.store, tmp_path / "run", made.run)
    begin(TOKENS, made.store, tmp_path / "run", Path("run"))


def test_a_finished_run_adds_nothing_to_its_log(made: Made, tmp_path: Path) -> None:
    logs = []
    for _ in range(2):
        train(TOKENS, made.store, made.store, tmp_path / "run", "cpu", quiet=True, start=made.run)
        logs.append((tmp_path / "run/log.jsonl").read_text())
    assert logs[0] == logs[1]


# what is refused


def refused(made: Made, start: Path, out: Path, kind: type[TileworkError], words: str) -> None:
    """In one line, with a remedy, and nothing is left behind."""
    with pytest.raises(kind, match=words) as error:
        begin(TOKENS, made.store, out, start)
    assert error.value.hint
    assert "\n" not in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize("changes", [{"width": 8}, {"depth": 1}, {"depth": 3}, {"mlp_ratio": 2.0}, {"qkv_bias": False}])
def test_another_model_is_refused(changes: dict[str, Any], made: Made, tmp_path: Path) -> None:
    model = replace(TOKENS.model, **changes)
    save_file(model.build(CODE_DIM, (8, 8), 3).state_dict(), tmp_path / "x.safetensors")
    words = r"x\.safetensors: these weights are a checkpoint of another model, as '.*: set the model as it was trained"
    refused(made, tmp_path / "x.safetensors", tmp_path / "run", ConfigError, words)


def broken(path: Path) -> Path:
    path.write_bytes(b"no weights")
    return path


def unknown(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def not_finite(path: Path) -> Path:
    torch.save({**timm_names(), "norm.bias": torch.full((16,), torch.nan)}, path)
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda made, root: root / "nowhere", "no weights at .*nowhere: give a run or a checkpoint file"),
        (lambda made, root: made.images, "no run in .*images: give a directory that 'tilework train' wrote"),
        (lambda made, root: made.store, r"x\.tok is a token store, not a run: give"),
        (
            lambda made, root: broken(root / "x.pth"),
            r"x\.pth is damaged or holds more than tensors; none of it was run",
        ),
        (lambda made, root: unknown(root / "x.txt"), r"x\.txt has no known ending: give a checkpoint"),
        (lambda made, root: not_finite(root / "x.pth"), "'norm.bias' of the checkpoint is not finite: give"),
    ],
)
def test_what_is_no_weights_is_refused(
    make: Callable[[Made, Path], Path], words: str, made: Made, tmp_path: Path
) -> None:
    refused(made, make(made, tmp_path), tmp_path / "run", InputError, words)


def test_a_run_without_a_whole_checkpoint_is_refused(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    begin(TOKENS, made.store, tmp_path / "young", None)
    refused(made, tmp_path / "young", out, InputError, "young has no checkpoint yet: wait for the first one")
    shutil.copytree(made.run, tmp_path / "hurt")
    file = checkpoint(tmp_path / "hurt") / "ema.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    refused(made, tmp_path / "hurt", out, DamageError, r"ema\.safetensors is missing or damaged: restore it")


def test_a_tokenizer_neither_starts_nor_is_a_start(made: Made, tmp_path: Path) -> None:
    run = recipes["demo_tokenizer"].run
    run = replace(run, size=(32, 32), model=replace(run.model, patch=4, codes=16, width=16, depth=1, heads=2))
    run = replace(run, objective=replace(run.objective, warm_steps=1), fit=replace(run.fit, steps=2, batch=8))
    with pytest.raises(ConfigError, match=r"a VitVq cannot start from .*: leave out --start"):
        begin(run, made.images, tmp_path / "out", made.run)
    train(run, made.images, None, tmp_path / "tokenizer", "cpu", quiet=True)
    refused(made, tmp_path / "tokenizer", tmp_path / "out", ConfigError, "a checkpoint of another model")
