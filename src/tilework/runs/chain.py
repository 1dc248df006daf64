"""Runs one after another, each from the weights of the one before (SeiT: 21k tokens, then 1k tokens, then pixels)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilework.augment import build_all
from tilework.core.distributed import join_world
from tilework.core.errors import ConfigError
from tilework.core.location import Location, PathOrHub, Url, is_store
from tilework.core.sealed import write_sealed
from tilework.data import ImageSource, Source, TokenSource
from tilework.data.image_folder import Level
from tilework.data.open_images import open_images
from tilework.models import Model
from tilework.runs.build import check_data, check_there, chosen, find_columns, with_batch
from tilework.runs.directory import RESULTS, claim_chain
from tilework.runs.job import train_in
from tilework.runs.pins import pin_settings, pin_start
from tilework.runs.run import Chain
from tilework.runs.start import Start
from tilework.store import Store
from tilework.train import Result


def train_chain(
    chain: Chain,
    data: Sequence[Location],
    val: Sequence[Location | None],
    out: Path,
    device: str = "auto",
    title: str = "train",
    quiet: bool = False,
    start: PathOrHub | None = None,
) -> Result:
    """Train every link on its data; the same call again goes on inside the link that was under way."""
    chain, start = pin_settings(chain, out), pin_start(start, out)
    check_links(chain, data, val, start)
    with join_world(device) as world:
        if world.leads:
            claim_chain(out, chain)
        for number, link in enumerate(chain.links):
            where = out / f"{number + 1}-{link.name}"
            name = f"{title} {number + 1}/{len(chain.links)} {link.name}"
            result = train_in(world, link.run, data[number], val[number], start, where, name, quiet)
            start = where
        if world.leads:
            write_sealed(out / RESULTS, result.summary)
    return result


def check_links(
    chain: Chain, data: Sequence[Location], val: Sequence[Location | None], start: PathOrHub | None
) -> None:
    """Refuse, before the first step, data that do not fit their links and links that do not fit each other."""
    if not len(chain.links) == len(data) == len(val):
        raise ConfigError(
            f"the chain has {len(chain.links)} links, but {len(data)} data sets and {len(val)} to evaluate on",
            "give --data and --val as many paths ('none' for no evaluation)",
        )
    before = Start.read(start) if start is not None else None
    for link, path, judge in zip(chain.links, data, val, strict=True):
        find_columns(link.run, path)
        source = chosen(_glance(path, link.run.size, level=link.run.classes), link.run)
        run = with_batch(link.run, len(source))
        judged = None if judge is None else _glance(judge, run.size, source.classes)
        _, model = check_data(run, source, judged, path, judge)
        if not isinstance(model, Model):
            raise ConfigError(f"link '{link.name}' trains a {type(model).__name__}", "chain classifiers only")
        codebook = source.codebook
        if before is not None:
            before.fill(model, source.classes)
            codebook = before.codebook_for(codebook)
        build_all(run.augment, codebook)  # refuses artefacts that do not fit
        if codebook is not None and run.objective.learns_table:
            codebook = codebook.with_learnt(codebook.vectors)
        before = Start(Path(link.name), model.state_dict(), source.classes, model.grid, codebook)


def _glance(
    path: Location, size: tuple[int, int], classes: tuple[str, ...] | None = None, level: Level = "leaf"
) -> Source:
    """The data at a path; the images of a folder are counted, not read. level: of nested class folders."""
    check_there(path)
    if isinstance(path, Url) or is_store(path):
        return TokenSource(Store(path), classes)
    return ImageSource.blank(open_images(path, None, classes, level), size)
