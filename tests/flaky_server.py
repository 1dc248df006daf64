"""An HTTP server on this machine that fails on purpose: the opponent of remote stores."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class FlakyServer:
    """Serves a directory. `faults[name]` are what the next requests of a file get, `always[name]` what all others get.

    A fault: a status as text, short, long, stall, trickle, reset, corrupt, to:URL (redirect), or ok.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.faults, self.always = root, dict[str, list[str]](), dict[str, str]()
        self.requests: Counter[str] = Counter()
        self.closed, self.lock = threading.Event(), threading.Lock()
        self.slow = 0.0  # seconds before every answer
        self.url = ""

    def next_fault(self, name: str) -> str:
        with self.lock:
            self.requests[name] += 1
            waiting = self.faults.get(name)
            return waiting.pop(0) if waiting else self.always.get(name, "ok")


@contextmanager
def serve(root: Path) -> Iterator[FlakyServer]:
    server = FlakyServer(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = unquote(self.path).lstrip("/")
            fault, file = server.next_fault(name), server.root / name
            server.closed.wait(server.slow)
            if fault.isdecimal():
                return self.send_error(int(fault))
            if fault.startswith("to:"):
                self.send_response(302)
                self.send_header("Location", fault[3:])
                return self.end_headers()
            if not file.is_file():
                return self.send_error(404)
            data = file.read_bytes()
            half = len(data) // 2
            if fault == "corrupt":
                data = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
            if fault == "long":
                data += b"more"
            self.send_response(200)
            if fault != "short":  # the connection ends early, and nothing tells that
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if fault in ("short", "stall", "reset", "cut"):
                self.wfile.write(data[:half])
                self.wfile.flush()
                if fault == "stall":
                    server.closed.wait(20)
                if fault == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
            elif fault == "trickle":
                for place in range(len(data)):
                    if server.closed.wait(0.02):
                        return
                    self.wfile.write(data[place : place + 1])
            else:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:  # the client went away
            pass

    http = Quiet(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closed.set()
        http.shutdown()
        http.server_close()
        thread.join()
