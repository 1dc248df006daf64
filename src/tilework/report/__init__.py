"""Figures and HTML reports."""

from tilework.report.figures import (
    captioned_pictures,
    code_pictures,
    confusion,
    curves,
    heat_pictures,
    label_maps,
    ratio_panels,
    rows_of_pictures,
    scatter_panels,
    storage_accuracy,
)
from tilework.report.page import Card, Page

__all__ = [
    "Card",
    "Page",
    "captioned_pictures",
    "code_pictures",
    "confusion",
    "curves",
    "heat_pictures",
    "label_maps",
    "ratio_panels",
    "rows_of_pictures",
    "scatter_panels",
    "storage_accuracy",
]
