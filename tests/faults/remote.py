"""Row 13: stores behind a server that fails: the content of the local store, or a refusal that names the file."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

from faults.matrix import ROWS, Row, Trials
from faults.things import make_store, read_store
from flaky_server import FlakyServer, serve
from tilework.core.errors import TileworkError
from tilework.store import Store, remote

PASSING = ("500", "502", "503", "429", "short", "cut", "reset", "stall", "corrupt", "long", "ok")


@contextmanager
def served(folder: Path) -> Iterator[FlakyServer]:
    """A server of a folder that holds x.tok, and sound.tok, a copy of it; pauses are short."""
    folder.mkdir()
    make_store(folder / "x.tok")
    shutil.copytree(folder / "x.tok", folder / "sound.tok")
    short = patch.multiple(remote, PAUSE=0.002, STALL=0.1)
    with short, patch.dict(os.environ, {"NO_PROXY": "127.0.0.1"}), serve(folder) as server:
        yield server


def judged(server: FlakyServer, sound: object) -> str | None:
    """What is wrong with all that a remote store gives; a refusal in one line that names it is right."""
    try:
        return None if read_store(f"{server.url}/x.tok") == sound else "another content, unnoticed"
    except TileworkError as error:
        return None if "x.tok" in str(error) and "\n" not in str(error) else f"file not named: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def flaky(count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Faults at random requests of random files; afterwards the server is sound, and so must be what was kept."""
    with served(folder / "served") as server:
        root = server.root / "x.tok"
        files = [f"x.tok/{file.relative_to(root)}" for file in sorted(root.rglob("*")) if file.is_file()]
        sound = read_store(root)
        for number in range(count):
            os.environ["TILEWORK_CACHE"] = str(folder / f"cache-{number}")
            chosen = rng.permutation(files)[: int(rng.integers(1, 4))]
            server.faults = {name: [str(f) for f in rng.choice(PASSING, rng.integers(1, 7))] for name in chosen}
            told = {name: list(faults) for name, faults in server.faults.items()}
            trouble = judged(server, sound)
            server.faults = {}
            if not trouble and read_store(f"{server.url}/x.tok") != sound:
                trouble = "what was kept is not sound"
            yield trouble and f"{told}: {trouble}"
            shutil.rmtree(folder / f"cache-{number}", ignore_errors=True)


def changed(count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """A file of the store is replaced after the store was opened: its old content from the cache, or a refusal."""
    with served(folder / "served") as server:
        root, sound = server.root / "x.tok", read_store(server.root / "sound.tok")
        files = sorted(file.relative_to(root) for file in (root / "shards").iterdir())
        for number in range(count):
            os.environ["TILEWORK_CACHE"] = str(folder / f"cache-{number}")
            store = Store(f"{server.url}/x.tok")
            file = files[rng.integers(len(files))]
            data = bytearray((root / file).read_bytes())
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
            (root / file).write_bytes(bytes(data))
            try:
                codes = [store.batch(np.arange(len(store)), view).tobytes() for view in range(store.views)]
                trouble = None if codes == sound[0] else "another content, unnoticed"
            except TileworkError as error:
                trouble = None if file.name in str(error) else f"file not named: {error}"
            shutil.copy(server.root / "sound.tok" / file, root / file)
            yield trouble and f"{file} replaced: {trouble}"
            shutil.rmtree(folder / f"cache-{number}", ignore_errors=True)


def _read_and_tell(server: FlakyServer, sound: object, told: multiprocessing.Queue[str | None]) -> None:
    told.put(judged(server, sound))


def one_cache(processes: int, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Several processes read a remote store through one empty cache, some of them while the server fails."""
    with served(folder / "served") as server:
        sound, context = read_store(server.root / "sound.tok"), multiprocessing.get_context("fork")
        files = [f"x.tok/{file.relative_to(server.root / 'x.tok')}" for file in (server.root / "x.tok").rglob("*")]
        for number in range(count):
            os.environ["TILEWORK_CACHE"] = str(cache := folder / f"cache-{number}")
            server.faults = {str(name): ["503", "cut"] for name in rng.permutation(files)[: int(rng.integers(0, 3))]}
            told: multiprocessing.Queue[str | None] = context.Queue()
            readers = [context.Process(target=_read_and_tell, args=(server, sound, told)) for _ in range(processes)]
            for reader in readers:
                reader.start()
            troubles = [trouble for _ in readers if (trouble := told.get(timeout=60)) is not None]
            for reader in readers:
                reader.join()
            server.faults = {}
            left = [file.name for file in cache.rglob(".*.tmp")]
            yield f"{processes} readers: {troubles[:2]}, left {left}" if troubles or left else None
            shutil.rmtree(cache, ignore_errors=True)


ROWS.append(Row(12, "8 processes: one cache", 50, 1, partial(one_cache, 8)))
ROWS.append(Row(13, "server that fails", 500, 5, flaky))
ROWS.append(Row(13, "files replaced on the server", 500, 5, changed))
