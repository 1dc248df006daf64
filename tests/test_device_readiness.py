"""The checks of device_readiness.py, in a process of their own: a device cannot be unregistered again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_nothing_mixes_devices_or_waits_for_one() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "device_readiness.py")]
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    found = subprocess.run(words, cwd=HERE.parent, env=alone, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-1000:]
    assert "[100%]" in found.stdout
