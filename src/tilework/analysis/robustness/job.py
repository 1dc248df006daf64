"""Robustness of trained classifiers: corruptions, shifted data sets, attacks on pixels and on codes.

SeiT B.6 (table B.4, figure B.1), SeiT++ table 5, TL-Align supplement B. All runs see the same bytes. Every figure is a
file of its own (OUT/cells/RUN/CELL.json) with the answer to each image, so that a stopped command goes on.

N images | A images that are attacked | K classes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.analysis.robustness.cells import Subject
from tilework.analysis.robustness.code_attacks import CodeAttacks
from tilework.analysis.robustness.inputs import Inputs, fingerprint_of, shift_name
from tilework.analysis.robustness.pixel_attacks import PixelAttacks
from tilework.core.config import Plain
from tilework.core.errors import ConfigError, OutputError
from tilework.core.files import is_free, locked, make_directory, write_json
from tilework.core.rng import Draws
from tilework.core.sealed import read_json
from tilework.evaluation import corruptions as corrupting
from tilework.evaluation.apgd import correct
from tilework.evaluation.from_pixels import TAUS, calibration_error, in_parts
from tilework.evaluation.restyle import restyle
from tilework.evaluation.shifts import Shift, open_shift
from tilework.tokenizers import Tokenizer

SETTINGS = "settings.json"
OTHER = {  # what an earlier command into the same directory had, where it differs
    "images": "another number of images",
    "fingerprint": "other images",
    "size": "images of another size",
    "seed": "another --seed",
    "native": "corruptions with other lengths (--native)",
    "attack_images": "another number of attacked images",
}


@dataclass(frozen=True)
class Robustness(Inputs):
    """Everything that is asked for, measured where it is not known yet."""

    @property
    def on_pixels(self) -> PixelAttacks:
        """Attacks on pixels."""
        return PixelAttacks(self)

    @property
    def on_codes(self) -> CodeAttacks:
        """Attacks on codes."""
        return CodeAttacks(self)

    def run(self) -> Plain:
        """Everything that is missing, then results.json, table.md, hits.safetensors and figures."""
        from tilework.analysis.robustness.report import write_report

        subjects = self.subjects  # checks
        shifts = self._shifts()
        make_directory(self.out)
        with locked(self.out):
            self._claim()
            self._measure_all(subjects, shifts)
            return write_report(self)

    def _measure_all(self, subjects: Sequence[Subject], shifts: Sequence[Shift]) -> None:
        for name, make in self.changed():
            waiting = [subject for subject in subjects if subject.cell(name) is None]
            if waiting:
                self._measure(name, make(), waiting)
        for shift in shifts:
            for subject in subjects:
                self._shift(subject, shift)
        if self.attacks or self.codes:
            for subject in subjects:
                self.on_pixels.attack_all(subject)
            self.on_pixels.transfer_all()
            for subject in subjects:
                self.on_codes.swap_all(subject)

    def _claim(self) -> None:
        """Take the directory, or go on in it if images, seed and size are the same."""
        height, width = self.pixels.shape[2:]
        state = {"images": len(self.pixels), "fingerprint": self.fingerprint, "size": [height, width],
                 "seed": self.seed, "native": self.native, "attack_images": len(self.attacked)}  # fmt: skip
        file = self.out / SETTINGS
        if is_free(self.out):
            write_json(file, state)
        elif not file.is_file():
            raise OutputError(f"{self.out} holds other files", "choose another --out")
        elif (known := read_json(file)) != state:
            other = next((said for key, said in OTHER.items() if known.get(key) != state[key]), "other settings")
            raise OutputError(f"{self.out} holds figures of {other}", "choose another --out, or give the same")

    def changed(self) -> Iterator[tuple[str, Callable[[], Tensor]]]:
        """Names of cells, and the images of each."""
        yield "clean", lambda: self.pixels
        for name in self.corruptions:
            for severity in self.severities:
                yield f"corruption-{name}-{severity}", lambda n=name, s=severity: self._corrupted(n, s)  # type: ignore[misc]
        for name in self.restylings:
            yield f"proxy-{name}", lambda n=name: restyle(self.pixels, n, Draws(self.seed, 0, self.index))  # type: ignore[misc]

    def _corrupted(self, name: str, severity: int) -> Tensor:
        draws = Draws(self.seed, 0, self.index)
        return corrupting.corrupt(self.pixels, name, severity, draws, self.native, self.frost)

    def _measure(self, name: str, images: Tensor, subjects: Sequence[Subject]) -> None:
        encoded: dict[Tokenizer, Tensor] = {}  # images are encoded once for all runs of a tokenizer
        for subject in subjects:
            logits, unseen = self._logits(subject, images, encoded)
            y = self.labels(subject)
            cell = subject.keep(name, correct(logits, y), {**_figures(logits, y), **unseen})
            self.say(f"{subject.name}: {name} {cell.accuracy:.1%}")

    def _logits(self, subject: Subject, images: Tensor, encoded: dict[Tokenizer, Tensor]) -> tuple[Tensor, Plain]:
        """Answers to bytes, and for tokens the share of codes that the run does not have."""
        ask, codes = subject.ask, subject.ask.codes
        if codes is None:
            return in_parts(lambda part: ask(part.to(self.torch_device) / 255), images, self.batch), {}
        if codes.tokenizer not in encoded:
            ids = in_parts(lambda part: ask.raw_ids(part.to(self.torch_device) / 255), images, self.batch)
            encoded[codes.tokenizer] = ids
        raw = encoded[codes.tokenizer]
        with torch.no_grad():
            logits = in_parts(lambda part: ask.of_ids(codes.sample(part)), raw, self.batch)
        return logits, {"unseen_codes": float(1 - codes.kept[raw].double().mean())}

    def _shifts(self) -> list[Shift]:
        first = self.subjects[0]
        size, frame = first.ask.images.grid, first.ask.images.frame
        if any(subject.classes != first.classes for subject in self.subjects) and self.shifts:
            raise ConfigError("the runs have different classes", "measure shifts for one list of classes at a time")
        return [
            open_shift(name, root, first.classes, size, images=self.images, frame=frame) for name, root in self.shifts
        ]

    def _shift(self, subject: Subject, shift: Shift) -> None:
        source = shift.images
        images = source.batch(np.arange(len(source))).x
        name = f"shift-{shift_name(shift.name)}-{fingerprint_of(images, source.labels)}"
        if subject.cell(name) is not None:
            return
        logits, unseen = self._logits(subject, images, {})
        hits, overall = shift.hits(logits.cpu(), torch.from_numpy(source.labels))
        more = {"shift": shift.name, "images": len(source), "broken": len(source.broken)}
        more |= {"over_all_classes": float(overall.double().mean()), "ece": shift.calibration_error(logits.cpu(), hits)}
        cell = subject.keep(name, hits, {**more, "missing_classes": list(shift.missing), **unseen})
        self.say(f"{subject.name}: {name} {cell.accuracy:.1%}")

    def plan(self) -> Plain:
        """Passes and minutes of everything that is missing at worst, from one timed batch of each run."""
        plan: Plain = {"runs": len(self.subjects), "images": len(self.pixels), "attacked": len(self.attacked)}
        total, encoded = 0.0, set[Tokenizer | None]()
        for subject in self.subjects:
            tokenizer = subject.ask.codes.tokenizer if subject.ask.codes else None
            seconds = self._cost(subject, tokenizer in encoded)
            encoded |= {tokenizer} - {None}
            plan[subject.name] = f"{seconds / 60:.1f} minutes at most"
            total += seconds
        sample = self.pixels[:16]
        draws = Draws(self.seed, 0, torch.arange(len(sample)))
        for name in self.corruptions:
            one = _seconds(partial(corrupting.corrupt, sample, name, 3, draws, self.native, self.frost)) / len(sample)
            total += one * len(self.pixels) * len(self.severities)
        note = (
            "attacks end earlier, at images that are broken; shifts, transfer, swapped codes and checks are not counted"
        )
        return plan | {"minutes": total / 60, "note": note}

    def _cost(self, subject: Subject, encoded: bool) -> float:
        """Seconds that a run takes if no image is broken. encoded: for another run, with the same tokenizer."""
        x = self.pixels[: self.batch].to(self.torch_device) / 255
        y, count = self.labels(subject)[: len(x)], len(self.attacked)
        forward = _seconds(lambda: subject.ask(x)) / len(x)
        answer = forward
        if encoded:
            ids = subject.ask.ids(x)
            answer = _seconds(lambda: subject.ask.of_ids(ids)) / len(x)
        seconds = sum(subject.cell(name) is None for name, _ in self.changed()) * len(self.pixels) * answer
        for row, attack, gradient in self.on_pixels.rows_of(subject):
            missing = sum(subject.cell(self.on_pixels.cell_name(row, attack, eps)) is None for eps in self.eps)
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
