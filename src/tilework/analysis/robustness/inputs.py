"""What robustness is measured of: runs, images, corruptions and attacks, checked before the first image is read.

N images | A images that are attacked
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from tilework.analysis.robustness.cells import Subject
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, InputError
from tilework.core.files import sha256
from tilework.core.location import TOKENIZER
from tilework.core.registry import nearest
from tilework.core.sealed import read_json
from tilework.data import ImageFolder
from tilework.data.part import part_of
from tilework.evaluation import corruptions as corrupting
from tilework.evaluation.apgd import Loss, Norm, check_classes
from tilework.evaluation.from_pixels import FromPixels, Gradient
from tilework.evaluation.restyle import RESTYLINGS
from tilework.runs.trained import Trained
from tilework.tokenizers import Tokenizer, box
from tilework.tokenizers.images_as_codes import ImagesAsCodes
from tilework.tokenizers.receipts import images_of

CELLS = "cells"
Attack = Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", "random", "transfer"]
ATTACKS: tuple[Attack, ...] = get_args(Attack)
GRADIENTS: tuple[Gradient, ...] = get_args(Gradient)
LOSSES: dict[str, Loss] = {"apgd-ce": "ce", "apgd-dlr": "dlr", "apgd-t": "dlr-targeted"}
WITH_GRADIENT = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t")
GROUPS = {
    "noise": ("gaussian_noise",),
    "blur": ("gaussian_blur",),
    "imagenet-c": tuple(corrupting.ALEXNET),
    "extra": corrupting.EXTRA,
    "all": tuple(corrupting.CORRUPTIONS),
}


@dataclass(frozen=True)
class Inputs:
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
        object.__setattr__(self, "codes", tuple(sorted(set(self.codes))))
        object.__setattr__(self, "gradients", tuple(dict.fromkeys(self.gradients)))
        corrupting.check(names, self.severities, folder is not None)
        self._check()

    def _check(self) -> None:
        """Refuse what cannot be, before anything is read."""
        if not self.runs:
            raise ConfigError("no run to measure", "give one or more RUN")
        for eps in self.eps:
            if eps < 0 or (eps > 1 and self.norm == "linf"):
                hint = f"pixels are: write {eps:g}/255 for bytes" if eps > 1 else "give radii of 0 or more"
                raise ConfigError(f"eps {eps:g} is not between 0 and 1", hint)
        for name in self.restylings:
            if name not in RESTYLINGS:
                raise ConfigError(f"unknown restyling '{name}'", nearest(name, RESTYLINGS))
        if min(self.images, self.attack_images, self.steps, self.queries, self.restarts, self.targets, self.batch) < 1:
            raise ConfigError(
                "images, steps, queries, restarts, targets and batch are at least 1", "raise the one at 0"
            )
        if "transfer" in self.attacks and self.transfer is None:
            raise ConfigError("attack 'transfer' needs a run on pixels", "add --transfer RUN")
        if self.corruptions and not self.severities:
            raise ConfigError("corruptions without a severity", "give --severities some of 1 to 5")
        resolved = [run.resolve() for run in self.runs]
        if len(set(resolved)) < len(resolved):
            raise ConfigError("a run is given twice", "give each once")
        cleaned = [shift_name(name) for name, _ in self.shifts]
        if len(set(cleaned)) < len(cleaned):
            raise ConfigError("two shifts have one name", "give each its own: NAME=DIR")
        if min(self.codes, default=1) < 1:
            raise ConfigError(f"{min(self.codes)} codes cannot be swapped", "give 1 or more to --codes")

    @cached_property
    def torch_device(self) -> torch.device:
        """Where networks run."""
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
        subjects, names, shared = [], set(), dict[bytes, Tokenizer]()
        for trained in opened:
            on = trained.on(self.data, self.torch_device, self.tokenizer, count)
            file = (self.tokenizer or trained.tokenizer or Path()) / TOKENIZER
            if isinstance(on.source, ImagesAsCodes) and file.is_file() and box.ENCODER not in trained.spec.tokenizer:
                # settings and hash of the weights are the same: images are encoded once for all runs that have it
                on.source.tokenizer = shared.setdefault(file.read_bytes(), on.source.tokenizer)
            ask = FromPixels(trained.classifier.to(self.torch_device), on.source, on.steps)
            name = trained.name if trained.name not in names else str(trained.path)
            names.add(name)
            digest = _digest(trained)
            plain = re.sub(r"[^\w.+-]+", "-", name).strip("-.") or "run"
            subjects.append(Subject(name, ask, trained.spec.classes, self.out / CELLS / f"{plain}-{digest}"))
            self._check_attacks(subjects[-1])
        sizes = {subject.ask.images.grid for subject in subjects}
        if self.source_of_transfer is not None:
            sizes.add(self.source_of_transfer.ask.images.grid)
            if self.source_of_transfer.classes != subjects[0].classes:
                raise ConfigError(
                    f"--transfer {self.transfer} has other classes than the runs", "give one that has them"
                )
        if len(sizes) > 1:
            found = " and ".join(f"{h}x{w}" for h, w in sorted(sizes))
            raise ConfigError(f"the runs take images of {found} px", "compare runs of one size: all see the same bytes")
        frames = sorted({subject.ask.images.frame for subject in subjects})
        if len(frames) > 1:
            hint = "compare runs of one: all see the same bytes"
            raise ConfigError(f"the runs fit images to their size by {' and '.join(frames)}", hint)
        return subjects

    def _check_attacks(self, subject: Subject) -> None:
        """Refuse attacks that a run cannot be asked for."""
        codes = subject.ask.codes
        if set(self.attacks) & set(WITH_GRADIENT):
            x = torch.rand(1, 3, *subject.ask.images.grid, generator=torch.Generator().manual_seed(0))
            for line in subject.ask.check(x.to(self.torch_device)):
                self.say(f"{subject.name}: {line}")
            if codes is not None and not set(self.gradients) & set(subject.ask.gradients):
                known = ", ".join(subject.ask.gradients)
                raise ConfigError(f"{subject.name} has no gradient {' or '.join(self.gradients)}", f"it has {known}")
        if self.codes and (codes is None or codes.stage != "ids"):
            self.say(f"{subject.name} has no grid of codes: none are swapped")
        if codes is not None and self.codes and codes.stage == "ids":
            positions = int(np.prod(codes.grid))
            if max(self.codes) > positions:
                what = f"{max(self.codes)} codes cannot be swapped in {subject.name}, whose images have {positions}"
                raise ConfigError(what, "give --codes smaller numbers")

    @cached_property
    def source_of_transfer(self) -> Subject | None:
        """The run on pixels that images of 'transfer' are made against; its folder has the name of its weights."""
        if "transfer" not in self.attacks or self.transfer is None:
            return None
        trained = Trained.open(self.transfer)
        if trained.spec.stage != "pixels":
            raise ConfigError(f"--transfer {self.transfer} is a run on tokens", "give a run on pixels")
        on = trained.on(self.data, self.torch_device, None, self.images)
        ask = FromPixels(trained.classifier.to(self.torch_device), on.source, on.steps)
        return Subject(trained.name, ask, trained.spec.classes, Path(_digest(trained)))

    def _check_not_trained_on(self, runs: Sequence[Path]) -> None:
        for run in runs:
            trained_on = read_json(run / "data.json").get("train")
            seen = [Path(trained_on)] if trained_on else []
            for store in list(seen):  # codes of a folder that lies where it was
                if (note := images_of(store)).is_file():
                    seen.append(store.parent / str(read_json(note).get("folder", "")))
            for name, folder in (("the images", self.data), *self.shifts):
                if any(path.exists() and folder.exists() and folder.samefile(path) for path in seen):
                    raise InputError(f"{folder} ({name}) is what {run} was trained on", "give images it has not seen")

    @cached_property
    def pixels(self) -> Tensor:
        """The images, (N, 3, H, W) uint8."""
        source = self.subjects[0].ask.images
        return source.batch(np.arange(len(source))).x

    @cached_property
    def index(self) -> Tensor:
        """What draws of each image are keyed by, (N,): its name, whatever other images there are."""
        folder = self.subjects[0].ask.images.folder
        digests = (hashlib.sha256(folder.key(i).encode(errors="surrogateescape")).digest() for i in range(len(folder)))
        return torch.tensor([int.from_bytes(digest[:4], "big") >> 1 for digest in digests])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the images and their classes."""
        return fingerprint_of(self.pixels, self.subjects[0].ask.images.labels)

    @cached_property
    def attacked(self) -> Tensor:
        """Numbers of the images that are attacked, (A,)."""
        return torch.from_numpy(part_of(len(self.pixels), min(self.attack_images, len(self.pixels))))

    def labels(self, subject: Subject) -> Tensor:
        """Class numbers of the images as a run has them, (N,)."""
        return torch.from_numpy(subject.ask.images.labels).to(self.torch_device)

    def attacked_images(self, subject: Subject) -> tuple[Tensor, Tensor, Tensor]:
        """Images in [0, 1], labels, and which are right before the attack, of those that are attacked."""
        x = self.pixels[self.attacked].to(self.torch_device) / 255
        clean = subject.cell("clean")
        assert clean is not None
        return x, self.labels(subject)[self.attacked], torch.from_numpy(clean.hits)[self.attacked].to(self.torch_device)


def _digest(trained: Trained) -> str:
    """Of the weights of a run."""
    return sha256(next(trained.directory.checkpoint().glob("objective.safetensors")))[:10]


def fingerprint_of(pixels: Tensor, labels: np.ndarray) -> str:
    """Hash of images and their class numbers."""
    digest = hashlib.sha256(pixels.cpu().numpy().tobytes())
    digest.update(np.asarray(labels, "<i8").tobytes())
    return digest.hexdigest()[:16]


def shift_name(name: str) -> str:
    """Of a shifted data set, as part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name)
