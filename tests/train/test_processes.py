"""Training as a process: told to stop it saves and says so; without its launcher it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from small_runs import alive, begun, children_of, command, wait_for


def test_sigterm_saves_and_exits_with_75_and_goes_on(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = subprocess.Popen([sys.executable, *command(store, out, 100_000)], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: begun(out))
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 75
    assert said.splitlines()[-1].startswith("tilework: stopped after step")
    assert "repeat the command" in said
    saved = int((out / "checkpoints/latest").read_text().split()[0].removeprefix("step-"))
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == saved


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal for a dead parent is Linux's")
@pytest.mark.parametrize("when", ["at once", "in training"])
def test_workers_end_when_their_launcher_is_killed(store: Path, tmp_path: Path, when: str) -> None:
    out = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [sys.executable, *launcher, *command(store, out, 100_000)]
    running = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers: list[int] = []
    try:
        wait_for(lambda: begun(out) if when == "in training" else len(children_of(running.pid)) >= 2)
        workers = children_of(running.pid)
        assert len(workers) >= 2
        running.kill()
        running.wait(timeout=10)
        wait_for(lambda: not any(alive(worker) for worker in workers), 20)
    finally:
        for process in (running.pid, *workers):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def test_sigterm_outside_of_training_ends_with_75_too(tmp_path: Path) -> None:
    """A command that only reads and writes: nothing to save, the same code."""
    code = (
        "import os, signal, tilework.cli.main as m\n"
        "m._run = lambda args: os.kill(os.getpid(), signal.SIGTERM)\nm.main([])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 75
    assert ended.stderr == "tilework: stopped by a signal\n"
