"""Robustness of trained classifiers, side by side: inputs, corruptions and shifts, attacks, report."""

from tilework.analysis.robustness.job import Robustness

__all__ = ["Robustness"]
