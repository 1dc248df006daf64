"""A stand-in for the Hugging Face Hub on this machine: the parts of its API that huggingface_hub uses.

Large files are answered by a redirect to another host name, as the hub's own storage is, which must see no token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LARGE = (".safetensors", ".tiles", ".onnx", ".bin")
TOKEN, STRANGER, WRONG = "hf_token_of_owner", "hf_token_of_stranger", "hf_wrong_token"


@dataclass
class Repo:
    private: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)

    def commit(self, files: dict[str, bytes]) -> str:
        text = json.dumps([len(self.commits), sorted((k, hashlib.sha1(v).hexdigest()) for k, v in files.items())])
        self.commits.append((hashlib.sha1(text.encode()).hexdigest(), files))
        return self.commits[-1][0]

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


class HubServer:
    """Repositories by kind and name; `faults[file]`: cut, long, corrupt, or a status, for every download of it."""

    def __init__(self) -> None:
        self.url, self.storage = "", ""
        self.repos: dict[tuple[str, str], Repo] = {}
        self.uploaded: dict[str, bytes] = {}
        self.faults: dict[str, str] = {}
        self.requests: list[str] = []
        self.storage_tokens: list[str | None] = []
        self.names: list[str] | None = None  # listed instead of the true ones

    def put(self, name: str, files: dict[str, bytes], kind: str = "model", private: bool = False) -> str:
        return self.repos.setdefault((kind, name), Repo(private)).commit(files)


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def user(self) -> str | None:
        """Who asks; answers itself where the token is unknown."""
        given = self.headers.get("Authorization")
        users = {None: "", f"Bearer {TOKEN}": "owner", f"Bearer {STRANGER}": "stranger"}
        if given not in users:
            message = "Invalid credentials in Authorization header"
            self.answer(401, {"error": message}, X_Error_Message=message)
            return None
        return users[given]

    def repo(self, kind: str, name: str) -> Repo | None:
        """The repository, if the one who asks may see it; answers itself if not."""
        if (user := self.user()) is None:
            return None
        found = self.hub.repos.get((kind, name))
        if found is None or (found.private and user != "owner"):
            self.answer(404 if user else 401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return None
        return found

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.requests.append(f"{self.command} {path}")
        words = path.split("/")
        if words[0] == "storage":
            self.hub.storage_tokens.append(self.headers.get("Authorization"))
            return self.send_file(words[-1], self.hub.uploaded[words[1]])
        if words[:2] == ["api", "agent-harnesses"]:
            return self.answer(200, {})
        if words[0] == "api":
            kind, name = words[1].removesuffix("s"), "/".join(words[2:4])
            revision = "/".join(words[5:]) if len(words) > 5 else "main"
            return self.info(kind, name, revision)
        kind = "dataset" if words[0] == "datasets" else "model"
        words = words[1:] if kind == "dataset" else words
        return self.resolve(kind, "/".join(words[:2]), words[3], "/".join(words[4:]))

    do_HEAD = do_GET

    def info(self, kind: str, name: str, revision: str) -> None:
        if (repo := self.repo(kind, name)) is None:
            return None
        if (commit := repo.at(revision)) is None:
            return self.answer(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        siblings = []
        for file, data in commit[1].items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": blob}
            if file.endswith(LARGE):
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        if self.hub.names is not None:
            siblings = [{**siblings[0], "rfilename": one} for one in self.hub.names]
        return self.answer(
            200, {"id": name, "sha": commit[0], "private": repo.private, "siblings": siblings, "tags": []}
        )

    def resolve(self, kind: str, name: str, revision: str, file: str) -> None:
        if (repo := self.repo(kind, name)) is None:
            return None
        commit = repo.at(revision)
        if commit is None or file not in commit[1]:
            return self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit[0] if commit else "")
        data = commit[1][file]
        if not file.endswith(LARGE):
            tag = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            return self.send_file(file, data, X_Repo_Commit=commit[0], ETag=f'"{tag}"')
        digest = hashlib.sha256(data).hexdigest()
        self.hub.uploaded[digest] = data
        place = f"{self.hub.storage}/storage/{digest}/{file.rpartition('/')[2]}"
        linked = {"X_Linked_Etag": f'"{digest}"', "X_Linked_Size": str(len(data))}
        return self.answer(302, Location=place, X_Repo_Commit=commit[0], **linked)

    def send_file(self, file: str, data: bytes, **headers: str) -> None:
        fault = self.hub.faults.get(file, "")
        if fault.isdecimal():
            return self.answer(int(fault))
        if self.command == "HEAD" or not fault:
            return self.answer(200, data, **headers)
        if fault == "corrupt":
            return self.answer(200, bytes([data[0] ^ 1]) + data[1:], **headers)
        if fault == "long":
            return self.answer(200, data + bytes(20_000_000), **headers)
        self.close_connection = True  # cut short
        return self.answer(200, data[: len(data) // 2], Content_Length=str(len(data)), **headers)

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path).strip("/"), self.body()
        self.hub.requests.append(f"POST {path}")
        if (user := self.user()) is None:
            return None
        if path == "api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if user == "":
            return self.answer(401, {"error": "Unauthorized"})
        if path == "api/repos/create":
            return self.create(user, json.loads(body))
        words = path.split("/")
        if path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                one if one["oid"] in self.hub.uploaded else
                {**one, "actions": {"upload": {"href": f"{self.hub.url}/upload/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]  # fmt: skip
            return self.answer(200, {"transfer": "basic", "objects": objects})
        kind, name, what = words[1].removesuffix("s"), "/".join(words[2:4]), words[4]
        if user != "owner":
            return self.answer(403, {"error": "Forbidden"}, X_Error_Message="Forbidden")
        if what == "preupload":
            modes = [
                (one["path"], "lfs" if one["path"].endswith(LARGE) else "regular") for one in json.loads(body)["files"]
            ]
            files = [{"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": None} for path, mode in modes]
            return self.answer(200, {"files": files})
        assert what == "commit"
        repo = self.hub.repos[kind, name]
        files_now = dict(repo.commits[-1][1])
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                files_now[value["path"]] = base64.b64decode(value["content"])
            elif item["key"] == "lfsFile":
                files_now[value["path"]] = self.hub.uploaded[value["oid"]]
            elif item["key"] == "deletedFile":
                del files_now[value["path"]]
        made = repo.commit(files_now)
        return self.answer(200, {"commitUrl": f"{self.hub.url}/{name}/commit/{made}", "commitOid": made})

    def create(self, user: str, asked: dict[str, Any]) -> None:
        owner, name = asked.get("organization") or user, asked["name"]
        kind = asked.get("type") or "model"
        if owner != user:
            return self.answer(403, {"error": "Forbidden"}, X_Error_Message="Forbidden")
        place = f"{self.hub.url}/{'datasets/' if kind == 'dataset' else ''}{owner}/{name}"
        if (kind, f"{owner}/{name}") in self.hub.repos:
            return self.answer(409, {"error": "You already created this repo", "url": place})
        self.hub.put(
            f"{owner}/{name}",
            {".gitattributes": b""},
            kind,
            bool(asked.get("private")) or asked.get("visibility") == "private",
        )
        return self.answer(200, {"url": place})

    def do_PUT(self) -> None:
        data, wanted = self.body(), self.path.rpartition("/")[2]
        assert hashlib.sha256(data).hexdigest() == wanted
        self.hub.uploaded[wanted] = data
        self.answer(200)


@contextmanager
def serve_hub() -> Iterator[HubServer]:
    hub = HubServer()

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:  # the client went away
            pass

    http = Quiet(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url, hub.storage = f"http://127.0.0.1:{http.server_port}", f"http://localhost:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def use_hub(hub: HubServer, cache: Any, patch: pytest.MonkeyPatch, token: str | None = None) -> None:
    """Let huggingface_hub talk to this server, with an empty cache, and log in with a token or not at all."""
    from huggingface_hub import constants

    patch.setenv("HF_ENDPOINT", hub.url)
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    patch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
        patch.delenv(name, raising=False)
    if token is not None:
        patch.setenv("HF_TOKEN", token)
