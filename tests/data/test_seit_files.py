"""SeiT's published files. Oracle: the paper's algorithm 1 as a loop; the published files were not at hand."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tilework.core.errors import InputError, TileworkError
from tilework.data.seit_files import read_seit, write_seit
from tilework.store import Store

K = 391


def published(folder: Path, name: str = "train", count: int = 9) -> np.ndarray:
    """Files as the authors' code writes them, symbol by symbol."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, K, (count, 16))
    symbols: list[int] = []
    starts = [0]
    for image in ids.tolist():
        for code in image:
            symbols += [code] if code < 255 else [255, code - 255]
        starts.append(len(symbols))
    folder.mkdir(exist_ok=True)
    (folder / f"{name}-token.data.bin.gz").write_bytes(gzip.compress(bytes(symbols)))
    index = io.BytesIO()
    np.save(index, np.array(starts))
    (folder / f"{name}-token.index.npy.gz").write_bytes(gzip.compress(index.getvalue()))
    (folder / f"{name}-label.txt").write_text("".join(f"{i % 3}\n" for i in range(count)))
    torch.save(torch.from_numpy(rng.normal(size=(K, 32)).astype(np.float32)), folder / "codebook.ckpt")
    return ids


def test_published_files_become_a_store(tmp_path: Path) -> None:
    ids = published(tmp_path / "seit")
    read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))
    store = Store(tmp_path / "a.tok")
    assert np.array_equal(store.batch(np.arange(9)).reshape(9, 16), ids)
    assert store.column("label").tolist() == [0, 1, 2] * 3
    assert torch.equal(torch.from_numpy(store.codebook.vectors), torch.load(tmp_path / "seit/codebook.ckpt"))


def test_there_and_back_is_the_same_bytes(tmp_path: Path) -> None:
    published(tmp_path / "seit")
    read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))
    write_seit(Store(tmp_path / "a.tok"), tmp_path / "again", "train")
    for name in ("train-token.data.bin.gz", "train-token.index.npy.gz"):
        assert gzip.decompress((tmp_path / "again" / name).read_bytes()) == gzip.decompress(
            (tmp_path / "seit" / name).read_bytes()
        )
    assert (tmp_path / "again/train-label.txt").read_bytes() == (tmp_path / "seit/train-label.txt").read_bytes()
    assert len(json.loads((tmp_path / "again/synonyms.json").read_text())["390"]) == 5


def test_several_data_sets_need_a_name(tmp_path: Path) -> None:
    published(tmp_path / "seit")
    ids = published(tmp_path / "seit", "val", 4)
    with pytest.raises(InputError, match="train, val: choose one with --name"):
        read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))
    read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4), "val")
    assert np.array_equal(Store(tmp_path / "a.tok").batch(np.arange(4)).reshape(4, 16), ids)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("this ran",))


def test_damage_is_refused_and_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "seit"

    def refused(match: str, grid: tuple[int, int] = (4, 4)) -> None:
        with pytest.raises(TileworkError, match=match):
            read_seit(folder, tmp_path / "a.tok", grid)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["seit"]
        published(folder)

    published(folder)
    refused("16 codes for a grid of 5x4", (5, 4))
    torch.save(Evil(), folder / "codebook.ckpt")
    refused(r"codebook\.ckpt cannot be read")
    assert "this ran" not in capsys.readouterr().out
    torch.save({"a": torch.zeros(3)}, folder / "codebook.ckpt")
    refused("does not hold one")
    torch.save(torch.zeros(300, 4), folder / "codebook.ckpt")
    refused("outside 0..299")
    (folder / "train-label.txt").write_text("0\n1\n")
    refused("2 labels for 9 images")
    (folder / "train-label.txt").write_text("0\nx\n")
    refused("something else than integers")
    (folder / "train-label.txt").unlink()
    refused("cannot be read")
    data = folder / "train-token.data.bin.gz"
    data.write_bytes(data.read_bytes()[:-9])
    refused("cut short")
    (folder / "train-token.index.npy.gz").write_bytes(gzip.compress(b"no array"))
    refused("not a numpy array")
    data.write_bytes(b"nothing")
    refused("not a whole gzip file")
