"""`tilework subset` and `tilework split`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Classes, Data, Json, OptionalPath, StorePath
from tilework.cli.output import progress_bar, show


def subset(
    store: StorePath,
    /,
    out: Path,
    fraction: Annotated[float | None, arg(metavar="SHARE", help_behavior_hint="(optional)")] = None,
    score: str = "",
    keys: OptionalPath = None,
    seed: int = 0,
    codec: str = "",
    json: Json = False,
) -> None:
    """Write a subset of a token store: random, by score, or by a list of keys.

    Try:
      tilework subset train.tok --fraction 0.2 --out fifth.tok
      tilework subset train.tok --fraction 0.2 --score c_score --out easy.tok
      tilework subset train.tok --keys list.txt --out chosen.tok

    Args:
        out: Store to write.
        fraction: Share of each class to keep, at least one image.
        score: Numeric column: keep the images with the highest values instead of random ones.
        keys: Text file with one image key per line.
        seed: Seed of the random choice.
        codec: Codec of the new store; by default that of STORE.
    """
    from tilework.core.errors import ConfigError, InputError
    from tilework.store import Store, gather, pick_fraction, pick_keys

    if (fraction is None) == (keys is None):
        raise ConfigError("--fraction and --keys are both given or both missing", "give exactly one")
    whole = Store(store)
    if fraction is not None:
        index = pick_fraction(whole, fraction, seed, score)
    else:
        assert keys is not None
        try:
            lines = keys.read_text("utf-8", "surrogateescape").splitlines()
        except OSError as error:
            raise InputError(f"{keys} cannot be read", str(error)) from error
        index = pick_keys(whole, [line for line in lines if line])
    with progress_bar("subset", quiet=json) as progress:
        gather(out, [(whole, index)], codec, progress=progress)
    show({"store": str(out), "images": len(index), "of": len(whole)}, json)


def split(
    data: Annotated[Positional[Data], arg(metavar="STORE|IMAGES")],
    /,
    out: Annotated[tuple[Path, Path], arg(metavar="FIRST REST")],
    fraction: float = 0.8,
    seed: int = 0,
    codec: str = "",
    classes: Classes = None,
    json: Json = False,
) -> None:
    """Split a token store or a folder of images in two, stratified by class.

    Of images, two label files are written, which every command takes instead of a folder; nothing is copied.

    Try:
      tilework split all.tok --fraction 0.9 --out train.tok val.tok
      tilework split photos --out train.csv val.csv
      tilework train plain_pixel_cpu --data train.csv --val val.csv --out runs/photos

    Args:
        data: Token store, folder of images or label file.
        out: The two stores, or label files (.csv), to write.
        fraction: Share of each class that goes into the first.
        seed: Seed of the random choice.
        codec: Codec of the new stores; by default that of STORE.
    """
    import numpy as np

    from tilework.core.errors import ConfigError, InputError, OutputError
    from tilework.core.location import Url, is_store
    from tilework.store import Store, gather, pick_fraction

    if out[0].absolute() == out[1].absolute():
        raise ConfigError(f"--out {out[0]} {out[1]} is one name twice", "give two")
    for path in out:
        if path.exists():
            raise OutputError(f"{path} exists", "choose another name or remove it")
    if not 0 < fraction <= 1:
        raise InputError(f"fraction {fraction} is out of range", "give a number above 0 and below 1")
    if not isinstance(data, Url) and not is_store(data):
        show(_split_images(data, out, fraction, seed, classes or "leaf"), json, files=True)
        return
    whole = Store(data)
    first = pick_fraction(whole, fraction, seed)
    rest = np.setdiff1d(np.arange(len(whole)), first)
    if not len(rest):
        raise InputError(f"a fraction of {fraction} leaves nothing for {out[1]}", "lower it")
    with progress_bar("split", quiet=json) as progress:
        gather(out[0], [(whole, first)], codec, progress=progress)
        gather(out[1], [(whole, rest)], codec, progress=progress)
    show({str(out[0]): len(first), str(out[1]): len(rest)}, json, files=True)


def _split_images(
    data: Path, out: tuple[Path, Path], fraction: float, seed: int, level: Literal["leaf", "top"]
) -> dict[str, int]:
    """Two label files; a class of one image goes into the first."""
    from tilework.core.console import notice
    from tilework.core.errors import ConfigError
    from tilework.data.image_folder import ImageFolder
    from tilework.data.split import split_images

    if any(path.suffix != ".csv" for path in out):
        raise ConfigError(f"--out {out[0]} {out[1]}: images are split into label files", "give two names with .csv")
    folder = ImageFolder.open(data, level=level)
    for note in folder.notes:
        notice(note)
    return dict(zip(map(str, out), split_images(folder, out, fraction, seed), strict=True))
