"""Tokenizers compared on one image folder: bits, stored bytes, PSNR, codebook usage, and accuracy of a classifier.

The same small classifier is trained on the tokens of each tokenizer, with the same seeds. OUT/data/NAME holds token
stores and measurements, OUT/runs/NAME/seed-N runs; finished ones are not repeated, and rows may be added.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, log2
from pathlib import Path

import numpy as np

from tilework.core.config import Plain, resolve
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, OutputError
from tilework.core.files import locked, make_directory, remove_unfinished, write, write_json
from tilework.core.sealed import read_json, write_sealed
from tilework.data import ImageFolder, ImageSource
from tilework.evaluation.reconstruction import reconstruction
from tilework.experiments.runner import (
    Outcome,
    Trial,
    accuracy_cell,
    claim,
    difference_cell,
    resolution_line,
    run_trial,
    summarise,
    with_seed,
)
from tilework.experiments.statistics import pooled_deviation
from tilework.recipes.judging import judge_codes, judge_pixels
from tilework.report.tokenizer_figures import accuracy_per_byte
from tilework.runs import Run
from tilework.store import Store
from tilework.store.finish import is_finished
from tilework.tokenizers import load_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train.log import Bar, counted, notice

RESULTS, TABLE, PLOT, MEASURED = "results.json", "table.md", "accuracy-per-byte.png", "measured.json"
PIXELS = "pixels"


@dataclass(frozen=True)
class TokenizerViews:
    """A comparison in its directory; finished runs are not repeated."""

    tokenizers: Sequence[Path]
    data: Path
    val: Path
    out: Path
    steps: int = 1200
    seeds: int = 1
    pixels: bool = False  # add a row trained on the image files
    limit: int = 500  # validation images to measure PSNR on
    settings: Sequence[str] = ()  # overrides for every run
    max_broken: float = 0.05
    device: str = "auto"
    quiet: bool = False

    def run(self) -> Plain:
        """All rows, seed by seed, so that every row has a number early; returns what results.json holds."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("a comparison cannot run under torchrun", "start it as one process")
        names = self._check()
        make_directory(self.out)
        with locked(self.out):
            claim(self.out, self._state(), "comparison")
            remove_unfinished(self.out)
            notice(f"{counted(len(names) * self.seeds, 'run')} of {self.steps} steps", self.quiet)
            outcomes: list[Outcome] = []
            results: Plain = {}
            for seed in range(self.seeds):
                for number, name in enumerate(names):
                    trial = self._trial(name, seed)
                    outcomes.append(run_trial(trial, self.out, self.device, self.quiet))
                    done = f"row {number + 1} of {len(names)}, seed {seed + 1} of {self.seeds}"
                    notice(f"{done}: {name} {100 * outcomes[-1].metrics['top1']:.1f} %", self.quiet)
                    results = self._report(names, outcomes)
        return results

    def _check(self) -> list[str]:
        """Names of the rows, after all checks; nothing is written before."""
        names = [path.name for path in self.tokenizers] + [PIXELS] * self.pixels
        if not self.tokenizers or len(set(names)) < len(names):
            raise ConfigError("two tokenizers have one name, or there are none", "give directories of different names")
        if self.seeds < 1 or self.steps < 1 or self.limit < 1:
            raise ConfigError("--seeds, --steps and --limit must be at least 1", "raise them")
        classes = ImageFolder.open(self.data).classes
        ImageFolder.open(self.val, classes)  # some may be missing, others not be there
        for path in self.tokenizers:
            self._run_of(path.name)
        return names

    def _state(self) -> Plain:
        return {
            "data": [str(self.data), str(self.val)],
            "steps": self.steps,
            "settings": list(self.settings),
            "limit": self.limit,
        }

    def _path(self, name: str) -> Path:
        return next(path for path in self.tokenizers if path.name == name)

    def _run_of(self, name: str) -> Run:
        """The classifier of a row."""
        if name == PIXELS:
            return resolve(judge_pixels(load_tokenizer(self.tokenizers[0])[1].size, self.steps), None, self.settings)
        tokenizer, card = load_tokenizer(self._path(name))
        grid = (card.size[0] // tokenizer.patch, card.size[1] // tokenizer.patch)
        return resolve(judge_codes(grid, tokenizer.stacked, self.steps), None, self.settings)

    def _trial(self, name: str, seed: int) -> Trial:
        """A run of a row, after its data are prepared."""
        run = with_seed(self._run_of(name), seed)
        if name == PIXELS:
            return Trial(name, seed, run, (self.data,), (self.val,))
        train, val = self._store(name)
        self._measure(name)
        return Trial(name, seed, run, (train,), (val,))

    def _store(self, name: str) -> tuple[Path, Path]:
        """Token stores of the training and validation images."""
        tokenizer, card = load_tokenizer(self._path(name))
        job = Tokenizing(tokenizer, card, pick_device(self.device))
        train, val = (self.out / "data" / name / f"{part}.tok" for part in ("train", "val"))
        for path, root in ((train, self.data), (val, self.val)):
            if not is_finished(path):
                folder = ImageFolder.open(root, ImageFolder.open(self.data).classes)
                used = None if path == train else Store(train).used
                bar = Bar(f"tokenize {name}/{path.name}", len(folder), quiet=self.quiet)
                tokenize(folder, job, path, used=used, max_broken=self.max_broken, progress=bar.update)
                bar.close()
            elif Store(path).manifest.tokenizer.get("sha256") != card.sha256:
                raise OutputError(f"{path} was made by another tokenizer named {name}", "choose another --out")
        return train, val

    def _measure(self, name: str) -> Plain:
        """Reconstruction quality on validation images, and size of the store."""
        file = self.out / "data" / name / MEASURED
        if not file.is_file():
            tokenizer, card = load_tokenizer(self._path(name))
            folder = ImageFolder.open(self.val, ImageFolder.open(self.data).classes)
            some = np.linspace(0, len(folder) - 1, min(self.limit, len(folder))).astype(np.int64)
            source = ImageSource.read(folder.take(np.unique(some)), card.size, self.max_broken)
            kept = asdict(reconstruction(tokenizer, source, pick_device(self.device)))
            store = Store(self._store(name)[0])
            codes = store.manifest.tokenizer_codes
            measured = {
                "size": list(card.size),
                "grid": list(store.grid),
                "codes": codes,
                "codec": store.manifest.codec,
                "bits_per_image": store.manifest.length * max(1, ceil(log2(codes))),
                "bytes_per_image": sum(store.sizes.values()) / len(store),
                "code_usage": store.vocabulary / codes,
                **{key: kept[key] for key in ("psnr", "ssim", "parameters", "encode_images_per_s")},
            }
            write_sealed(file, measured)
        return read_json(file, required=True)

    def _described(self, name: str) -> Plain:
        if name != PIXELS:
            return self._measure(name)
        folder = ImageFolder.open(self.data)
        size = list(self._run_of(name).size)
        return {"size": size, "codec": "image files", "bytes_per_image": folder.bytes / len(folder)}

    def _report(self, names: Sequence[str], outcomes: Sequence[Outcome]) -> Plain:
        summary = summarise(sorted(outcomes, key=lambda one: names.index(one.trial.row)))
        deviation, degrees = pooled_deviation([row["top1"] for row in summary.values()])
        seconds = {name: [round(o.seconds, 1) for o in outcomes if o.trial.row == name] for name in summary}
        table = [
            {"row": name, **self._described(name), **row, "seconds": seconds[name]} for name, row in summary.items()
        ]
        results = {
            "images": {"train": len(ImageFolder.open(self.data)), "val": len(ImageFolder.open(self.val))},
            "steps": self.steps,
            "deviation": deviation if degrees else None,
            "degrees_of_freedom": degrees,
            "rows": table,
        }
        write_json(self.out / RESULTS, results)
        write(self.out / TABLE, markdown(results).encode())
        points = [(row["row"], row["bytes_per_image"], row["mean"], row["deviation"] or 0.0) for row in table]
        write(self.out / PLOT, accuracy_per_byte(points, self.steps))
        return results


def markdown(results: Plain) -> str:
    """The results as a Markdown table."""
    lines = [
        "| tokenizer | grid | codebook | codes used | bits per image | stored bytes per image | PSNR | accuracy (%) | "
        "vs first row |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for i, row in enumerate(results["rows"]):
        coded = "grid" in row
        grid = "x".join(map(str, row["grid"])) if coded else "x".join(map(str, row["size"])) + " px"
        bits = f"{row['codes']:,} | {row['code_usage']:.0%} | {row['bits_per_image']:,}" if coded else " | | "
        psnr = f"{row['psnr']:.1f} dB" if coded else ""
        lines.append(
            f"| {row['row']} | {grid} | {bits} | {row['bytes_per_image']:,.0f} | {psnr} | {accuracy_cell(row)} | "
            f"{'' if i == 0 else difference_cell(row)} |"
        )
    lines.append(resolution_line(results["deviation"], results["degrees_of_freedom"]))
    return "\n".join(lines) + "\n"
