"""Run directories: those of released versions resume, other settings and other kinds of directories are refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from small_data import write_images, write_store
from tilework.augment import Embed, Flip, RandomResizedCrop
from tilework.augment.scale import Scale
from tilework.core.config import read_yaml, to_yaml
from tilework.core.distributed import join_world
from tilework.core.errors import DamageError, InputError, OutputError
from tilework.core.files import sha256
from tilework.core.location import KINDS
from tilework.core.sealed import read_json, write_sealed
from tilework.layers.stems import TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, ReconstructConfig
from tilework.runs import Run, Trained, evaluate_run, job, train
from tilework.runs.directory import DATA, SETTINGS, VERSION, RunDirectory
from tilework.store import Store, StoreWriter
from tilework.tokenizers import VitVqConfig
from tilework.train import FitConfig, OptimConfig

RELEASED = Path(__file__).with_name("released")  # each half way through a run: two of four steps
NAMES = sorted(path.name for path in RELEASED.iterdir() if path.is_dir())
FIT = FitConfig(epochs=0, steps=4, batch=12, save_every=2, log_every=1, keep=2, optim=OptimConfig(lr=2e-3, clip=1.0))
TOKEN = Run(
    model=VitConfig(width=8, depth=1, heads=2, stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(Embed(), RandomResizedCrop(size=(8, 8))),
    evaluation=(Embed(),),
    fit=FIT,
)
TOKENIZER = Run(
    model=VitVqConfig(patch=4, codes=8, code_dim=4, width=8, depth=1, heads=2),
    objective=ReconstructConfig(warm_steps=1),
    augment=(Scale(), Flip()),
    evaluation=(Scale(),),
    size=(16, 16),
    fit=FIT,
)


def data_of(name: str, root: Path) -> tuple[Run, Path, Path]:
    """What a released run was trained on, made anew."""
    if name.startswith("tokenizer"):
        images = write_images(root / "images", classes=2, count=6, side=16)
        return TOKENIZER, images, images
    return TOKEN, write_store(root / "train.tok"), write_store(root / "val.tok", count=18, seed=1)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_a_released_version_resumes_to_its_figures(name: str, tmp_path: Path) -> None:
    """The oracle is what the version that began the run measured at its end (NAME.json)."""
    run, data, val = data_of(name, tmp_path)
    shutil.copytree(RELEASED / name, tmp_path / "run")
    begun = RunDirectory.find(tmp_path / "run")
    assert begun.settings() == run
    assert begun.data().stage == ("pixels" if name.startswith("tokenizer") else "ids")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(run, data, val, tmp_path / "run", "cpu", quiet=True)
    finally:
        torch.set_num_threads(threads)
    found = read_json(tmp_path / "run/results.json")
    known = json.loads((RELEASED / f"{name}.json").read_text())
    known.pop("top5", None)  # of three classes, which says nothing: it is not written any more
    assert found == pytest.approx({**known, "skipped_steps": 0}, rel=1e-4)
    steps = [line["step"] for line in RunDirectory(tmp_path / "run").log() if "loss" in line]
    assert steps == [1, 2, 3, 4], "nothing was trained twice"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    train(TOKEN, write_store(tmp_path / "train.tok"), None, tmp_path / "run", "cpu", quiet=True)
    return tmp_path


def test_a_key_with_its_default_may_be_missing(made: Path) -> None:
    plain = read_yaml(made / "run" / SETTINGS)
    del plain["fit"]["patience"], plain["samples"], plain["model"]["entities"]
    (made / "run" / SETTINGS).write_text(to_yaml(plain))
    train(TOKEN, made / "train.tok", None, made / "run", "cpu", quiet=True)
    assert RunDirectory(made / "run").settings() == TOKEN


def test_another_setting_is_named(made: Path) -> None:
    other = replace(TOKEN, fit=replace(FIT, batch=24))
    with pytest.raises(OutputError, match=r"run holds another run: fit\.batch is 12 there and 24 here: choose another"):
        train(other, made / "train.tok", None, made / "run", "cpu", quiet=True)
    shorter = replace(TOKEN, augment=(Embed(),))
    with pytest.raises(OutputError, match=r"holds another run: augment is"):
        train(shorter, made / "train.tok", None, made / "run", "cpu", quiet=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_run_of_a_start_is_found(made: Path) -> None:
    (made / "started").mkdir()
    (made / "started/settings.json").write_text("{}")
    (made / "started/train.csv").write_text("")
    with pytest.raises(InputError, match="started is a table or comparison of runs"):
        RunDirectory.find(made / "started")
    (made / "run").rename(made / "started/run")
    assert RunDirectory.find(made / "started") == RunDirectory(made / "started/run")


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize(
    ("data", "val", "which"),
    [
        ("val", "train", "training"),  # exchanged
        ("other", "val", "training"),
        ("relabelled", "val", "training"),
        ("train", "other", "validation"),
        ("train", None, "validation"),
    ],
)
def test_other_data_are_refused(tmp_path: Path, ended: bool, data: str, val: str | None, which: str) -> None:
    """Whether a run has ended or has just begun; nothing of it changes."""
    train_store = Store(write_store(tmp_path / "train.tok"))
    write_store(tmp_path / "val.tok", count=18, seed=1)
    write_store(tmp_path / "other.tok", count=18, seed=2)
    with StoreWriter(tmp_path / "relabelled.tok", train_store.codebook.vectors, train_store.classes) as writer:
        writer.add(np.stack(list(train_store)), train_store.column("label")[::-1].tolist(), train_store.column("key"))

    def go(data: str, val: str | None) -> None:
        train(TOKEN, tmp_path / f"{data}.tok", val and tmp_path / f"{val}.tok", tmp_path / "run", "cpu", quiet=True)

    if ended:
        go("train", "val")
    else:
        with join_world("cpu") as world:
            job.prepare(
                TOKEN, tmp_path / "train.tok", tmp_path / "val.tok", tmp_path / "run", world, "begun", quiet=True
            )
    before = contents(tmp_path / "run")
    with pytest.raises(OutputError, match=f"holds a run on other {which} data: choose another --out"):
        go(data, val)
    assert contents(tmp_path / "run") == before
    go("train", "val")
    assert RunDirectory(tmp_path / "run").finished


def test_moved_data_and_further_columns_are_the_same(made: Path) -> None:
    (made / "train.tok").rename(made / "moved.tok")
    store = Store(made / "moved.tok")
    store.add_column("weight", np.ones(len(store), np.float32))
    train(TOKEN, made / "moved.tok", None, made / "run", "cpu", quiet=True)
    assert read_json(made / "run" / DATA)["train"] == str(made / "moved.tok")


def test_a_folder_with_another_image_is_other_data(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", classes=2, count=6, side=16)
    train(TOKENIZER, images, None, tmp_path / "run", "cpu", quiet=True)
    images.rename(tmp_path / "moved")
    train(TOKENIZER, tmp_path / "moved", None, tmp_path / "run", "cpu", quiet=True)
    file = next((tmp_path / "moved").rglob("*.png"))
    file.rename(file.with_name("zzz.png"))
    with pytest.raises(OutputError, match="holds a run on other training data"):
        train(TOKENIZER, tmp_path / "moved", None, tmp_path / "run", "cpu", quiet=True)


def test_settings_of_another_version_are_refused_in_one_line(made: Path) -> None:
    plain = read_yaml(made / "run" / SETTINGS)
    (made / "run" / SETTINGS).write_text(to_yaml({**plain, "warp_drive": True}))
    data = made / "run" / DATA
    with pytest.raises(DamageError, match=r"run\.yaml was changed after the run began"):
        Trained.open(made / "run")
    write_sealed(data, {**read_json(data), "settings": sha256(made / "run" / SETTINGS)})
    for use in (
        lambda: evaluate_run(made / "run", made / "train.tok"),
        lambda: Trained.open(made / "run"),
        lambda: train(TOKEN, made / "train.tok", None, made / "run", "cpu", quiet=True),
    ):
        with pytest.raises(DamageError, match=r"run\.yaml are damaged or of another version: .*warp_drive"):
            use()


@pytest.mark.parametrize("version", [VERSION + 1, "two"])
def test_a_newer_directory_is_refused(made: Path, version: object) -> None:
    plain = read_json(made / "run" / DATA)
    assert plain["version"] == VERSION
    (made / "run" / DATA).write_text(json.dumps({**plain, "version": version}))
    with pytest.raises(DamageError, match=f"is a run of version {version}, this software reads {VERSION}"):
        evaluate_run(made / "run", made / "train.tok")


def test_half_written_directories_are_refused(made: Path) -> None:
    shutil.copytree(made / "run", made / "young", ignore=shutil.ignore_patterns("checkpoints", "results.json"))
    with pytest.raises(InputError, match="young has no checkpoint yet"):
        Trained.open(made / "young")
    (made / "young" / DATA).unlink()
    with pytest.raises(InputError, match="young was not started to the end: run the same 'tilework train' again"):
        Trained.open(made / "young")
    (made / "run" / DATA).write_text("{}")
    with pytest.raises(DamageError, match=r"data\.json is malformed"):
        Trained.open(made / "run")
    (made / "run" / DATA).write_text("[]")
    with pytest.raises(DamageError, match=r"data\.json is not JSON"):
        Trained.open(made / "run")


@pytest.mark.parametrize("file", [file for file in KINDS if not file.endswith(".yaml")])
def test_directories_of_another_kind_are_named(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(InputError, match=f"is {KINDS[file]}, not a run: give a directory that 'tilework train' wrote"):
        Trained.open(tmp_path)
    with pytest.raises(InputError, match="no run in"):
        Trained.open(tmp_path / "nowhere")


def test_a_chain_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "chain.yaml").write_text("links: []")
    with pytest.raises(InputError, match="has not begun"):
        Trained.open(tmp_path)


def test_figures_without_their_hash_or_of_another_file_are_refused(tmp_path: Path) -> None:
    """Lines that are left out may take the hash along; another file of the run has a hash of its own."""
    made = tmp_path / "run"
    train(TOKEN, write_store(tmp_path / "x.tok"), None, made, "cpu", quiet=True)
    run, file = RunDirectory(made), made / "results.json"
    figures, whole = run.figures(), read_json(file)
    assert figures["steps"] == whole["steps"]
    for damaged in (json.dumps(whole), (made / DATA).read_text()):
        file.write_text(damaged)
        with pytest.raises(DamageError, match=r"results\.json"):
            run.figures()
    data = {key: value for key, value in read_json(made / DATA).items() if key != "settings"}
    write_sealed(made / DATA, data)  # a run of an older version
    file.write_text(json.dumps(whole))
    assert run.figures() == figures


def test_killed_before_the_data_are_noted_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings come first, so that what follows them is known to be of a run."""
    run, data, val = data_of("token", tmp_path)
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(job, "_with_tokenizer", killed)
        with pytest.raises(Killed):
            train(run, data, val, out, "cpu", quiet=True)
    assert [file.name for file in out.iterdir()] == [SETTINGS]
    (out / "tokenizer").mkdir()
    assert train(run, data, val, out, "cpu", quiet=True).steps == 4


def test_what_kills_have_left_is_removed(tmp_path: Path) -> None:
    """Also of a finished run: files being written, a checkpoint half removed."""
    run, data, val = data_of("token", tmp_path)
    out = tmp_path / "out"
    train(run, data, val, out, "cpu", quiet=True)
    before = sorted(file.relative_to(out) for file in out.rglob("*"))
    (out / ".data.json.0123abcd.tmp").write_bytes(b"half")
    (out / "checkpoints/.latest.0123abcd.tmp").write_bytes(b"half")
    (out / "checkpoints/.step-00000001.tmp").mkdir()
    (out / "checkpoints/step-00000001").mkdir()  # whose removal was cut short
    (out / "checkpoints/step-00000001/ema.safetensors").touch()
    train(run, data, val, out, "cpu", quiet=True)
    assert sorted(file.relative_to(out) for file in out.rglob("*")) == before


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours takes it for its own failure."""


def killed(*_: object) -> None:
    raise Killed
