"""Crashes: a process killed at any moment, or a disk that fails at any call, costs time and never data."""

from __future__ import annotations

import builtins
import errno
import io
import multiprocessing
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilework.core.errors import OutputError, TileworkError
from tilework.store import Plan, Spool, Store, StoreWriter, seal, spool_of

Run = Callable[[Path], None]

CUTS = (0, 3, 4, 9)  # images 0-2, 3, and 4-8 are the parts
PLAN = Plan(vocabulary=10, grid=(2, 3), classes=("ant", "bee"), licence="none", parts=3)
CODEBOOK = np.random.default_rng(1).normal(size=(10, 2)).astype(np.float32)
IDS = np.random.default_rng(0).integers(0, 10, (9, 2, 3))
COLUMNS: dict[str, Any] = {
    "label": np.arange(9) % 2,
    "key": [f"{i}.png" for i in range(9)],
    "raw": [bytes(i) for i in range(9)],
}
CALLS = ("fsync", "open", "mkdir", "rename", "replace", "unlink", "rmdir")  # of os
FULL = ("fsync", "mkdir", "rename", "replace", "open to write", "write")  # what a full disk refuses
DENIED = ("open", "mkdir", "rename", "replace", "open to write", "unlink", "rmdir")  # what needs a permission

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs fork and kill")


def by_parts(root: Path) -> None:
    """Spool and seal, as a process does that goes on where another was killed."""
    out, place = root / "out.tok", spool_of(root / "out.tok")
    if out.exists() and not list(place.glob("*")):  # all is done; the last thing to go is an empty folder
        shutil.rmtree(place, ignore_errors=True)
        return
    spool = Spool.create(place, PLAN, CODEBOOK)
    done = spool.done()
    for number in range(3):
        if number not in done:
            cut = slice(*CUTS[number : number + 2])
            spool.put(number, IDS[cut], {name: values[cut] for name, values in COLUMNS.items()})
    seal(spool, out, "rans", cut=False, shard_images=5)


def by_writer(root: Path) -> None:
    """The same store, written in one go."""
    with StoreWriter(root / "out.tok", CODEBOOK, PLAN.classes, "rans", licence="none", shard_images=5) as writer:
        for a, b in pairwise(CUTS):
            writer.add(IDS[a:b], COLUMNS["label"][a:b], COLUMNS["key"][a:b], raw=COLUMNS["raw"][a:b])


RUNS = pytest.mark.parametrize("run", [by_parts, by_writer], ids=["spool", "writer"])


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part for each portion; no waiting for the disk, which a killed process does not switch off."""
    monkeypatch.setattr("tilework.store.writer.PART_TOKENS", 1)
    monkeypatch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)


def files(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def names(path: Path) -> set[str]:
    return {child.name for child in path.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of the store that every run must give."""
    root = tmp_path_factory.mktemp("whole")
    by_parts(root)
    return files(root / "out.tok")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of the parts that every spool must hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "remove", lambda spool: None)
        root = tmp_path_factory.mktemp("parts")
        by_parts(root)
    return files(root / "out.tok.spool/parts")


class Disk(io.FileIO):
    """A file that tells before it writes."""

    def __init__(self, path: Any, before_write: Callable[[Disk, Any], None]) -> None:
        super().__init__(path, "wb")
        self._before_write = before_write

    def write(self, data: Any) -> int:  # what a buffered file calls
        self._before_write(self, data)
        return super().write(data) or 0


@contextmanager
def watched(
    before: Callable[[str], None], write: Callable[[Disk, Any], None] = lambda disk, data: None
) -> Iterator[None]:
    """Every call that changes the disk is told of before it happens: by its name, or by the file and what it writes."""
    real_open = io.open

    def tell(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            before(name)
            return real(*args, **options)

        return call

    def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        before("open to write" if mode == "wb" else "open to read")
        return io.BufferedWriter(Disk(file, write)) if mode == "wb" else real_open(file, mode, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, tell(name, getattr(os, name)))
        patch.setattr(io, "open", open_file)
        patch.setattr(builtins, "open", open_file)
        yield


# killed


def start(job: Callable[[], None]) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=job)
    process.start()
    return process


def die_at(number: int, job: Callable[[], None]) -> None:
    """Run, but be killed before a call that changes the disk, or amid a write."""
    calls = 0

    def before(name: str) -> None:
        nonlocal calls
        calls += name != "open to read"
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(disk: Disk, data: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            io.FileIO.write(disk, bytes(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    with watched(before, write):
        job()


def end(run: Run, root: Path) -> None:
    """Run again, to the end. A writer whose store stands already says so."""
    try:
        run(root)
    except OutputError as error:
        if run is not by_writer or "out.tok exists" not in str(error):
            raise


def after_kill(run: Run, root: Path, whole: dict[str, bytes]) -> str:
    """What is wrong after a process was killed and another one has run to the end."""
    if (root / "out.tok").exists() and files(root / "out.tok") != whole:
        return "half a store"
    try:
        end(run, root)
    except Exception as error:
        return f"the next run failed: {error!r}"
    if files(root / "out.tok") != whole:
        return "the next run gave another store"
    return f"{names(root)} is left" if names(root) != {"out.tok"} else ""


@RUNS
def test_both_ways_give_the_same_store(tmp_path: Path, run: Run, whole: dict[str, bytes]) -> None:
    run(tmp_path)
    assert (names(tmp_path), files(tmp_path / "out.tok")) == ({"out.tok"}, whole)
    assert Store(tmp_path / "out.tok").verify(deep=True) == []


@RUNS
def test_killed_at_every_call(tmp_path: Path, run: Run, whole: dict[str, bytes]) -> None:
    wrong: dict[int, str] = {}
    for number in count(1):
        root = tmp_path / str(number)
        root.mkdir()
        process = start(partial(die_at, number, partial(run, root)))
        process.join(60)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        if found := after_kill(run, root, whole):
            wrong[number] = found
        shutil.rmtree(root)
    assert number > 100
    assert wrong == {}


@RUNS
def test_killed_at_random_moments(tmp_path: Path, run: Run, whole: dict[str, bytes]) -> None:
    def timed(root: Path, seconds: float) -> float:
        root.mkdir()
        began = time.perf_counter()
        process = start(partial(run, root))
        process.join(seconds)
        process.kill()
        process.join()
        return time.perf_counter() - began

    duration = timed(tmp_path / "undisturbed", 60)
    wrong: dict[float, str] = {}
    for number, share in enumerate(np.random.default_rng(0).random(20).tolist()):
        root = tmp_path / str(number)
        timed(root, share * duration)
        if found := after_kill(run, root, whole):
            wrong[share] = found
    assert wrong == {}


@RUNS
def test_killed_again_and_again(tmp_path: Path, run: Run, whole: dict[str, bytes]) -> None:
    for number in np.random.default_rng(1).integers(1, 120, 20).tolist():  # in one place, each further or less far
        process = start(partial(die_at, number, partial(end, run, tmp_path)))
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL)
    assert after_kill(run, tmp_path, whole) == ""


def test_spool_half_removed_does_no_harm_to_another(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "remove", lambda spool: None)
        (tmp_path / "sealed").mkdir()
        by_parts(tmp_path / "sealed")
    wrong: dict[int, str] = {}
    for number in count(1):
        out = shutil.copytree(tmp_path / "sealed", tmp_path / str(number)) / "out.tok"
        process = start(partial(die_at, number, Spool.open(spool_of(out)).remove))
        process.join(60)
        if process.exitcode == 0:
            break
        if found := other_codes(out):
            wrong[number] = found
    assert number > 5
    assert wrong == {}


def other_codes(out: Path) -> str:
    """What is wrong after codes of something else were meant for a store that stands."""
    try:
        spool = Spool.create(spool_of(out), replace(PLAN, source="something else"), CODEBOOK)
    except TileworkError:
        return ""
    if spool.done():
        return f"the parts {spool.done()} were taken over"
    for number in range(3):
        spool.put(number, IDS[:2], {})
    try:
        seal(spool, out)
    except OutputError:
        return "" if spool.done() == [0, 1, 2] else "the parts are gone"
    return "the parts are gone, and no error"


@pytest.mark.parametrize("column", ["key", "raw"])
def test_adding_a_column_killed_at_every_call(tmp_path: Path, whole: dict[str, bytes], column: str) -> None:
    by_parts(tmp_path)
    clean = shutil.copytree(tmp_path / "out.tok", tmp_path / "clean.tok")
    Store(clean).add_column("x", COLUMNS[column])
    wrong: dict[int, str] = {}
    for number in count(1):
        path = shutil.copytree(tmp_path / "out.tok", tmp_path / f"{number}.tok")
        process = start(partial(die_at, number, partial(Store(path).add_column, "x", COLUMNS[column])))
        process.join(60)
        if process.exitcode == 0:
            break
        wrong |= {number: found} if (found := added_again(path, column, clean, whole)) else {}
    assert number > 8
    assert wrong == {}


def added_again(path: Path, column: str, clean: Path, whole: dict[str, bytes]) -> str:
    """What is wrong with a store after its column was added once more."""
    if any(data != files(path)[name] for name, data in whole.items() if name != "manifest.json"):
        return "a file of the store has changed"
    if files(path)["manifest.json"] not in (whole["manifest.json"], files(clean)["manifest.json"]):
        return "half a manifest"
    if "x" not in (entry.name for entry in Store(path).manifest.columns):
        Store(path).add_column("x", COLUMNS[column])
    return "" if files(path) == files(clean) else f"{sorted(files(path).keys() - files(clean).keys())} is left"


# failing


@contextmanager
def failing(call: str, at: int, code: int, lasting: bool = False, half: bool = False) -> Iterator[list[str]]:
    """A call fails when it comes for the n-th time, or from then on; gives a list that is empty if it did not."""
    calls, failed = 0, []

    def before(name: str) -> None:
        nonlocal calls
        calls += name == call
        if name == call and (calls == at or (lasting and calls > at)):
            failed.append(name)
            raise OSError(code, os.strerror(code))

    def write(disk: Disk, data: Any) -> None:
        try:
            before("write")
        except OSError:
            io.FileIO.write(disk, bytes(data)[: len(data) // 2]) if half else None
            raise

    with watched(before, write):
        yield failed


def fail(job: Callable[[], None], fault: Any) -> tuple[bool, Exception | None]:
    """Whether the fault came to pass, and what was raised."""
    with fault as failed:
        try:
            job()
        except Exception as error:
            error.__traceback__ = None  # nothing that the run held stays open
            return bool(failed), error
    return bool(failed), None


def after_fault(
    run: Run,
    root: Path,
    error: Exception | None,
    whole: dict[str, bytes],
    parts: dict[str, bytes],
    kind: type[TileworkError] = OutputError,
) -> str:
    """What is wrong after a run that met a fault, and after another one that did not."""
    wrong = []
    allowed = {"out.tok.spool", "out.tok"} if error is None or run is by_parts else set()
    if error and not (isinstance(error, kind) and "\n" not in str(error)):
        wrong.append(f"raised {error!r}")
    elif error and kind is OutputError and str(root) not in str(error):
        wrong.append(f"names no path: {error}")
    if left := names(root) - allowed:
        wrong.append(f"left {left}")
    if list(root.rglob("*.tmp")):
        wrong.append("left a temporary file")
    if (root / "out.tok").exists() and files(root / "out.tok") != whole:
        wrong.append("left half a store")
    if any(data != parts.get(name) for name, data in files(root / "out.tok.spool/parts").items()):
        wrong.append("a part has changed")
    try:
        if error or names(root) != {"out.tok"}:
            end(run, root)
    except Exception as again:
        wrong.append(f"the next run failed: {type(again).__name__}: {again}")
    if files(root) != {f"out.tok/{name}": data for name, data in whole.items()}:
        wrong.append(f"{names(root)} in the end")
    return "; ".join(wrong).replace(f"{root}/", "")


def everywhere(
    tmp_path: Path, run: Run, fault: Callable[[int], Any], judge: Callable[[Path, Exception | None], str]
) -> dict[int, str]:
    """What is wrong after a fault at the n-th call, for every n there is."""
    wrong: dict[int, str] = {}
    for number in count(1):
        root = tmp_path / str(number)
        root.mkdir()
        met, error = fail(partial(run, root), fault(number))
        if not met:
            assert error is None
            return wrong
        if found := judge(root, error):
            wrong[number] = found
        shutil.rmtree(root)
    raise AssertionError


@RUNS
@pytest.mark.parametrize(
    ("call", "code"), [*((call, errno.ENOSPC) for call in FULL), *((call, errno.EACCES) for call in DENIED)]
)
def test_fault_at_every_call(
    tmp_path: Path, run: Run, call: str, code: int, whole: dict[str, bytes], parts: dict[str, bytes]
) -> None:
    judge = partial(after_fault, run, whole=whole, parts=parts)
    assert everywhere(tmp_path, run, partial(failing, call, code=code), judge) == {}


@RUNS
@pytest.mark.parametrize("call", ["fsync", "open to write", "write"])
def test_full_disk_from_every_call_on(
    tmp_path: Path, run: Run, call: str, whole: dict[str, bytes], parts: dict[str, bytes]
) -> None:
    fault = partial(failing, call, code=errno.ENOSPC, lasting=True, half=True)
    assert everywhere(tmp_path, run, fault, partial(after_fault, run, whole=whole, parts=parts)) == {}


@RUNS
def test_file_that_cannot_be_read_at_every_call(
    tmp_path: Path, run: Run, whole: dict[str, bytes], parts: dict[str, bytes]
) -> None:
    judge = partial(after_fault, run, whole=whole, parts=parts, kind=TileworkError)
    assert everywhere(tmp_path, run, partial(failing, "open to read", code=errno.EIO), judge) == {}


@RUNS
def test_short_writes_change_nothing(tmp_path: Path, run: Run, whole: dict[str, bytes]) -> None:
    def write(disk: Disk, data: Any) -> int:
        return io.FileIO.write(disk, bytes(data)[: max(1, len(data) // 2)]) or 0

    with pytest.MonkeyPatch.context() as patch, watched(lambda name: None):
        patch.setattr(Disk, "write", write)
        run(tmp_path)
    assert files(tmp_path / "out.tok") == whole


@RUNS
def test_file_that_the_system_cuts_short(
    tmp_path: Path, run: Run, whole: dict[str, bytes], parts: dict[str, bytes]
) -> None:
    @contextmanager
    def limited(size: int) -> Iterator[list[str]]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield ["a limit"]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    wrong: dict[int, str] = {}
    for size in (1, 39, 64, 100, 150, 200, 300, 500, 1000, 1 << 20):
        root = tmp_path / str(size)
        root.mkdir()
        _, error = fail(partial(run, root), limited(size))
        assert (error is None) == (size > 1000)
        wrong |= {size: found} if (found := after_fault(run, root, error, whole, parts)) else {}
    assert wrong == {}


@RUNS
@pytest.mark.parametrize("call", ["open", "unlink", "rmdir"])
def test_remains_that_do_not_go_away(tmp_path: Path, run: Run, call: str, whole: dict[str, bytes]) -> None:
    wrong: dict[int, str] = {}
    for number in range(1, 9):
        root = tmp_path / str(number)
        sealed = root / "out.tok.spool/sealed"  # by a process that was killed
        (sealed / "shards").mkdir(parents=True)
        for name in ("shards/00009.tiles", "shards/.00000.tiles.0123abcd.tmp", ".manifest.json.0123abcd.tmp"):
            (sealed / name).write_bytes(b"half")
        _, error = fail(partial(run, root), failing(call, number, errno.EACCES))
        if error and not isinstance(error, TileworkError):
            wrong[number] = f"raised {error!r}"
        if (root / "out.tok").exists() and files(root / "out.tok") != whole:
            wrong[number] = f"{sorted(files(root / 'out.tok').keys() - whole.keys())} in the store"
    assert wrong == {}


@pytest.mark.parametrize("call", ["fsync", "open", "mkdir", "replace", "open to write", "write"])
@pytest.mark.parametrize("column", ["key", "raw"])
def test_adding_a_column_with_a_fault_at_every_call(
    tmp_path: Path, whole: dict[str, bytes], call: str, column: str
) -> None:
    by_parts(tmp_path)
    clean = shutil.copytree(tmp_path / "out.tok", tmp_path / "clean.tok")
    Store(clean).add_column("x", COLUMNS[column])
    wrong: dict[int, str] = {}
    for number in count(1):
        path = shutil.copytree(tmp_path / "out.tok", tmp_path / f"{number}.tok")
        add = partial(Store(path).add_column, "x", COLUMNS[column])
        met, error = fail(add, failing(call, number, errno.ENOSPC))
        if not met:
            break
        if error and not (isinstance(error, OutputError) and str(path) in str(error)):
            wrong[number] = f"raised {error!r}"
        if found := added_again(path, column, clean, whole):
            wrong[number] = found
    assert wrong == {}
