"""Workers that end with the launcher (torchrun) that started them. No torch here: importing it takes seconds."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of prctl(2)


def end_with_launcher() -> None:
    """Linux ends this process with its launcher, if torchrun has started it: one that is killed leaves no worker."""
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    ctypes.CDLL(None).prctl(SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
    if os.getppid() == 1 and not _runs_our_program(1):  # it was killed before this line
        os.kill(os.getpid(), signal.SIGKILL)


def _runs_our_program(pid: int) -> bool:
    """Whether a process is a Python as this one; in a container the launcher itself may be process 1."""
    try:
        return os.readlink(f"/proc/{pid}/exe") == os.readlink("/proc/self/exe")
    except OSError:  # of another user
        return False
