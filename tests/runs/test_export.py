"""An exported model says what its run says, holds nothing of training, and is refused when anything is amiss."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import tyro
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from small_data import CODE_DIM, write_images, write_store
from tilework.augment import CentreCrop, Embed, Normalise
from tilework.cli.export import export
from tilework.cli.main import main
from tilework.core.batch import Batch
from tilework.core.errors import (
    ConfigError,
    DamageError,
    InputError,
    MachineError,
    OutputError,
    TileworkError,
)
from tilework.core.files import sha256
from tilework.core.rng import Draws
from tilework.core.sealed import read_json
from tilework.data import ImageSource, TokenSource
from tilework.evaluation import classify
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import Output, VitConfig, presets
from tilework.objectives import ClassifyConfig, Objective, ObjectiveConfig
from tilework.recipes import recipes
from tilework.runs import Extra, Run, evaluate_run, train
from tilework.runs import export as module
from tilework.runs.export import export_run, load_exported
from tilework.runs.onnx_graph import TOLERANCE
from tilework.runs.trained import Trained
from tilework.store import Store
from tilework.train import FitConfig
from tilework.train.checkpoint import latest_checkpoint

CPU = torch.device("cpu")
TOKENS = Run(
    model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(Embed(standardise=True), CentreCrop((6, 6))),
    evaluation=(Embed(standardise=True), CentreCrop((6, 6))),
    fit=FitConfig(epochs=0, steps=2, batch=12, ema=0.5),
)
PIXELS = replace(
    TOKENS,
    model=VitConfig(width=16, depth=1, heads=2, pool="mean", positions="sincos", stem=PatchStemConfig(8)),
    augment=(Normalise(),),
    evaluation=(Normalise(),),
    size=(24, 24),
    fit=replace(TOKENS.fit, ema=0.0),
)


@dataclass(frozen=True)
class Made:
    """Runs and the data they were trained on; no test changes them."""

    store: Path
    images: Path
    token_run: Path
    pixel_run: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("export")
    found = Made(write_store(root / "x.tok"), write_images(root / "images"), root / "tokens", root / "pixels")
    train(TOKENS, found.store, None, found.token_run, quiet=True)
    train(PIXELS, found.images, None, found.pixel_run, quiet=True)
    return found


@pytest.fixture(scope="module")
def graphs(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both models with ONNX graphs; slow to make, so made once."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    root = tmp_path_factory.mktemp("graphs")
    export_run(made.token_run, root / "tokens", onnx=True, data=made.store)
    export_run(made.pixel_run, root / "pixels", onnx=True)
    return root


def written(path: Path) -> Any:
    return read_json(path / "model.json")


def test_token_model_comes_back_equal(made: Made, tmp_path: Path) -> None:
    export_run(made.token_run, tmp_path / "m")
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "codebook.safetensors",
        "model.json",
        "model.safetensors",
    ]
    found, store = load_exported(tmp_path / "m"), Store(made.store)
    assert (found.stage, found.grid, found.classes) == ("ids", (6, 6), store.classes)
    assert found.codebook is not None
    np.testing.assert_array_equal(found.codebook.vectors, store.codebook.vectors)
    np.testing.assert_array_equal(found.codebook.used, store.used)
    model = Trained.open(made.token_run).network
    ids = torch.from_numpy(store.batch(np.arange(5)))
    book = store.codebook.vectors
    vectors = (book - book.mean(0)) / book.std(0)  # the pipeline in other words
    x = torch.from_numpy(vectors[ids.numpy()]).permute(0, 3, 1, 2)[..., 1:7, 1:7]
    torch.testing.assert_close(found.logits(ids), model.eval()(x).logits)
    judged = classify(found.model, TokenSource(store), found.steps, CPU)
    np.testing.assert_array_equal(judged.probabilities, evaluate_run(made.token_run, made.store).probabilities)


def test_a_loaded_model_is_a_module_in_evaluation(made: Made, tmp_path: Path) -> None:
    export_run(made.token_run, tmp_path / "m")
    ids = torch.from_numpy(Store(made.store).batch(np.arange(3)))
    for path in (made.token_run, tmp_path / "m"):
        found = load_exported(path)
        assert isinstance(found, nn.Module)
        assert not any(part.training for part in found.modules()), path
        assert sum(p.numel() for p in found.parameters()) == sum(p.numel() for p in found.model.parameters())
        logits = found(ids)
        assert torch.equal(logits, found.logits(ids))
        logits.sum().backward()
        assert all(p.grad is not None for p in found.model.head.parameters())
        with pytest.raises(InputError, match=r"codes 0\.\.99: 0 to 15 are known"):
            found(torch.where(ids == ids.max(), 99, 0))
        with pytest.raises(InputError, match="whole numbers"):
            found(ids[:, :2])


def test_pixel_model_comes_back_equal(made: Made, tmp_path: Path) -> None:
    made_of = export_run(str(made.pixel_run), str(tmp_path / "m"), data=str(made.images))
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["model.json", "model.safetensors"]
    assert made_of.compared == "8 samples of data"
    found = load_exported(tmp_path / "m")
    assert (found.stage, found.grid, found.size, found.codebook) == ("pixels", (24, 24), (24, 24), None)
    judged = classify(found.model, ImageSource.load(made.images, found.size), found.steps, CPU)
    np.testing.assert_array_equal(judged.probabilities, evaluate_run(made.pixel_run, made.images).probabilities)


def test_the_description_says_what_inference_needs(made: Made, tmp_path: Path) -> None:
    export_run(made.token_run, tmp_path / "m")
    about = written(tmp_path / "m")
    assert (about["format"], about["version"]) == ("tilework model", 3)
    assert about["software"].startswith("tilework ")
    assert about["model"]["name"] == "vit"
    assert [step["name"] for step in about["evaluation"]] == ["embed", "centre_crop"]
    assert (about["channels"], about["grid"], about["classes"]) == (CODE_DIM, [6, 6], ["class0", "class1", "class2"])
    assert (about["compared"], about["max_difference"], about["onnx"]) == ("8 random inputs", 0.0, None)
    assert about["sha256"]["model.safetensors"] == sha256(tmp_path / "m/model.safetensors")
    assert str(tmp_path.parent) not in (tmp_path / "m/model.json").read_text()


def test_the_averaged_weights_are_exported_and_nothing_else(made: Made, tmp_path: Path) -> None:
    export_run(made.token_run, tmp_path / "m")
    weights = load_file(tmp_path / "m/model.safetensors")
    fresh = TOKENS.model.build(CODE_DIM, (6, 6), 3).state_dict()
    assert {k: v.shape for k, v in weights.items()} == {k: v.shape for k, v in fresh.items()}
    checkpoint = latest_checkpoint(made.token_run / "checkpoints")
    assert checkpoint is not None
    averaged, last = (load_file(checkpoint / f"{part}.safetensors") for part in ("ema", "objective"))
    assert all(torch.equal(value, averaged[f"module.{name}"]) for name, value in weights.items())
    assert not torch.equal(weights["head.weight"], last["model.head.weight"])


class Auxiliary(Objective):
    """An objective with weights of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.decoder = nn.Linear(16, 2)

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        return {"loss": self.decoder(out.tokens).square().mean()}


@dataclass(frozen=True)
class AuxiliaryConfig(ObjectiveConfig):
    def build(self, model: nn.Module, codebook: Tensor | None = None) -> Objective:
        return Auxiliary(model)


def test_auxiliary_objectives_leave_no_trace(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ObjectiveConfig.choices._entries, "auxiliary", AuxiliaryConfig)
    plain = replace(TOKENS, fit=replace(TOKENS.fit, ema=0.0))
    shapes, bytes_ = [], []
    for name, run in (("plain", plain), ("with", replace(plain, extra=(Extra(AuxiliaryConfig()),)))):
        train(run, made.store, None, tmp_path / name, quiet=True)
        export_run(tmp_path / name, tmp_path / f"{name}.model")
        weights = load_file(tmp_path / f"{name}.model/model.safetensors")
        shapes.append([(key, value.shape, value.dtype) for key, value in weights.items()])
        bytes_.append((tmp_path / f"{name}.model/model.safetensors").stat().st_size)
    checkpoint = latest_checkpoint(tmp_path / "with/checkpoints")
    assert checkpoint is not None
    assert any("decoder" in key for key in load_file(checkpoint / "objective.safetensors"))
    assert shapes[0] == shapes[1]
    assert bytes_[0] == bytes_[1]


@pytest.mark.parametrize("name", list(presets))
def test_every_network_can_be_sized_without_memory(name: str) -> None:
    with torch.device("meta"):
        assert presets[name].build(3, (224, 224), 10).state_dict()


def run_graph(path: Path, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path / "model.onnx"), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert given.name == ("ids" if x.ndim == 3 else "pixels")
    return session.run(["logits"], {given.name: x})[0]


def test_onnx_takes_stored_codes(made: Made, graphs: Path) -> None:
    about = written(graphs / "tokens")
    assert about["onnx"]["input"].startswith("ids (B, 8, 8) int64, numbered as in the store")
    assert about["onnx"]["output"] == "logits (B, 3) float32"
    assert 0 <= about["onnx"]["max_difference"] <= TOLERANCE == about["onnx"]["tolerance"]
    assert set(about["sha256"]) == {"codebook.safetensors", "model.onnx", "model.safetensors"}
    for count in (1, 5, 48):
        ids = Store(made.store).batch(np.arange(count)).astype(np.int64)
        wanted = load_exported(graphs / "tokens").logits(torch.from_numpy(ids))
        np.testing.assert_allclose(run_graph(graphs / "tokens", ids), wanted, atol=TOLERANCE)


def test_onnx_takes_bytes_of_pixels(made: Made, graphs: Path) -> None:
    assert written(graphs / "pixels")["onnx"]["input"] == "pixels (B, 3, 24, 24) uint8"
    assert not (graphs / "pixels/model.onnx.data").exists()
    assert b".py" not in (graphs / "pixels/model.onnx").read_bytes()  # no stack traces of this machine
    source = ImageSource.load(made.images, (24, 24))
    probabilities = evaluate_run(made.pixel_run, made.images).probabilities
    for count in (1, 24):
        logits = torch.from_numpy(run_graph(graphs / "pixels", source.batch(np.arange(count)).x.numpy()))
        np.testing.assert_allclose(logits.softmax(1), probabilities[:count], atol=TOLERANCE)


def test_a_graph_that_differs_is_refused(
    made: Made, graphs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(replace(TOKENS, fit=replace(TOKENS.fit, seed=1)), made.store, None, tmp_path / "run", quiet=True)
    graph = SimpleNamespace(all_nodes=lambda: [])
    other = SimpleNamespace(
        model=SimpleNamespace(graph=graph, metadata_props={}),
        save=lambda file: shutil.copy(graphs / "tokens/model.onnx", file),
    )
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: other)
    with pytest.raises(TileworkError, match="the ONNX logits differ by"):
        export_run(tmp_path / "run", tmp_path / "m", onnx=True, data=made.store)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: 1 / 0)
    with pytest.raises(ConfigError, match="cannot be written as ONNX"):
        export_run(tmp_path / "run", tmp_path / "m", onnx=True)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_weights_that_differ_are_refused(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save_shifted(tensors: dict[str, Tensor]) -> bytes:
        return saved({**tensors, "head.bias": tensors["head.bias"] + 1e-6})

    saved = module.save
    monkeypatch.setattr(module, "save", save_shifted)
    with pytest.raises(TileworkError, match="differs from the run by"):
        export_run(made.token_run, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_onnx_without_the_extra(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MachineError, match=r"pip install 'tilework\[onnx\]'"):
        export_run(made.token_run, tmp_path / "m", onnx=True)
    assert not list(tmp_path.iterdir())


def test_runs_that_cannot_be_exported(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "m"
    with pytest.raises(InputError, match="is a token store, not a run"):
        export_run(made.store, out)
    shutil.copytree(made.token_run, tmp_path / "young", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(InputError, match="no checkpoint yet"):
        export_run(tmp_path / "young", out)
    shutil.copytree(made.token_run, tmp_path / "hurt")
    (tmp_path / "hurt/codebook.safetensors").unlink()
    with pytest.raises(DamageError, match=r"codebook\.safetensors cannot be read"):
        export_run(tmp_path / "hurt", out)
    save_file({"codebook": torch.zeros(16, CODE_DIM), "used": torch.arange(16)}, tmp_path / "hurt/codebook.safetensors")
    with pytest.raises(DamageError, match="not the codebook that the model was trained with"):
        export_run(tmp_path / "hurt", out)
    weights = next((tmp_path / "hurt/checkpoints").glob("step-*/ema.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(DamageError, match=r"ema\.safetensors is missing or damaged"):
        export_run(tmp_path / "hurt", out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hurt", "young"]


def test_tokenizers_are_exported_already(made: Made, tmp_path: Path) -> None:
    run = recipes["demo_tokenizer"].run
    run = replace(run, size=(32, 32), model=replace(run.model, patch=4, codes=16, width=16, depth=1, heads=2))
    run = replace(run, objective=replace(run.objective, warm_steps=1), fit=replace(run.fit, steps=2, batch=8))
    train(run, made.images, None, tmp_path / "t.run", quiet=True)
    with pytest.raises(InputError, match="trained no classifier"):
        export_run(tmp_path / "t.run", tmp_path / "m")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="is a tokenizer"):
        export_run(tmp_path / "t", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_data_of_another_kind_are_refused(made: Made, tmp_path: Path) -> None:
    for run, data in ((made.token_run, made.images), (made.pixel_run, made.store)):
        with pytest.raises(InputError, match=r"was trained on (tokens|images)"):
            export_run(run, tmp_path / "m", data=data)
    with pytest.raises(InputError, match="other classes"):
        export_run(made.token_run, tmp_path / "m", data=write_store(tmp_path / "four.tok", classes=4))
    assert [p.name for p in tmp_path.iterdir()] == ["four.tok"]


def settings(**changes: object) -> Callable[[Path], None]:
    """Damage to model.json; a dotted key as `model__width`."""

    def change(path: Path) -> None:
        about = written(path)
        for key, value in changes.items():
            *above, last = key.split("__")
            place = about
            for step in above:
                place = place[step]
            place[last] = value
        (path / "model.json").write_text(json.dumps(about))

    return change


def text(content: str) -> Callable[[Path], None]:
    return lambda path: (path / "model.json").write_text(content) and None


def sealed(name: str, damage: Callable[[Path], object]) -> Callable[[Path], None]:
    """Damage to a file whose hash is put right afterwards."""

    def change(path: Path) -> None:
        damage(path / name)
        about = written(path)
        about["sha256"][name] = sha256(path / name)
        (path / "model.json").write_text(json.dumps(about))

    return change


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights gone": (lambda path: (path / "model.safetensors").unlink(), "missing or damaged"),
    "weights cut": (lambda path: (path / "model.safetensors").write_bytes(b"{}"), "missing or damaged"),
    "weights of another model": (
        sealed("model.safetensors", lambda file: save_file({"head.weight": torch.zeros(3, 16)}, file)),
        "other tensors",
    ),
    "codebook gone": (lambda path: (path / "codebook.safetensors").unlink(), "missing or damaged"),
    "codebook without tensors": (
        sealed("codebook.safetensors", lambda file: file.write_bytes(b"\xff" * 64)),
        "cannot be read",
    ),
    "codebook of half numbers": (
        sealed(
            "codebook.safetensors",
            lambda file: save_file({"codebook": torch.zeros(16, 8).bfloat16(), "used": torch.arange(16)}, file),
        ),
        "cannot be read",
    ),
    "codebook of others": (settings(codebook="0" * 64), "not the codebook"),
    "no codebook named": (settings(codebook=""), "needs a codebook"),
    "not JSON": (text("{"), "not JSON"),
    "not text": (lambda path: (path / "model.json").write_bytes(b"\xff\xfe\xfd"), "not JSON"),
    "nested": (text("[" * 100_000), "not JSON"),
    "nested settings": (
        text('{"format": "tilework model", "version": 1, "model": ' + "[" * 900 + "]" * 900 + "}"),
        "malformed",
    ),
    "a list": (text("[]"), "not JSON"),
    "a number": (text("1"), "not JSON"),
    "another format": (settings(format="tilework store"), "does not describe a model"),
    "another version": (settings(version=9), "version 9"),
    "unknown key": (settings(run="rm"), "unknown key"),
    "unknown network": (settings(model={"name": "os.system"}), "unknown model"),
    "no network": (settings(model=None), "malformed"),
    "a tokenizer": (settings(model={"name": "vit_vq"}), "not a classifier"),
    "width": (settings(model__width=1 << 16), "other tensors"),
    "depth": (settings(model__depth=1 << 40), "larger than"),
    "no heads": (settings(model__heads=0), "does not fit"),
    "negative width": (settings(model__width=-2), "does not fit"),
    "grid": (settings(grid=[60_000, 60_000]), "other tensors"),
    "classes": (settings(classes=["a", "b"]), "other tensors"),
    "pipeline": (settings(evaluation=[{"name": "normalise"}]), "takes pixels"),
    "stage": (settings(stage="words"), "malformed"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_folders_are_refused(kind: str, made: Made, tmp_path: Path) -> None:
    damage, words = DAMAGE[kind]
    export_run(made.token_run, tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(DamageError, match=words) as raised:
        load_exported(tmp_path / "m")
    assert "\n" not in str(raised.value)


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run or exported model"):
        load_exported(tmp_path)


def command(*arguments: object) -> None:
    tyro.cli(export, args=[str(a) for a in arguments], config=(tyro.conf.FlagCreatePairsOff,))


def test_the_command(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep/m"
    command(made.token_run, "--out", out, "--data", made.store, "--json")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["input"], shown["classes"], shown["max_difference"]) == ("ids", 3, 0.0)
    assert shown["files"]["model.safetensors"] == (out / "model.safetensors").stat().st_size
    with pytest.raises(OutputError, match="exists") as raised:
        command(made.token_run, "--out", out)
    assert raised.value.exit_code == 7
    command(made.pixel_run, "--out", tmp_path / "p")
    assert "max difference" in capsys.readouterr().out


def test_the_command_shows_the_graph(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = module.Graph("ids (B, 6, 6) int64", "logits (B, 3) float32", 1e-7)
    monkeypatch.setattr(module, "onnxruntime", lambda: None)
    monkeypatch.setattr(module, "write_graph", lambda *_: found)
    command(made.token_run, "--out", tmp_path / "m", "--onnx", "--json")
    assert json.loads(capsys.readouterr().out)["onnx_max_difference"] == 1e-7


def test_a_signal_while_the_graph_is_written_is_a_signal(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    train(TOKENS, store, None, tmp_path / "run", "cpu", quiet=True)
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(SystemExit) as ended:
            main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model"), "--onnx"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 75
    assert capsys.readouterr().err.endswith("\ntilework: stopped by a signal\n")  # an export begins anew
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "train.tok"]
