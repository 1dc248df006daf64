"""Processes killed outright at random moments, many times: does the work end as if nothing had happened?

    python tests/kills.py [--kinds worker launcher s3 ray] [--kills 20] [--seed 0] [--json FILE]

worker: one of two workers of torchrun, which restarts them; the weights of one process that is never disturbed.
launcher: torchrun itself; no worker lives 10 s later, and the same command goes on; the same weights.
s3: the S3 server, while a store is read from it with an empty cache; it comes back after a second; the same codes.
ray: the worker that tokenizes a part, once for each part; the same bytes.
Every kind says how many kills there were and how many were survived; what differs at the end survives none.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from s3_server import BUCKET, S3Server
from small_data import write_store
from small_runs import children_of, command, wait_for
from tilework.core.location import Url
from tilework.data.images import ImageFolder
from tilework.store import Store, remote
from tilework.store.upload import upload
from tilework.tokenizers import VitVqConfig
from tilework.tokenizers.ray_engine import spool_on_ray
from tilework.tokenizers.tokenize import Tokenizing, tokenize
from tilework.tokenizers.tokenizer import Card

PATIENCE = 900.0  # seconds for anything to happen


def step_of(out: Path) -> int:
    """Of the newest checkpoint."""
    latest = out / "checkpoints/latest"
    return int(latest.read_text().split()[0].removeprefix("step-")) if latest.is_file() else 0


def same_weights(one: Path, other: Path) -> bool:
    mine, yours = (load_file(p / f"checkpoints/step-{step_of(p):08d}/objective.safetensors") for p in (one, other))
    return mine.keys() == yours.keys() and all(float((mine[k] - yours[k]).abs().max()) < 1e-5 for k in mine)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def torchrun(line: list[str], restarts: int = 0) -> subprocess.Popen[bytes]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    own = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    quiet = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, *launcher, *line], env=own, stdout=quiet, stderr=quiet)


def training(root: Path, kills: int) -> tuple[int, Callable[[str], list[str]]]:
    """Steps of a run that lasts for so many kills, and its command; one process has done it in `root/one`."""
    store, steps = write_store(root / "train.tok"), 40 * (kills + 1)
    words = ["fit.save_every=2", "fit.seed=3"]

    def line(name: str) -> list[str]:
        return [*command(store, root / name, steps, *words), "--device", "cpu"]

    subprocess.run([sys.executable, *line("one")], check=True, capture_output=True)
    return steps, line


def worker(root: Path, kills: int, rng: random.Random) -> tuple[int, bool]:
    steps, line = training(root, kills)
    out, done = root / "two", 0
    running = torchrun(line("two"), restarts=kills)
    for _ in range(kills):
        before = step_of(out)
        wait_for(lambda before=before: step_of(out) >= before + 4 or running.poll() is not None, PATIENCE)  # type: ignore[misc]
        workers = children_of(running.pid)
        if running.poll() is not None or step_of(out) >= steps or not workers:
            break
        time.sleep(rng.random() / 2)
        os.kill(rng.choice(workers), signal.SIGKILL)
        done += 1
    return done, running.wait(PATIENCE) == 0 and same_weights(root / "one", out) and not children_of(running.pid)


def launcher(root: Path, kills: int, rng: random.Random) -> tuple[int, bool]:
    _, line = training(root, kills)
    out, done, orphans = root / "two", 0, 0
    for _ in range(kills):
        before, running = step_of(out), torchrun(line("two"))
        wait_for(lambda before=before, running=running: step_of(out) > before or running.poll() is not None, PATIENCE)  # type: ignore[misc]
        if running.poll() is not None:
            break
        time.sleep(rng.random() / 2)
        workers = children_of(running.pid)
        running.kill()
        running.wait()
        done += 1
        time.sleep(10)
        orphans += sum(map(alive, workers))
    return done, torchrun(line("two")).wait(PATIENCE) == 0 and same_weights(root / "one", out) and not orphans


def s3(root: Path, kills: int, rng: random.Random) -> tuple[int, bool]:
    local = write_store(root / "train.tok")
    remote.PAUSE = 0.1
    same = True
    with S3Server(root / "s3") as server:
        os.environ.update(server.environment(root / "cache"))
        upload(local, Url(f"s3://{BUCKET}/train.tok"))
        for number in range(kills):
            os.environ["TILEWORK_CACHE"] = str(root / f"cache-{number}")
            found = Store(f"s3://{BUCKET}/train.tok")
            server.kill()

            def revive(pause: float) -> None:
                time.sleep(pause)
                server.start()

            back = threading.Thread(target=revive, args=(0.5 + rng.random(),))
            back.start()
            same &= bool((found.batch(np.arange(48)) == Store(local).batch(np.arange(48))).all())
            back.join()
            server.wait(PATIENCE)
    return kills, same


def ray(root: Path, kills: int, rng: random.Random) -> tuple[int, bool]:
    import ray as engine

    draws = np.random.default_rng(rng.randrange(1 << 30))
    for i in range(2 * kills):
        path = root / f"images/{'ab'[i % 2]}/{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    torch.manual_seed(0)
    model = VitVqConfig(patch=4, codes=64, code_dim=6, width=16, depth=1, heads=2).build(3, (16, 16), 0).eval()
    model.start(torch.rand(8, 3, 16, 16))
    job = Tokenizing(model, Card("small", "ab" * 32, (16, 16)), torch.device("cpu"), part=2)
    folder = ImageFolder.open(root / "images")

    class Deadly(ImageFolder):  # local: it travels by value
        """The first process to ask for a part dies by it; the next one finds the mark and lives."""

        def files(self, index: Sequence[int]) -> Iterator[Path]:
            try:
                os.close(os.open(self.root.parent / f"killed-{next(iter(index))}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return super(type(self), self).files(index)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("alive")

    tokenize(folder, job, root / "one.tok")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_TOKEN=uuid.uuid4().hex, RAY_worker_niceness="0")
    os.environ.update(RAY_agent_register_timeout_ms="120000")
    engine.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        deadly = Deadly(folder.root, folder.paths, folder.labels, folder.classes)
        tokenize(deadly, job, root / "ray.tok", spool_all=spool_on_ray)
    finally:
        engine.shutdown()
    mine, yours = (
        {p.relative_to(root / name): p.read_bytes() for p in (root / name).rglob("*") if p.is_file()}
        for name in ("one.tok", "ray.tok")
    )
    return len(list(root.glob("killed-*"))), mine == yours


KINDS = {"worker": worker, "launcher": launcher, "s3": s3, "ray": ray}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[str, object] = {"command": " ".join(sys.argv)}
    if asked.json is not None and asked.json.is_file():  # kinds may be measured one after another
        found = json.loads(asked.json.read_text()) | found
    for kind in asked.kinds:
        begun = time.monotonic()
        with TemporaryDirectory() as folder:
            kills, same = KINDS[kind](Path(folder), asked.kills, random.Random(asked.seed))
        seconds = round(time.monotonic() - begun)
        found[kind] = {"kills": kills, "survived": kills if same else 0, "seconds": seconds}
        print(kind, found[kind], flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
