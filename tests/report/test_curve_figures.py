"""Effects of converged tables: what an interval says, and a chart that shows every one."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from PIL import Image

from tilework.report.curve_figures import Effect, effect_chart

ADDED = Effect("SeiT", "CutMix", "plain crops", "tokens, 1,000 x 100", 3.3, 1.2, None, (2.6, 3.6, 3.7), 81.5)


@pytest.mark.parametrize(
    ("ours", "half", "paper", "reading"),
    [
        (3.3, 1.2, None, "seen"),
        (-1.8, 1.2, None, "costs"),
        (1.2, 1.2, None, "not resolved (+0.0 to +2.4)"),
        (-0.3, 1.5, None, "not resolved (-1.8 to +1.2)"),
        (1.3, 1.2, None, "seen, at the edge"),
        (-1.4, 1.2, None, "costs, at the edge"),
        (1.5, 1.2, None, "seen"),
        (3.3, 1.2, 4.4, "seen"),
        (3.3, 1.2, 4.6, "seen; paper outside"),
        (-0.3, 1.5, 1.3, "not resolved (-1.8 to +1.2); paper outside"),
        (3.3, 1.2, 2.0, "seen; paper outside"),
    ],
)
def test_reading_of_an_interval(ours: float, half: float, paper: float | None, reading: str) -> None:
    assert replace(ADDED, ours=ours, half=half, paper=paper).reading == reading


def test_chart_grows_with_effects_and_groups() -> None:
    """And the same effect twice is two rows."""
    two = [ADDED, replace(ADDED, name="EDA", ours=0.8, paper=1.0)]
    more = [*two, ADDED, replace(ADDED, group="LV-ViT")]
    sizes = [Image.open(io.BytesIO(effect_chart(effects))).size for effects in (two, more, [ADDED] * 5)]
    assert sizes[0][1] < sizes[1][1]
    assert sizes[1][1] == sizes[2][1]  # four effects and two groups, or five and one
