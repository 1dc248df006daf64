"""Processes killed outright at random moments, many times: does the work end as if nothing had happened?

    python tests/kills.py [--kinds worker launcher s3 ray] [--kills 20] [--seed 0] [--json FILE]

worker: one of two workers of torchrun, which restarts them; the weights of two that nobody disturbs, bit by bit.
launcher: torchrun itself; the same command is repeated and goes on; the same weights.
s3: the S3 server, while a store is read from it with an empty cache; it comes back after a second; the same codes.
ray: the worker that tokenizes a part, once for each part; the same bytes.
Half of the workers and launchers are killed at any moment of their start, half while they train. Every kind says how
many kills there were, how many were survived (what differs at the end survives none), and how many processes that it
started were still there 10 s after the one that should end them: after every launcher, else at the end.
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
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from tilework.data.image_folder import ImageFolder
from tilework.store import Store
from tilework.store.upload import upload
from tilework.tokenizers import VitVqConfig
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.ray_engine import spool_on_ray
from tilework.tokenizers.tokenize import tokenize
from tilework.tokenizers.tokenizer import Card

PATIENCE = 900.0  # seconds for anything to happen
START = 6.0  # seconds in which workers import and find each other
LATER = 10.0  # seconds after which nothing may be left
CREATE = os.O_CREAT | os.O_EXCL
MARK = "TILEWORK_KILLS"  # in the environment of whatever is started here


@dataclass(frozen=True)
class Outcome:
    """Of all kills of a kind. orphans: processes that were left."""

    kills: int
    survived: int
    orphans: int


def left() -> list[int]:
    """Processes that were started here, or by those that were."""
    mark, found = f"{MARK}={os.environ[MARK]}".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # ended meanwhile, or another user's
            if mark in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found  # a dead one that nobody has waited for has no environment


def left_later() -> int:
    """How many, after a while; as soon as there are none, the rest of the while is spared."""
    until = time.monotonic() + LATER
    while (count := len(left())) and time.monotonic() < until:
        time.sleep(0.2)
    return count


def step_of(out: Path) -> int:
    """Of the newest checkpoint."""
    latest = out / "checkpoints/latest"
    return int(latest.read_text().split()[0].removeprefix("step-")) if latest.is_file() else 0


def finished(running: subprocess.Popen[bytes], out: Path) -> bool:
    """Whether a launcher ends well, with the weights that lie in the folder `undisturbed` beside."""
    if code := running.wait(PATIENCE):
        print(f"torchrun ended with {code}:", *(out.parent / "said").read_text().splitlines()[-40:], sep="\n")
        return False
    at = f"checkpoints/step-{step_of(out):08d}/objective.safetensors"
    mine, yours = load_file(out.parent / "undisturbed" / at), load_file(out / at)
    differs = max(float((mine[name] - yours[name]).abs().max()) for name in mine)
    print(f"weights differ by {differs:.1e} at most")
    return mine.keys() == yours.keys() and differs == 0


def torchrun(line: list[str], root: Path, restarts: int = 0) -> subprocess.Popen[bytes]:
    """Two workers. root: of a file with what they say."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    own = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with (root / "said").open("ab") as said:
        return subprocess.Popen([sys.executable, *launcher, *line], env=own, stdout=said, stderr=said)


def training(root: Path, kills: int) -> Callable[[str], list[str]]:
    """The command of a run that lasts for so many kills; it has been done once without any in `root/undisturbed`."""
    store, steps = write_store(root / "train.tok"), 20 * (kills + 1)
    words = ["fit.save_every=5", "fit.seed=3"]

    def line(name: str) -> list[str]:
        return [*command(store, root / name, steps, *words), "--device", "cpu"]

    assert torchrun(line("undisturbed"), root).wait(PATIENCE) == 0, (root / "said").read_text()
    return line


def at_some_moment(
    running: subprocess.Popen[bytes], out: Path, trains: bool, old: list[int], rng: random.Random
) -> list[int]:
    """Workers of a launcher, at a moment of their start or, once they have saved a step, of their training.

    old: those that they replace. None where the launcher has ended.
    """
    before = step_of(out)

    def come() -> bool:
        new = len(set(children_of(running.pid)) - set(old)) >= 2
        return running.poll() is not None or (step_of(out) > before if trains else new)

    wait_for(come, PATIENCE)
    time.sleep(rng.random() * (0.5 if trains else START))
    return children_of(running.pid) if running.poll() is None else []


def worker(root: Path, kills: int, rng: random.Random) -> Outcome:
    line, out = training(root, kills), root / "killed"
    running, done, workers = torchrun(line("killed"), root, restarts=kills), 0, list[int]()
    while done < kills and (workers := at_some_moment(running, out, done % 2 == 1, workers, rng)):
        os.kill(rng.choice(workers), signal.SIGKILL)
        done += 1
    same = finished(running, out)
    return Outcome(done, done * same, left_later())


def launcher(root: Path, kills: int, rng: random.Random) -> Outcome:
    line, out = training(root, kills), root / "killed"
    done = orphans = 0
    while done < kills:
        running = torchrun(line("killed"), root)
        if not at_some_moment(running, out, done % 2 == 1, [], rng):
            break
        running.kill()
        running.wait()
        done += 1
        orphans += left_later()
    same = finished(torchrun(line("killed"), root), out)
    return Outcome(done, done * same, orphans + left_later())


def s3(root: Path, kills: int, rng: random.Random) -> Outcome:
    local, done, same, usual = write_store(root / "train.tok", count=480), 0, True, 0.0  # 24 shards
    every, url = np.arange(480), f"s3://{BUCKET}/train.tok"
    wanted = Store(local).batch(every)
    with S3Server(root / "s3") as server:
        os.environ.update(server.environment(root / "cache"))
        upload(local, Url(url))
        for number in range(-1, 10 * kills):  # the first read is not disturbed, and says how long one takes
            if done == kills:
                break
            os.environ["TILEWORK_CACHE"] = str(root / f"cache-{number}")
            codes: list[np.ndarray] = []
            reader = threading.Thread(target=lambda codes=codes: codes.append(Store(url).batch(every)))
            begun = time.monotonic()
            reader.start()
            if number >= 0:
                reader.join(rng.random() * usual)
                if reader.is_alive():  # else it was too late
                    server.kill()
                    done += 1
                    time.sleep(0.5 + rng.random())
                    server.start()
            reader.join()
            usual = usual or time.monotonic() - begun
            same &= len(codes) == 1 and bool((codes[0] == wanted).all())
            server.wait(PATIENCE)
    return Outcome(done, done * same, left_later())


def ray(root: Path, kills: int, rng: random.Random) -> Outcome:
    import ray as engine

    draws = np.random.default_rng(rng.randrange(1 << 30))
    for i in range(4 * kills):
        path = root / f"images/{'ab'[i % 2]}/{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    torch.manual_seed(0)
    model = VitVqConfig(patch=4, codes=64, code_dim=6, width=16, depth=1, heads=2).build(3, (16, 16), 0).eval()
    model.start(torch.rand(8, 3, 16, 16))
    job = Tokenizing(model, Card("small", "ab" * 32, (16, 16)), torch.device("cpu"), part=4)
    folder = ImageFolder.open(root / "images")

    class Deadly(ImageFolder):  # local: it travels by value
        """The first process to read a part dies before one of its images; the next one finds the mark and lives."""

        def files(self, index: Sequence[int]) -> Iterator[Path]:
            part = self.paths[0].stem
            for turn, file in enumerate(ImageFolder.files(self, index)):
                if turn == int(part) // 8 % 4:
                    with suppress(FileExistsError):
                        os.close(os.open(self.root.parent / f"killed-{self.paths[0].parent.name}{part}", CREATE))
                        os.kill(os.getpid(), signal.SIGKILL)
                yield file

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
    done = len(list(root.glob("killed-*")))
    return Outcome(done, done * (mine == yours), left_later())


KINDS = {"worker": worker, "launcher": launcher, "s3": s3, "ray": ray}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found: dict[str, object] = {}
    if asked.json is not None and asked.json.is_file():  # kinds may be measured one after another
        found = json.loads(asked.json.read_text())
    for kind in asked.kinds:
        os.environ[MARK] = uuid.uuid4().hex
        begun = time.monotonic()
        try:
            with TemporaryDirectory() as folder:
                outcome = KINDS[kind](Path(folder), asked.kills, random.Random(asked.seed))
        finally:
            for pid in left():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        line = f"tests/kills.py --kinds {kind} --kills {asked.kills} --seed {asked.seed}"
        found[kind] = {"command": line, **asdict(outcome), "seconds": round(time.monotonic() - begun)}
        print(kind, found[kind], flush=True)
        if asked.json is not None:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
