"""`tilework convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Json, OptionalPath
from tilework.cli.output import progress_bar, show


def convert(
    source: Annotated[Positional[Data], arg(metavar="SOURCE")],
    /,
    out: Path,
    to: Literal["store", "seit", "npy", "wds", "parquet"] = "store",
    codec: str = "auto",
    grid: Annotated[tuple[int, int] | None, arg(metavar="H W", help_behavior_hint="(optional)")] = None,
    name: str = "",
    codebook: OptionalPath = None,
    labels: OptionalPath = None,
    licence: str = "",
    json: Json = False,
) -> None:
    """Turn a store into another form or codec, or other people's files into a store.

    Try:
      tilework convert train.tok --codec pairwise --out archive.tok
      tilework convert seit-files --grid 32 32 --out train.tok
      tilework convert train.tok --to seit --name train --out seit-files
      tilework convert codes.npy --codebook codebook.npy --labels labels.npy --out train.tok
      tilework convert train.tok --to wds --out train-shards
      tilework convert train-shards --out train.tok

    Args:
        source: Token store, folder of SeiT's published files (NAME-token.data.bin.gz, ...), .npy file of codes, or
            codes in tar (WebDataset: KEY.npy, KEY.cls) or Parquet files: one, a folder of them, or a pattern in quotes.
        out: Store or folder to write.
        to: What to write: a store, SeiT's files, numpy arrays, tar files (WebDataset) or Parquet files.
        codec: Of the store: packed, rans, rans-context, auto for the smallest of them, or pairwise for archives.
        grid: Rows and columns of codes, where the source does not say.
        name: Data set among SeiT's files: to read where there are several, or to write.
        codebook: Code vectors, a .npy file of (K, C), where the source has none.
        labels: Labels of a .npy file of codes, (N,).
        licence: Note on the terms of the data, kept in the store.
    """
    import numpy as np

    from tilework.core.errors import ConfigError, InputError
    from tilework.core.location import Url
    from tilework.data.npy_files import read_npy, write_npy
    from tilework.data.open_images import find_files
    from tilework.data.parquet_tokens import ParquetTokens, write_parquet_tokens
    from tilework.data.seit_files import find_names, read_seit, write_seit
    from tilework.data.tar_tokens import TarTokens, write_tar_tokens
    from tilework.data.token_files import left_out, store_tokens
    from tilework.store import Store, codecs, gather
    from tilework.train.log import notice

    if codec != "auto":
        codecs[codec]  # an unknown name is refused before any work
    is_store = isinstance(source, Url) or (source / "manifest.json").is_file()
    if to != "store" and not is_store:
        raise ConfigError(f"{source} is not a token store", "make one of it first: leave out --to")
    with progress_bar("convert", quiet=json) as progress:
        if isinstance(source, Url) or is_store:
            store = Store(source)
            if to == "store":
                gather(out, [(store, np.arange(len(store)))], codec, progress=progress)
            elif to == "seit":
                write_seit(store, out, name or Path(source).stem, progress)
            else:
                {"npy": write_npy, "wds": write_tar_tokens, "parquet": write_parquet_tokens}[to](store, out, progress)
            if to != "store" and (columns := left_out(store)):
                notice(f"left out: {', '.join(columns)} (only a store holds such columns)", json)
        elif source.suffix == ".npy":
            read_npy(source, out, codebook, labels, grid, codec, licence, progress)
        elif source.is_dir() and find_names(source):
            if grid is None:
                raise ConfigError(f"{source} does not say how its codes lie", "add --grid, for example --grid 32 32")
            read_seit(source, out, grid, name, codec, licence, progress)
        elif files := find_files(source):
            tokens = (ParquetTokens if files[0].suffix == ".parquet" else TarTokens).open(files)
            store_tokens(tokens, out, codebook, grid, codec, licence, progress)
        else:
            looked = "a store, *-token.data.bin.gz, and .npy, .tar and .parquet files were looked for"
            raise InputError(f"{source} is nothing that can be converted", looked)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    show({"output": str(out), "bytes": size, **({"codec": Store(out).manifest.codec} if to == "store" else {})}, json)
