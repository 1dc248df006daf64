"""Worlds that change: killed workers, and numbers of processes that do not divide the batch.

Oracle: one process that is never disturbed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from small_runs import begun, children_of, command, wait_for

STEPS = 60


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / f"checkpoints/step-{STEPS:08d}/objective.safetensors")


def assert_close(one: Path, other: Path) -> None:
    mine, yours = weights(one), weights(other)
    assert mine.keys() == yours.keys()
    assert max(float((mine[name] - yours[name]).abs().max()) for name in mine) < 1e-5


def launch(processes: int, line: list[str], restarts: int = 0) -> subprocess.Popen[bytes]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    own = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *launcher, "--max-restarts", str(restarts), *line]
    return subprocess.Popen(words, env=own, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_weights_are_the_same(store: Path, tmp_path: Path) -> None:
    words = ["fit.save_every=2", "fit.seed=3"]
    subprocess.run([sys.executable, *command(store, tmp_path / "one", STEPS, *words)], check=True, capture_output=True)
    running = launch(2, command(store, tmp_path / "two", STEPS, *words), restarts=3)
    wait_for(lambda: begun(tmp_path / "two"), 300)
    os.kill(children_of(running.pid)[0], signal.SIGKILL)
    assert running.wait(600) == 0, running.stderr
    assert_close(tmp_path / "one", tmp_path / "two")
    time.sleep(1)
    assert children_of(running.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", [5])
def test_a_batch_is_shared_by_processes_that_do_not_divide_it(store: Path, tmp_path: Path, processes: int) -> None:
    subprocess.run([sys.executable, *command(store, tmp_path / "one", STEPS)], check=True, capture_output=True)
    running = launch(processes, command(store, tmp_path / "many", STEPS))  # 12 samples: 2, 2, 3, 2 and 3
    assert running.wait(600) == 0, running.stderr
    assert_close(tmp_path / "one", tmp_path / "many")
