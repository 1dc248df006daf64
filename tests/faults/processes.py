"""Commands in forked processes: modules are imported once, so that a trial takes a second and not five."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import torch

import tilework.recipes.every
import tilework.runs.chain
import tilework.runs.job
import tilework.tokenizers.tokenize  # noqa: F401  what commands import when they run
from tilework.cli.main import main

torch.set_num_threads(1)  # a forked process cannot use threads that the one before it has started
LEFT = (".tmp", ".old", ".spool", ".lock")  # ends of names that nothing finished leaves behind


def launch(words: list[str], log: Path, before: Callable[[], None] = lambda: None) -> int:
    """Run a command in a child; returns its process number. before: called in the child first."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout = sys.stderr = os.fdopen(handle, "w", buffering=1)  # whatever a test had put in their place
        before()
        main(words)
    except SystemExit as ended:
        os._exit(int(ended.code or 0))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(child: int) -> int:
    """Wait for a child; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_after(words: list[str], log: Path, seconds: float, with_signal: int = signal.SIGKILL) -> int:
    """Run a command, send it a signal after a while, and wait; its exit code."""
    child = launch(words, log)
    time.sleep(seconds)
    os.kill(child, with_signal)  # a child that has ended waits for us: the number is still its own
    return ended(child)


def killed_at_sync(words: list[str], log: Path, number: int) -> int:
    """Run a command that is killed when it flushes a file to disk for the nth time: inside a save."""

    def before() -> None:
        count, flush = 0, os.fsync

        def fsync(handle: int) -> None:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            flush(handle)

        os.fsync = fsync  # type: ignore[assignment]

    return ended(launch(words, log, before))


def contents(root: Path, result: Callable[[Path], bytes | None] = Path.read_bytes) -> dict[str, str]:
    """Hashes of what counts of each file below a directory, by name."""
    files = [root] if root.is_file() else sorted(file for file in root.rglob("*") if file.is_file())
    found = {str(file.relative_to(root.parent)): result(file) for file in files}
    return {name: sha256(data).hexdigest() for name, data in found.items() if data is not None}


def left_behind(folder: Path) -> list[str]:
    """Files and directories that an interrupted write left."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.endswith(LEFT)]
