"""What an objective needs of data, what its model gives, and the figure it is judged by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A part of every objective's settings that no setting changes."""

    labels: bool = True  # of images are learnt: the model is a classifier
    classes: bool = False  # are told apart otherwise: for every pixel, or for boxes
    columns: tuple[str, ...] = ()  # that training batches must carry
    validation_columns: tuple[str, ...] = ()  # that validation batches must carry
    metric: str = "top1"  # the headline among the figures of validation
    higher_is_better: bool = True  # of that figure
    right: str = "top1"  # the figure that says which share of the labels is right
    judged: str = "images"  # what has a label: images or pixels

    def outputs(self, classes: int) -> int:
        """Outputs of the model's head for data of so many classes; 0: no head."""
        return classes if self.labels or self.classes else 0
