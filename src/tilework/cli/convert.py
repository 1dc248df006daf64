"""`tilework convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Json, OptionalPath
from tilework.cli.output import progress_bar, show

FILES = (".npy", ".npz", ".parquet", ".tar", ".zip", ".gz", ".csv", ".h5", ".pt", ".safetensors")  # endings


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
    """Convert a token store to another codec or format, or token files to a store.

    Try:
      tilework convert train.tok --codec pairwise --out archive.tok
      tilework convert seit-files --grid 32 32 --out train.tok
      tilework convert train.tok --to seit --name train --out seit-files
      tilework convert codes.npy --codebook codebook.npy --labels labels.npy --out train.tok
      tilework convert train.tok --to wds --out train-shards
      tilework convert train-shards --out train.tok

    Args:
        source: Token store, folder of SeiT's published files (NAME-token.data.bin.gz, ...), .npy file of codes, or
            tar (WebDataset: KEY.npy, KEY.cls) or Parquet files of codes: one, a folder of them, or a quoted pattern.
        out: Store or folder to write.
        to: Output format: token store, SeiT's files, numpy arrays, tar files (WebDataset) or Parquet files.
        codec: Codec of the store: packed, rans, rans-context, mix, auto (smallest of these), or pairwise (slow).
        grid: Rows and columns of codes, if the source does not state them.
        name: Name of the data set in SeiT's files, to read one of several or to write.
        codebook: .npy file with the code vectors, (K, C), if the source has none.
        labels: .npy file with the labels, (N,), for a .npy file of codes.
        licence: Licence note to keep in the store.
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

    if out.suffix.lower() in FILES:
        hint = f"leave '{out.suffix}' out; --to npy, parquet, wds or seit chooses another format than a store's"
        raise ConfigError(f"--out {out} is named like a file, and convert writes a directory", hint)
    if codec != "auto":
        codecs[codec]  # an unknown name is refused before any work
    is_store = isinstance(source, Url) or (source / "manifest.json").is_file()
    if to != "store" and not is_store:
        raise ConfigError(f"{source} is not a token store", "convert it to a store first: leave out --to")
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
                notice(f"not written: {', '.join(columns)} (only token stores hold such columns)", json)
        elif source.suffix == ".npy":
            read_npy(source, out, codebook, labels, grid, codec, licence, progress)
        elif source.is_dir() and find_names(source):
            if grid is None:
                raise ConfigError(f"{source} does not state its code grid", "add --grid, for example --grid 32 32")
            read_seit(source, out, grid, name, codec, licence, progress)
        elif files := find_files(source):
            tokens = (ParquetTokens if files[0].suffix == ".parquet" else TarTokens).open(files)
            store_tokens(tokens, out, codebook, grid, codec, licence, progress)
        else:
            formats = "give a token store, a folder with *-token.data.bin.gz, or .npy, .tar or .parquet files"
            raise InputError(f"no tokens found in {source}", formats)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    show({"output": str(out), "bytes": size, **({"codec": Store(out).manifest.codec} if to == "store" else {})}, json)
