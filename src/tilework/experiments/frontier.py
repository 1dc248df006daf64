"""Accuracy against bytes on the user's images: codes of a teacher's map, its pooled features, small image files.

Every point is written to disk or packed as it would be, its bytes are counted, and a classifier is trained on it. Rows
are written KIND or KIND:VALUE. OUT/points/ROW.json holds a finished point; it is not repeated, and rows may be added.
The Pareto front is what no other row beats at its bytes.

N images | h, w code grid | D channels of the teacher | C code dim | K codes | G codes of a position
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from tilework.augment import output_shape
from tilework.augment.embed import look_up
from tilework.core.batch import Shape, Stage
from tilework.core.config import Plain, resolve
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import locked, make_directory, remove_unfinished, sha256, write, write_json
from tilework.core.registry import nearest
from tilework.core.sealed import read_json, write_sealed
from tilework.data.image_folder import ImageFolder
from tilework.data.images import ImageSource
from tilework.data.loader import in_order
from tilework.evaluation.probe import linear_accuracy
from tilework.experiments.frontier_rows import PARTS, POOLED, TRAINED, check, rows
from tilework.experiments.runner import Trial, check_out, claim, run_trial, with_seed
from tilework.experiments.training_data import TrainingData
from tilework.recipes import run_of
from tilework.report.tokenizer_figures import accuracy_per_byte
from tilework.runs import Run
from tilework.store import Store, StoreWriter
from tilework.store.finish import is_finished
from tilework.tokenizers import load_tokenizer
from tilework.tokenizers.box import NAME
from tilework.tokenizers.teacher_codes import TeacherCodes, fit_codes
from tilework.train.log import Bar, notice

RESULTS, TABLE, PLOT = "results.json", "table.md", "frontier.png"
ROWS = ("box:pooled", "box:corners", "float16", "int8", "rounded:0.85", "rounded:1.5", "pq:32", "pq:64", "pq:128",
        "kmeans:512", "codes:256", "codes:512", "codes:2048", "codes:256x2", "vit:512", "jpeg:32:30", "webp:32:10",
        "avif:32:20", "jpeg:64:30")  # fmt: skip


@dataclass
class Frontier:
    """A frontier in its directory."""

    images: Path
    val: Path
    out: Path
    names: Sequence[str] = ROWS
    teacher: Path = Path("box")
    seeds: int = 1
    settings: Sequence[str] = ()  # overrides for every trained classifier
    device: str = "auto"
    quiet: bool = False
    _checked: set[Path] = field(default_factory=set)  # maps whose hash this process has looked at

    def run(self) -> Plain:
        """All rows; returns what results.json holds."""
        plan = self._check()
        make_directory(self.out)
        with locked(self.out):
            teacher = load_tokenizer(self.teacher)[1].sha256
            state = {"images": str(self.images), "val": str(self.val), "teacher": teacher,
                     "seeds": self.seeds, "settings": list(self.settings),
                     "samples": TrainingData.fingerprints(self.images, self.val)}  # fmt: skip
            claim(self.out, state, "frontier")
            for name in (".", "points", "maps", "data"):
                remove_unfinished(self.out / name)
            self._earlier([])  # what is damaged is found before anything is measured
            results: Plain = {}
            for number, (name, kind, value) in enumerate(plan):
                point = self._point(name, kind, value)
                notice(f"row {number + 1} of {len(plan)}: {name} {point['bytes']:,.0f} B, "
                       f"{100 * point['mean']:.1f} %", self.quiet)  # fmt: skip
                results = self._report([self._point(*one) for one in plan[: number + 1]])
        return results

    def _earlier(self, points: list[Plain]) -> list[Plain]:
        """Points that were measured before and are not among those given."""
        named = {point["row"] for point in points}
        found = [_read_point(file) for file in sorted((self.out / "points").glob("*.json"))]
        return [point for point in found if point.get("row") not in named]

    def _check(self) -> list[tuple[str, str, str]]:
        """Rows as name, kind and value; everything is checked before anything is written."""
        if not self.names or len(set(self.names)) < len(self.names) or self.seeds < 1:
            raise ConfigError("a row is given twice, or there are no rows or seeds", "give each once")
        plan = []
        for name in self.names:
            kind, _, value = name.partition(":")
            if kind not in rows:
                raise ConfigError(f"unknown row '{kind}'", nearest(kind, rows))
            check(kind, value)
            if recipe := value if kind == "pixels" and value else TRAINED.get(kind):
                self._check_recipe(recipe, "ids" if kind in ("box", "vit", "tokens") else "pixels")
            if kind == "tokens":
                load_tokenizer(Path(value))[0].check_grid()
            if kind == "box" and str(self.teacher) != NAME:
                raise ConfigError(f"row '{name}' is of the tokenizer in the box, not of {self.teacher}", "leave it out")
            plan.append((name, kind, value))
        check_out(self.out, self.images, self.val)
        classes = ImageFolder.open(self.images).classes
        ImageFolder.open(self.val, classes)
        if not isinstance(load_tokenizer(self.teacher)[0], TeacherCodes):
            raise InputError(f"{self.teacher} has no teacher's map", "make one with 'tilework tokenizer teacher'")
        return plan

    def _check_recipe(self, recipe: str, stage: Stage) -> None:
        """Refuse settings that a row's recipe does not have, and a recipe that does not take the row's data."""
        run = resolve(run_of(recipe), None, self.settings)
        if stage == "pixels" and output_shape(run.augment, Shape(stage, 3, run.codes or run.size)).stage != stage:
            raise ConfigError(f"recipe '{recipe}' does not train on images", "choose one for images")

    def _point(self, name: str, kind: str, value: str) -> Plain:
        file = self._point_file(name)
        if not file.is_file():
            begun = monotonic()
            point = rows[kind](self, value)
            found = {"row": name, **vars(point), "accuracy": list(point.accuracy), "mean": mean(point.accuracy),
                     "deviation": stdev(point.accuracy) if len(point.accuracy) > 1 else None,
                     "seconds": round(monotonic() - begun, 1)}  # fmt: skip
            make_directory(file.parent)
            write_sealed(file, found)
        return _read_point(file)

    def _point_file(self, name: str) -> Path:
        """Of a row; names that differ in capitals or signs alone have a hash of theirs."""
        plain = re.sub(r"[^a-z0-9]+", "-", name)
        file = self.out / "points" / f"{plain}.json"
        if file.is_file() and read_json(file).get("row") != name:
            return file.with_name(f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.json")
        return file

    def _report(self, points: list[Plain]) -> Plain:
        points = [*points, *self._earlier(points)]
        for point in points:
            point["front"] = not any(better(other, point) for other in points)
        results = {"images": {part: len(self.folder(part)) for part in PARTS}, "rows": points}
        write_json(self.out / RESULTS, results)
        write(self.out / TABLE, markdown(results).encode())
        shown = [(p["row"], p["bytes"], p["mean"], p["deviation"] or 0.0) for p in points]
        write(self.out / PLOT, accuracy_per_byte(shown, title="Accuracy by bytes per image"))
        return results

    # the teacher's map of all images, computed once

    def folder(self, part: str) -> ImageFolder:
        """The images of a part."""
        return ImageFolder.open(self.images if part == "train" else self.val, self.classes)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Class names of the training images."""
        return ImageFolder.open(self.images).classes

    @cached_property
    def tokenizer(self) -> tuple[TeacherCodes, tuple[int, int]]:
        """The teacher with its projection, and the size of images."""
        found, card = load_tokenizer(self.teacher)
        assert isinstance(found, TeacherCodes)
        return found.to(pick_device(self.device)), card.size

    def labels(self, part: str) -> Tensor:
        """Class numbers, (N,)."""
        return torch.from_numpy(np.load(self._maps(part).with_suffix(".labels.npy")))

    def maps(self, part: str) -> Iterator[Tensor]:
        """The teacher's map of the readable images, batch by batch, (B, h, w, D)."""
        stored = np.load(self._maps(part), mmap_mode="r")
        for start in range(0, len(stored), 256):
            yield torch.from_numpy(np.array(stored[start : start + 256])).float()

    def _maps(self, part: str) -> Path:
        file = self.out / "maps" / f"{part}.npy"
        labels_file, card = file.with_suffix(".labels.npy"), file.with_suffix(".json")
        if not card.is_file():
            make_directory(file.parent)
            teacher, size = self.tokenizer
            source = ImageSource.read(self.folder(part), size)
            bar, found = Bar(f"teacher on {part}", len(source), quiet=self.quiet), []
            with torch.inference_mode():
                for batch in in_order(source, 32):
                    found.append(teacher.map(batch.x.to(teacher.centre.device) / 255).half().cpu().numpy())
                    bar.update(sum(map(len, found)))
            bar.close()
            labels = io.BytesIO()
            np.save(labels, source.labels)
            write(labels_file, labels.getvalue())
            with file.with_suffix(".tmp").open("wb") as stream:
                np.save(stream, np.concatenate(found))
            os.replace(file.with_suffix(".tmp"), file)
            write_sealed(card, {one.name: sha256(one) for one in (file, labels_file)})
        elif file not in self._checked:
            for name, hashed in read_json(card, required=True).items():
                if not (file.parent / name).is_file() or sha256(file.parent / name) != hashed:
                    raise DamageError(f"{file.parent / name} is damaged", f"remove {file.parent}: it is computed again")
        self._checked.add(file)
        return file

    @cached_property
    def pooled(self) -> dict[str, Tensor]:
        """Means of the maps, (N, D)."""
        return {part: torch.cat([batch.mean((1, 2)) for batch in self.maps(part)]) for part in PARTS}

    def linear(self, train: Tensor, val: Tensor) -> tuple[float, ...]:
        """Accuracy of a linear classifier; it has no seed."""
        return (linear_accuracy((train, self.labels("train")), (val, self.labels("val")))[0],)

    def trained(self, name: str, run: Run, data: Path, val: Path) -> tuple[float, ...]:
        """Accuracy of a trained classifier, seed by seed."""
        found = []
        for seed in range(self.seeds):
            one = with_seed(resolve(run, None, self.settings), seed)
            found.append(run_trial(Trial(name, seed, one, (data,), (val,)), self.out, self.device, self.quiet))
        return tuple(outcome.metrics["top1"] for outcome in found)

    def codes(self, codes: int, depth: int, diffusion: bool) -> tuple[Path, Path]:
        """Stores of codes of the teacher's map that are fitted to the training images."""
        base, size = self.tokenizer
        config = replace(base.config, codes=codes, depth=depth, diffusion=diffusion, quantiser="nearest", levels=())
        tokenizer = config.build(3, size, 0).to(base.centre.device)
        for name in ("centre", "directions"):
            tokenizer.get_buffer(name).copy_(base.get_buffer(name))
        stem = f"{'codes' if diffusion else 'kmeans'}-{codes}x{depth}"
        train, val = (self.out / "data" / f"{stem}-{part}.tok" for part in PARTS)
        for path, part in ((train, "train"), (val, "val")):
            if is_finished(path):
                continue
            if part == "train":
                seen = torch.cat([self._projected(tokenizer, batch) for batch in self.maps("train")])
                fit_codes(tokenizer, seen)
            else:
                tokenizer.with_codes(torch.from_numpy(Store(train).codebook.vectors))
            with torch.inference_mode():
                found = (tokenizer.nearest(self._projected(tokenizer, batch)) for batch in self.maps(part))
                self.write(path, part, tokenizer.codebook, found)
        return train, val

    def write(self, path: Path, part: str, codebook: Tensor, found: Iterable[Tensor]) -> None:
        """A store of codes of all images of a part, in portions."""
        table, labels, first = codebook.cpu().numpy(), self.labels(part).numpy(), 0
        make_directory(path.parent)
        with StoreWriter(path, table, self.classes, used=np.arange(len(table))) as writer:
            for ids in found:
                keys = [str(first + i) for i in range(len(ids))]
                writer.add(ids.cpu().numpy(), labels[first : first + len(ids)], keys)
                first += len(ids)

    def _projected(self, tokenizer: TeacherCodes, maps: Tensor) -> Tensor:
        return (maps.to(tokenizer.centre) - tokenizer.centre) @ tokenizer.directions.T

    def means(self, store: Path) -> Tensor:
        """Means of code vectors, (N, C)."""
        opened = Store(store)
        table, found = torch.from_numpy(opened.codebook.vectors), []
        for start in range(0, len(opened), 1024):
            ids = torch.from_numpy(opened.batch(np.arange(start, min(start + 1024, len(opened)))))
            found.append(look_up(ids.permute(0, 3, 1, 2) if ids.ndim == 4 else ids, table).mean((2, 3)))
        return torch.cat(found)


def _read_point(file: Path) -> Plain:
    known = read_json(file)
    if not all(isinstance(known.get(key), float | int) for key in ("bytes", "mean")):
        raise DamageError(f"{file} is no point of a frontier", "remove it, and it is measured again")
    return known


def better(one: Plain, other: Plain) -> bool:
    """Whether a point has more accuracy at no more bytes, or the same at fewer."""
    fewer = one["bytes"] < other["bytes"] and one["mean"] == other["mean"]
    return fewer or (one["bytes"] <= other["bytes"] and one["mean"] > other["mean"])


def markdown(results: Plain) -> str:
    """The results as a Markdown table, the front in bold."""
    lines = [
        "| row | bytes per image | with codebooks, labels, names | accuracy (%) | front | made by |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(results["rows"], key=lambda one: one["bytes"]):
        spread = f" ± {100 * row['deviation']:.1f}" if row["deviation"] is not None else ""
        mark = "**" if row["front"] else ""
        accuracy = f"{mark}{100 * row['mean']:.1f}{spread}{mark}"
        lines.append(
            f"| {row['row']} | {row['bytes']:,.0f} | {row['whole']:,.0f} | {accuracy} | "
            f"{'yes' if row['front'] else ''} | {row['command']} |"
        )
    if any(row.get("lacks") == POOLED for row in results["rows"]):
        lines.append("\nPooled features (box, float16, int8, rounded, pq) allow no " + POOLED + ".")
    return "\n".join(lines) + "\n"
