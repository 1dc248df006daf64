"""Tokenizing from tar and Parquet files. Oracle: the store of a folder with the same images in the same order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from small_shards import samples_of, write_parquet, write_tar
from tilework.core.errors import InputError
from tilework.data import ImageFolder
from tilework.data.image_folder import Images
from tilework.data.open_images import open_images
from tilework.store import Store
from tilework.tokenizers import VitVq, VitVqConfig
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import finish, open_spool, spool_share, tokenize
from tilework.tokenizers.tokenizer import Card

SIZE = (16, 24)
KEYS = ["cat/0.png", "cat/1.jpg", "cat/2.png", "dog/0.webp", "dog/1.png", "dog/2.png", "eel/0.png", "eel/1.png"]


@pytest.fixture(scope="module")
def tokenizer() -> VitVq:
    torch.manual_seed(0)
    model = VitVqConfig(patch=4, codes=64, code_dim=6, width=16, depth=1, heads=2).build(3, SIZE, 0).eval()
    model.start(torch.rand(8, 3, *SIZE))
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    root = tmp_path / "images"
    for key in KEYS:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(root / key)
    (root / "dog/1.png").write_bytes(b"broken")
    return root


def job(tokenizer: VitVq, **settings: object) -> Tokenizing:
    card = Card("small", "ab" * 32, SIZE)
    return Tokenizing(tokenizer, card, torch.device("cpu"), part=3, **settings)  # type: ignore[arg-type]


def bytes_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def opened(kind: str, folder: Path, tmp_path: Path) -> Images:
    if kind == "tar":  # three files numbered alike: classes are told beside them
        files = samples_of(folder, KEYS)
        for number, (start, stop) in enumerate(((0, 6), (6, 14), (14, 16))):
            write_tar(tmp_path / f"shards/{number}.tar", files[start:stop])
        (tmp_path / "shards/classes.txt").write_text("cat\ndog\neel\n")
    else:
        write_parquet(tmp_path / "shards/0.parquet", folder, KEYS, struct=kind == "struct", names=True)
    return open_images(tmp_path / "shards")


@pytest.mark.parametrize("kind", ["tar", "struct", "bytes"])
@pytest.mark.parametrize("views", [1, 2])
def test_codes_equal_those_of_the_folder(kind: str, views: int, folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    if kind != "tar":
        pytest.importorskip("pyarrow")
    shards = opened(kind, folder, tmp_path)
    wanted = tokenize(ImageFolder.open(folder), job(tokenizer, views=views), tmp_path / "a.tok", max_broken=0.5)
    broken = tokenize(shards, job(tokenizer, views=views), tmp_path / "b.tok", max_broken=0.5)
    a, b = Store(tmp_path / "a.tok"), Store(tmp_path / "b.tok")
    good = np.arange(len(a))
    for view in range(views):
        assert np.array_equal(a.batch(good, view), b.batch(good, view))
    assert len(np.unique(a.batch(good))) > 5
    assert np.array_equal(a.used, b.used)
    assert np.array_equal(a.column("label"), b.column("label"))
    assert a.classes == b.classes == ("cat", "dog", "eel")
    keys = {"tar": [k.partition(".")[0] for k in KEYS], "struct": KEYS, "bytes": list("01234567")}[kind]
    assert list(b.column("key")) == keys[:4] + keys[5:]
    assert [one.path for one in broken] == [keys[4]]
    if kind == "struct":
        assert broken == wanted  # to the word: no addresses in memory


@pytest.mark.parametrize("kind", ["tar", "struct"])
def test_job_array_stopped_and_started_gives_the_same_bytes(
    kind: str, folder: Path, tokenizer: VitVq, tmp_path: Path
) -> None:
    if kind != "tar":
        pytest.importorskip("pyarrow")
    shards = opened(kind, folder, tmp_path)
    tokenize(shards, job(tokenizer), tmp_path / "one.tok", max_broken=0.5)
    for rank in (1, 0, 1):
        again, one = open_images(tmp_path / "shards"), job(tokenizer)  # each process lists them anew
        spool_share(again, one, open_spool(again, one, tmp_path / "many.tok"), rank, 2, max_broken=0.5)
    finish(open_spool(shards, one, tmp_path / "many.tok"), tmp_path / "many.tok", max_broken=0.5)
    assert bytes_of(tmp_path / "one.tok") == bytes_of(tmp_path / "many.tok")


def test_labels_of_tar_files(folder: Path, tmp_path: Path) -> None:
    by_number = open_images(write_tar(tmp_path / "a.tar", samples_of(folder, KEYS, "json")))
    assert (by_number.classes, by_number.labels.tolist()) == (("0", "1", "2"), [0, 0, 0, 1, 1, 1, 2, 2])
    by_name = open_images(write_tar(tmp_path / "b.tar", samples_of(folder, KEYS, "name")))
    assert (by_name.classes, by_name.labels.tolist()) == (("cat", "dog", "eel"), [0, 0, 0, 1, 1, 1, 2, 2])
    like = open_images(tmp_path / "b.tar", classes=("eel", "ant", "dog", "cat"))
    assert (like.classes, like.labels.tolist()) == (("eel", "ant", "dog", "cat"), [3, 3, 3, 2, 2, 2, 0, 0])
    assert open_images(tmp_path / "a.tar", classes=("x", "y", "z")).classes == ("x", "y", "z")
    bare = write_tar(tmp_path / "c.tar", [(key, b"") for key in ("a.jpg", "a.txt", "b.png", "c.json", "d.seg.png")])
    assert (open_images(bare).classes, open_images(bare).keys) == (("unlabelled",), ("a", "b"))
    for files, match in (
        ([("a.jpg", b""), ("a.cls", b"x")], "a.cls in .* holds no label"),
        ([("a.jpg", b""), ("a.cls", b"-1")], "labels -1..-1"),
        ([("a.jpg", b""), ("a.json", b'{"label": 1.5}')], "holds no label"),
        ([("a.jpg", b""), ("a.cls", b"0"), ("b.jpg", b"")], "mixes numbers, names and missing"),
        ([("a.jpg", b""), ("a.png", b"")], "2 files for 'a'"),
        ([("a.cls", b"1")], "holds no images"),
    ):
        with pytest.raises(InputError, match=match):
            open_images(write_tar(tmp_path / "d.tar", files))
    with pytest.raises(InputError, match="class 'cat' that training does not know"):
        open_images(tmp_path / "b.tar", classes=("dog", "eel"))
    with pytest.raises(InputError, match=r"labels 0..2 in .*from 0 to 1"):
        open_images(tmp_path / "a.tar", classes=("dog", "eel"))


def test_shards_that_number_their_samples_alike_are_told_apart(tmp_path: Path) -> None:
    for name in ("x", "y"):
        write_tar(tmp_path / f"s/{name}.tar", [("0.jpg", b"1"), ("0.cls", b"3"), ("1.jpg", b"2"), ("1.cls", b"4")])
    assert open_images(tmp_path / "s").keys == ("x/0", "x/1", "y/0", "y/1")
    assert open_images(tmp_path / "s/x.tar").keys == ("0", "1")


def test_what_is_meant_by_a_path(folder: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_tar(tmp_path / f"s/{part}-0.tar", samples_of(folder, KEYS[:2]))
    with pytest.raises(InputError, match=r"several parts \(train, val\): give one, for example '.*/s/train\*.tar'"):
        open_images(tmp_path / "s")
    assert len(open_images(tmp_path / "s/train*.tar")) == 2
    with pytest.raises(InputError, match="no file fits"):
        open_images(tmp_path / "s/test*.tar")
    with pytest.raises(InputError, match="hold their labels themselves"):
        open_images(tmp_path / "s/val-0.tar", labels=tmp_path / "labels.csv")
    (tmp_path / "s/train.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"several kinds \(.parquet, .tar\)"):
        open_images(tmp_path / "s")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/a.tar.gz").write_bytes(b"")
    with pytest.raises(InputError, match="is packed: unpack it"):
        open_images(tmp_path / "t")
    assert isinstance(open_images(folder), ImageFolder)
    with pytest.raises(InputError, match="no folder"):
        open_images(tmp_path / "nowhere")


def test_parquet_without_names_or_with_other_columns(folder: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    images = open_images(write_parquet(tmp_path / "a.parquet", folder, KEYS, names=False))
    assert (images.classes, images.labels.tolist()) == (("0", "1", "2"), [0, 0, 0, 1, 1, 1, 2, 2])
    for number, columns in enumerate(({"picture": [b""]}, {"image": [1]}, {"image": [{"path": "x"}]})):
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{number}.parquet")
        with pytest.raises(InputError, match=r"no images in a column 'image': bytes are needed; it has"):
            open_images(tmp_path / f"{number}.parquet")
    parquet.write_table(pyarrow.table({"image": [b"x", None], "key": ["b", "a"]}), tmp_path / "b.parquet")
    images = open_images(tmp_path / "b.parquet")
    assert (images.classes, images.keys) == (("unlabelled",), ("b", "a"))
    assert [file.read() for file in images.files([1, 0])] == [b"", b"x"]  # type: ignore[union-attr]
    parquet.write_table(pyarrow.table({"image": [b"x"], "label": [0.5]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="neither numbers nor names"):
        open_images(tmp_path / "c.parquet")


def test_parquet_images_travel_between_processes(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pickle

    images = open_images(write_parquet(tmp_path / "a.parquet", folder, KEYS))
    list(images.files(range(8)))
    again = pickle.loads(pickle.dumps(images))
    assert [f.read() for f in again.files([7, 2, 5])] == [(folder / KEYS[i]).read_bytes() for i in (7, 2, 5)]


def test_a_broken_image_is_named_without_addresses(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    tokenize(opened("tar", folder, tmp_path), job(tokenizer), tmp_path / "b.tok", max_broken=0.5)
    (listed,) = json.loads((tmp_path / "b.tok.quarantine.json").read_text())
    assert listed == {"path": "dog/1", "reason": "cannot identify image file '1'"}
