"""Stems compared: reconstruction error from tokens, token similarity, MoTo layouts (Good tokenizers, figures 2, 5).

B batch | H, W pixels | n entities
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from tilework.augment import AnyStep, Augment, CentreCrop, Embed, Normalise, apply_all, build_all, output_shape
from tilework.core.config import Plain
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
) -> Plain:
    """Measure named stems with random weights and trained stems of runs; write results.json, a table and figures.

    size: of images for named stems; runs use their own. samples: of `data` to train decoders on; 0: all.
    count: images with layouts. progress: called with finished and total epochs over all stems.
    """
    if not stems and not runs:
        raise ConfigError("no stem to measure", "give --stems NAME ... or --runs RUN ...")
    if epochs < 1:
        raise ConfigError(f"--epochs is {epochs}", "give 1 or more")
    opened = [Trained.open(path) for path in runs]
    for name in stems:
        known[name]  # an unknown name is refused before any training
    chosen = pick_device(device)
    rows: dict[str, Plain] = {}
    layouts: dict[str, np.ndarray] = {}
    total = (len(stems) + len(runs)) * epochs
    named = ((name, _random(name, data, val, width, size, samples, chosen)) for name in stems)
    trained = ((one.name, _of_run(one, data, val, samples, chosen)) for one in opened)
    with new_directory(out) as root:
        for title, (stem, train, validation, steps) in chain(named, trained):  # lazily: sources are large
            if title in rows:
                raise ConfigError(f"two stems have the name '{title}'", "give each once")
            before = len(rows) * epochs

            def passed(done: int, before: int = before) -> None:
                progress(before + done, total)

            rows[title] = asdict(information(stem, train, validation, steps, chosen, epochs, progress=passed))
            if isinstance(stem, MotoStem) and isinstance(stem.moto, Moto) and validation.stage == "pixels":
                layouts |= _layouts(title, stem, validation, steps[1], count, chosen)
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
    """A named stem with random weights, its data and preprocessing."""
    train: Source = open_source(data, size, 0.05, samples=samples)
    train = Part(train, samples) if samples and isinstance(train, TokenSource) else train
    validation = open_source(val, size, 0.05)
    steps: tuple[Augment, ...] = (Normalise(),)
    if train.stage != "pixels":
        side = train.grid[0] // 8 * 7  # as recipes cut them
        steps = (Embed(standardise=True), CentreCrop((side, side)))
    shape = output_shape(steps, shape_of(train))
    torch.manual_seed(0)
    stem = known[name].build(shape.channels, shape.grid, width)
    if (stem.takes == "pixels") != (train.stage == "pixels"):
        needs, has = ("images", "a token store") if stem.takes == "pixels" else ("tokens", "an image folder")
        raise InputError(f"stem '{name}' takes {needs}, but {data} is {has}", "choose other --stems or --data")
    built = build_all(steps, train.codebook, device), build_all(steps, validation.codebook, device)
    return stem, train, validation, built


def _of_run(trained: Trained, data: Location, val: Location, samples: int, device: torch.device) -> Parts:
    """The trained stem of a run, its data and preprocessing."""
    train, validation = trained.on(data, device, samples=samples), trained.on(val, device)
    return stem_of(trained.encoder), train.source, validation.source, (train.steps, validation.steps)


@torch.no_grad()
def _layouts(
    title: str, stem: MotoStem, source: Source, steps: Sequence[AnyStep], count: int, device: torch.device
) -> dict[str, np.ndarray]:
    """Images, and below them the strongest entity of each position."""
    index = np.linspace(0, len(source) - 1, min(count, len(source))).astype(np.int64)
    part = source.batch(index).to(device)
    x = apply_all(steps, part, Draws(0, 0, part.index)).x  # (B, 3, H, W)
    low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
    shown = ((x - low) / (high - low).clamp(min=1e-6)).permute(0, 2, 3, 1).cpu().numpy()
    return {f"{title}: image": shown, f"{title}: entities": layout_pictures(stem.layout(x).cpu().numpy())}


def _table(rows: dict[str, Plain]) -> str:
    lines = ["| stem | reconstruction error (MSE) | token similarity | parameters |", "|---|---|---|---|"]
    lines += [f"| {n} | {r['mse']:.4f} | {r['similarity']:.3f} | {r['parameters']:,} |" for n, r in rows.items()]
    return "\n".join(lines) + "\n"
