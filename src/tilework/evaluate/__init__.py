"""Measuring: accuracy, confusion, and whatever an objective scores."""

from tilework.evaluate.average import average
from tilework.evaluate.classification import Classification, classify

__all__ = ["Classification", "average", "classify"]
