"""Arguments of a command by tyro; what is wrong with a command line is one line, where tyro draws a frame."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import redirect_stderr
from difflib import get_close_matches
from functools import partial, wraps
from inspect import signature
from io import StringIO
from typing import Any

from tilework.core.errors import UsageError


def call_with_arguments(call: Callable[..., Any], name: str, words: list[str]) -> Callable[[], Any]:
    """The function of a command with its arguments, still to be called. Help is printed, and ends the program."""
    import tyro

    found: list[Callable[[], Any]] = []

    @wraps(call)
    def keep(*args: Any, **more: Any) -> None:
        found.append(partial(call, *args, **more))

    said = StringIO()
    try:
        with redirect_stderr(said):
            tyro.cli(keep, prog=f"tilework {name}", args=words, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as stop:
        if not stop.code:
            raise
        options = [
            f"--{one.name.replace('_', '-')}"
            for one in signature(call).parameters.values()
            if one.kind != one.POSITIONAL_ONLY
        ]
        raise UsageError(in_one_line(said.getvalue(), options), f"see 'tilework {name} --help'") from stop
    return found[0]


def in_one_line(framed: str, options: list[str]) -> str:
    """What a frame says: missing and unknown options by name, anything else as it is; help texts are left out."""
    lines = [line[2:].rstrip("│ ") for line in framed.splitlines()[1:]]  # without title and edges
    inside = "\n".join("" if set(line) <= set("─╯-") else line for line in lines)  # rules, also where they are ASCII
    parts = []
    for section in inside.split("\n\n"):
        section = section.strip("\n")
        first, *rest = section.splitlines() or [""]
        items = [line.strip() for line in rest if re.match(r" {4}\S", line)]
        if re.match("(For full|Argument) helptext|Perhaps you meant", first):
            continue
        if first.startswith("Missing from"):
            parts.append(f"{', '.join(items)} {'is' if len(items) == 1 else 'are'} missing")
        elif first.startswith("Unrecognized options:"):
            unknown = items or first.partition(":")[2].replace(",", " ").split()
            alike = [match for one in unknown for match in _alike(one.partition("=")[0], options)]
            meant = f" (did you mean {', '.join(alike)}?)" if alike else ""
            parts.append(f"{' '.join(unknown)} is not known{meant}")
        elif first:
            told = " ".join(section.split()).rstrip(".")
            parts.append(told[0].lower() + told[1:])
    return "; ".join(parts) or "the arguments do not fit"


def _alike(word: str, options: list[str]) -> list[str]:
    """The option that a word begins or is most like, if there is one."""
    begun = [option for option in options if word.startswith("--") and option.startswith(word)]
    return begun[:1] or get_close_matches(word, options, 1, 0.7)
