"""Answers of a trained model about photographs: which answers it gives is a matter of its task.

N images | K classes
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, InputError
from tilework.core.location import Location, is_store, location
from tilework.data import ImageFolder, Source
from tilework.evaluation import classify
from tilework.runs.build import store_of
from tilework.runs.trained import OnData, Trained


@dataclass(frozen=True)
class Prediction:
    """The likeliest classes of an image, the first one first."""

    image: str  # its path as it was given, or below the folder given; its key in a store
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    truth: str | None = None  # where a store knows it
    error: str = ""  # why there is no answer

    def named(self, names: Mapping[str, str]) -> Prediction:
        """The same with other names of classes."""
        classes = tuple(names.get(one, one) for one in self.classes)
        return replace(self, classes=classes, truth=None if self.truth is None else names.get(self.truth, self.truth))

    def __str__(self) -> str:
        if self.error:
            return f"{self.image}: {self.error}"
        return f"{self.image}: " + ", ".join(
            f"{name} {share:.1%}" for name, share in zip(self.classes, self.probabilities, strict=True)
        )


def _classes(trained: Trained, data: OnData, keys: Sequence[str], top: int, device: torch.device) -> list[Prediction]:
    """Of a classifier."""
    found = classify(trained.classifier, data.source, data.steps, device)
    order = np.argsort(-found.probabilities, axis=1, kind="stable")[:, :top]
    names, truth = trained.spec.classes, _truth(data.source, trained.spec.classes)
    return [
        Prediction(
            key,
            tuple(names[i] for i in best.tolist()),
            tuple(float(row[i]) for i in best.tolist()),
            None if truth is None else truth[number],
        )
        for number, (key, row, best) in enumerate(zip(keys, found.probabilities, order, strict=True))
    ]


def _truth(source: Source, classes: Sequence[str]) -> list[str] | None:
    known = store_of(source) is not None and tuple(source.classes) == tuple(classes)
    return None if not known else [classes[label] for label in source.labels.tolist()]


# what a run answers, by the headline figure of its task
ANSWERS: dict[str, Callable[[Trained, OnData, Sequence[str], int, torch.device], list[Prediction]]] = {"top1": _classes}


def predict(
    trained: Trained,
    photographs: Sequence[Location | str],
    top: int = 5,
    device: str = "auto",
    tokenizer: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Prediction]:
    """Answers about photographs, all images below folders, or a token store, in their order.

    say: is told which files of folders are no images.
    """
    places = [location(path) for path in photographs]
    if not places:
        raise InputError("no photographs", "give files, folders or a token store")
    if top < 1:
        raise ConfigError(f"the {top} likeliest classes were asked for", "give 1 or more")
    metric = trained.run.objective.task.metric
    if not trained.run.objective.task.labels or metric not in ANSWERS:
        raise InputError(f"{trained.path} trained no classifier", "give a classifier's run, or use 'tilework probe'")
    chosen, answer = pick_device(device), ANSWERS[metric]
    stored = [place for place in places if is_store(place)]
    if stored:
        if len(places) > 1:
            raise InputError(f"{stored[0]} is a token store, beside other paths", "give it alone")
        opened = trained.on(stored[0], chosen, classes="any" if _unlabelled(trained, stored[0]) else "same")
        store = store_of(opened.source)
        assert store is not None
        keys = [key for key in store.column("key") for _ in range(store.views)]
        return answer(trained, opened, keys, top, chosen)
    files = [place for place in places if isinstance(place, Path)]
    folder = ImageFolder.loose(files)
    for note in folder.notes:
        say(note)
    opened, broken = trained.photographs(folder, chosen, tokenizer)
    bad = {one.path: one.reason for one in broken}
    names = dict(zip(folder.keys, _as_given(folder.paths, files), strict=True))
    good = iter(answer(trained, opened, [name for key, name in names.items() if key not in bad], top, chosen))
    return [
        Prediction(name, error=f"cannot be read ({bad[key]})") if key in bad else next(good)
        for key, name in names.items()
    ]


def _as_given(paths: Sequence[Path], given: Sequence[Path]) -> list[str]:
    """Paths that lead to the images from here, absolute only where some were given so."""
    absolute = any(path.is_absolute() for path in given)
    return [Path(path.absolute() if absolute else os.path.relpath(path)).as_posix() for path in paths]


def _unlabelled(trained: Trained, store: Location) -> bool:
    """Whether the classes of a store are not the run's: then they are no truth."""
    from tilework.store import Store

    return not set(Store(store).classes) <= set(trained.spec.classes)
