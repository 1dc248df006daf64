"""Codes to tar and Parquet files and back. Oracles: the store they came from; webdataset and pyarrow as readers."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from small_shards import write_tar
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import sha256
from tilework.data import parquet_tokens, tar_tokens, token_files
from tilework.data.open_images import find_files
from tilework.data.parquet_tokens import ParquetTokens, write_parquet_tokens
from tilework.data.tar_tokens import TarTokens, write_tar_tokens
from tilework.data.token_files import Tokens, left_out, store_tokens
from tilework.store import Store, StoreWriter

WRITERS = {"wds": write_tar_tokens, "parquet": write_parquet_tokens}


def opened(folder: Path) -> Tokens:
    files = find_files(folder)
    return (ParquetTokens if files[0].suffix == ".parquet" else TarTokens).open(files)


def made(path: Path, codes: int = 300, count: int = 7, shape: tuple[int, ...] = (4, 5), **how: object) -> Store:
    """A store with classes that do not occur, names with dots, and codes that were cut away."""
    rng = np.random.default_rng(count)
    ids = rng.integers(0, codes // 2, (count, *shape))
    book = rng.normal(size=(codes, 6)).astype(np.float32)
    told = {"tokenizer": {"name": "t", "sha256": "ab"}, "preprocessing": "cut", "licence": "CC0"}
    told |= {"frame": "squash", "cut": True, **how}
    with StoreWriter(path, book, ["cat", "dog", "eel"], **told) as writer:  # type: ignore[arg-type]
        writer.add(ids, np.arange(count) % 2, [f"cat/{i}.v1.png" for i in range(count)])
    return Store(path)


def same(a: Store, b: Store) -> None:
    index = np.arange(len(a))
    for view in range(a.views):
        assert np.array_equal(a.batch(index, view), b.batch(index, view))
    assert np.array_equal(a.codebook.vectors, b.codebook.vectors)
    assert np.array_equal(a.used, b.used)
    assert a.column("label").tolist() == b.column("label").tolist()
    assert list(a.column("key")) == list(b.column("key"))
    for name in ("images", "grid", "vocabulary", "classes", "views", "tokenizer", "tokenizer_codes", "preprocessing"):
        assert getattr(a.manifest, name) == getattr(b.manifest, name), name
    assert (a.manifest.licence, a.manifest.frame) == (b.manifest.licence, b.manifest.frame)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("form", ["plain", "views", "sequence", "stacks", "many codes", "several files"])
def test_there_and_back(kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    if form == "several files":
        monkeypatch.setattr(token_files, "TOGETHER", 2)
        monkeypatch.setattr(tar_tokens, "SHARD_IMAGES", 4)
        monkeypatch.setattr(parquet_tokens, "SHARD_IMAGES", 4)
    shape = {"views": (3, 4, 5), "sequence": (8,), "stacks": (4, 5, 6)}.get(form, (4, 5))
    codes = 140_000 if form == "many codes" else 300
    store = made(tmp_path / "a.tok", codes, shape=shape, views=3 if form == "views" else 1, cut=form != "many codes")
    WRITERS[kind](store, tmp_path / "out")
    assert len(find_files(tmp_path / "out")) == (2 if form == "several files" else 1)
    store_tokens(opened(tmp_path / "out"), tmp_path / "b.tok")
    same(store, Store(tmp_path / "b.tok"))
    assert Store(tmp_path / "b.tok").verify(deep=True) == []


names = st.text(st.characters(codec="utf-8") | st.sampled_from("./%~ \udc80"), max_size=130)


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=12, deadline=None)
@given(
    keys=st.lists(names, min_size=1, max_size=4, unique=True),
    codes=st.integers(1, 70_000),
    views=st.integers(1, 2),
    grid=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    seed=st.integers(0, 9),
)
def test_any_store_comes_back(kind: str, keys: list[str], codes: int, views: int, grid: list[int], seed: int) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        keys = list(dict.fromkeys(key.replace("\udc80", "?") for key in keys))
    rng = np.random.default_rng(seed)
    with TemporaryDirectory() as place, patch("os.fsync"):
        root = Path(place)
        with StoreWriter(
            root / "a.tok", rng.normal(size=(codes, 2)).astype(np.float32), ["a", "b"], "packed", views=views, cut=True
        ) as writer:
            shape = (views, *grid) if views > 1 else tuple(grid)
            writer.add(rng.integers(0, codes, (len(keys), *shape)), rng.integers(0, 2, len(keys)), keys)
        store = Store(root / "a.tok")
        WRITERS[kind](store, root / "out")
        store_tokens(opened(root / "out"), root / "b.tok", codec="packed")
        same(store, Store(root / "b.tok"))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("cut", [False, True])
def test_synonyms_come_back(kind: str, cut: bool, tmp_path: Path) -> None:
    """By the store's numbers, whether it holds all codes of its tokenizer or a part."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    rng = np.random.default_rng(1)
    given = np.stack([rng.permutation(np.delete(np.arange(40), i))[:6] for i in range(40)]).astype(np.int32)
    first = made(tmp_path / "a.tok", codes=40, cut=cut, synonyms=given)
    assert first.codebook.synonyms is not None
    assert cut or np.array_equal(first.codebook.synonyms, given)
    WRITERS[kind](first, tmp_path / "out")
    store_tokens(opened(tmp_path / "out"), tmp_path / "b.tok")
    back = Store(tmp_path / "b.tok")
    same(first, back)
    assert np.array_equal(first.codebook.synonyms, back.codebook.synonyms)
    assert Codebook.of(first.codebook.vectors).nearest(6).tolist() != back.codebook.synonyms.tolist()


def test_synonyms_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    others = ((np.arange(10)[:, None] + 1) % 10).astype(np.int32)
    first = made(tmp_path / "a.tok", codes=10, cut=False, synonyms=others)
    write_tar_tokens(first, tmp_path / "out")
    wrong = {"codebook": first.codebook.vectors, "used": first.used, "synonyms": np.zeros((10, 2), np.int32)}
    (tmp_path / "out/codebook.safetensors").write_bytes(save(wrong))
    told = json.loads((tmp_path / "out/tokens.json").read_text())
    told["codebook"] = sha256(tmp_path / "out/codebook.safetensors")
    (tmp_path / "out/tokens.json").write_text(json.dumps(told))
    with pytest.raises(DamageError, match="synonyms that do not fit"):
        store_tokens(opened(tmp_path / "out"), tmp_path / "b.tok")


@pytest.mark.parametrize(
    ("width", "columns", "match"),
    [
        (256, 0, "1048576 codes of 256 numbers: so many cannot be stored"),
        (1, 400, "1048576 codes with 400 synonyms: so many cannot be stored"),
    ],
)
def test_a_few_codes_do_not_claim_a_large_table(width: int, columns: int, match: str, tmp_path: Path) -> None:
    write_tar_tokens(made(tmp_path / "a.tok", codes=2, cut=False), tmp_path / "out")
    tensors = {"codebook": np.ones((2, width), np.float32), "used": np.arange(2, dtype=np.int32)}
    if columns:
        tensors["synonyms"] = np.repeat(np.array([[1], [0]], np.int32), columns, 1)
    (tmp_path / "out/codebook.safetensors").write_bytes(save(tensors))
    told = json.loads((tmp_path / "out/tokens.json").read_text())
    told |= {"codebook": sha256(tmp_path / "out/codebook.safetensors"), "tokenizer_codes": 1 << 20}
    (tmp_path / "out/tokens.json").write_text(json.dumps(told))
    tracemalloc.start()
    with pytest.raises(DamageError, match=match):
        store_tokens(opened(tmp_path / "out"), tmp_path / "b.tok")
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


def test_webdataset_reads_our_tar_files(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    store = made(tmp_path / "a.tok")
    write_tar_tokens(store, tmp_path / "out")
    found = list(webdataset.WebDataset(str(tmp_path / "out/00000.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in found] == [f"cat/{i}%2Ev1%2Epng" for i in range(7)]
    assert [int(sample["cls"]) for sample in found] == store.column("label").tolist()
    arrays = np.stack([np.load(io.BytesIO(sample["npy"]), allow_pickle=False) for sample in found])
    assert arrays.dtype == np.uint16
    assert np.array_equal(arrays, store.batch(np.arange(7)))


def test_we_read_what_webdataset_writes(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    ids = np.random.default_rng(0).integers(0, 50, (5, 6))
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for i, row in enumerate(ids):
            writer.write({"__key__": f"image{i}", "npy": row, "cls": i % 2})
    np.save(tmp_path / "book.npy", np.ones((64, 3), np.float32))
    store_tokens(TarTokens.open([tmp_path / "a.tar"]), tmp_path / "a.tok", tmp_path / "book.npy", (2, 3))
    store = Store(tmp_path / "a.tok")
    assert np.array_equal(store.batch(np.arange(5)), ids.reshape(5, 2, 3))
    assert list(store.column("key")) == [f"image{i}" for i in range(5)]
    assert (store.column("label").tolist(), store.classes) == ([0, 1, 0, 1, 0], ("0", "1"))
    assert store.codebook.vectors.shape == (64, 3)


def test_pyarrow_reads_our_parquet_files(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    store = made(tmp_path / "a.tok")
    write_parquet_tokens(store, tmp_path / "out")
    table = parquet.read_table(tmp_path / "out/00000.parquet")
    assert str(table.schema.field("codes").type) == "fixed_size_list<element: uint16>[20]"
    assert np.array_equal(np.array(table["codes"].to_pylist()).reshape(7, 4, 5), store.batch(np.arange(7)))
    assert table["key"].to_pylist() == list(store.column("key"))
    assert table["label"].to_pylist() == store.column("label").tolist()
    told = json.loads(table.schema.metadata[b"tilework"])
    assert (told["grid"], told["classes"], told["licence"]) == ([4, 5], ["cat", "dog", "eel"], "CC0")


def test_other_peoples_parquet_files(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def read(**columns: list[object]) -> Store:
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        (tmp_path / "n").mkdir(exist_ok=True)
        out = tmp_path / f"n/{len(list((tmp_path / 'n').iterdir()))}.tok"
        store_tokens(ParquetTokens.open([tmp_path / "a.parquet"]), out)
        return Store(out)

    nested = read(codes=[[[1, 2], [3, 4]], [[5, 6], [7, 9]]], label=["b", "a"], key=["x", "y"])
    assert nested.batch([0, 1]).tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 9]]]
    assert (nested.classes, nested.column("label").tolist(), nested.codebook.vectors.shape) == (
        ("a", "b"),
        [1, 0],
        (10, 0),
    )
    plain = read(tokens=[[1, 2], [0, 3]])
    assert (plain.grid, plain.classes, list(plain.column("key"))) == ((2,), ("unlabelled",), ["0", "1"])
    for columns, match in (
        ({"codes": [[1], [1, 2]]}, "different lengths"),
        ({"codes": [[1, None]]}, "without codes"),
        ({"codes": [["a"]]}, "lists of integers are needed"),
        ({"codes": [1, 2]}, "codes of shape"),
        ({"codes": [[[[[1]]]]]}, "lists of integers are needed"),
        ({"ids": [[1]]}, "no codes in a column 'codes': it has ids"),
        ({"codes": [[-1]]}, "codes -1..-1"),
        ({"codes": [[1 << 40]]}, "at most 1048576 codes"),
        ({"codes": [[1]], "label": [0.5]}, "neither numbers nor names"),
    ):
        with pytest.raises(InputError, match=match):
            read(**columns)
    assert len(list((tmp_path / "n").iterdir())) == 2


@pytest.mark.parametrize("kind", WRITERS)
def test_changed_files_are_refused(kind: str, tmp_path: Path) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    WRITERS[kind](made(tmp_path / "a.tok", count=40), tmp_path / "out")
    (file,) = find_files(tmp_path / "out")
    good = file.read_bytes()
    start = good.index(b"NUMPY" if kind == "wds" else b"cat/") + 200
    for place in range(start, start + 300, 30):
        bad = bytearray(good)
        bad[place] ^= 4
        file.write_bytes(bad)
        with pytest.raises((DamageError, InputError)):
            store_tokens(opened(tmp_path / "out"), tmp_path / "b.tok")
    file.write_bytes(good)
    (tmp_path / "book.npy").write_bytes(b"")
    with pytest.raises(ConfigError, match="leave out --codebook"):
        store_tokens(opened(tmp_path / "out"), tmp_path / "b.tok", codebook=tmp_path / "book.npy")
    book = tmp_path / "out/codebook.safetensors"
    book.write_bytes(book.read_bytes()[:-1] + b"x")
    with pytest.raises(DamageError, match="not the codebook of these files"):
        store_tokens(opened(tmp_path / "out"), tmp_path / "b.tok")
    book.unlink()
    with pytest.raises(DamageError, match=r"codebook.safetensors cannot be read"):
        store_tokens(opened(tmp_path / "out"), tmp_path / "b.tok")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tok", "book.npy", "out"]


def test_a_missing_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "TOGETHER", 2)
    monkeypatch.setattr(tar_tokens, "SHARD_IMAGES", 4)
    write_tar_tokens(made(tmp_path / "a.tok"), tmp_path / "out")
    (tmp_path / "out/00001.tar").unlink()
    with pytest.raises(InputError, match="lacks files"):
        opened(tmp_path / "out")
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(parquet_tokens, "SHARD_IMAGES", 4)
    write_parquet_tokens(Store(tmp_path / "a.tok"), tmp_path / "p")
    (tmp_path / "p/00001.parquet").unlink()
    with pytest.raises(DamageError, match="4 of 7 images"):
        store_tokens(opened(tmp_path / "p"), tmp_path / "b.tok")


def test_stores_that_cannot_be_written(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "a.tok", np.zeros((4, 1), np.float32), ["x"]) as writer:
        writer.add(np.zeros((2, 3), int), [0, 0], ["same", "same"], score=np.zeros(2))
    store = Store(tmp_path / "a.tok")
    assert left_out(store) == ["score"]
    with pytest.raises(InputError, match="two images of one name"):
        write_tar_tokens(store, tmp_path / "out")
    pytest.importorskip("pyarrow")
    with StoreWriter(tmp_path / "b.tok", np.zeros((4, 1), np.float32), ["x"]) as writer:
        writer.add(np.zeros((1, 3), int), [0], ["\udc80"])
    with pytest.raises(InputError, match="not Unicode"):
        write_parquet_tokens(Store(tmp_path / "b.tok"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def npy(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()


@pytest.mark.parametrize(
    ("files", "match"),
    [
        ([("a.npy", npy(np.zeros(3, int))), ("b.npy", npy(np.zeros(4, int)))], r"integers of shape \(3,\)"),
        ([("a.npy", npy(np.zeros(3)))], "holds float64"),
        ([("a.npy", npy(np.zeros(3, "m8[s]")))], "holds timedelta64"),
        ([("a.npy", npy(np.zeros(3, int)).replace(b"'<i8'", b"()   "))], "no numpy array"),
        ([("a.npy", npy(np.zeros(0, int)))], r"shape \(0,\)"),
        ([("a.npy", b"no array")], "no numpy array"),
        ([("a.npy", npy(np.array([None])))], "no numpy array"),
        ([("a.npy", npy(np.zeros(3, int))[:-1])], "23 bytes for int64"),
        ([("a.npy", npy(np.zeros(3, int)).replace(b"(3,), }     ", b"(99999999,)}"))], "24 bytes for int64"),
        ([("a.jpg", b"")], "for images there is 'tilework tokenize'"),
    ],
)
def test_members_that_are_no_codes(files: list[tuple[str, bytes]], match: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", files)
    with pytest.raises(InputError, match=match):
        store_tokens(opened(tmp_path), tmp_path / "a.tok")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize("table", [np.float32(3), np.full((4, 2), "x")], ids=["0-d", "words"])
def test_another_codebook_or_grid_is_refused(table: np.ndarray, tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("a.npy", npy(np.arange(4)))])
    np.save(tmp_path / "book.npy", table)
    with pytest.raises(InputError, match=r"book\.npy holds .*: \(K, C\) numbers are needed"):
        store_tokens(opened(tmp_path), tmp_path / "a.tok", tmp_path / "book.npy")
    with pytest.raises(InputError, match=r"4 codes for a grid of \(-2, -2\): change --grid"):
        store_tokens(opened(tmp_path), tmp_path / "a.tok", grid=(-2, -2))
