"""Figures and HTML reports."""

from tilework.report.figures import (
    captioned_pictures,
    code_pictures,
    confusion,
    curves,
    heat_pictures,
    label_maps,
    predictions,
    ratio_panels,
    rows_of_pictures,
    scatter_panels,
    storage_accuracy,
    trade,
)
from tilework.report.mask_figures import masks_figure
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
    "masks_figure",
    "predictions",
    "ratio_panels",
    "rows_of_pictures",
    "scatter_panels",
    "storage_accuracy",
    "trade",
]
