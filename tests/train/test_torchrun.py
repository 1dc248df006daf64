"""Two processes under torchrun see the same global batches as one, and resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

SETTINGS = [
    "fit.batch=12",
    "fit.epochs=2",
    "fit.steps=0",
    "fit.log_every=1",
    "model.width=16",
    "model.heads=2",
    "model.depth=1",
]
SETTINGS += ["augment.1.size=[8,8]", "fit.save_every=3"]


def command(store: Path, val: Path, out: Path, *more: str) -> list[str]:
    data = ["--data", str(store), "--val", str(val), "--out", str(out), "--device", "cpu"]
    return ["-m", "tilework", "train", "demo_token", *SETTINGS, *more, *data]


def torchrun(arguments: list[str]) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([sys.executable, *launcher, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def log(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_two_processes_equal_one_and_resume(store: Path, val_store: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run([sys.executable, *command(store, val_store, one)], check=True, capture_output=True)
    torchrun(command(store, val_store, two))
    a, b = log(one), log(two)
    assert [line["step"] for line in a] == [line["step"] for line in b]
    for name in ("loss", "norm", "val_loss", "val_top1"):
        first = [line[name] for line in a if name in line][:3]
        assert first == pytest.approx([line[name] for line in b if name in line][:3], abs=1e-5)

    for leftover in (two / "checkpoints").glob("step-00000008"):  # as if killed after step 6
        for file in leftover.iterdir():
            file.unlink()
        leftover.rmdir()
    (two / "checkpoints/latest").write_text("step-00000006\n")
    torchrun(command(store, val_store, two))
    assert log(two) == b


@pytest.mark.slow
def test_a_chain_hands_the_learnt_table_to_every_process(store: Path, tmp_path: Path) -> None:
    """Masked token modelling, then classification: both processes start from the finished first link."""
    settings = ["fit.epochs=0", "fit.steps=2", "fit.batch=12", "model.width=16", "model.heads=2", "model.depth=1"]
    words = [f"links.{i}.run.{setting}" for i in (0, 1) for setting in [*settings, "codes=null"]]
    words += ["links.0.run.objective.width=16", "links.0.run.objective.heads=2", "links.0.run.augment.0.size=[8,8]"]
    words += ["links.0.run.evaluation.0.size=[8,8]", "links.1.run.augment.1.size=[8,8]"]
    words += ["links.1.run.evaluation.1.size=[8,8]"]
    out = tmp_path / "chain"
    data = ["--data", str(store), str(store), "--val", "none", "none", "--out", str(out), "--device", "cpu"]
    torchrun(["-m", "tilework", "train", "mtm_to_seit_cpu", *words, *data])
    first, second = (load_file(out / name / "codebook.safetensors") for name in ("1-pretrain", "2-tune"))
    assert torch.equal(first["table"], second["table"])
    assert not torch.equal(first["table"], first["codebook"])
    assert (out / "2-tune/results.json").is_file()


@pytest.mark.slow
def test_an_adversarial_loss_trains_the_same_weights_in_every_process(images: Path, tmp_path: Path) -> None:
    """Each weighs the loss by its own part of the batch; the averaged gradients keep the processes together."""
    words = ["size=[32,32]", "model.width=16", "model.heads=2", "model.codes=16", "fit.steps=6", "fit.batch=8"]
    words += ["objective.adversarial.start=2", "objective.adversarial.width=4", "fit.log_every=1", "fit.accumulate=2"]
    out = ["--recipe", "small_tokenizer_gan", "--out", str(tmp_path / "tokenizer"), "--device", "cpu"]
    torchrun(["-m", "tilework", "tokenizer", "train", str(images), *words, *out])
    lines = log(tmp_path / "tokenizer.run")
    assert [line["step"] for line in lines if "adversarial_weight" in line] == [3, 4, 5, 6]
    assert (tmp_path / "tokenizer/weights.safetensors").is_file()
