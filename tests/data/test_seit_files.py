"""SeiT's published files. Oracle: the paper's algorithm 1 as a loop; the published files were not at hand."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from tilework.augment import TokenEda
from tilework.core.codebook import cut_synonyms
from tilework.core.errors import InputError, TileworkError
from tilework.data import seit_files
from tilework.data.seit_files import read_seit, write_seit
from tilework.store import Store, StoreWriter, gather, merge

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


def write_synonyms(folder: Path, name: str = "synonyms.json") -> list[list[int]]:
    """Six other codes of each, by chance; the file names each code itself, too, and one code has a seventh."""
    rng = np.random.default_rng(1)
    rows = [rng.permutation(np.delete(np.arange(K), i))[:6].tolist() for i in range(K)]
    given = {str(code): [code, *row, *([(code + 1) % K] * (code == 7))] for code, row in enumerate(rows)}
    (folder / name).write_text(json.dumps(given))
    return rows


@pytest.mark.parametrize("name", ["synonyms.json", "codebook-synonyms.json"])
def test_published_synonyms_are_those_of_token_eda(tmp_path: Path, name: str) -> None:
    """Under the name that SeiT's published command has for them, or SeiT++'s."""
    published(tmp_path / "seit")
    read_seit(tmp_path / "seit", tmp_path / "plain.tok", (4, 4))
    rows = write_synonyms(tmp_path / "seit", name)
    read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))
    store, plain = Store(tmp_path / "a.tok"), Store(tmp_path / "plain.tok")
    assert store.verify() == []
    assert store.codebook.digest == plain.codebook.digest
    assert plain.codebook.synonyms is None
    table = TokenEda(nearest=5).build(store.codebook).table
    assert table[:, :5].tolist() == [row[:5] for row in rows]
    assert not torch.equal(table, TokenEda(nearest=5).build(plain.codebook).table)
    write_seit(store, tmp_path / "again", "train")
    assert list(json.loads((tmp_path / "again/synonyms.json").read_text()).values()) == rows


def test_synonyms_follow_into_a_part_of_the_store(tmp_path: Path) -> None:
    published(tmp_path / "seit")
    rows = write_synonyms(tmp_path / "seit")
    read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))
    store = Store(tmp_path / "a.tok")
    gather(tmp_path / "part.tok", [(store, np.arange(3))])
    assert Store(tmp_path / "part.tok").codebook.nearest(6).tolist() == rows
    used = np.unique(store.batch(np.arange(9)))
    with StoreWriter(
        tmp_path / "cut.tok", store.codebook.vectors, store.classes, cut=True, synonyms=store.codebook.synonyms
    ) as writer:
        writer.add(store.batch(np.arange(9)), store.column("label"), store.column("key"))
    cut = Store(tmp_path / "cut.tok")
    assert np.array_equal(cut.used, used)
    expected = cut_synonyms(np.array(rows, np.int32), store.codebook.vectors, used)
    assert np.array_equal(cut.codebook.nearest(6), expected)
    merge(tmp_path / "both.tok", [cut, Store(_renamed(cut, tmp_path / "other.tok"))])
    assert np.array_equal(Store(tmp_path / "both.tok").codebook.nearest(6), expected), "numbers of two cuts meet again"


def _renamed(store: Store, path: Path) -> Path:
    """The same images under other keys."""
    with StoreWriter(path, _whole(store), store.classes, used=store.used, synonyms=_numbered(store)) as writer:
        keys = [f"other {key}" for key in store.column("key")]
        writer.add(store.used[store.batch(np.arange(len(store)))], store.column("label"), keys)
    return path


def _whole(store: Store) -> np.ndarray:
    vectors = np.zeros((K, 32), np.float32)
    vectors[store.used] = store.codebook.vectors
    return vectors


def _numbered(store: Store) -> np.ndarray:
    table = np.tile((np.arange(K, dtype=np.int32)[:, None] + 1) % K, (1, 6))
    table[store.used] = store.used[store.codebook.nearest(6)]
    return table


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ("[1, 2]", "does not name synonyms"),
        ("no json", "does not name synonyms"),
        ('{"0": [1]}', "does not name synonyms"),
        (json.dumps({str(i): ["x"] for i in range(K)}), "does not name synonyms"),
        (json.dumps({str(i): [10**12] for i in range(K)}), "does not name synonyms"),
        (json.dumps({str(i): [K] for i in range(K)}), "does not fit"),
        (json.dumps({str(i): [i] for i in range(K)}), "does not fit"),
        (json.dumps({str(i): [(i + 1) % K] for i in range(K + 1)}), "does not fit"),
    ],
)
def test_synonyms_that_do_not_fit_are_refused(tmp_path: Path, contents: str, words: str) -> None:
    published(tmp_path / "seit")
    (tmp_path / "seit/synonyms.json").write_text(contents)
    with pytest.raises(InputError, match=words):
        read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))
    assert not (tmp_path / "a.tok").exists()


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
    refused("16 codes for a grid of -4x-4", (-4, -4))
    torch.save(Evil(), folder / "codebook.ckpt")
    refused(r"codebook\.ckpt is damaged")
    assert "this ran" not in capsys.readouterr().out
    torch.save({"a": torch.zeros(3)}, folder / "codebook.ckpt")
    refused("does not hold one")
    torch.save(torch.zeros(300, 4), folder / "codebook.ckpt")
    refused("outside 0..299")
    (folder / "train-label.txt").write_text("0\n1\n")
    refused("2 labels for 9 images")
    (folder / "train-label.txt").write_text("0\n" * 8 + "30000000\n")
    refused(r"labels 0\.\.30000000 in .*train-label\.txt: numbers from 0 to 1048575 are needed")
    (folder / "train-label.txt").write_text("0\n" * 8 + "9" * 20)
    refused("numbers from 0 to 1048575 are needed")
    (folder / "train-label.txt").write_text("0\n" * 8 + "-1")
    refused(r"labels -1\.\.0")
    (folder / "train-label.txt").write_text("0\nx\n")
    refused("something else than integers")
    (folder / "train-label.txt").unlink()
    refused("cannot be read")
    data = folder / "train-token.data.bin.gz"
    data.write_bytes(data.read_bytes()[:-9])
    refused("cut short")
    (folder / "train-token.index.npy.gz").write_bytes(gzip.compress(b"no array"))
    refused("not a numpy array")
    index = io.BytesIO()
    np.save(index, np.arange(0, 160, 16).astype("m8[s]"))
    (folder / "train-token.index.npy.gz").write_bytes(gzip.compress(index.getvalue()))
    refused("holds no offsets")
    data.write_bytes(b"nothing")
    refused("not a complete gzip file")


@pytest.mark.parametrize("wrap", [torch.nn.Parameter, lambda table: {"weight": table.requires_grad_()}])
def test_a_codebook_that_was_trained_is_read(tmp_path: Path, wrap: Callable[[torch.Tensor], object]) -> None:
    published(tmp_path / "seit")
    table = torch.load(tmp_path / "seit/codebook.ckpt")
    torch.save(wrap(table), tmp_path / "seit/codebook.ckpt")
    read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))
    assert np.array_equal(Store(tmp_path / "a.tok").codebook.vectors, table.detach().numpy())


@pytest.mark.filterwarnings("error", "ignore:torch.quantize_per_tensor", "ignore:TypedStorage is deprecated")
@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda table: table.to_sparse(), r"codebook\.ckpt holds no plain table"),
        (lambda table: torch.quantize_per_tensor(table, 0.1, 0, torch.qint8), r"codebook\.ckpt holds no plain table"),
        (lambda table: table.to("meta"), r"codebook\.ckpt holds no plain table"),
        (lambda table: table.to(torch.complex64), r"codebook\.ckpt holds no plain table"),
        (lambda table: table.double() * 1e300, "numbers that are too large"),
    ],
)
def test_codebooks_of_other_kinds_are_refused(
    tmp_path: Path, make: Callable[[torch.Tensor], torch.Tensor], match: str
) -> None:
    published(tmp_path / "seit")
    torch.save(make(torch.ones(K, 2)), tmp_path / "seit/codebook.ckpt")
    with pytest.raises(InputError, match=match):
        read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))
    assert [path.name for path in tmp_path.iterdir()] == ["seit"]


@pytest.mark.parametrize("name", ["codebook.ckpt", "train-token.data.bin.gz", "train-label.txt"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    published(tmp_path / "seit")
    (tmp_path / "seit" / name).unlink()
    os.mkfifo(tmp_path / "seit" / name)
    with pytest.raises(InputError, match=f"{name} .*not a regular file"):
        read_seit(tmp_path / "seit", tmp_path / "a.tok", (4, 4))


def test_synonyms_of_many_codes_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest row is looked for once, not once for each of the codes."""
    rows, measured = write_synonyms(tmp_path), 0

    def counted(values: Iterable[int]) -> int:
        nonlocal measured
        measured += 1
        return min(values)

    monkeypatch.setattr(seit_files, "min", counted, raising=False)
    table = seit_files._synonyms(tmp_path / "synonyms.json", K)
    assert table is not None
    assert table.tolist() == rows
    assert measured == 1
