"""Workers that end with their launcher, whenever it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from small_runs import alive, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal for a dead parent is Linux's")

LAUNCHER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
WORKER = """
import os, time
from pathlib import Path
from tilework.core.launcher import end_with_launcher
parent = os.getppid()
if not {late}:
    end_with_launcher()
Path({mark!r}).write_text(str(os.getpid()))
while os.getppid() == parent:
    time.sleep(0.01)
if os.getppid() == 1:
    end_with_launcher()
elif {late} and "TORCHELASTIC_RUN_ID" in os.environ:
    os._exit(0)  # adopted by another process: it cannot be told
Path({mark!r}).write_text("survived")
"""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("elastic", [True, False])
def test_a_worker_of_torchrun_ends_with_it_and_no_other(tmp_path: Path, late: bool, elastic: bool) -> None:
    """late: the launcher is dead when the worker asks for it; elastic: it is torchrun."""
    mark = tmp_path / "mark"
    own = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    own |= {"TORCHELASTIC_RUN_ID": "none"} if elastic else {}
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, WORKER.format(mark=str(mark), late=late)], env=own)
    wait_for(lambda: mark.is_file() and mark.read_text() != "")
    worker = int(mark.read_text())
    launcher.kill()
    launcher.wait()
    wait_for(lambda: not alive(worker), 20)
    assert (mark.read_text() == "survived") == (not elastic)
