"""Runs that start from files in the layout of SeiT++'s published code, as its training leaves them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from published_seitpp import (
    CODES,
    DIM,
    INNER,
    SIDE,
    WIDTH,
    published,
    published_adapter,
    published_classifier,
    slow_classes,
    slow_logits,
)
from small_data import write_images
from tilework.augment import CentreCrop, Normalise
from tilework.cli.main import main
from tilework.core.batch import Batch
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, InputError, TileworkError
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyCodesConfig, ClassifyConfig, Masked, MaskedConfig
from tilework.runs import Run, prepare
from tilework.store import StoreWriter
from tilework.train import FitConfig, Job

CPU = World(0, 1, torch.device("cpu"))
CROP = (CentreCrop((2 * SIDE, 2 * SIDE)),)
VIT = VitConfig(width=WIDTH, depth=1, heads=2, pool="mean", positions="sincos_learnt", stem=TokenPatchStemConfig())
FIT = FitConfig(epochs=0, steps=1, batch=4)
TUNED = Run(VIT, ClassifyCodesConfig(), CROP, CROP, fit=FIT)
MASKED = Run(
    replace(VIT, pool="class", positions="sincos"),
    MaskedConfig(hidden="partly", fill="class", ratio=(1 / 3, 1.0), width=INNER, depth=1, heads=2),
    CROP,
    CROP,
    fit=FIT,
)


def write(path: Path, codes: int = CODES, dim: int = DIM) -> Path:
    """A store of 8x8 codes in three classes."""
    rng = np.random.default_rng(0)
    with StoreWriter(path, rng.normal(size=(codes, dim)).astype(np.float32), ["a", "b", "c"]) as writer:
        writer.add(rng.integers(0, codes, (12, 8, 8)), np.arange(12) % 3, [f"{i}.png" for i in range(12)])
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("published") / "x.tok")


def checkpoint(path: Path, tensors: dict[str, Tensor]) -> Path:
    """As the published training saves it: with its arguments, and the state of the optimiser."""
    arguments = Namespace(model="deit_base_token_32", blr=1e-3, cutmix_minmax=None, save_periods=["last2", "best"])
    optimiser = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    torch.save({"model": tensors, "optimizer": optimiser, "epoch": 3, "scaler": {}, "args": arguments}, path)
    return path


def begin(run: Run, data: Path, start: Path) -> Job:
    return prepare(run, data, None, start.parent / "run", CPU, "x", quiet=True, start=start)


def batch_of(job: Job) -> Batch:
    found = job.source.batch(np.arange(4))
    return found.changed(x=found.x[:, 1:7, 1:7])


def test_a_classifier_goes_on_where_the_published_one_was(store: Path, tmp_path: Path) -> None:
    theirs = published_classifier(3)
    job = begin(TUNED, store, checkpoint(tmp_path / "tuned.pth", theirs))
    batch = batch_of(job)
    with torch.no_grad():
        found = job.objective.eval().output(job.objective.model, batch).logits
    wanted = torch.stack([slow_classes(theirs, ids.long()) for ids in batch.x])
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_fine_tuning_takes_the_encoder_and_the_table_of_masked_token_modelling(store: Path, tmp_path: Path) -> None:
    """With a head of our own on both sides."""
    theirs = published()
    job = begin(TUNED, store, checkpoint(tmp_path / "mtm.pth", theirs))
    batch, head = batch_of(job), job.objective.model.get_submodule("head").state_dict()
    with torch.no_grad():
        found = job.objective.eval().output(job.objective.model, batch).logits
    theirs |= {f"head.{name}": tensor for name, tensor in head.items()}
    wanted = torch.stack([slow_classes(theirs, ids.long()) for ids in batch.x])
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_masked_token_modelling_goes_on_with_its_decoder(store: Path, tmp_path: Path) -> None:
    theirs = published()
    job = begin(MASKED, store, checkpoint(tmp_path / "mtm.pth", theirs))
    objective, ids = job.objective.eval(), batch_of(job).x
    assert isinstance(objective, Masked)
    order = torch.arange(SIDE**2).expand(4, -1)
    with torch.no_grad():
        found = objective.predict(objective.model, ids, order, 5)  # (B, N, 4, K)
    found = found.view(4, SIDE, SIDE, 2, 2, CODES).transpose(2, 3).reshape(4, 6, 6, CODES)
    for sample in range(4):
        wanted = slow_logits(theirs, ids[sample].long(), [0, 1, 2, 3], [4, 5])
        torch.testing.assert_close(found[sample], wanted, atol=1e-4, rtol=1e-4)


def test_pixels_take_the_blocks_alone(tmp_path: Path) -> None:
    """As from a run of ours on tokens: another input has another stem and no table."""
    pixels = replace(
        TUNED,
        model=replace(VIT, stem=PatchStemConfig(8)),
        objective=ClassifyConfig(),
        augment=(Normalise(),),
        evaluation=(Normalise(),),
        size=(24, 24),
    )
    theirs = published()
    job = begin(pixels, write_images(tmp_path / "images"), checkpoint(tmp_path / "mtm.pth", theirs))
    weights = job.objective.model.state_dict()
    assert torch.equal(weights["blocks.0.mlp.fc1.weight"], theirs["blocks.0.mlp.fc1.weight"])
    assert torch.equal(weights["fc_norm.weight"], theirs["norm.weight"])


def changed(**tensors: Tensor | None) -> dict[str, Tensor]:
    """Some tensors others, or gone. Names with __ for dots."""
    found: dict[str, Any] = {**published(), **{name.replace("__", "."): t for name, t in tensors.items()}}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


@pytest.mark.parametrize(
    ("run", "weights", "error", "what"),
    [
        (replace(TUNED, model=replace(VIT, width=32)), published(), ConfigError, "a checkpoint of another model"),
        (replace(TUNED, model=replace(VIT, depth=2)), published(), ConfigError, "a checkpoint of another model"),
        (replace(MASKED, objective=MaskedConfig()), published(), ConfigError, "set objective.fill=class"),
        (replace(MASKED, objective=replace(MASKED.objective, depth=2)), published(), ConfigError, "do not fit this"),
        (TUNED, changed(token_emb__LayerNorm__bias=None), InputError, "embedding of codes is missing"),
        (TUNED, changed(token_emb__LayerNorm__bias=torch.ones(3)), InputError, "do not fit each other"),
        (
            TUNED,
            changed(token_emb__word_embeddings__weight=torch.full((CODES, DIM), torch.nan)),
            InputError,
            "do not fit each other",
        ),
        (
            TUNED,
            changed(token_emb__word_embeddings__weight=torch.zeros(1, DIM).expand(1 << 40, DIM)),
            InputError,
            "in fewer bytes",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(
    run: Run, weights: dict[str, Tensor], error: type[TileworkError], what: str, store: Path, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path / "mtm.pth", weights)
    with pytest.raises(error) as caught:
        begin(run, store, path)
    assert what in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("codes", "dim"), [(CODES + 1, DIM), (CODES, DIM + 1)])
def test_another_vocabulary_is_refused(codes: int, dim: int, tmp_path: Path) -> None:
    data, path = write(tmp_path / "x.tok", codes, dim), checkpoint(tmp_path / "mtm.pth", published())
    with pytest.raises(ConfigError, match=f"is for 11 codes of 4 dimensions, the data have {codes} of {dim}"):
        begin(TUNED, data, path)


def test_a_file_with_code_in_it_runs_nothing(store: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"model": published(), "args": Namespace(evil=Evil())}, tmp_path / "mtm.pth")
    with pytest.raises(InputError, match="none of it was run"):
        begin(TUNED, store, tmp_path / "mtm.pth")
    assert not (tmp_path / "ran").exists()


# on the command line

SETTINGS = ("codes=null", "fit.steps=2", "fit.batch=4", "model.width=16", "model.depth=1", "model.heads=2")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(one) for one in arguments])
    return int(ended.value.code or 0)


def test_start_and_adapter_take_published_files(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TokenAdapt may lie in a file of its own, or in that of masked token modelling."""
    whole = {**published(), **published_adapter(CODES, DIM)}
    start = checkpoint(tmp_path / "mtm.pth", whole)
    crops = [f"augment.token_adapt.{name}" for name in ("size=[6,6]", "share=1.0")]
    crops += ["evaluation.centre_crop.size=[6,6]"]
    words = ["train", "seitpp_tuned_cpu", *SETTINGS, *crops, "--data", store, "--start", start]
    assert run(*words, "--adapter", start, "--out", tmp_path / "one", "--json") == 0
    torch.save(published_adapter(CODES, DIM), tmp_path / "tokenadapt.ckpt")
    assert run(*words, "--adapter", tmp_path / "tokenadapt.ckpt", "--out", tmp_path / "two", "--json") == 0
    assert (tmp_path / "one/log.csv").read_bytes() == (tmp_path / "two/log.csv").read_bytes()
    capsys.readouterr()
    torch.save(published_adapter(CODES + 1, DIM), tmp_path / "other.ckpt")
    assert run(*words[:-2], "--adapter", tmp_path / "other.ckpt", "--out", tmp_path / "three") == 4
    (said,) = capsys.readouterr().err.splitlines()
    assert "is for 12 codes of 4 dimensions, the data have 11 of 4" in said
    assert not (tmp_path / "three").exists()
