"""`tilework subset` and `tilework split`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from tilework.cli.arguments import Json, OptionalPath, StorePath
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
    store: StorePath,
    /,
    out: Annotated[tuple[Path, Path], arg(metavar="FIRST REST")],
    fraction: float,
    seed: int = 0,
    codec: str = "",
    json: Json = False,
) -> None:
    """Split a token store in two, stratified by class.

    Try:
      tilework split all.tok --fraction 0.9 --out train.tok val.tok

    Args:
        out: The two stores to write.
        fraction: Share of each class that goes into the first.
        seed: Seed of the random choice.
        codec: Codec of the new stores; by default that of STORE.
    """
    import numpy as np

    from tilework.core.errors import InputError, OutputError
    from tilework.store import Store, gather, pick_fraction

    whole = Store(store)
    first = pick_fraction(whole, fraction, seed)
    rest = np.setdiff1d(np.arange(len(whole)), first)
    if not len(rest):
        raise InputError(f"a fraction of {fraction} leaves nothing for {out[1]}", "lower it")
    for path in out:
        if path.exists():
            raise OutputError(f"{path} exists", "choose another directory or remove it")
    with progress_bar("split", quiet=json) as progress:
        gather(out[0], [(whole, first)], codec, progress=progress)
        gather(out[1], [(whole, rest)], codec, progress=progress)
    show({str(out[0]): len(first), str(out[1]): len(rest)}, json)
