"""docs/settings.md follows the settings classes."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from tilework.augment import CutMix
from tilework.runs.settings_page import CHOICES, FILE, page

ROOT = Path(__file__).parents[2]


def test_the_committed_page_is_current() -> None:
    assert (ROOT / FILE).read_text() == page(), "run: python -m tilework.runs.settings_page"


def test_every_registered_class_and_field_has_a_line() -> None:
    shown = page()
    for base in CHOICES:
        body = shown.partition(f"\n## {base.__name__}: ")[2].partition("\n## ")[0]
        for name in base.choices:
            if base.choices[name].__module__.startswith("tilework."):
                section = body.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
                assert section, name
                assert all(f"\n| `{field.name}` |" in section for field in fields(base.choices[name]) if field.init)


def test_a_line_has_type_default_and_comment() -> None:
    shown = page()
    assert "| `batch` | `int` | `64` | batch size over all processes and accumulation steps |" in shown
    assert "| `codes` | `tuple[int, int] \\| None` | `null` | " in shown  # a bar would end the cell
    assert f"| `alpha` | `float` | `{CutMix.alpha}` |" in shown.partition("### cutmix\n")[2].partition("### ")[0]
