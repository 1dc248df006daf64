"""Stores, runs and models in a bucket, on a real S3 server: SeaweedFS, on this machine.

Oracle: the same command on local files.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from s3_server import BUCKET, S3Server
from small_data import CODES, write_images
from tilework.cli.main import main
from tilework.core.errors import DamageError, InputError
from tilework.core.location import Url
from tilework.store import Store, remote
from tilework.store.upload import place_of, upload
from tilework.tokenizers import VitVqConfig, save_tokenizer
from tilework.train.fit import Fit

s3fs = pytest.importorskip("s3fs", reason="needs s3fs: pip install 'tilework[s3]'")
SMALL = ["fit.batch=8", "fit.steps=4", "model.width=16", "model.heads=2", "model.depth=1", "augment.1.size=[8,8]"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of its own in the bucket, with the variables set by which it is found."""
    for name, value in server.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote, "PAUSE", 0.1)
    s3fs.S3FileSystem.clear_instance_cache()
    yield f"s3://{BUCKET}/{tmp_path.name}"
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def stored(bucket: str, store: Path, val_store: Path) -> str:
    """URL of a folder with two stores."""
    upload(store, Url(f"{bucket}/train.tok"))
    upload(val_store, Url(f"{bucket}/val.tok"))
    return bucket


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def error_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that a refused command says."""
    capsys.readouterr()
    assert run(*arguments) != 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tilework: error: ")]
    assert len(lines) == 1
    return lines[0]


def weights(out: Path) -> dict[str, bytes]:
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in (out / "checkpoints").rglob("*.safetensors")}


def test_a_store_in_a_bucket_is_the_store(stored: str, store: Path) -> None:
    found, local = Store(f"{stored}/train.tok"), Store(store)
    assert found.manifest == local.manifest
    np.testing.assert_array_equal(found.batch(np.arange(48)), local.batch(np.arange(48)))
    assert run("verify", f"{stored}/train.tok") == 0


def test_wrong_or_expired_keys_and_clocks_are_one_line(
    stored: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_SESSION_TOKEN", "expired")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            s3fs.S3FileSystem.clear_instance_cache()
            assert "access is denied" in error_of(capsys, "verify", f"{stored}/train.tok")
    botocore_auth = pytest.importorskip("botocore.auth")
    real = botocore_auth.get_current_datetime
    with monkeypatch.context() as patch:
        patch.setattr(botocore_auth, "get_current_datetime", lambda *a: real(*a) - datetime.timedelta(hours=2))
        s3fs.S3FileSystem.clear_instance_cache()
        assert "your clock" in error_of(capsys, "verify", f"{stored}/train.tok")


@pytest.mark.parametrize(
    ("status", "code", "reading", "writing"),
    [
        (400, "ExpiredToken", "check whether your keys have expired", "check whether your keys have expired"),
        (404, "NoSuchBucket", "is not a token store", "there is no such bucket; make it"),
    ],
)
def test_what_amazon_says_no_to_is_one_line(
    bucket: str, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    status: int, code: str, reading: str, writing: str,
) -> None:  # fmt: skip
    """SeaweedFS knows no keys that expire, and makes buckets by itself. A header alone is answered without a reason."""
    asked: list[str] = []

    class No(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # clients wait for its 'continue' before they send a file

        def answer(self) -> None:
            asked.append(self.path)
            said = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said if self.command != "HEAD" else b"")

        do_HEAD = do_GET = do_PUT = answer

        def log_message(self, *line: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), No) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        s3fs.S3FileSystem.clear_instance_cache()
        assert reading in error_of(capsys, "verify", f"{bucket}/train.tok")
        assert len(asked) < remote.ATTEMPTS  # asking again would not help
        assert writing in error_of(capsys, "convert", store, "--codec", "rans", "--out", f"{bucket}/out.tok")
        server.shutdown()


def test_what_is_not_there_is_one_line(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (f"{bucket}/none.tok", "s3://no-such-bucket/x.tok"):
        assert f"{url} is not a token store" in error_of(capsys, "verify", url)


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back(stored: str, store: Path, server: S3Server) -> None:
    found = Store(f"{stored}/train.tok")
    server.kill()

    def revive() -> None:
        time.sleep(1)
        server.start()

    thread = threading.Thread(target=revive)
    thread.start()
    try:
        np.testing.assert_array_equal(found.batch(np.arange(48)), Store(store).batch(np.arange(48)))
    finally:
        thread.join()
        server.wait()


def test_a_store_that_is_overwritten_while_it_is_read_is_refused(stored: str, val_store: Path) -> None:
    found = Store(f"{stored}/train.tok")
    upload(val_store, Url(f"{stored}/train.tok"))  # its first shard has another content now
    with pytest.raises(DamageError, match=r"train\.tok/shards/00000\.tiles is damaged.*hash"):
        found.batch(np.arange(3))


def test_a_cache_without_room_is_one_line(
    stored: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWORK_CACHE_BYTES", "100")
    assert "raise TILEWORK_CACHE_BYTES" in error_of(capsys, "verify", f"{stored}/train.tok")


def test_convert_and_tokenize_to_a_bucket(
    bucket: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/out.tok"
    line = ["convert", store, "--codec", "rans", "--json", "--out"]
    puts: list[str] = []
    real = s3fs.S3FileSystem.put_file

    def dies(self: object, local: str, path: str, **options: object) -> None:
        puts.append(path)
        if path.endswith("manifest.json"):
            raise KeyboardInterrupt  # killed before the last file
        real(self, local, path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(s3fs.S3FileSystem, "put_file", dies)
        assert run(*line, url) == 130
    assert len(puts) > 3
    with pytest.raises(InputError, match="is not a token store"):
        Store(url)
    assert place_of(Url(url)).exists()  # whole: the same command uploads it
    assert run(*line, url) == 0
    assert not place_of(Url(url)).parent.exists()
    assert run(*line, tmp_path / "out.tok") == 0
    assert Store(url).manifest == Store(tmp_path / "out.tok").manifest
    assert "exists" in error_of(capsys, *line, url)

    config = VitVqConfig(patch=4, codes=CODES, code_dim=4, width=16, depth=1, heads=2)
    save_tokenizer(tmp_path / "tokenizer", config.build(3, (16, 16), 0), config, (16, 16))
    images = write_images(tmp_path / "images", count=4)
    (images / "class0/000.png").write_bytes(b"broken")
    line = ["tokenize", images, "--tokenizer", tmp_path / "tokenizer", "--max-broken", "0.5", "--json", "--out"]
    capsys.readouterr()
    assert run(*line, f"{bucket}/new.tok") == 0
    assert json.loads(capsys.readouterr().out)["store"] == f"{bucket}/new.tok"
    assert run(*line, tmp_path / "new.tok") == 0
    assert Store(f"{bucket}/new.tok").manifest.files == Store(tmp_path / "new.tok").manifest.files
    listed = s3fs.S3FileSystem().cat_file(f"{bucket}/new.tok.quarantine.json".removeprefix("s3://"))
    assert listed == (tmp_path / "new.tok.quarantine.json").read_bytes()
    assert "--shard" in error_of(capsys, *line, f"{bucket}/part.tok", "--shard", "0/2")


@pytest.mark.slow
def test_a_run_in_a_bucket_goes_on_on_another_machine(
    stored: str, store: Path, val_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["train", "demo_token", *SMALL, "fit.save_every=2", "fit.keep=1", "--json"]
    local, url = tmp_path / "local", Url(f"{stored}/run")
    assert run(*line, "--data", store, "--val", val_store, "--out", local) == 0
    data = ["--data", f"{stored}/train.tok", "--val", f"{stored}/val.tok", "--out", url]
    with monkeypatch.context() as patch:
        after = Fit._after

        def dies(loop: Fit, done: int, stop: list[int]) -> None:
            after(loop, done, stop)
            if done == 3:
                raise KeyboardInterrupt

        patch.setattr(Fit, "_after", dies)
        assert run(*line, *data) == 130
    monkeypatch.setenv("TILEWORK_CACHE", str(tmp_path / "another machine"))
    assert run(*line, *data) == 0
    assert json.loads((place_of(url) / "results.json").read_text()) == json.loads((local / "results.json").read_text())
    assert weights(place_of(url)) == weights(local)
    names = s3fs.S3FileSystem().find(url.removeprefix("s3://"))
    steps_kept = {name.split("/")[-2] for name in names if "/step-" in name}
    assert steps_kept == {path.name for path in (local / "checkpoints").glob("step-*")}
    assert run("export", local, "--out", f"{stored}/model") == 0
    assert s3fs.S3FileSystem().exists(f"{stored}/model/model.json".removeprefix("s3://"))
