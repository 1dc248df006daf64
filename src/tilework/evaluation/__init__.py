"""Measuring: accuracy, confusion, and whatever an objective scores."""

from tilework.evaluation.average import average
from tilework.evaluation.classification import Classification, classify
from tilework.evaluation.probe import features, knn_accuracy, linear_accuracy

__all__ = [
    "Classification",
    "average",
    "classify",
    "features",
    "knn_accuracy",
    "linear_accuracy",
]
