"""Runs one after another, each from the weights of the one before (SeiT: 21k tokens, then 1k tokens, then pixels)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tilework.core.config import encode, read_yaml, to_yaml
from tilework.core.distributed import world
from tilework.core.errors import ConfigError, InputError, OutputError
from tilework.core.files import is_free, make_directory, write, write_json
from tilework.core.place import Place, Url
from tilework.data import ImageFolder, ImageSource, Part, Source, TokenSource
from tilework.models import Model
from tilework.runs.build import check_data, check_there, is_store
from tilework.runs.codes import Codes
from tilework.runs.job import check_maps, train_in
from tilework.runs.run import Chain
from tilework.runs.start import Start
from tilework.runs.trained import RESULTS
from tilework.store import Store
from tilework.train import Result
from tilework.train.checkpoint import latest_checkpoint

CHAIN = "chain.yaml"


def places(chain: Chain, out: Path) -> list[Path]:
    """The directory of each run: OUT/1-NAME, OUT/2-NAME, ..."""
    return [out / f"{number}-{link.name}" for number, link in enumerate(chain.links, 1)]


def train_chain(
    chain: Chain,
    data: Sequence[Place],
    val: Sequence[Place | None],
    out: Path,
    device: str = "auto",
    title: str = "train",
    quiet: bool = False,
    start: Path | None = None,
) -> Result:
    """Train every link on its data; the same call again goes on inside the link that was under way."""
    check_links(chain, data, val, start)
    with world(device) as place:
        if place.leads:
            _claim(chain, out)
        for number, (link, where) in enumerate(zip(chain.links, places(chain, out), strict=True)):
            name = f"{title} {number + 1}/{len(chain.links)} {link.name}"
            result = train_in(place, link.run, data[number], val[number], start, where, name, quiet)
            start = where
        if place.leads:
            write_json(out / RESULTS, {"steps": result.steps, **result.metrics})
    return result


def _claim(chain: Chain, out: Path) -> None:
    """Refuse a directory that holds something else, or a chain with a link torn out."""
    if is_free(out):
        make_directory(out)
        write(out / CHAIN, to_yaml(chain).encode())
    elif not (out / CHAIN).is_file():
        raise OutputError(f"{out} holds other files", "choose another --out")
    elif read_yaml(out / CHAIN) != encode(chain):
        raise OutputError(f"{out} holds another chain", "choose another --out, or repeat its settings to go on with it")
    before: Path | None = None
    for where in places(chain, out):
        begun = latest_checkpoint(where / "checkpoints") is not None
        if begun and before is not None and not (before / RESULTS).is_file():
            raise InputError(f"{where} goes on from {before}, which is missing or unfinished", f"restore {before}")
        before = where


def check_links(chain: Chain, data: Sequence[Place], val: Sequence[Place | None], start: Path | None) -> None:
    """Refuse, before the first step, data that do not fit their links and links that do not fit each other."""
    if not len(chain.links) == len(data) == len(val):
        raise ConfigError(
            f"the chain has {len(chain.links)} links, but {len(data)} data sets and {len(val)} to evaluate on",
            "give --data and --val as many paths ('none' for no evaluation)",
        )
    before = Start.read(start) if start is not None else None
    for link, path, judge in zip(chain.links, data, val, strict=True):
        check_maps(link.run, path)
        source = _glance(path, link.run.size)
        source = Part(source, link.run.samples) if link.run.samples else source
        judged = None if judge is None else _glance(judge, link.run.size, source.classes)
        _, model = check_data(link.run, source, judged, path, judge)
        if not isinstance(model, Model):
            raise ConfigError(f"link '{link.name}' trains a {type(model).__name__}", "chain classifiers only")
        if before is not None:
            before.fill(model, source.classes)
            before.table_for(source)
        book = source.codebook if link.run.objective.learns_table else None
        codes = None if book is None else Codes(book, torch.arange(len(book)), book)
        before = Start(Path(link.name), model.state_dict(), source.classes, model.grid, codes)


def _glance(path: Place, size: tuple[int, int], classes: tuple[str, ...] | None = None) -> Source:
    """The data at a path; the images of a folder are counted, not read."""
    check_there(path)
    if isinstance(path, Url) or is_store(path):
        return TokenSource(Store(path), classes)
    folder = ImageFolder.open(path, classes)
    return ImageSource(folder, size, _kept=np.broadcast_to(np.uint8(0), (len(folder), 3, *size)))
