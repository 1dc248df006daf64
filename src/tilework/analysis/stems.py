"""Stems compared: what they let through, how much their tokens differ, what MoTo sees (Good tokenizers, figures 2, 5).

B batch | H, W pixels | n entities
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tilework.augment import AnyStep, Augment, CentreCrop, Embed, Normalise, apply_all, build_all, output_shape
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, InputError
from tilework.core.files import new_directory, write, write_json
from tilework.core.location import Location
from tilework.core.rng import Draws
from tilework.data import Source, TokenSource
from tilework.data.part import Part
from tilework.data.source import shape_of
from tilework.evaluation.information import information
from tilework.layers.moto import Moto
from tilework.layers.stem_moto import MotoStem
from tilework.layers.stem_zoo import stems as known
from tilework.layers.stems import Stem
from tilework.models.model import stem_of
from tilework.report import rows_of_pictures
from tilework.report.stem_figures import layout_pictures, stem_bars
from tilework.runs.build import open_source
from tilework.runs.trained import Trained


def stem_views(
    data: Location,
    val: Location,
    out: Path,
    stems: Sequence[str] = (),
    runs: Sequence[Path] = (),
    width: int = 384,
    size: tuple[int, int] = (224, 224),
    epochs: int = 10,
    samples: int = 0,
    count: int = 8,
    device: str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure named stems with random weights and those of runs; write results.json, a table and figures.

    size: of images for the named ones; runs know their own. samples: of `data` that decoders learn from, 0 for all.
    count: pictures of each layout. progress: told of passes over the data, of all stems together.
    """
    if not stems and not runs:
        raise ConfigError("no stem to look at", "give --stems NAME ... or --runs RUN ...")
    if epochs < 1:
        raise ConfigError(f"decoders cannot learn in {epochs} passes", "give --epochs 1 or more")
    opened = [Trained.open(path) for path in runs]  # a name that is wrong is refused before the first decoder learns
    for name in stems:
        known[name]
    chosen = pick_device(device)
    rows: dict[str, dict[str, Any]] = {}
    layouts: dict[str, np.ndarray] = {}
    total = (len(stems) + len(runs)) * epochs
    named = ((name, _random(name, data, val, width, size, samples, chosen)) for name in stems)
    trained = ((one.name, _of_run(one, data, val, samples, chosen)) for one in opened)
    with new_directory(out) as root:
        for title, (stem, train, judge, steps) in chain(named, trained):  # one after another: sources are large
            if title in rows:
                raise ConfigError(f"two stems are called '{title}'", "give each once")
            before = len(rows) * epochs

            def passed(done: int, before: int = before) -> None:
                progress(before + done, total)

            rows[title] = asdict(information(stem, train, judge, steps, chosen, epochs, progress=passed))
            if isinstance(stem, MotoStem) and isinstance(stem.moto, Moto) and judge.stage == "pixels":
                layouts |= _layouts(title, stem, judge, steps[1], count, chosen)
        write(root / "stems.png", stem_bars({name: (row["mse"], row["similarity"]) for name, row in rows.items()}))
        write(root / "table.md", _table(rows).encode())
        if layouts:
            write(root / "layouts.png", rows_of_pictures(layouts))
        write_json(root / "results.json", rows)
    return rows


Parts = tuple[Stem, Source, Source, tuple[tuple[AnyStep, ...], tuple[AnyStep, ...]]]


def _random(
    name: str, data: Location, val: Location, width: int, size: tuple[int, int], samples: int, device: torch.device
) -> Parts:
    """A named stem as it is drawn, and what it is given."""
    train: Source = open_source(data, size, 0.05, samples=samples)
    train = Part(train, samples) if samples and isinstance(train, TokenSource) else train
    judge = open_source(val, size, 0.05)
    steps: tuple[Augment, ...] = (Normalise(),)
    if train.stage != "pixels":
        side = train.grid[0] // 8 * 7  # as recipes cut them
        steps = (Embed(standardise=True), CentreCrop((side, side)))
    shape = output_shape(steps, shape_of(train))
    torch.manual_seed(0)
    stem = known[name].build(shape.channels, shape.grid, width)
    if (stem.takes == "pixels") != (train.stage == "pixels"):
        raise InputError(f"the stem '{name}' takes {stem.takes}, {data} has {train.stage}", "give other data or stems")
    return (
        stem,
        train,
        judge,
        (
            build_all(steps, train.codebook, device),
            build_all(steps, judge.codebook, device),
        ),
    )


def _of_run(trained: Trained, data: Location, val: Location, samples: int, device: torch.device) -> Parts:
    """The stem of a run as it was trained, and what the run gives it."""
    train, judge = trained.on(data, device, samples=samples), trained.on(val, device)
    return stem_of(trained.encoder), train.source, judge.source, (train.steps, judge.steps)


@torch.no_grad()
def _layouts(
    title: str, stem: MotoStem, source: Source, steps: Sequence[AnyStep], count: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Pictures above the entity of each position."""
    index = np.linspace(0, len(source) - 1, min(count, len(source))).astype(np.int64)
    part = source.batch(index).to(device)
    x = apply_all(steps, part, Draws(0, 0, part.index)).x  # (B, 3, H, W)
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    shown = ((x - low) / (high - low).clamp(min=1e-6)).permute(0, 2, 3, 1).cpu().numpy()
    return {f"{title}: image": shown, f"{title}: entities": layout_pictures(stem.layout(x).cpu().numpy())}


def _table(rows: dict[str, dict[str, Any]]) -> str:
    lines = ["| stem | reconstruction error (MSE) | token similarity | parameters |", "|---|---|---|---|"]
    lines += [f"| {n} | {r['mse']:.4f} | {r['similarity']:.3f} | {r['parameters']:,} |" for n, r in rows.items()]
    return "\n".join(lines) + "\n"
