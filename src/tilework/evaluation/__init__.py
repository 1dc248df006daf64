"""Measuring: accuracy, confusion, and whatever an objective scores."""

from tilework.evaluation.average import average
from tilework.evaluation.classification import Classification, classify

__all__ = ["Classification", "average", "classify"]
