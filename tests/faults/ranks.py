"""Rows 6 and 11: two workers of torchrun, killed or with numbers that are not finite, and an S3 server that is killed.

torchrun ... ranks.py RANK STEP WORDS ...        # the command, with a loss that is no number on one rank
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import kills
from faults.matrix import ROWS, Row, Trials
from small_data import write_store
from small_runs import SETTINGS
from tilework.core.errors import EXIT_CODES

STEPS = 12
FAILED = next(code for code, meaning in EXIT_CODES.items() if meaning.startswith("training failed"))


def killed(kind: str, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """So many kills of a kind of tests/kills.py; all fail if the work ends otherwise, or leaves a process."""
    os.environ[kills.MARK] = uuid.uuid4().hex
    folder = folder / kind
    folder.mkdir()
    try:
        found = kills.KINDS[kind](folder, count, random.Random(int(rng.integers(1 << 30))))
    finally:
        for process in kills.left():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    for number in range(found.kills):
        ended_well = number < found.survived and not found.orphans
        yield None if ended_well else f"{found.kills - found.survived} not survived, {found.orphans} processes left"


def train(folder: Path, name: str, *more: str) -> list[str]:
    """Words of a short training run."""
    settings = [*SETTINGS.split(), f"fit.steps={STEPS}", *more]
    data = ["--data", f"{folder}/x.tok", "--out", f"{folder}/{name}", "--device", "cpu"]
    return ["train", "demo_token", *settings, *data]


def ran(words: list[str], processes: int) -> tuple[int, str]:
    """Exit code and everything that is said."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    start = [sys.executable, *(launcher if processes > 1 else []), *words]
    done = subprocess.run(start, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def last_weights(out: Path) -> dict[str, np.ndarray]:
    """Of a finished run."""
    return load_file(sorted(out.glob("checkpoints/step-*/objective.safetensors"))[-1])


def one_rank(count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """No number on one of two ranks: both skip the step, as a process alone whose whole batch is bad; it is said."""
    write_store(folder / "x.tok")
    for number in range(count):
        rank, step = int(rng.integers(2)), int(rng.integers(STEPS))
        poison = [str(Path(__file__)), str(rank), str(step)]
        code, said = ran([*poison, *train(folder, f"two-{number}")], 2)
        alone, _ = ran([str(Path(__file__)), "0", str(step), *train(folder, f"one-{number}")], 1)
        trouble = None
        if code or alone:
            trouble = f"exit codes {code} and {alone}: {said[-300:]}"
        elif f"step {step + 1} is skipped" not in said:
            trouble = "the skipped step is not said"
        elif json.loads((folder / f"two-{number}/results.json").read_bytes()).get("skipped_steps") != 1:
            trouble = "the skipped step is not counted"
        else:
            two, one = (last_weights(folder / f"{name}-{number}") for name in ("two", "one"))
            far = max(float(np.abs(two[name] - one[name]).max()) for name in one)
            trouble = None if far <= 1e-4 else f"weights differ by {far:.1e} from one process"  # False for NaN
        yield trouble and f"rank {rank}, step {step}: {trouble}"


def exploding_rate(count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """A rate that no network survives: training ends with the exit code of that, in one line that says what to do."""
    write_store(folder / "x.tok")
    for number in range(count):
        rate, processes = float(10 ** rng.uniform(20, 37)), 1 + number % 2
        words = train(folder, f"run-{number}", f"fit.optim.lr={rate:g}", "fit.optim.clip=0", "fit.patience=2")
        code, said = ran(["-m", "tilework", *words], processes)
        wrong = code != FAILED if processes == 1 else code == 0  # torchrun has codes of its own
        hinted = "lower fit.optim.lr" in said and (processes > 1 or "Traceback" not in said)
        yield f"rate {rate:g}, {processes} processes: code {code}: {said[-300:]}" if wrong or not hinted else None


def poisoned(rank: int, step: int) -> None:
    """Makes the loss of one rank no number at one step."""
    from tilework.objectives.classify import Classify

    whole = Classify.forward

    def forward(self: Classify, batch, draws):  # type: ignore[no-untyped-def]
        out = whole(self, batch, draws)
        bad = draws.step == step and int(os.environ.get("RANK", "0")) == rank
        return {**out, "loss": out["loss"] * float("nan")} if bad else out

    Classify.forward = forward  # type: ignore[method-assign]


ROWS.append(Row(6, "SIGKILL: launcher of two workers", 20, 0, partial(killed, "launcher")))
ROWS.append(Row(6, "SIGKILL: worker under elastic training", 20, 0, partial(killed, "worker")))
ROWS.append(Row(11, "no number on one of two ranks", 20, 0, one_rank))
ROWS.append(Row(11, "exploding rate", 20, 1, exploding_rate))
ROWS.append(Row(13, "SIGKILL: S3 server", 20, 0, partial(killed, "s3")))


if __name__ == "__main__":
    from tilework.cli.main import main

    poisoned(int(sys.argv[1]), int(sys.argv[2]))
    main(sys.argv[3:])
