"""`tilework column`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Json, StorePath
from tilework.cli.output import show


def column(
    store: StorePath,
    name: Annotated[Positional[str], arg(metavar="NAME")],
    values: Annotated[Positional[Path], arg(metavar="FILE")],
    /,
    json: Json = False,
) -> None:
    """Add a column (one value per image, such as a score) to a token store.

    Shards are not rewritten.

    Try:
      tilework column train.tok c_score scores.npy
      tilework column train.tok source sources.txt

    Args:
        name: Name of the new column: letters, digits and _.
        values: .npy file with one entry per image, or text file with one line per image, in the order of the store.
    """
    import numpy as np

    from tilework.core.errors import InputError
    from tilework.store import Store

    try:
        if values.suffix == ".npy":
            found = np.load(values, allow_pickle=False, mmap_mode="r")  # sizes are those of the file
        else:
            found = values.read_text("utf-8", "surrogateescape").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{values} cannot be read", str(error)) from error
    tokens = Store(store)
    tokens.add_column(name, found)
    size = sum(f.bytes for file, f in tokens.manifest.files.items() if file.startswith(f"columns/{name}"))
    show({"store": str(store), "column": name, "bytes_per_image": size / len(tokens)}, json)
