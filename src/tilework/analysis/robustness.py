"""Robustness of trained classifiers: corruptions, shifted data sets, attacks on pixels and on codes.

SeiT B.6 (table B.4, figure B.1), SeiT++ table 5, TL-Align supplement B. All runs see the same bytes. Every figure is a
file of its own (OUT/cells/RUN/CELL.json) with the answer to each image, so that a stopped command goes on.

N images | A images that are attacked | K classes
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.config import Plain
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, InputError, OutputError
from tilework.core.files import is_free, make_directory, sha256, write_json
from tilework.core.registry import nearest
from tilework.core.rng import Draws
from tilework.data import ImageFolder
from tilework.data.part import part_of
from tilework.evaluation import corruptions as corrupting
from tilework.evaluation.apgd import Attacked, Loss, Norm, apgd, check_classes, correct, random_start
from tilework.evaluation.code_attack import random_codes, swap_codes
from tilework.evaluation.fab import fab
from tilework.evaluation.from_pixels import TAUS, FromPixels, Gradient, calibration_error, in_parts
from tilework.evaluation.reconstruction import psnr
from tilework.evaluation.restyle import RESTYLINGS, restyle
from tilework.evaluation.shifts import Shift, open_shift
from tilework.evaluation.square import square
from tilework.objectives.perceptual import Perceptual
from tilework.runs.trained import Trained

SETTINGS, CELLS = "settings.json", "cells"
Attack = Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", "random", "transfer"]
LOSSES: dict[str, Loss] = {"apgd-ce": "ce", "apgd-dlr": "dlr", "apgd-t": "dlr-targeted"}
WITH_GRADIENT = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t")
GROUPS = {
    "noise": ("gaussian_noise",),
    "blur": ("gaussian_blur",),
    "imagenet-c": tuple(corrupting.ALEXNET),
    "extra": corrupting.EXTRA,
    "all": tuple(corrupting.CORRUPTIONS),
}
NEAR = 5  # codes that count as synonyms of one, as in Token-EDA
FEW = 64  # images that suffice for the checks of gradients


@dataclass(frozen=True)
class Cell:
    """One figure: the answer to each image, and what is known of it."""

    hits: np.ndarray  # (N,) bool
    figures: Plain

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return float(self.hits.mean())


@dataclass(frozen=True)
class Subject:
    """A run that is measured."""

    name: str
    ask: FromPixels
    classes: tuple[str, ...]
    folder: Path  # of its cells

    def cell(self, name: str) -> Cell | None:
        """A figure that is known already."""
        file = self.folder / f"{name}.json"
        if not file.is_file():
            return None
        plain = json.loads(file.read_bytes())
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(plain["hits"]), np.uint8))
        return Cell(bits[: plain["images"]].astype(bool), plain["figures"])

    def keep(self, name: str, hits: Tensor, figures: Plain) -> Cell:
        """Write a figure."""
        bits = np.packbits(hits.cpu().numpy().astype(np.uint8))
        figures = {"accuracy": float(hits.double().mean()), **figures}
        plain = {"name": name, "images": len(hits), "figures": figures, "hits": bits.tobytes().hex()}
        write_json(self.folder / f"{name}.json", plain)
        return Cell(hits.cpu().numpy().astype(bool), figures)


def show_eps(eps: float, norm: Norm) -> str:
    """A radius as people write it."""
    return f"{eps * 255:.4g}/255" if norm == "linf" else f"{eps:.4g}"


@dataclass(frozen=True)
class Robustness:
    """Several runs on the same images. eps: in the range of pixels, which is 0 to 1."""

    runs: tuple[Path, ...]
    data: Path
    out: Path
    tokenizer: Path | None = None
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    restylings: tuple[str, ...] = ()
    shifts: tuple[tuple[str, Path], ...] = ()
    attacks: tuple[Attack, ...] = ()
    gradients: tuple[Gradient, ...] = ("ste", "soft", "unquantised")
    eps: tuple[float, ...] = tuple(e / 255 for e in (0.25, 0.5, 1, 2, 4, 8))
    norm: Norm = "linf"
    steps: int = 100
    queries: int = 5000
    restarts: int = 1
    targets: int = 9
    transfer: Path | None = None
    codes: tuple[int, ...] = ()
    images: int = 500
    attack_images: int = 200
    seed: int = 0
    native: bool = False
    bytes: bool = False
    frost: Path | None = None
    lpips: Path | None = None
    batch: int = 64
    device: str = "auto"
    say: Callable[[str], None] = field(default=lambda line: None, compare=False)

    def __post_init__(self) -> None:
        names = tuple(dict.fromkeys(n for name in self.corruptions for n in GROUPS.get(name, (name,))))
        folder = corrupting.frost_folder(self.frost)
        asked = "frost" in self.corruptions
        if folder is None and not asked and "frost" in names:  # of a group: the others are measured, and it is said
            self.say(f"frost is left out: {corrupting.FROST_HINT}")
            names = tuple(name for name in names if name != "frost")
        if set(self.attacks) & set(WITH_GRADIENT) and "random" not in self.attacks:  # the floor of every table
            object.__setattr__(self, "attacks", (*self.attacks, "random"))
        object.__setattr__(self, "corruptions", names)
        object.__setattr__(self, "frost", folder)
        object.__setattr__(self, "eps", tuple(sorted(set(self.eps))))
        corrupting.check(names, self.severities, folder is not None)
        self._check()

    def _check(self) -> None:
        """Refuse what cannot be, before anything is read."""
        if not self.runs:
            raise ConfigError("no run to measure", "give one or more RUN")
        for eps in self.eps:
            if eps < 0 or (eps > 1 and self.norm == "linf"):
                raise ConfigError(f"eps {eps:g} is not between 0 and 1", f"pixels are: write {eps:g}/255 for bytes")
        for name in self.restylings:
            if name not in RESTYLINGS:
                raise ConfigError(f"unknown restyling '{name}'", nearest(name, RESTYLINGS))
        if min(self.images, self.attack_images, self.steps, self.queries, self.restarts, self.targets, self.batch) < 1:
            raise ConfigError(
                "images, steps, queries, restarts, targets and batch are at least 1", "raise the one at 0"
            )
        if "transfer" in self.attacks and self.transfer is None:
            raise ConfigError("attack 'transfer' needs a run on pixels", "add --transfer RUN")
        if min(self.codes, default=1) < 1:
            raise ConfigError(f"{min(self.codes)} codes cannot be swapped", "give 1 or more to --codes")

    @cached_property
    def _device(self) -> torch.device:
        return pick_device(self.device)

    @cached_property
    def subjects(self) -> list[Subject]:
        """The runs, opened on the images; everything is checked before the first image is read."""
        opened = [Trained.open(path) for path in self.runs]
        for trained in opened:
            model = trained.classifier
            if trained.spec.stage != "pixels" and self.tokenizer is None and not trained.has_tokenizer:
                what = f"{trained.path} was trained on tokens, and attacks and corruptions change pixels"
                raise InputError(what, "add --tokenizer")
            if trained.spec.stage != "pixels" and self.gradients == ("ste",) and set(self.attacks) & set(WITH_GRADIENT):
                what = "the straight-through estimator alone says nothing of a model of tokens"
                raise ConfigError(what, "its gradients may be masked: add soft to --gradient")
            for attack in self.attacks:
                check_classes(LOSSES.get(attack, "ce"), len(trained.spec.classes))
            total = len(ImageFolder.open(self.data, trained.spec.classes, trained.run.classes))
            if trained.spec.stage != "pixels" and model.takes != "map":
                raise ConfigError(f"{trained.path} does not read code vectors", "give a run whose model takes a map")
        self._check_not_trained_on([trained.path for trained in opened])
        count = min(self.images, total)
        subjects, names = [], set()
        for trained in opened:
            on = trained.on(self.data, self._device, self.tokenizer, count)
            ask = FromPixels(trained.classifier.to(self._device), on.source, on.steps)
            name = trained.name if trained.name not in names else str(trained.path)
            names.add(name)
            digest = sha256(next(trained.directory.checkpoint().glob("objective.safetensors")))[:10]
            plain = re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "run"
            subjects.append(Subject(name, ask, trained.spec.classes, self.out / CELLS / f"{plain}-{digest}"))
        sizes = {subject.ask.images.grid for subject in subjects}
        if len(sizes) > 1:
            found = " and ".join(f"{h}x{w}" for h, w in sorted(sizes))
            raise ConfigError(f"the runs take images of {found} px", "compare runs of one size: all see the same bytes")
        return subjects

    def _check_not_trained_on(self, runs: Sequence[Path]) -> None:
        for run in runs:
            trained_on = json.loads((run / "data.json").read_bytes()).get("train")
            for name, folder in (("the images", self.data), *self.shifts):
                if trained_on and Path(trained_on).exists() and folder.exists() and folder.samefile(trained_on):
                    raise InputError(f"{folder} ({name}) is what {run} was trained on", "give images it has not seen")

    @cached_property
    def pixels(self) -> Tensor:
        """The images, (N, 3, H, W) uint8."""
        source = self.subjects[0].ask.images
        return source.batch(np.arange(len(source))).x

    @property
    def _index(self) -> Tensor:
        return torch.arange(len(self.pixels))

    @cached_property
    def attacked(self) -> Tensor:
        """Numbers of the images that are attacked, (A,)."""
        return torch.from_numpy(part_of(len(self.pixels), min(self.attack_images, len(self.pixels))))

    def _labels(self, subject: Subject) -> Tensor:
        return torch.from_numpy(subject.ask.images.labels).to(self._device)

    def run(self) -> Plain:
        """Everything that is missing, then results.json, table.md, hits.safetensors and figures."""
        from tilework.analysis.robustness_report import write_report

        subjects = self.subjects  # checks
        shifts = self._shifts()
        self._claim()
        for name, make in self.changed():
            waiting = [subject for subject in subjects if subject.cell(name) is None]
            if waiting:
                self._measure(name, make(), waiting)
        for shift in shifts:
            for subject in subjects:
                self._shift(subject, shift)
        if self.attacks or self.codes:
            for subject in subjects:
                self._attack_all(subject)
            self._transfer_all()
            for subject in subjects:
                self._swap_all(subject)
        return write_report(self)

    def _claim(self) -> None:
        """Take the directory, or go on in it if images, seed and size are the same."""
        height, width = self.pixels.shape[2:]
        state = {"data": str(self.data), "images": len(self.pixels), "size": [height, width], "seed": self.seed,
                 "native": self.native, "attack_images": len(self.attacked)}  # fmt: skip
        file = self.out / SETTINGS
        if is_free(self.out):
            make_directory(self.out)
            write_json(file, state)
        elif not file.is_file() or json.loads(file.read_bytes()) != state:
            raise OutputError(f"{self.out} holds other files or other images", "choose another --out")

    # corruptions, restylings, shifts

    def changed(self) -> Iterator[tuple[str, Callable[[], Tensor]]]:
        """Names of cells, and the images of each."""
        yield "clean", lambda: self.pixels
        for name in self.corruptions:
            for severity in self.severities:
                yield f"corruption-{name}-{severity}", lambda n=name, s=severity: self._corrupted(n, s)  # type: ignore[misc]
        for name in self.restylings:
            yield f"proxy-{name}", lambda n=name: restyle(self.pixels, n, Draws(self.seed, 0, self._index))  # type: ignore[misc]

    def _corrupted(self, name: str, severity: int) -> Tensor:
        draws = Draws(self.seed, 0, self._index)
        return corrupting.corrupt(self.pixels, name, severity, draws, self.native, self.frost)

    def _measure(self, name: str, images: Tensor, subjects: Sequence[Subject]) -> None:
        for subject in subjects:
            logits, unseen = self._logits(subject, images)
            y = self._labels(subject)
            cell = subject.keep(name, correct(logits, y), {**_figures(logits, y), **unseen})
            self.say(f"{subject.name}: {name} {cell.accuracy:.1%}")

    def _logits(self, subject: Subject, images: Tensor) -> tuple[Tensor, Plain]:
        """Answers to bytes, and for tokens the share of codes that the run does not have."""
        ask, codes, logits, known = subject.ask, subject.ask.codes, [], []
        for part in images.split(self.batch):
            x = part.to(self._device) / 255
            if codes is None:
                logits.append(ask(x))
                continue
            raw = ask.raw_ids(x)
            known.append(codes.kept[raw].double().mean((*range(1, raw.ndim),)))
            with torch.no_grad():
                logits.append(ask.of_ids(codes.sample(raw)))
        return torch.cat(logits), {} if codes is None else {"unseen_codes": float(1 - torch.cat(known).mean())}

    def _shifts(self) -> list[Shift]:
        first = self.subjects[0]
        size = first.ask.images.grid
        if any(subject.classes != first.classes for subject in self.subjects) and self.shifts:
            raise ConfigError("the runs have different classes", "measure shifts for one list of classes at a time")
        return [open_shift(name, root, first.classes, size, images=self.images) for name, root in self.shifts]

    def _shift(self, subject: Subject, shift: Shift) -> None:
        name = f"shift-{re.sub(r'[^A-Za-z0-9_.+-]+', '-', shift.name)}"
        if subject.cell(name) is not None:
            return
        source = shift.images
        logits, unseen = self._logits(subject, source.batch(np.arange(len(source))).x)
        hits, overall = shift.hits(logits.cpu(), torch.from_numpy(source.labels))
        more = {"over_all_classes": float(overall.double().mean()), "broken": len(source.broken)}
        cell = subject.keep(name, hits, {**more, "missing_classes": list(shift.missing), **unseen})
        self.say(f"{subject.name}: {name} {cell.accuracy:.1%}")

    # attacks on pixels

    def _targets(self, subject: Subject) -> tuple[Tensor, Tensor, Tensor]:
        """Images in [0, 1], labels, and which are right before the attack, of those that are attacked."""
        x = self.pixels[self.attacked].to(self._device) / 255
        clean = subject.cell("clean")
        assert clean is not None
        return x, self._labels(subject)[self.attacked], torch.from_numpy(clean.hits)[self.attacked].to(self._device)

    def rows_of(self, subject: Subject) -> list[tuple[str, Attack, Gradient | None]]:
        """Attacks of a run: name, kind, and gradient."""
        rows: list[tuple[str, Attack, Gradient | None]] = []
        for attack in self.attacks:
            if attack in WITH_GRADIENT:
                has = [
                    g
                    for g in (("exact",) if subject.ask.codes is None else self.gradients)
                    if g in subject.ask.gradients
                ]
                rows += [(f"{attack} {gradient}", attack, gradient) for gradient in has]
            elif attack != "transfer":
                rows.append((attack, attack, None))
        return rows

    def cell_name(self, row: str, attack: Attack, eps: float, steps: int = 0) -> str:
        """Of an attack with its settings."""
        effort = {"square": f"q{self.queries}", "random": "1", "fab-t": f"s{self.steps}-t{self.targets}"}.get(
            attack, f"s{steps or self.steps}-r{self.restarts}" + (f"-t{self.targets}" if attack == "apgd-t" else "")
        )
        return f"attack-{row.replace(' ', '-')}-{effort}-{self.norm}-{eps * 255:.4g}"

    def _attack_all(self, subject: Subject) -> None:
        """Radii from small to large: an image that is broken within a small one is broken within a large one."""
        if any(attack in WITH_GRADIENT for attack in self.attacks):
            for line in subject.ask.check(self.pixels[: min(8, len(self.pixels))].to(self._device) / 255):
                self.say(f"{subject.name}: {line}")
        x, y, right = self._targets(subject)
        for row, attack, gradient in self.rows_of(subject):
            stands = right
            for eps in self.eps:
                stands = self._attack(subject, row, attack, gradient, eps, x, y, stands)
            if gradient is not None and gradient != "unquantised" and attack == "apgd-ce":
                self._check_gradient(subject, row, gradient, x, y, right)

    def _attack(
        self, subject: Subject, row: str, attack: Attack, gradient: Gradient | None, eps: float, x: Tensor, y: Tensor,
        stands: Tensor,
    ) -> Tensor:  # fmt: skip
        """One cell; returns which images still stand, (A,)."""
        name = self.cell_name(row, attack, eps)
        known = subject.cell(name)
        if known is None:
            begun, left = perf_counter(), stands.nonzero()[:, 0]
            after, itself, rounded, figures = stands.clone(), stands.clone(), stands.clone(), _Sums()
            for part in left.split(self.batch):
                found = self._search(subject.ask, attack, gradient, eps, x[part], y[part], self.attacked[part.cpu()])
                after[part] = correct(subject.ask(found.images), y[part])
                itself[part] = found.stands
                figures.add(flat=found.flat.double(), moved=self._codes_changed(subject, x[part], found.images))
                if self.bytes:
                    rounded[part] = correct(subject.ask((found.images * 255).round() / 255), y[part])
            more = {"attack": attack, "gradient": gradient, "eps": eps, "norm": self.norm, **self._effort(attack)}
            more |= {"estimated": gradient in ("ste", "soft", "unquantised"), "seconds": perf_counter() - begun}
            more |= {"zero_gradient": figures.mean("flat"), "codes_changed": figures.mean("moved")}
            if gradient == "unquantised":
                more["itself"] = float(itself.double().mean())
            if self.bytes:
                more["accuracy_bytes"] = float(rounded.double().mean())
            known = subject.keep(name, after, more)
            self.say(f"{subject.name}: {row} at {show_eps(eps, self.norm)}: {known.accuracy:.1%}")
        return torch.from_numpy(known.hits).to(self._device)

    def _effort(self, attack: Attack) -> Plain:
        if attack == "square":
            return {"queries": self.queries}
        return {} if attack == "random" else {"steps": self.steps, "restarts": self.restarts}

    def _codes_changed(self, subject: Subject, x: Tensor, images: Tensor) -> Tensor | None:
        if subject.ask.codes is None:
            return None
        return (subject.ask.ids(x) != subject.ask.ids(images)).flatten(1).double().mean(1)

    def _search(
        self,
        ask: FromPixels,
        attack: Attack,
        gradient: Gradient | None,
        eps: float,
        x: Tensor,
        y: Tensor,
        index: Tensor,
        steps: int = 0,
    ) -> Attacked:
        """One attack on some images that are right."""
        draws = Draws(self.seed, 0, index)
        if attack == "square":
            return square(ask, x, y, eps, draws, self.queries, self.norm)
        if gradient is None:
            moved = random_start(x, eps, self.norm, draws, "attack/random")
            if self.norm == "linf":
                moved = (x + eps * torch.where(moved >= x, 1.0, -1.0)).clamp(0, 1)
            return Attacked(moved, correct(ask(moved), y), torch.zeros_like(y, dtype=torch.bool))
        images, stands, flat = x.clone(), torch.ones_like(y, dtype=torch.bool), torch.zeros_like(y, dtype=torch.bool)
        ranks = range(2, min(self.targets + 1, int(ask(x[:1]).shape[1])) + 1) if attack in ("apgd-t", "fab-t") else (0,)
        for tau in TAUS if gradient == "soft" else TAUS[:1]:
            wanted = ask.with_gradient(gradient, tau)
            for rank in ranks:
                for restart in range(self.restarts if attack != "fab-t" else 1):
                    left = stands.nonzero()[:, 0]
                    if not len(left):
                        break
                    if attack == "fab-t":
                        found = fab(wanted, x[left], y[left], eps, rank, steps or self.steps, self.norm)
                    else:
                        target = ask(x[left]).sort(1).indices[:, -rank] if rank else None
                        own = Draws(self.seed, 0, index[left.cpu()])
                        purpose, stop = f"attack/{attack}/{rank}/{restart}", gradient != "unquantised"
                        start = random_start(x[left], eps, self.norm, own, purpose)
                        effort, loss = steps or self.steps, LOSSES[attack]
                        found = apgd(wanted, x[left], y[left], eps, start, effort, loss, self.norm, target, stop)
                    images[left], stands[left], flat[left] = found.images, found.stands, flat[left] | found.flat
        return Attacked(images, stands, flat)

    def _check_gradient(
        self, subject: Subject, row: str, gradient: Gradient, x: Tensor, y: Tensor, right: Tensor
    ) -> None:
        """Signs of masked gradients: the whole range must break every image, and fewer steps must not be stronger."""
        left = right.nonzero()[:, 0][:FEW]
        if not len(left):
            return
        middle, few = self.eps[len(self.eps) // 2], max(1, self.steps // 4)
        tasks = [("whole", 1.0, self.steps), ("fewer", middle, few), ("all", middle, self.steps)]
        for kind, eps, steps in tasks if self.norm == "linf" else tasks[1:]:
            name = f"check-{kind}-{gradient}-s{steps}-{self.norm}-{eps * 255:.4g}"
            if subject.cell(name) is None:
                stands = []
                for part in left.split(self.batch):
                    index = self.attacked[part.cpu()]
                    found = self._search(subject.ask, "apgd-ce", gradient, eps, x[part], y[part], index, steps)
                    stands.append(correct(subject.ask(found.images), y[part]))
                subject.keep(name, torch.cat(stands), {"check": kind, "gradient": gradient, "eps": eps, "steps": steps})

    def _transfer_all(self) -> None:
        """Images made against a run on pixels, to the end, judged by all others."""
        if "transfer" not in self.attacks or self.transfer is None:
            return
        name = "transfer from " + Trained.open(self.transfer).name
        source: Subject | None = None
        for eps in self.eps:
            cell = self.cell_name(name, "apgd-ce", eps)
            waiting = [subject for subject in self.subjects if subject.cell(cell) is None]
            if not waiting:
                continue
            if source is None:
                trained = Trained.open(self.transfer)
                if trained.spec.stage != "pixels":
                    raise ConfigError(f"--transfer {self.transfer} is a run on tokens", "give a run on pixels")
                on = trained.on(self.data, self._device, None, len(self.pixels))
                ask = FromPixels(trained.classifier.to(self._device), on.source, on.steps)
                source = Subject(trained.name, ask, trained.spec.classes, self.out)
            x, y = self.pixels[self.attacked].to(self._device) / 255, self._labels(source)[self.attacked]
            made = []
            for part in torch.arange(len(x)).split(self.batch):
                start = random_start(
                    x[part], eps, self.norm, Draws(self.seed, 0, self.attacked[part]), "attack/transfer"
                )
                wanted = source.ask.with_gradient("exact")
                made.append(apgd(wanted, x[part], y[part], eps, start, self.steps, norm=self.norm, stop=False).images)
            for subject in waiting:
                _, own, right = self._targets(subject)
                logits = in_parts(subject.ask, torch.cat(made), self.batch)
                more = {"attack": "transfer", "gradient": None, "eps": eps, "norm": self.norm, "steps": self.steps}
                kept = subject.keep(cell, correct(logits, own) & right, {**more, "restarts": 1, "estimated": False})
                self.say(f"{subject.name}: {name} at {show_eps(eps, self.norm)}: {kept.accuracy:.1%}")

    # attacks on codes

    def _swap_all(self, subject: Subject) -> None:
        codes = subject.ask.codes
        if not self.codes or codes is None or codes.stage != "ids":
            return
        x, y, right = self._targets(subject)
        near = torch.from_numpy(codes.codebook.nearest(NEAR)).to(self._device)
        most = max(self.codes)
        for kind, allowed in (("any", None), ("near", near)):
            if all(subject.cell(f"codes-{kind}-{n}") is not None for n in self.codes):
                continue
            needed, sharp = [], _Sums()
            perceived = None if self.lpips is None else Perceptual.load(self.lpips).to(self._device)
            for part in torch.arange(len(x)).split(self.batch):
                ids = subject.ask.ids(x[part])
                changed, count = swap_codes(subject.ask.of_map, subject.ask.table, ids, y[part], most, allowed)
                needed.append(count)
                before, after = self._decoded(subject, ids), self._decoded(subject, changed)
                if before is not None and after is not None:
                    sharp.add(psnr=psnr(after, before).double())
                    if perceived is not None:
                        with torch.no_grad():
                            sharp.add(lpips=perceived(after, before).double())
            for n in self.codes:
                more = {"swaps": n, "codes": kind, "psnr": sharp.mean("psnr"), "lpips": sharp.mean("lpips")}
                subject.keep(f"codes-{kind}-{n}", torch.cat(needed) > n, more)
            stands = float((torch.cat(needed) > most).double().mean())
            self.say(f"{subject.name}: {most} codes swapped ({kind}): {stands:.1%}")
        for kind, allowed in (("random", None), ("random near", near)):
            for n in self.codes:
                name = f"codes-{kind.replace(' ', '-')}-{n}"
                if subject.cell(name) is None:
                    hits = []
                    for part in torch.arange(len(x)).split(self.batch):
                        draws = Draws(self.seed, 0, self.attacked[part])
                        swapped = random_codes(subject.ask.ids(x[part]), n, len(codes.codebook), draws, allowed)
                        with torch.no_grad():
                            hits.append(correct(subject.ask.of_ids(swapped), y[part]))
                    subject.keep(name, torch.cat(hits) & right, {"swaps": n, "codes": kind})

    def _decoded(self, subject: Subject, ids: Tensor) -> Tensor | None:
        """Images of a run's codes; None without a decoder."""
        codes = subject.ask.codes
        assert codes is not None
        used = torch.from_numpy(codes.codebook.used).long().to(self._device)
        try:
            return codes.tokenizer.decode(used[ids.long()])
        except ConfigError:
            return None

    def swapped_pictures(self, subject: Subject, count: int = 8) -> dict[str, np.ndarray]:
        """Images before and after the most swaps, decoded, by row."""
        codes = subject.ask.codes
        if not self.codes or codes is None or codes.stage != "ids":
            return {}
        x, y, right = self._targets(subject)
        chosen = right.nonzero()[:count, 0]
        ids = subject.ask.ids(x[chosen])
        near = torch.from_numpy(codes.codebook.nearest(NEAR)).to(self._device)
        rows = {"decoded": self._decoded(subject, ids)}
        for kind, allowed in (("any", None), ("nearest", near)):
            changed, _ = swap_codes(subject.ask.of_map, subject.ask.table, ids, y[chosen], max(self.codes), allowed)
            rows[f"swapped ({kind})"] = self._decoded(subject, changed)
        return {k: v.permute(0, 2, 3, 1).cpu().numpy() for k, v in rows.items() if v is not None and len(v)}

    # what it will cost

    def plan(self) -> Plain:
        """Passes and minutes of everything that is missing at worst, from one timed batch of each run."""
        plan: Plain = {"runs": len(self.subjects), "images": len(self.pixels), "attacked": len(self.attacked)}
        total = 0.0
        for subject in self.subjects:
            seconds = self._cost(subject)
            plan[subject.name] = f"{seconds / 60:.1f} minutes at most"
            total += seconds
        sample = self.pixels[:16]
        draws = Draws(self.seed, 0, torch.arange(len(sample)))
        for name in self.corruptions:
            one = _seconds(partial(corrupting.corrupt, sample, name, 3, draws, self.native, self.frost)) / len(sample)
            total += one * len(self.pixels) * len(self.severities)
        return plan | {"minutes": total / 60, "note": "attacks end earlier: images that are broken are left"}

    def _cost(self, subject: Subject) -> float:
        """Seconds that a run takes if no image is broken."""
        x = self.pixels[: self.batch].to(self._device) / 255
        y, count = self._labels(subject)[: len(x)], len(self.attacked)
        forward = _seconds(lambda: subject.ask(x)) / len(x)
        seconds = sum(subject.cell(name) is None for name, _ in self.changed()) * len(self.pixels) * forward
        for row, attack, gradient in self.rows_of(subject):
            missing = sum(subject.cell(self.cell_name(row, attack, eps)) is None for eps in self.eps)
            if gradient is None:
                seconds += missing * count * forward * (self.queries if attack == "square" else 1)
                continue
            each = _seconds(partial(_backward, subject.ask.with_gradient(gradient), x, y)) / len(x)
            times = self.targets if attack in ("apgd-t", "fab-t") else 1
            times *= self.restarts * (len(TAUS) if gradient == "soft" else 1)
            seconds += missing * count * self.steps * times * each
        return seconds


def _figures(logits: Tensor, y: Tensor) -> Plain:
    finite = logits.isfinite().all(1)
    loss = F.cross_entropy(logits[finite], y[finite]) if bool(finite.any()) else torch.tensor(torch.nan)
    return {"ece": calibration_error(logits, y), "loss": float(loss), "not_finite": int((~finite).sum())}


def _backward(ask: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> None:
    with torch.enable_grad():
        a = x.detach().requires_grad_()
        torch.autograd.grad(F.cross_entropy(ask(a), y), a)


def _seconds(do: Callable[[], Any]) -> float:
    do()
    begun = perf_counter()
    do()
    return perf_counter() - begun


class _Sums:
    """Means over images of what some batches gave."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = {}

    def add(self, **values: Tensor | None) -> None:
        for name, value in values.items():
            if value is not None:
                self._parts.setdefault(name, []).append(value)

    def mean(self, name: str) -> float | None:
        return float(torch.cat(self._parts[name]).mean()) if name in self._parts else None
