"""Output of commands: aligned lines or JSON, and progress bars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def show(values: Mapping[str, Any], as_json: bool) -> None:
    """Print name and value pairs, aligned, or as JSON."""
    if as_json:
        print(json.dumps(values, indent=2))
        return
    width = max(map(len, values), default=0)
    for name, value in values.items():
        text = ", ".join(f"{k} {_short(v)}" for k, v in value.items()) if isinstance(value, Mapping) else _short(value)
        print(f"{name.replace('_', ' '):<{width}}  {text}")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        numbers = any(isinstance(one, float) for one in value)
        return " ".join(f"{one:.3g}" for one in value) if numbers else " x ".join(map(str, value))
    return str(value)


@contextmanager
def progress_bar(title: str, quiet: bool, unit: str = "") -> Iterator[Callable[[int, int], None]]:
    """A function that shows (done, total) as a bar, with the rate where a unit is given."""
    from time import monotonic

    from tilework.train.log import Bar

    bars: list[Bar] = []
    begun, first = monotonic(), 0

    def update(done: int, total: int) -> None:
        nonlocal begun, first
        if not bars:
            begun, first = monotonic(), done
            bars.append(Bar(title, total, done, quiet=quiet))
        rate = (done - first) / max(1e-3, monotonic() - begun)
        bars[0].update(done, note=f"{rate:,.0f} {unit}/s" if unit and done > first else "")

    try:
        yield update
    finally:
        for bar in bars:
            bar.close()
