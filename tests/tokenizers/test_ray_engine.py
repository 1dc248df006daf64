"""Tokenizing on Ray. Oracle: the bytes of a single process and of a job array."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tilework.core.errors import InputError
from tilework.data import ImageFolder
from tilework.data.open_images import open_images
from tilework.store import spool_of
from tilework.tokenizers import VitVqConfig
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.ray_engine import code_on_ray, spool_on_ray
from tilework.tokenizers.tokenize import finish, open_spool, spool_share, tokenize
from tilework.tokenizers.tokenizer import Card

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two workers of our own, whatever else runs on this machine; its key lives and dies with it."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    monkeypatch.setenv("RAY_worker_niceness", "0")  # not last on a busy machine
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "120000")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80_000_000)
    yield
    ray.shutdown()


def bytes_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_killed_worker_changes_no_byte(cluster: None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(16):
        path = tmp_path / f"images/{'cat' if i < 9 else 'dog'}/{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    path.write_bytes(b"broken")
    torch.manual_seed(0)
    model = VitVqConfig(patch=4, codes=64, code_dim=6, width=16, depth=1, heads=2).build(3, (16, 16), 0).eval()
    model.start(torch.rand(8, 3, 16, 16))
    job = Tokenizing(model, Card("small", "ab" * 32, (16, 16)), torch.device("cpu"), part=3)  # six parts
    folder = open_images(tmp_path / "images")
    assert isinstance(folder, ImageFolder)

    class Deadly(ImageFolder):  # local: it travels by value
        """The first process to ask for images dies by it; others find the mark and live."""

        def files(self, index: Sequence[int]) -> Iterator[Path]:
            try:
                os.close(os.open(self.root.parent / "killed", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return super(type(self), self).files(index)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("alive")

    tokenize(folder, job, tmp_path / "one.tok", max_broken=0.5)
    for rank in (1, 0):
        spool_share(folder, job, open_spool(folder, job, tmp_path / "array.tok"), rank, 2, max_broken=0.5)
    finish(open_spool(folder, job, tmp_path / "array.tok"), tmp_path / "array.tok", max_broken=0.5)

    deadly = Deadly(folder.root, folder.paths, folder.labels, folder.classes)
    spool_share(folder, job, open_spool(folder, job, tmp_path / "ray.tok"), 5, 6, max_broken=0.5)  # a part is there
    before = (spool_of(tmp_path / "ray.tok") / "parts/00005.part").stat().st_mtime_ns
    seen: list[tuple[int, int]] = []
    kept: list[int] = []

    def spool_all(*settings: object) -> None:
        spool_on_ray(*settings)  # type: ignore[arg-type]
        kept.append((spool_of(tmp_path / "ray.tok") / "parts/00005.part").stat().st_mtime_ns)

    broken = tokenize(
        deadly, job, tmp_path / "ray.tok", max_broken=0.5, progress=lambda *s: seen.append(s), spool_all=spool_all
    )
    assert (tmp_path / "killed").exists()
    assert kept == [before]  # what was there is not made again
    assert [one.path for one in broken] == ["dog/15.png"]
    assert (seen[0], seen[-1]) == ((1, 16), (16, 16))
    assert bytes_of(tmp_path / "ray.tok") == bytes_of(tmp_path / "one.tok") == bytes_of(tmp_path / "array.tok")
    spool_share(folder, job, open_spool(folder, job, tmp_path / "coded.tok"), 0, 1, max_broken=0.5)
    spool = open_spool(folder, job, tmp_path / "coded.tok")
    finish(spool, tmp_path / "coded.tok", max_broken=0.5, code_ranges=code_on_ray)
    assert bytes_of(tmp_path / "coded.tok") == bytes_of(tmp_path / "one.tok")
    lists = [(tmp_path / f"{name}.tok.quarantine.json").read_bytes() for name in ("one", "array", "ray")]
    assert lists[0] == lists[1] == lists[2]
    assert not list(tmp_path.glob("*.spool"))
    with pytest.raises(InputError, match=r"1 of 16 images cannot be read \(first: dog/15.png") as caught:
        tokenize(folder, job, tmp_path / "b.tok", max_broken=0.01, spool_all=spool_on_ray)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("b.tok*"))
