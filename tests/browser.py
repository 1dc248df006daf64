"""A real browser for pages: Debian's chromium, driven by its WebDriver over HTTP; nothing is installed for it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip


class Browser:
    """A window that shows one page after another."""

    def __init__(self, root: str) -> None:
        self._open, self._root = build_opener(ProxyHandler({})), root

    def send(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        """Ask the driver."""
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = Request(f"{self._root}{path}", data, {"Content-Type": "application/json"}, method=method)
        with self._open.open(request, timeout=60) as answer:
            return json.loads(answer.read())["value"]

    def tool(self, command: str, **params: Any) -> Any:
        """A command of the developer tools."""
        return self.send("/goog/cdp/execute", {"cmd": command, "params": params})

    def show(self, page: Path, width: int, dark: bool = False) -> None:
        """Open a file in a window of a width, as someone who likes light or dark pages."""
        self.tool(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tool("Emulation.setEmulatedMedia", features=[scheme])
        self.send("/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """The value of a script's `return`."""
        return self.send("/execute/sync", {"script": script, "args": []})

    def picture(self) -> bytes:
        """The whole page as PNG."""
        shot = self.tool("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium; skips the test where it is not installed."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs a browser: apt install chromium chromium-driver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        started = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        window = None
        try:
            port = next(
                line.rsplit(" ", 1)[1].strip(" .\n") for line in started.stdout or () if "successfully on port " in line
            )
            root = Browser(f"http://127.0.0.1:{port}")
            options = {"binary": chromium, "args": [*FLAGS, f"--user-data-dir={profile}"]}
            asked = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
            session = root.send("/session", asked)["sessionId"]
            window = Browser(f"http://127.0.0.1:{port}/session/{session}")
            yield window
        finally:
            if window is not None:
                with suppress(OSError):
                    window.send("", method="DELETE")
            started.terminate()
            started.wait(10)
            time.sleep(0.1)  # the last files of the profile
