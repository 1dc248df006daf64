"""Stores behind URLs: the same as their files on this machine, through a server that fails on purpose.

Oracle: the local store, read directly.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest

from flaky_server import FlakyServer, serve
from tilework.core.errors import ConfigError, DamageError, InputError, MachineError, OutputError
from tilework.store import Store, StoreWriter, remote
from tilework.store.remote import cache_bytes, cache_directory

SHARD, OTHER = "x.tok/shards/00000.tiles", "x.tok/shards/00001.tiles"


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, contents: SimpleNamespace) -> Path:
    """A directory with a store that has everything: tables, three shards, two views, columns of every kind."""
    root = tmp_path_factory.mktemp("served")
    with StoreWriter(root / "x.tok", contents.codebook, contents.classes, codec="rans", shard_images=3) as writer:
        writer.add(
            contents.ids,
            contents.labels,
            contents.keys,
            score=np.arange(7.0),
            blob=[bytes([i]) * i for i in range(7)],
            boxes=[np.full((i, 4), i, np.int32) for i in range(7)],
        )
    return root


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWORK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEWORK_CACHE_BYTES", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(remote, "PAUSE", 0.005)
    monkeypatch.setattr(remote, "STALL", 0.4)
    return tmp_path / "cache"


@pytest.fixture
def server(served: Path, cache: Path) -> Iterator[FlakyServer]:
    with serve(served) as server:
        yield server


def open_at(server: FlakyServer) -> Store:
    return Store(f"{server.url}/x.tok")


def kept(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


def same(found: Store, local: Store) -> None:
    """Everything that can be read is equal, bit for bit."""
    index = np.array([6, 0, 3, 3, 5])
    np.testing.assert_array_equal(found.batch(index), local.batch(index))
    np.testing.assert_array_equal(np.stack(list(found)), np.stack(list(local)))
    np.testing.assert_array_equal(found.codebook.vectors, local.codebook.vectors)
    np.testing.assert_array_equal(found.used, local.used)
    np.testing.assert_array_equal(found.histogram(), local.histogram())
    assert (found.manifest, found.sizes, len(found)) == (local.manifest, local.sizes, len(local))
    for column in local.manifest.columns:
        mine, yours = found.column(column.name), local.column(column.name)
        assert len(mine) == len(yours)
        for a, b in zip(mine, yours, strict=True):
            np.testing.assert_array_equal(a, b)


def test_same_as_the_local_store(server: FlakyServer, served: Path, cache: Path) -> None:
    found, local = open_at(server), Store(served / "x.tok")
    same(found, local)
    assert found.verify(deep=True) == []
    fetched = dict(server.requests)
    assert set(fetched.values()) == {1}  # nothing twice
    assert len(kept(cache)) == len(local.manifest.files)
    same(open_at(server), local)  # all from the cache now, but for the manifest
    assert server.requests == {**fetched, "x.tok/manifest.json": 2}


def test_a_slash_at_the_end_is_no_difference(server: FlakyServer, served: Path) -> None:
    same(Store(f"{server.url}/x.tok/"), Store(served / "x.tok"))


def test_shards_are_fetched_when_needed_and_only_then(server: FlakyServer, contents: SimpleNamespace) -> None:
    store = open_at(server)
    assert {name for name in server.requests if "shards" in name} == set()
    np.testing.assert_array_equal(store.batch([4]), contents.ids[[4]])
    assert {name for name in server.requests if "shards" in name} == {OTHER}


def test_another_process_opens_for_itself(server: FlakyServer, served: Path) -> None:
    store = open_at(server)
    store.batch([0])
    again = pickle.loads(pickle.dumps(store))
    assert again.path == store.path
    same(again, Store(served / "x.tok"))


def test_memory(served: Path, cache: Path) -> None:
    files = fsspec.filesystem("memory")
    for path in (served / "x.tok").rglob("*"):
        if path.is_file():
            files.pipe_file(f"/bucket/x.tok/{path.relative_to(served / 'x.tok').as_posix()}", path.read_bytes())
    try:
        same(Store("memory://bucket/x.tok"), Store(served / "x.tok"))
        with pytest.raises(InputError, match=r"memory://bucket/y\.tok is not a token store: it has no manifest"):
            Store("memory://bucket/y.tok")
        files.pipe_file("/bucket/x.tok/shards/00000.tiles", b"short")
        same(Store("memory://bucket/x.tok"), Store(served / "x.tok"))  # it is in the cache
        files.rm("/bucket/x.tok/codebook.safetensors")
        for path in kept(cache):
            path.unlink()
        with pytest.raises(DamageError, match=r"has no codebook\.safetensors"):
            _ = Store("memory://bucket/x.tok").codebook
        with pytest.raises(DamageError, match=r"shards/00000\.tiles is damaged: it differs from its hash"):
            Store("memory://bucket/x.tok").batch([0])
    finally:
        files.store.clear()


def test_what_a_bucket_says_no_other_attempt_would_change(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bucket:
        raised: Exception = PermissionError("Forbidden")

        def info(self, path: str) -> dict[str, int]:
            calls.append(path)
            raise self.raised

    calls: list[str] = []
    monkeypatch.setattr(fsspec, "filesystem", lambda scheme, **options: Bucket())
    with pytest.raises(InputError, match=r"s3://b/x\.tok/manifest\.json may not be read: access is denied"):
        Store("s3://b/x.tok")
    Bucket.raised = RuntimeError("Unable to locate credentials\nmore")
    with pytest.raises(InputError, match=r"RuntimeError: Unable to locate credentials$"):
        Store("s3://b/x.tok")
    assert calls == ["b/x.tok/manifest.json"] * 2
    Bucket.raised = OSError("SlowDown")
    with pytest.raises(InputError, match="SlowDown, 5 times"):
        Store("s3://b/x.tok")
    assert len(calls) == 2 + remote.ATTEMPTS


def test_a_missing_package_names_its_extra(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(scheme: str, **options: object) -> None:
        raise ImportError(scheme)

    monkeypatch.setattr(fsspec, "filesystem", missing)
    for scheme in ("s3", "gs"):
        with pytest.raises(MachineError, match=rf"pip install 'tilework\[{scheme}\]'"):
            Store(f"{scheme}://bucket/x.tok")


# -- a bad network


@pytest.mark.parametrize("fault", ["500", "503", "429", "short", "cut", "reset", "stall", "corrupt", "long"])
@pytest.mark.parametrize("name", [SHARD, "x.tok/codebook.safetensors"])
def test_faults_that_pass_are_not_noticed(server: FlakyServer, served: Path, fault: str, name: str) -> None:
    server.faults[name] = [fault]
    same(open_at(server), Store(served / "x.tok"))
    assert server.requests[name] == 2


@pytest.mark.parametrize("fault", ["502", "cut", "reset", "stall"])
def test_faults_of_the_manifest_that_pass(server: FlakyServer, served: Path, fault: str) -> None:
    server.faults["x.tok/manifest.json"] = [fault, "503"]
    same(open_at(server), Store(served / "x.tok"))


def test_pauses_double(server: FlakyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(remote, "sleep", pauses.append)
    server.always["x.tok/manifest.json"] = "503"
    with pytest.raises(InputError, match=r"manifest\.json cannot be read: the server answers 503, 5 times; try later"):
        open_at(server)
    assert server.requests["x.tok/manifest.json"] == 5
    assert pauses == [remote.PAUSE * factor for factor in (1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("fault", "said"),
    [("short", r"ConnectionError: \d+ of \d+ bytes"), ("reset", "Connection reset"), ("stall", "no answer in time")],
)
def test_faults_that_stay(server: FlakyServer, cache: Path, fault: str, said: str) -> None:
    server.always[SHARD] = fault
    store = open_at(server)
    before = kept(cache)
    with pytest.raises(InputError, match=f"{said}.*, 5 times; try later"):
        store.batch([0])
    assert kept(cache) == before  # nothing half-fetched stays


@pytest.mark.parametrize(
    ("status", "said"), [("403", "may not be read: the server answers 403"), ("401", "401"), ("400", "answers 400")]
)
def test_refusals_are_not_repeated(server: FlakyServer, status: str, said: str) -> None:
    server.always["x.tok/manifest.json"] = status
    with pytest.raises(InputError, match=said):
        open_at(server)
    assert server.requests["x.tok/manifest.json"] == 1


def test_what_is_not_there_is_not_repeated(server: FlakyServer) -> None:
    with pytest.raises(InputError, match=r"/y\.tok is not a token store: it has no manifest\.json; check the address"):
        Store(f"{server.url}/y.tok")
    server.always[SHARD] = "404"
    with pytest.raises(DamageError, match=r"/x\.tok has no shards/00000\.tiles"):
        open_at(server).batch([0])
    assert server.requests[SHARD] == server.requests["y.tok/manifest.json"] == 1


def test_no_server_and_no_host(cache: Path) -> None:
    with pytest.raises(InputError, match=r"ConnectionRefusedError.*5 times"):
        Store("http://127.0.0.1:9/x.tok")
    with pytest.raises(InputError, match=r"manifest\.json cannot be read"):
        Store("http://no-such-host.invalid/x.tok")


def test_a_trickle_ends(server: FlakyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 0.5)
    monkeypatch.setattr(remote, "SLOWEST", 1 << 20)
    server.always["x.tok/manifest.json"] = "trickle"
    begun = time.monotonic()
    with pytest.raises(InputError, match="no answer in time, 1 times"):
        open_at(server)
    assert time.monotonic() - begun < 2


def test_redirects_stay_on_the_web(server: FlakyServer, served: Path) -> None:
    server.faults[SHARD] = [f"to:{server.url}/x.tok/shards/00000.tiles"]
    same(open_at(server), Store(served / "x.tok"))
    for elsewhere in (f"file://{served}/x.tok/manifest.json", "ftp://127.0.0.1/x"):
        server.faults["x.tok/manifest.json"] = [f"to:{elsewhere}"]
        with pytest.raises(InputError, match="the server answers 302"):
            open_at(server)


def test_https_never_becomes_http() -> None:
    request = remote.Request("https://host/x")
    to = [remote._Redirects().redirect_request(request, None, 302, "", {}, f"{s}://host/y") for s in ("http", "https")]
    assert to[0] is None
    assert to[1] is not None


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fe80::1%eth0"])
def test_no_server_of_the_internet_leads_into_this_network(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"public": "8.8.8.8", "inner": address}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port: [(0, 0, 0, "", (known[host], 0))])
    redirect = remote._Redirects().redirect_request
    for host, follows in (("inner", True), ("public", False)):
        to = redirect(remote.Request(f"http://{host}/x"), None, 302, "", {}, "http://inner/y")
        assert (to is not None) == follows, "within one network it may"
    assert redirect(remote.Request("http://inner/x"), None, 302, "", {}, "http://public/y") is not None


# -- damage and malice


@pytest.mark.parametrize("fault", ["corrupt", "long"])
def test_a_damaged_file_is_refused(server: FlakyServer, cache: Path, fault: str) -> None:
    server.always[SHARD] = fault
    store = open_at(server)
    before = kept(cache)
    with pytest.raises(DamageError, match=r"x\.tok/shards/00000\.tiles is damaged"):
        store.batch([0])
    assert server.requests[SHARD] == remote.WRONG
    assert kept(cache) == before
    assert [p.split("x.tok/")[1] for p in store.verify()] == ["shards/00000.tiles is damaged"]


def test_a_damaged_cache_is_fetched_again(server: FlakyServer, served: Path, cache: Path) -> None:
    same(open_at(server), Store(served / "x.tok"))
    for number, path in enumerate(sorted(kept(cache))):
        data = path.read_bytes()
        path.write_bytes([data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b""][number % 3])
    server.requests.clear()
    same(open_at(server), Store(served / "x.tok"))
    assert set(server.requests.values()) == {1}
    assert len(server.requests) == 1 + len(kept(cache))


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "shards/../../evil", "columns/.."])
def test_names_outside_the_store_are_refused(
    served: Path, cache: Path, tmp_path: Path, forge: Callable[..., None], name: str
) -> None:
    path = shutil.copytree(served / "x.tok", tmp_path / "evil" / "x.tok")
    text = json.loads((path / "manifest.json").read_text())
    forge(path, files={**text["files"], name: text["files"]["codebook.safetensors"]})
    with serve(path.parent) as server, pytest.raises(DamageError, match="it names files outside the store"):
        open_at(server)


@pytest.mark.parametrize(
    "change",
    [{"sha256": "../../../evil"}, {"sha256": "0" * 63 + "/"}, {"sha256": ""}, {"sha256": "A" * 64}, {"bytes": -1}],
)
def test_hashes_that_are_no_hashes_are_refused(
    served: Path, cache: Path, tmp_path: Path, forge: Callable[..., None], change: dict[str, object]
) -> None:
    path = shutil.copytree(served / "x.tok", tmp_path / "evil" / "x.tok")
    files = json.loads((path / "manifest.json").read_text())["files"]
    files["codebook.safetensors"].update(change)
    forge(path, files=files)
    with serve(path.parent) as server:
        store = open_at(server)
        with pytest.raises(DamageError, match=r"invalid size or hash of codebook\.safetensors"):
            _ = store.codebook
        assert "x.tok/codebook.safetensors" not in server.requests


def test_odd_names_reach_the_server_as_they_are(
    served: Path, cache: Path, tmp_path: Path, forge: Callable[..., None], contents: SimpleNamespace
) -> None:
    path = shutil.copytree(served / "x.tok", tmp_path / "odd" / "x.tok")
    odd = "shards/%2e%2e?a=b#c ü.tiles"
    (path / "shards/00000.tiles").rename(path / odd)
    text = json.loads((path / "manifest.json").read_text())
    text["files"][odd] = text["files"].pop("shards/00000.tiles")
    text["shards"][0]["file"] = odd
    forge(path, files=text["files"], shards=text["shards"])
    with serve(path.parent) as server:
        np.testing.assert_array_equal(open_at(server).batch([0]), contents.ids[[0]])
        assert server.requests[f"x.tok/{odd}"] == 1


def test_a_manifest_is_not_read_past_its_bound(server: FlakyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LARGEST", 100)
    monkeypatch.setattr(remote, "parse", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(DamageError, match=r"manifest\.json is larger than a manifest can be"):
        open_at(server)


def test_nothing_can_be_added(server: FlakyServer) -> None:
    store = open_at(server)
    with pytest.raises(OutputError, match="is read-only: copy the store to this machine and change the copy"):
        store.add_column("new", np.arange(7))
    with pytest.raises(OutputError, match="is read-only"):
        store.check_writable()


# -- the cache


def test_where_and_how_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TILEWORK_CACHE", "TILEWORK_CACHE_BYTES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert (cache_directory(), cache_bytes()) == (Path.home() / ".cache/tilework", remote.USUAL_BYTES)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "tilework"
    monkeypatch.setenv("TILEWORK_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("TILEWORK_CACHE_BYTES", "123")
    assert (cache_directory(), cache_bytes()) == (tmp_path / "own", 123)
    for wrong in ("many", "-1", "1e9"):
        monkeypatch.setenv("TILEWORK_CACHE_BYTES", wrong)
        with pytest.raises(ConfigError, match="TILEWORK_CACHE_BYTES"):
            cache_bytes()


def test_the_least_recently_used_goes_first(
    server: FlakyServer, served: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Store(served / "x.tok").manifest.files
    first, second, third = (files[f"shards/0000{i}.tiles"] for i in range(3))
    store = open_at(server)
    tables = sum(path.stat().st_size for path in kept(cache))
    monkeypatch.setenv("TILEWORK_CACHE_BYTES", str(tables + first.bytes + second.bytes))
    open_at(server).batch([0])
    open_at(server).batch([3])
    for path in kept(cache):
        age = {first.sha256: 800, second.sha256: 900}.get(path.name, 1000)
        os.utime(path, (age, age))  # the first shard was not used for longest
    open_at(server).batch([0])  # and is used again
    store.batch([6])
    names = {path.name for path in kept(cache)}
    assert first.sha256 in names
    assert third.sha256 in names
    assert second.sha256 not in names


def test_the_bound_holds_and_nothing_in_use_breaks(
    server: FlakyServer, served: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Store(served / "x.tok")
    largest = max(file.bytes for file in local.manifest.files.values())
    monkeypatch.setenv("TILEWORK_CACHE_BYTES", str(largest))
    monkeypatch.setattr(remote, "CHUNK", 64)
    seen: list[int] = []
    read = remote._read

    def watched(*arguments: str) -> Iterator[bytes]:
        for chunk in read(*arguments):
            seen.append(sum(path.stat().st_size for path in kept(cache) if path.exists()))
            yield chunk

    monkeypatch.setattr(remote, "_read", watched)
    store = open_at(server)
    first = store.batch([0])
    blob = store.column("blob")
    assert blob[6] == bytes([6]) * 6
    same(store, local)  # four shards at a time, each of which pushes others out
    assert store.verify(deep=True) == []
    assert max(seen) <= largest
    for path in kept(cache):
        path.unlink()
    server.always = dict.fromkeys(server.requests, "503")
    np.testing.assert_array_equal(store.batch([0]), first)  # mapped, though gone from the cache


def test_a_file_that_does_not_fit_is_refused(server: FlakyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWORK_CACHE_BYTES", "10")
    with pytest.raises(OutputError, match=r"does not fit a cache of 10 bytes: raise TILEWORK_CACHE_BYTES"):
        open_at(server).batch([0])


def test_other_peoples_files_are_left_alone(
    server: FlakyServer, served: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Store(served / "x.tok")
    monkeypatch.setenv("TILEWORK_CACHE_BYTES", str(max(file.bytes for file in local.manifest.files.values())))
    (cache / "ab").mkdir(parents=True)
    (cache / "ab/thesis.tex").write_text("x" * 10_000)
    (cache / "README").write_text("x" * 10_000)
    same(open_at(server), local)
    assert (cache / "ab/thesis.tex").is_file()
    assert (cache / "README").is_file()


def test_what_a_killed_process_left_makes_room(
    server: FlakyServer, served: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Store(served / "x.tok")
    limit = max(file.bytes for file in local.manifest.files.values())
    monkeypatch.setenv("TILEWORK_CACHE_BYTES", str(limit))
    left = cache / "ab" / f".{'ab' * 32}.01234567.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(limit))
    same(open_at(server), local)
    assert not left.exists()


def test_a_cache_that_cannot_be_written_is_refused(
    server: FlakyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWORK_CACHE", str(tmp_path / "file"))
    with pytest.raises(OutputError, match="cannot make"):
        open_at(server).batch([0])


def test_a_full_disk_is_not_blamed_on_the_network(server: FlakyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_at(server)

    class Full:
        def seek(self, place: int) -> None: ...
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

    assert store._remote is not None
    file = store.manifest.files["shards/00000.tiles"]
    with pytest.raises(OutputError, match="No space left on device"):
        store._remote._receive("shards/00000.tiles", file, Full(), time.monotonic())  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_leaves_nothing_in_the_cache(
    server: FlakyServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_at(server)
    before = [path for path in cache.rglob("*") if not path.is_dir()]
    monkeypatch.setattr(remote, "_reserve", lambda root, size, aside: aside.symlink_to("/dev/full"))
    with pytest.raises(OutputError, match=r"cannot use the cache .*No space left on device; set TILEWORK_CACHE"):
        store.batch([0])
    assert [path for path in cache.rglob("*") if not path.is_dir()] == before
    assert server.requests[SHARD] == 1  # the network is not asked again for it


CHILD = """
import sys
import numpy as np
from tilework.store import Store
store = Store(sys.argv[1])
print(store.batch(np.arange(len(store))).sum(), store.codebook.vectors.sum(), sum(store.column("label")))
"""


def test_processes_fetch_each_file_once(server: FlakyServer, served: Path) -> None:
    server.slow = 0.1  # so that both want the same file at the same time
    command = [sys.executable, "-c", CHILD, f"{server.url}/x.tok"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {child.communicate(timeout=60)[0] for child in children}
    local = subprocess.run([*command[:-1], str(served / "x.tok")], stdout=subprocess.PIPE, text=True, check=True)
    assert said == {local.stdout}
    assert server.requests.pop("x.tok/manifest.json") == 3
    assert set(server.requests.values()) == {1}
    assert {SHARD, OTHER} < set(server.requests)


def test_local_stores_need_nothing_of_the_network(served: Path) -> None:
    program = f"import sys; from tilework.store import Store; Store({str(served / 'x.tok')!r}).batch([0])"
    program += "; assert not {'ssl', 'fsspec', 'torch', 'tilework.store.remote'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
