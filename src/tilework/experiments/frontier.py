"""Accuracy against bytes on the user's images: codes of a teacher's map, its pooled features, small image files.

Every point is written to disk or packed as it would be, its bytes are counted, and a classifier is trained on it. Rows
are written KIND or KIND:VALUE. OUT/points/ROW.json holds a finished point; it is not repeated, and rows may be added.
The Pareto front is what no other row beats at its bytes.

N images | h, w code grid | D channels of the teacher | C code dim | K codes | G codes of a position
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, log2, prod
from pathlib import Path
from statistics import mean, stdev
from time import monotonic

import numpy as np
import torch
from PIL import Image, features
from torch import Tensor

from tilework.augment.embed import look_up
from tilework.core.config import Plain, resolve
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, InputError, MachineError
from tilework.core.files import locked, make_directory, new_directory, sha256, write, write_json
from tilework.core.location import PACKAGED, packaged
from tilework.core.registry import Registry, nearest
from tilework.data.images import ImageFolder, ImageSource, open_image, to_rgb
from tilework.data.loader import in_order
from tilework.evaluation.probe import linear_accuracy
from tilework.experiments.runner import Trial, claim, run_trial, with_seed
from tilework.recipes import run_of
from tilework.report.tokenizer_figures import accuracy_per_byte
from tilework.runs import Run
from tilework.store import Store, StoreWriter
from tilework.tokenizers import load_tokenizer
from tilework.tokenizers.box import LEVELS
from tilework.tokenizers.kmeans import kmeans
from tilework.tokenizers.quantise import best
from tilework.tokenizers.rounded import RoundedQuantiser, evenly_spaced
from tilework.tokenizers.teacher_codes import TeacherCodes, fit_codes
from tilework.tokenizers.tokenizer import WEIGHTS
from tilework.train.log import Bar, notice

RESULTS, TABLE, PLOT = "results.json", "table.md", "frontier.png"
ROWS = ("float16", "int8", "rounded:0.85", "rounded:1.5", "pq:32", "pq:64", "pq:128", "kmeans:512", "codes:256",
        "codes:512", "codes:2048", "codes:256x2", "vit:512", "jpeg:32:30", "webp:32:10", "avif:32:20",
        "jpeg:64:30")  # fmt: skip
CODERS = {"jpeg": "JPEG", "webp": "WEBP", "avif": "AVIF"}
PARTS = ("train", "val")
PQ_DIMS, PQ_CODES = 256, 256  # principal components of pooled features; codes of each byte


@dataclass(frozen=True)
class Point:
    """What a row costs and what it is worth."""

    bytes: float  # per image: codes, features or files alone
    whole: float  # the same with codebooks, tables, labels and names
    accuracy: tuple[float, ...]  # of each seed
    command: str  # that makes it
    lacks: str = ""  # what cannot be done with it


Measure = Callable[["Frontier", str], Point]
rows: Registry[Measure] = Registry("row")


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

    def run(self) -> Plain:
        """All rows; returns what results.json holds."""
        plan = self._check()
        make_directory(self.out)
        with locked(self.out):
            weights = (PACKAGED if str(self.teacher) in packaged() else Path()) / self.teacher / WEIGHTS
            state = {"images": str(self.images), "val": str(self.val), "teacher": sha256(weights),
                     "seeds": self.seeds, "settings": list(self.settings)}  # fmt: skip
            claim(self.out, state, "frontier")
            results: Plain = {}
            for number, (name, kind, value) in enumerate(plan):
                point = self._point(name, kind, value)
                notice(f"row {number + 1} of {len(plan)}: {name} {point['bytes']:,.0f} B, "
                       f"{100 * point['mean']:.1f} %", self.quiet)  # fmt: skip
                results = self._report([self._point(*one) for one in plan[: number + 1]])
        return results

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
            plan.append((name, kind, value))
        classes = ImageFolder.open(self.images).classes
        ImageFolder.open(self.val, classes)
        if not isinstance(load_tokenizer(self.teacher)[0], TeacherCodes):
            raise InputError(f"{self.teacher} has no teacher's map", "make one with 'tilework tokenizer teacher'")
        return plan

    def _point(self, name: str, kind: str, value: str) -> Plain:
        file = self.out / "points" / f"{re.sub(r'[^a-z0-9]+', '-', name)}.json"
        if not file.is_file():
            begun = monotonic()
            point = rows[kind](self, value)
            found = {"row": name, **vars(point), "accuracy": list(point.accuracy), "mean": mean(point.accuracy),
                     "deviation": stdev(point.accuracy) if len(point.accuracy) > 1 else None,
                     "seconds": round(monotonic() - begun, 1)}  # fmt: skip
            make_directory(file.parent)
            write_json(file, found)
        return dict(json.loads(file.read_bytes()))

    def _report(self, points: list[Plain]) -> Plain:
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
        if not file.is_file():
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
            write(file.with_suffix(".labels.npy"), labels.getvalue())
            with file.with_suffix(".tmp").open("wb") as stream:
                np.save(stream, np.concatenate(found))
            os.replace(file.with_suffix(".tmp"), file)
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
            if path.exists():
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


def better(one: Plain, other: Plain) -> bool:
    """Whether a point has more accuracy at no more bytes, or the same at fewer."""
    fewer = one["bytes"] < other["bytes"] and one["mean"] == other["mean"]
    return fewer or (one["bytes"] <= other["bytes"] and one["mean"] > other["mean"])


def check(kind: str, value: str) -> None:
    """Refuse a value that a kind of row cannot have."""
    forms = {"float16": "", "int8": "", "pixels": "", "pq": r"\d+", "rounded": r"\d+(\.\d+)?",
             "codes": r"\d+(x\d+)?", "kmeans": r"\d+(x\d+)?", "vit": r"\d+(x\d+)?",
             **dict.fromkeys(CODERS, r"\d+:\d+")}  # fmt: skip
    if not re.fullmatch(forms[kind], value):
        wanted = {
            "": kind,
            r"\d+": f"{kind}:64",
            r"\d+:\d+": f"{kind}:SIDE:QUALITY",
            r"\d+(\.\d+)?": f"{kind}:0.85",
        }.get(forms[kind], f"{kind}:512x2")
        raise ConfigError(f"'{kind}:{value}' is no row", f"write it as {wanted}")
    if kind in CODERS:
        side, quality = map(int, value.split(":"))
        if not 8 <= side <= 1024 or not 1 <= quality <= 100:
            raise ConfigError(f"{side} px of quality {quality}", "give 8 to 1024 px and a quality from 1 to 100")
        if kind in ("webp", "avif") and not features.check(kind):
            raise MachineError(f"this Pillow cannot write {kind}", "leave the row out, or install one that can")
    if kind == "rounded" and not 0.01 <= float(value) <= 100:
        raise ConfigError(f"steps of {value} deviations", "give 0.01 to 100")
    if kind == "pq" and not 1 <= int(value) <= PQ_DIMS:
        raise ConfigError(f"{value} bytes of features", f"give 1 to {PQ_DIMS}")
    if kind in ("codes", "kmeans", "vit") and not 2 <= int(value.split("x")[0]) <= 1 << 16:
        raise ConfigError(f"{value} codes", f"give 2 to {1 << 16}")


POOLED = "other crops, augmentation, dense labels, pictures"


@rows.add("float16")
def float16(self: Frontier, value: str) -> Point:
    """The mean of the teacher's map, two bytes a channel."""
    size = 2.0 * self.pooled["train"].shape[1]
    accuracy = self.linear(*(self.pooled[part].half().float() for part in PARTS))
    return Point(size, size, accuracy, "features of the teacher, tilework frontier --rows float16", POOLED)


@rows.add("int8")
def int8(self: Frontier, value: str) -> Point:
    """The same, one byte a channel."""
    low, high = self.pooled["train"].amin(0), self.pooled["train"].amax(0)
    step = ((high - low) / 255).clamp(min=1e-9)
    accuracy = self.linear(*(((self.pooled[part] - low) / step).round().clamp(0, 255) for part in PARTS))
    size = float(len(low))
    whole = size + 8 * len(low) / len(self.labels("train"))
    return Point(size, whole, accuracy, "features of the teacher, tilework frontier --rows int8", POOLED)


@rows.add("rounded")
def rounded(self: Frontier, value: str) -> Point:
    """The same in a store, each channel rounded to steps of so many of its deviations."""
    channels, side = self.pooled["train"].shape[1], next(self.maps("train")).shape[1]
    codes = RoundedQuantiser(LEVELS, channels)
    codes.embedding.weight.data = evenly_spaced(self.pooled["train"], LEVELS, float(value))
    ids = {part: codes.nearest(self.pooled[part]) for part in PARTS}  # (N, D)
    path = self.out / "data" / f"rounded-{float(value):g}-train.tok"
    if not path.exists():
        self.write(path, "train", codes.codebook.detach(), [ids["train"][:, None, None]])
    store = Store(path)
    accuracy = self.linear(*(codes.values(ids[part]).detach() for part in PARTS))
    command = (f"tilework tokenizer teacher TRAIN quantiser=rounded step={value} pool={side} code_dim={channels} "
               f"codes={LEVELS} --out T; tilework tokenize TRAIN --tokenizer T; tilework train linear_cpu")  # fmt: skip
    return Point(store.sizes["tokens"] / len(store), sum(store.sizes.values()) / len(store), accuracy, command, POOLED)


@rows.add("pq")
def pq(self: Frontier, value: str) -> Point:
    """Product quantisation of the mean (Jegou et al., 2011), rotated so that every part has as much variance."""
    count, train = int(value), self.pooled["train"]
    centre = train.mean(0)
    directions = torch.linalg.svd(train - centre, full_matrices=False)[2][:PQ_DIMS].T  # (D, R)
    turn = torch.linalg.qr(torch.randn(directions.shape[1], directions.shape[1], generator=_generator()))[0]
    projected = {part: (self.pooled[part] - centre) @ directions @ turn for part in PARTS}
    edges = [directions.shape[1] * i // count for i in range(count + 1)]
    if edges[1] == 0:
        raise ConfigError(f"{count} bytes of {directions.shape[1]} numbers", "give fewer bytes, or more images")
    kept: dict[str, list[Tensor]] = {part: [] for part in PARTS}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for low, high in pairwise(edges):
            table = kmeans(projected["train"][:, low:high], min(PQ_CODES, len(train)))
            half = table.square().sum(1) / 2
            for part in PARTS:
                x = projected[part][:, low:high]
                kept[part].append(table[best(x, lambda y, t=table, h=half: y @ t.T - h, len(table))])  # type: ignore[misc]
    accuracy = self.linear(*(torch.cat(kept[part], 1) for part in PARTS))
    tables = 2 * (PQ_CODES * directions.shape[1] + directions.numel())
    command = f"features of the teacher, tilework frontier --rows pq:{value}"
    return Point(float(count), count + tables / len(train), accuracy, command, POOLED)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _codes(self: Frontier, value: str, diffusion: bool) -> tuple[Path, Path, float, float]:
    """Stores, bytes of codes and of the whole store, per image."""
    codes, depth = (int(one) for one in [*value.split("x"), "1"][:2])
    train, val = self.codes(codes, depth, diffusion)
    store = Store(train)
    packed = prod(store.grid) * max(1, ceil(log2(codes))) / 8
    coded = store.sizes["tokens"] / len(store)
    return train, val, min(packed, coded), sum(store.sizes.values()) / len(store)


def _command(value: str, diffusion: bool) -> str:
    codes, depth = [*value.split("x"), "1"][:2]
    more = ("" if depth == "1" else f" depth={depth}") + ("" if diffusion else " diffusion=false")
    return f"tilework tokenizer teacher TRAIN codes={codes}{more} --out T; tilework tokenize TRAIN --tokenizer T"


@rows.add("codes")
def codes(self: Frontier, value: str) -> Point:
    """Codes of the teacher's map with error diffusion; a linear classifier of the mean of their vectors."""
    train, val, size, whole = _codes(self, value, True)
    return Point(size, whole, self.linear(self.means(train), self.means(val)),
                 f"{_command(value, True)}; tilework train linear_cpu")  # fmt: skip


@rows.add("kmeans")
def plain(self: Frontier, value: str) -> Point:
    """The nearest codes, nothing handed on."""
    train, val, size, whole = _codes(self, value, False)
    return Point(size, whole, self.linear(self.means(train), self.means(val)),
                 f"{_command(value, False)}; tilework train linear_cpu")  # fmt: skip


@rows.add("vit")
def vit(self: Frontier, value: str) -> Point:
    """The same codes, a small ViT with crops, CutMix and noise."""
    train, val, size, whole = _codes(self, value, True)
    run, grid = run_of("teacher_vit_cpu"), Store(train).grid
    crop = replace(run.augment[0], size=(grid[0], grid[1]))  # type: ignore[call-arg]
    run = replace(run, codes=None, augment=(crop, *run.augment[1:]))
    return Point(size, whole, self.trained(f"vit:{value}", run, train, val),
                 f"{_command(value, True)}; tilework train teacher_vit_cpu")  # fmt: skip


def _files(self: Frontier, kind: str, value: str) -> Point:
    """All images, their short side resized and the middle cut out, as small files; a small ViT on their pixels."""
    side, quality = map(int, value.split(":"))
    paths = {}
    for part in PARTS:
        folder = self.folder(part)
        paths[part] = self.out / "data" / f"{kind}-{side}-{quality}-{part}"
        if not paths[part].exists():
            _write_files(folder, paths[part], kind, side, quality)
    size = _bytes_of(paths["train"])
    run = run_of("plain_pixel_cpu")
    accuracy = self.trained(f"{kind}:{value}", run, paths["train"], paths["val"])
    return Point(
        size, size, accuracy, f"{kind.upper()} files of {side} px, quality {quality}; tilework train plain_pixel_cpu"
    )


def _write_files(folder: ImageFolder, out: Path, kind: str, side: int, quality: int) -> None:
    """Bytes are those of the coder; files are kept as PNG of what it gives back, which every reader knows."""
    with new_directory(out) as root, ThreadPoolExecutor(os.cpu_count()) as pool:
        for label in folder.classes:
            (root / label).mkdir(parents=True)

        def one(i: int) -> int:
            with open_image(folder.paths[i]) as image:
                rgb = to_rgb(image)
            short = min(rgb.size)
            left, top = (rgb.width - short) // 2, (rgb.height - short) // 2
            small = rgb.resize((side, side), Image.Resampling.BICUBIC, (left, top, left + short, top + short))
            data = io.BytesIO()
            small.save(data, CODERS[kind], quality=quality)
            Image.open(io.BytesIO(data.getvalue())).convert("RGB").save(
                root / folder.classes[int(folder.labels[i])] / f"{i:08d}.png"
            )
            return len(data.getvalue())

        sizes = list(pool.map(one, range(len(folder))))
        write_json(root / "bytes.json", {"bytes_per_image": mean(sizes)})


def _bytes_of(path: Path) -> float:
    return float(json.loads((path / "bytes.json").read_bytes())["bytes_per_image"])


for _kind in CODERS:
    rows.add(_kind)(lambda self, value, kind=_kind: _files(self, kind, value))  # type: ignore[misc]


@rows.add("pixels")
def pixels(self: Frontier, value: str) -> Point:
    """The files as they are."""
    folder = self.folder("train")
    size = folder.bytes / len(folder)
    accuracy = self.trained("pixels", run_of("plain_pixel_cpu"), self.images, self.val)
    return Point(size, size, accuracy, "tilework train plain_pixel_cpu --data TRAIN")


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
    lines.append("\nPooled features (float16, int8, rounded, pq) allow no " + POOLED + ".")
    return "\n".join(lines) + "\n"
