"""Scores of training images: how early and steadily each is learnt (mean confidence over training)."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilework.core.errors import ConfigError
from tilework.core.files import write
from tilework.data import ImageFolder
from tilework.objectives import ClassifyConfig
from tilework.objectives.classify_scored import ClassifyScoredConfig
from tilework.runs import Run
from tilework.store import Store
from tilework.train.checkpoint import latest_checkpoint, objective_tensors


def scored(run: Run, samples: int) -> Run:
    """The same run, with its training unchanged, that also records a score per sample."""
    if not isinstance(run.objective, ClassifyConfig) or run.objective.preprocess():
        raise ConfigError("scores need a classification objective", "choose a recipe with the objective 'classify'")
    return replace(run, objective=ClassifyScoredConfig(run.objective.smoothing, samples))


def read_scores(run: Path) -> np.ndarray:
    """Scores of a run made by `scored`, one per training sample, (N,) float32."""
    checkpoint = latest_checkpoint(run / "checkpoints")
    tensors = objective_tensors(checkpoint) if checkpoint is not None else {}
    if "visits" not in tensors:
        raise ConfigError(f"{run} has no scores", "train with the objective 'classify_scored'")
    found: np.ndarray = (tensors["confidence"] / tensors["visits"]).numpy()
    return np.nan_to_num(found, nan=0.0)


def write_scores(out: Path, scores: np.ndarray, data: ImageFolder | Store) -> None:
    """OUT.npy for `tilework column`, and OUT.csv with the name and the class of each image."""
    names = data.keys if isinstance(data, ImageFolder) else tuple(map(str, data.column("key")))
    labels = data.labels if isinstance(data, ImageFolder) else np.asarray(data.column("label"))
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["path", "label", "score"])
    rows.writerows((n, data.classes[int(k)], f"{s:.6f}") for n, k, s in zip(names, labels, scores, strict=True))
    write(out.with_suffix(".csv"), table.getvalue().encode())
    array = io.BytesIO()
    np.save(array, scores.astype(np.float32))
    write(out.with_suffix(".npy"), array.getvalue())
