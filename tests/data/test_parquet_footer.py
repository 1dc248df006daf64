"""Footers of Parquet files against pyarrow, which wrote them; and those that end its process."""

from __future__ import annotations

import io
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tilework.core.errors import DamageError
from tilework.data.parquet_files import column_values, open_parquet
from tilework.data.parquet_footer import DEEPEST, LARGEST, Chunk, column_chunks

CONTRADICTING = Path(__file__).with_name("contradicting_statistics.parquet")  # histograms of the wrong length

TABLES: dict[str, Any] = {
    "plain": {"a": [1, 2, 3], "b": ["x", None, "é" * 300]},
    "nested": {"codes": [[[1, 2], [3]], [], None], "image": [{"bytes": b"x", "path": None}] * 3},
    "many": {f"column {i}": list(range(40)) for i in range(20)},
    "empty": {"a": pyarrow.array([], pyarrow.int64())},
    "wide": {"a": pyarrow.array([[1, 2]] * 5, pyarrow.list_(pyarrow.uint16(), 2)), "b": [1.5] * 5, "c": [True] * 5},
}


def written(table: dict[str, Any], **settings: Any) -> io.BytesIO:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), file, **settings)
    return file


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("settings", [{}, {"row_group_size": 1}, {"compression": "zstd", "use_dictionary": False}])
def test_the_footer_says_what_pyarrow_reads_in_it(name: str, settings: dict[str, Any]) -> None:
    file = written(TABLES[name], write_page_index=True, store_schema=True, **settings)
    found = column_chunks(file)
    footer = pyarrow.parquet.read_metadata(file)
    wanted = [
        [
            Chunk(column.num_values, column.total_uncompressed_size, column.physical_type.endswith("BYTE_ARRAY"))
            for column in map(footer.row_group(group).column, range(footer.num_columns))
        ]
        for group in range(footer.num_row_groups)
    ]
    assert found == wanted


def test_a_footer_that_ends_the_process_of_pyarrow_is_refused() -> None:
    program = (
        "import sys; from pathlib import Path; from tilework.data.parquet_tokens import ParquetTokens\n"
        "ParquetTokens.open([Path(sys.argv[1])])"
    )
    ended = subprocess.run([sys.executable, "-c", program, CONTRADICTING], capture_output=True, text=True)
    assert ended.returncode == 1, ended.stderr
    assert "DamageError" in ended.stderr.splitlines()[-1]
    assert "histogram size mismatch" in ended.stderr


def rebuilt(footer: bytes) -> io.BytesIO:
    return io.BytesIO(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize(
    ("footer", "reason"),
    [
        (b"", "no footer"),
        (b"\x00", "damaged"),  # no row groups
        (b"\x15", "damaged"),  # cut in a field
        (b"\x49\xfc\xff\xff\xff\xff\xff\xff\xff\x7f", "damaged"),  # a list of 2**63 row groups
        (b"\x15" + b"\xff" * 11, "damaged"),  # a number without end
        (b"\x1c" * (2 * DEEPEST), "too deep"),
        (b"\x5b\x00", "unknown kind"),
        (b"\x49\x1c\x19\x1c\x3c\x15\x00\x46\x01\x16\x00\x00\x00\x00\x00", "claims -1 values"),
    ],
)
def test_senseless_footers_are_refused(footer: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        column_chunks(rebuilt(footer))


def test_a_file_without_its_end_is_damaged(tmp_path: Path) -> None:
    data = written(TABLES["plain"]).getvalue()
    (tmp_path / "x.parquet").write_bytes(data[:-1])
    with pytest.raises(DamageError, match="no footer of Parquet"), open_parquet(tmp_path / "x.parquet"):
        pass


def test_a_footer_of_very_many_bytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.parquet").open("wb") as file:
        file.truncate(1 << 26)
        file.seek(0, 2)
        file.write((LARGEST + 1).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(DamageError, match=f"its footer has {LARGEST + 1} bytes"), open_parquet(tmp_path / "x.parquet"):
        pass


@pytest.mark.parametrize(
    ("head", "one"),
    [(b"\x1c", b"\x00"), (b"\x19\x0c", b""), (b"\x15", b"\x00"), (b"\x18", b"\x00")],
    ids=["structs", "lists", "integers", "texts"],
)
def test_very_many_values_take_no_time(head: bytes, one: bytes) -> None:
    """Thirty million empty structs took 2.4 GB and ten seconds."""
    count = LARGEST - 100
    length = b""
    while count > 127:
        length, count = length + bytes([count & 127 | 128]), count >> 7
    footer = b"\x19" + bytes([0xF0 | head[0] & 15]) + length + bytes([count]) + bytes(LARGEST - 100)
    before = time.process_time()
    with pytest.raises(ValueError, match="very many values"):
        column_chunks(rebuilt(footer))
    assert time.process_time() - before < 1


def test_many_small_values_are_passed_over_in_little_memory() -> None:
    footer = b"\x19\xfc\xa0\xc2\x1e" + bytes(500_000) + b"\x39\x0c\x00"  # as many empty structs; no row groups
    tracemalloc.start()
    assert column_chunks(rebuilt(footer)) == []
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()


def test_an_encrypted_file_is_named_so(tmp_path: Path) -> None:
    data = written(TABLES["plain"]).getvalue()
    (tmp_path / "x.parquet").write_bytes(data[:-4] + b"PARE")
    with pytest.raises(DamageError, match="encrypted"), open_parquet(tmp_path / "x.parquet"):
        pass


def test_categories_are_read_as_their_names(tmp_path: Path) -> None:
    """Each batch carried all of them, and all were counted for each."""
    names = [f"class {number} with a long name, as people give them" for number in range(500)]
    numbers = np.arange(40_000) % 500
    column = pyarrow.DictionaryArray.from_arrays(pyarrow.array(numbers.astype(np.int32)), pyarrow.array(names))
    pyarrow.parquet.write_table(pyarrow.table({"label": column}), tmp_path / "x.parquet")
    with open_parquet(tmp_path / "x.parquet") as parquet:
        assert column_values(parquet, "label") == [names[number] for number in numbers]
