"""Small tar and Parquet files for tests, made with the standard library and pyarrow, not with our writers."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path


def write_tar(path: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    """A plain tar file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def samples_of(folder: Path, keys: list[str], label: str = "cls") -> list[tuple[str, bytes]]:
    """Images of a class folder as members: 'cat/0.png' and its class number beside it."""
    classes = sorted({key.split("/")[0] for key in keys})
    files = []
    for key in keys:
        stem, number = key.partition(".")[0], classes.index(key.split("/")[0])
        files.append((f"./{key}", (folder / key).read_bytes()))
        text = {"cls": str(number), "json": f'{{"label": {number}}}', "name": f'{{"label": "{classes[number]}"}}'}[
            label
        ]
        files.append((f"./{stem}.{'cls' if label == 'cls' else 'json'}", text.encode()))
    return files


def write_parquet(path: Path, folder: Path, keys: list[str], struct: bool = True, names: bool = True) -> Path:
    """Images of a class folder as Hugging Face's data sets keep them, in row groups of three."""
    import pyarrow
    from pyarrow import parquet

    classes = sorted({key.split("/")[0] for key in keys})
    data = [(folder / key).read_bytes() for key in keys]
    image = [{"bytes": one, "path": key} for one, key in zip(data, keys, strict=True)] if struct else data
    table = pyarrow.table({"image": image, "label": [classes.index(key.split("/")[0]) for key in keys]})
    told = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": classes, "_type": "ClassLabel"}}}}
    if names:
        table = table.replace_schema_metadata({"huggingface": json.dumps(told)})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=3)
    return path
