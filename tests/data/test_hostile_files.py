"""Files made to do harm: nothing written outside, no code run, memory bounded, one line that says what is wrong."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from small_shards import samples_of, write_parquet, write_tar
from tilework.core.errors import DamageError, InputError, TileworkError
from tilework.core.files import sha256
from tilework.data import parquet_files, tar_files
from tilework.data.open_images import open_images
from tilework.data.parquet_tokens import ParquetTokens, write_parquet_tokens
from tilework.data.tar_files import walk
from tilework.data.tar_tokens import DESCRIPTION, TarTokens, write_tar_tokens
from tilework.data.token_files import CODEBOOK, store_tokens
from tilework.store import Store

IMAGE = b"\xff\xd8 not much of an image"


def tar_of(path: Path, *infos: tarfile.TarInfo, **how: object) -> Path:
    with tarfile.open(path, "w", **how) as tar:  # type: ignore[call-overload]
        for info in infos:
            tar.addfile(info, io.BytesIO(bytes(info.size)) if info.isreg() else None)
    return path


def info(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **fields: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size = kind, size
    for field, value in fields.items():
        setattr(made, field, value)
    return made


@pytest.mark.parametrize(
    ("member", "match"),
    [
        (info("../evil.jpg"), r"a file named '\.\./evil\.jpg': names must be plain"),
        (info("a/../../evil.jpg"), "names must be plain"),
        (info("/etc/evil.jpg"), "names must be plain"),
        (info("a\nb.jpg"), "names must be plain"),
        (info("a.jpg", tarfile.SYMTYPE, linkname="/etc/passwd"), "'a.jpg' in .* is no plain file"),
        (info("a.jpg", tarfile.LNKTYPE, linkname="b.jpg"), "no plain file"),
        (info("a.jpg", tarfile.CHRTYPE), "no plain file"),
        (info("a.jpg", tarfile.BLKTYPE), "no plain file"),
        (info("a.jpg", tarfile.FIFOTYPE), "no plain file"),
        (info("a.jpg", size=3, pax_headers={"size": "99999999999"}), "99999999999 bytes: at most"),
        (info("a.jpg", size=3, pax_headers={"size": "200000000"}), "ends inside 'a.jpg'"),
        (info("a.jpg", size=3, pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9" * 12}), "no plain file"),
        (info("a.jpg", size=3, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), "damaged"),
        (info("a.jpg", pax_headers={"comment": "x" * (1 << 21)}), "a header of more than 1048576 bytes"),
    ],
)
def test_tricks_of_tar_files_are_refused(member: tarfile.TarInfo, match: str, tmp_path: Path) -> None:
    path = tar_of(tmp_path / "a.tar", member)
    with pytest.raises(TileworkError, match=match) as caught:
        open_images(path)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tar"]


def test_a_header_that_claims_gigabytes_is_not_believed(tmp_path: Path) -> None:
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        block = info("x", kind, size=1 << 33).tobuf(tarfile.GNU_FORMAT)
        (tmp_path / "a.tar").write_bytes(block + bytes(1024))
        tracemalloc.start()
        with pytest.raises(DamageError, match="a header of more than"):
            open_images(tmp_path / "a.tar")
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
        tracemalloc.stop()


def test_headers_that_lead_to_headers_end(tmp_path: Path) -> None:
    chain = info("x", tarfile.XHDTYPE, size=20).tobuf(tarfile.GNU_FORMAT) + b"20 comment=aaaaaaaa\n".ljust(512, b"\0")
    (tmp_path / "a.tar").write_bytes(chain * 5000 + bytes(1024))
    with pytest.raises(DamageError, match="damaged"):
        open_images(tmp_path / "a.tar")


def test_every_truncation_of_a_tar_file_is_noticed(tmp_path: Path) -> None:
    files = [("a.jpg", bytes(range(200)) * 4), ("a.cls", b"1"), ("b.jpg", b"x" * 512), ("b.cls", b"0")]
    whole = write_tar(tmp_path / "a.tar", files).read_bytes()
    end = len(whole.rstrip(b"\0"))
    assert len(open_images(tmp_path / "a.tar")) == 2
    for size in range(0, -(-end // 512) * 512 + 1, 64):
        (tmp_path / "a.tar").write_bytes(whole[:size])
        with pytest.raises(DamageError):
            open_images(tmp_path / "a.tar")


def test_damaged_headers_are_noticed(tmp_path: Path) -> None:
    files = [("a.jpg", b"x" * 300), ("a.cls", b"1"), ("b.jpg", b"x" * 512), ("b.cls", b"0")]
    whole = write_tar(tmp_path / "a.tar", files).read_bytes()
    for place in (*range(0, 512, 16), *range(1024, 1536, 16), *range(3072, 3584, 16)):
        (tmp_path / "a.tar").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(TileworkError):
            open_images(tmp_path / "a.tar")


def test_many_members_take_little_memory_and_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = b"".join(info(f"{i}.jpg").tobuf() for i in range(1000))
    (tmp_path / "a.tar").write_bytes(block + bytes(1024))
    tracemalloc.start()
    assert sum(1 for _ in walk(tmp_path / "a.tar")) == 1000
    assert tracemalloc.get_traced_memory()[1] < 1 << 18  # a list of them would be several times that
    tracemalloc.stop()
    monkeypatch.setattr(tar_files, "MOST_MEMBERS", 999)
    with pytest.raises(InputError, match="more than 999 files"):
        open_images(tmp_path / "a.tar")


def test_many_global_headers_are_refused(tmp_path: Path) -> None:
    """Every member would get a copy of them all."""
    headers = {f"k{i}": "" for i in range(256)}
    assert len(open_images(tar_of(tmp_path / "a.tar", info("a.jpg"), pax_headers=headers))) == 1
    path = tar_of(tmp_path / "b.tar", info("a.jpg"), pax_headers={**headers, "more": ""})
    with pytest.raises(InputError, match=r"b\.tar has 257 global headers: at most 256 are read"):
        open_images(path)


@pytest.mark.parametrize("name", ["a.tar", "a.parquet"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow")
    os.mkfifo(tmp_path / name)
    with pytest.raises(TileworkError, match=f"{name} cannot be read.*not a regular file"):
        open_images(tmp_path / name)


@pytest.mark.parametrize("files", [[("a.jpg", IMAGE)] * 2, [("a.jpg", IMAGE), ("b.jpg", IMAGE), ("a.jpg", IMAGE)]])
def test_a_name_twice_is_refused(files: list[tuple[str, bytes]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"twice|names two samples"):
        open_images(write_tar(tmp_path / "a.tar", files))


def test_packed_tar_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "b.tar", [("a.jpg", IMAGE)]).read_bytes()
    (tmp_path / "a.tar").write_bytes(gzip.compress(plain))
    with pytest.raises(InputError, match="is packed with gzip: unpack it"):
        open_images(tmp_path / "a.tar")
    (tmp_path / "a.tgz").write_bytes(gzip.compress(plain))
    with pytest.raises(InputError, match="is packed: unpack it"):
        open_images(tmp_path / "a.tgz")


def test_a_large_label_or_member_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="1048577 bytes: at most 1048576 can be a label"):
        open_images(write_tar(tmp_path / "a.tar", [("a.jpg", b""), ("a.cls", bytes((1 << 20) + 1))]))
    with pytest.raises(InputError, match="holds no label"):
        open_images(write_tar(tmp_path / "a.tar", [("a.jpg", b""), ("a.json", b"[" * 100_000)]))
    with pytest.raises(InputError, match=r"labels \d+..\d+ in"):
        open_images(write_tar(tmp_path / "a.tar", [("a.jpg", b""), ("a.cls", b"9" * 30)]))
    monkeypatch.setattr(tar_files, "LARGEST_MEMBER", 100)
    with pytest.raises(InputError, match="101 bytes: at most 100 are read"):
        open_images(write_tar(tmp_path / "a.tar", [("a.jpg", bytes(101))]))


@pytest.fixture
def parquet_file(images: Path, tmp_path: Path) -> Path:
    pytest.importorskip("pyarrow")
    return write_parquet(tmp_path / "a.parquet", images, [f"class{i % 3}/00{i // 3}.png" for i in range(6)])


@pytest.mark.parametrize("length", [0, 7, 1 << 20, (1 << 32) - 1])
def test_a_parquet_footer_that_lies_about_its_length(length: int, parquet_file: Path) -> None:
    whole = parquet_file.read_bytes()
    parquet_file.write_bytes(whole[:-8] + struct.pack("<I", length) + b"PAR1")
    with pytest.raises(DamageError, match="cannot be read as Parquet: restore it"):
        open_images(parquet_file)


def test_truncated_parquet_and_other_files(parquet_file: Path) -> None:
    whole = parquet_file.read_bytes()
    for data in (b"", b"PAR1", whole[:-1], whole[: len(whole) // 2], b"PAR1" + bytes(100) + b"PAR1", b"x" * 1000):
        parquet_file.write_bytes(data)
        with pytest.raises(DamageError) as caught:
            open_images(parquet_file)
        assert "\n" not in str(caught.value)


def test_more_rows_than_a_file_can_hold(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = pyarrow.nulls(5_000_000, pyarrow.binary())
    parquet.write_table(pyarrow.table({"image": rows, "codes": rows}), tmp_path / "a.parquet")
    for opener in (open_images, lambda path: ParquetTokens.open([path])):
        with pytest.raises(DamageError, match=r"claims 5000000 rows in \d+ bytes"):
            opener(tmp_path / "a.parquet")


def test_nested_parquet_types_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    deep = pyarrow.binary()
    for _ in range(40):
        deep = pyarrow.list_(deep)
    table = pyarrow.table({"image": pyarrow.nulls(2, deep), "codes": pyarrow.nulls(2, deep)})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no images in a column 'image'"):
        open_images(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="rows without codes"):
        store_tokens(ParquetTokens.open([tmp_path / "a.parquet"]), tmp_path / "a.tok")


def test_large_row_groups_and_columns_are_refused(parquet_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_images(parquet_file)
    monkeypatch.setattr(parquet_files, "LARGEST_GROUP", 1000)
    with pytest.raises(InputError, match="row group 0 of"):
        next(opened.files([0]))
    monkeypatch.setattr(parquet_files, "LARGEST_GROUP", 40)
    with pytest.raises(InputError, match="bytes"):
        open_images(parquet_file)


def test_rows_that_repeat_a_large_value_are_decoded_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 60), pyarrow.array([bytes(1 << 20)]))
    how = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 30}
    parquet.write_table(pyarrow.table({"image": rows}), tmp_path / "a.parquet", **how)
    assert (tmp_path / "a.parquet").stat().st_size < 5000
    opened = open_images(tmp_path / "a.parquet")
    monkeypatch.setattr(parquet_files, "LARGEST_GROUP", 1 << 23)
    monkeypatch.setattr(parquet_files, "BATCH_BYTES", 1 << 22)
    before = pyarrow.default_memory_pool()
    pool = pyarrow.proxy_memory_pool(before)
    pyarrow.set_memory_pool(pool)
    try:
        with pytest.raises(InputError, match="row group 0 of"):
            next(opened.files([0]))
    finally:
        pyarrow.set_memory_pool(before)
    assert pool.max_memory() < 1 << 25  # all rows in one call would be twice that


@pytest.mark.parametrize("kind", ["date32", "date64", "duration"])
def test_labels_that_are_impossible_dates_are_refused(kind: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    large = {"date32": (2**31 - 1, "int32"), "date64": (2**62 // 86_400_000 * 86_400_000, "int64")}
    number, width = large.get(kind, (2**62, "int64"))
    label = pyarrow.array([number], getattr(pyarrow, width)())
    label = label.cast(pyarrow.duration("s") if kind == "duration" else getattr(pyarrow, kind)())
    table = pyarrow.table({"image": [IMAGE], "codes": [[1, 2]], "label": label})
    parquet.write_table(table, tmp_path / "a.parquet")
    for opener in (open_images, lambda path: ParquetTokens.open([path])):
        with pytest.raises(DamageError, match=r"a\.parquet cannot be read as Parquet: restore it \(.+\)") as caught:
            opener(tmp_path / "a.parquet")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("flat", [[1, 2], ["a", "b"]])
def test_a_column_of_the_name_of_a_member_is_not_taken_for_it(flat: list[object], tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    images = pyarrow.array([{"bytes": b"one", "path": "1"}, {"bytes": b"two", "path": "2"}])
    for first in (True, False):
        columns = {"image.bytes": pyarrow.array(flat), "image": images}
        table = pyarrow.table(columns if first else dict(reversed(columns.items())))
        parquet.write_table(table, tmp_path / "a.parquet")
        assert [file.read() for file in open_images(tmp_path / "a.parquet").files([0, 1])] == [b"one", b"two"]  # type: ignore[union-attr]


def test_flipped_bits_in_parquet_never_crash(parquet_file: Path, images: Path, tmp_path: Path) -> None:
    """In a process of its own: whatever pyarrow does with it, only our errors come out."""
    script = """
import sys
from pathlib import Path
import numpy as np
from tilework.core.errors import TileworkError
from tilework.data.open_images import open_images
path = Path(sys.argv[1])
whole = path.read_bytes()
refused = 0
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
places = [*np.random.default_rng(0).integers(4, footer, 8), *range(footer, len(whole), 40)]
for place in map(int, places):
    path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1:])
    try:
        opened = open_images(path)
        list(opened.files(range(len(opened))))
    except TileworkError:
        refused += 1
print(refused)
"""
    ran = subprocess.run([sys.executable, "-c", script, parquet_file], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 0


def hostile(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(kind: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    "book",
    [
        hostile({}, length=1 << 60),
        hostile({}, length=(1 << 64) - 1),
        hostile({"codebook": tensor("F32", [16, 8], 0, 512), "used": tensor("I32", [16], 0, 64)}, bytes(512)),
        hostile({"codebook": tensor("F32", [1 << 40, 8], 0, 1 << 45), "used": tensor("I32", [1 << 40], 0, 4)}),
        hostile({"codebook": tensor("F32", [16, 8], 0, 512)}, bytes(512)),
        hostile({"codebook": tensor("F32", [16, 8], 0, 512), "used": tensor("I32", [16], 512, 576)}, b"\xff" * 576),
        hostile({"codebook": tensor("I32", [16, 8], 0, 512), "used": tensor("I32", [16], 512, 576)}, bytes(576)),
        hostile({"codebook": tensor("F32", [0, 8], 0, 0), "used": tensor("I32", [0], 0, 0)}),
        hostile({"codebook": tensor("F32", [16, 8], 0, 512), "used": tensor("I32", [16], 512, 576)}, bytes(576)),
        b"",
        b"\x80\x04.",
    ],
)
@pytest.mark.parametrize("kind", ["wds", "parquet"])
def test_hostile_codebooks(book: bytes, kind: str, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "wds":
        write_tar_tokens(Store(store), out)
        (out / CODEBOOK).write_bytes(book)
        told = json.loads((out / DESCRIPTION).read_text())
        (out / DESCRIPTION).write_text(json.dumps({**told, "codebook": sha256(out / CODEBOOK)}))
        tokens: TarTokens | ParquetTokens = TarTokens.open([out / "00000.tar"])
    else:
        pytest.importorskip("pyarrow")
        write_parquet_tokens(Store(store), out)
        (out / CODEBOOK).write_bytes(book)
        tokens = ParquetTokens.open([out / "00000.parquet"])
    with pytest.raises(TileworkError) as caught:
        store_tokens(tokens, tmp_path / "b.tok")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.tok"]


@pytest.mark.parametrize(
    "change",
    [
        {"grid": [1 << 32, 1 << 32]},
        {"grid": [-8, -8]},
        {"grid": []},
        {"grid": "8"},
        {"views": 0},
        {"views": 1 << 62},
        {"vocabulary": 1 << 62},
        {"tokenizer_codes": 1 << 62},
        {"images": 1},
        {"images": 1 << 62},
        {"classes": []},
        {"classes": 5},
        {"files": {"../../etc/passwd": "x"}},
        {"version": 99},
        {"format": "x"},
        {"more": 1},
    ],
)
def test_hostile_descriptions(change: dict[str, object], store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_tar_tokens(Store(store), out)
    told = json.loads((out / DESCRIPTION).read_text())
    (out / DESCRIPTION).write_text(json.dumps({**told, **change}))
    with pytest.raises(TileworkError) as caught:
        store_tokens(TarTokens.open([out / "00000.tar"]), tmp_path / "b.tok")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "train.tok"]


def test_a_description_of_brackets(store: Path, tmp_path: Path) -> None:
    write_tar_tokens(Store(store), tmp_path / "out")
    (tmp_path / "out" / DESCRIPTION).write_bytes(b"[" * 200_000)
    with pytest.raises(DamageError, match="malformed"):
        TarTokens.open([tmp_path / "out/00000.tar"])


BOMBS = """
import gzip, io, json, resource, sys
from pathlib import Path
import numpy as np, pyarrow, torch
from pyarrow import parquet
from tilework.core.errors import TileworkError
from tilework.data import parquet_files
from tilework.data.open_images import open_images
from tilework.data.parquet_tokens import ParquetTokens
from tilework.data.seit_files import read_seit
from tilework.data.token_files import store_tokens

root = Path(sys.argv[1])
parquet_files.LARGEST_GROUP = 1 << 26
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # MiB

seit = root / "seit"
seit.mkdir()
with gzip.open(seit / "a-token.data.bin.gz", "wb", 1) as file:
    for _ in range(256):
        file.write(bytes(1 << 20))  # 256 MiB in 1 MB
index = io.BytesIO()
np.lib.format.write_array_header_1_0(index, {"descr": "<i8", "fortran_order": False, "shape": (1 << 40,)})
(seit / "a-token.index.npy.gz").write_bytes(gzip.compress(index.getvalue()))
(seit / "a-label.txt").write_text("0")
torch.save(torch.zeros(4, 2), seit / "codebook.ckpt")

value = bytes(1 << 22)  # one image of 4 MiB named by a thousand rows: 4 GiB in a file of kilobytes
rows = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(1000, np.int32)), pyarrow.array([value]))
how = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 1 << 30}
parquet.write_table(pyarrow.table({"image": rows}), root / "dictionary.parquet", **how)
large = pyarrow.array([bytes(40 << 20)])  # one of 40 MiB, so that few rows fill gigabytes
rows = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(64, np.int32)), large)
parquet.write_table(pyarrow.table({"image": rows}), root / "large.parquet", **how)
wide = pyarrow.array([value] * 24)  # 96 MiB, said so
parquet.write_table(pyarrow.table({"image": wide}), root / "wide.parquet", compression="zstd", use_dictionary=False)
flat = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.zeros(1 << 24, np.int32)), 1 << 22)
flat = pyarrow.concat_arrays([flat, flat])
parquet.write_table(pyarrow.table({"codes": flat}), root / "codes.parquet", compression="zstd")
del wide, flat, rows, large

def attempt(call):
    before = peak()
    try:
        call()
        return "read", peak() - before
    except TileworkError as error:
        return str(error), peak() - before

print(json.dumps({
    "start": ["", peak()],
    "gzip": attempt(lambda: read_seit(seit, root / "a.tok", (4, 4))),
    "dictionary": attempt(lambda: list(open_images(root / "dictionary.parquet").files([0]))),
    "large": attempt(lambda: list(open_images(root / "large.parquet").files([0]))),
    "wide": attempt(lambda: list(open_images(root / "wide.parquet").files([0]))),
    "codes": attempt(lambda: store_tokens(ParquetTokens.open([root / "codes.parquet"]), root / "b.tok")),
}))
"""


def test_bombs_do_not_go_off(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    run = [sys.executable, "-c", BOMBS, str(tmp_path)]
    ran = subprocess.run(run, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert "unpacks to more than" in found["gzip"][0]
    for name in ("dictionary", "large", "wide", "codes"):
        assert "row group 0 of" in found[name][0], name
    assert all(more < 600 for _, more in list(found.values())[1:]), found  # MiB above the start
    assert not list(tmp_path.glob("*.tok*"))
    assert (tmp_path / "dictionary.parquet").stat().st_size < 100_000


def test_an_index_that_claims_terabytes(tmp_path: Path) -> None:
    from tilework.data.seit_files import _offsets

    index = io.BytesIO()
    np.lib.format.write_array_header_1_0(index, {"descr": "<i8", "fortran_order": False, "shape": (1 << 40,)})
    (tmp_path / "a.gz").write_bytes(gzip.compress(index.getvalue()))
    with pytest.raises(DamageError, match="not a numpy array"):
        _offsets(tmp_path / "a.gz")


def test_no_image_is_unpacked_to_disk(images: Path, tmp_path: Path) -> None:
    files = samples_of(images, ["class0/000.png", "class1/000.png"])
    opened = open_images(write_tar(tmp_path / "s/a.tar", files))
    before = sorted(tmp_path.rglob("*"))
    assert [file.read()[:4] for file in opened.files([0, 1])] == [b"\x89PNG"] * 2  # type: ignore[union-attr]
    assert sorted(tmp_path.rglob("*")) == before
