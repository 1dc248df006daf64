"""Output of commands: aligned lines or JSON, and progress bars."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilework.core.errors import ConfigError, OutputError


def check_png(path: Path, option: str) -> None:
    """Refuse a picture that is not named as PNG, or in a folder that is not there."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{option} {path} is not a PNG file", "choose a name that ends in .png")
    if not path.parent.is_dir():
        raise OutputError(f"{option} {path}: there is no folder {path.parent}", "make it first")
    check_replaceable(path, option, b"Software\0Tilework")


def check_replaceable(path: Path, option: str, mark: bytes | None) -> None:
    """Refuse to replace a file that Tilework has not written. mark: what its own have near their beginning."""
    if not path.exists():
        return
    if path.is_file() and mark is not None:
        with path.open("rb") as file:
            if mark in file.read(1024):
                return
    raise OutputError(
        f"{option} {path} exists, and was not written by this command", "choose another name, or remove it"
    )


_shown: list[tuple[str, str]] = []  # local places, and the URLs that they stand for


@contextmanager
def shown_as(place: str, url: str) -> Iterator[None]:
    """Show a URL instead of the local place whose contents will be uploaded to it."""
    _shown.append((place, url))
    try:
        yield
    finally:
        _shown.pop()


def show(values: Mapping[str, Any], as_json: bool, files: bool = False) -> None:
    """Print name and value pairs, aligned, or as JSON. files: names are those of files, left as they are."""
    for place, url in _shown:
        values = {k: v.replace(place, url) if isinstance(v, str) else v for k, v in values.items()}
    if as_json:
        print(compact(values))
        return
    width = max(map(len, values), default=0)
    for name, value in values.items():
        text = ", ".join(f"{k} {_short(v)}" for k, v in value.items()) if isinstance(value, Mapping) else _short(value)
        print(f"{name if files else name.replace('_', ' '):<{width}}  {text}")


def compact(value: Any, room: int = 100, indent: str = "") -> str:
    """JSON for people: what fits on a line stays on it."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + len(indent) <= room or not isinstance(value, Mapping | list | tuple) or not value:
        return line
    deeper = indent + "  "
    if isinstance(value, Mapping):
        parts = [f"{json.dumps(str(k), ensure_ascii=False)}: {compact(v, room, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + compact(one, room, deeper) for one in value) + f"\n{indent}]"


def _short(value: Any) -> str:
    if isinstance(value, float):  # accuracies to a hundredth of a point, everything else to three digits
        return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.4g}" if abs(value) <= 1 else f"{value:.3g}"
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

    from tilework.core.console import Bar

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
