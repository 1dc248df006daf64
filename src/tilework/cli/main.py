"""`tilework`: find the command, import only its module, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import ast
import io
import logging
import os
import signal
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import FrameType

from tilework.cli.inputs import check_inputs, in_order, is_folder
from tilework.cli.parse import call_with_arguments
from tilework.core.errors import (
    EXIT_CODES,
    BrokenImagesError,
    ConfigError,
    InputError,
    Stopped,
    TileworkError,
    UsageError,
)
from tilework.core.launcher import end_with_launcher
from tilework.core.methods import import_methods
from tilework.core.registry import nearest
from tilework.version import __version__

# command: "module.function" in tilework.cli; the first line of its docstring is its line in the overview
COMMANDS = {
    "demo": "demo.demo",
    "start": "start.start",
    "tokenizer train": "tokenizer.train_tokenizer",
    "tokenizer import": "tokenizer.import_tokenizer",
    "tokenizer dct": "tokenizer.make_dct",
    "tokenizer teacher": "tokenizer.make_teacher",
    "tokenizer card": "tokenizer.card",
    "tokenizer list": "tokenizer.list_tokenizers",
    "tokenize": "tokenize.tokenize",
    "inspect": "inspect.inspect",
    "verify": "verify.verify",
    "convert": "convert.convert",
    "merge": "merge.merge",
    "subset": "subset.subset",
    "split": "subset.split",
    "column": "column.column",
    "seal": "seal.seal",
    "recipes": "recipes.recipes",
    "train": "train.train",
    "compare": "compare.compare",
    "table": "table.table",
    "frontier": "frontier.frontier",
    "annotate": "annotate.annotate",
    "explain": "explain.explain",
    "export": "export.export",
    "predict": "predict.predict",
    "eval": "eval.evaluate",
    "robustness": "robustness.robustness",
    "report": "report.report",
    "probe": "probe.probe",
    "analyze augment": "analyze.augment",
    "analyze align": "analyze.align",
    "analyze stems": "analyze.stems",
    "analyze tokenizers": "analyze.tokenizers",
    "push": "hub.push",
    "pull": "hub.pull",
    "doctor": "doctor.doctor",
}

# commands that go on where they were stopped, if they are repeated
RESUMED = (
    "demo", "start", "tokenizer train", "tokenize", "train", "compare", "table", "frontier", "annotate", "robustness",
    "analyze tokenizers",
)  # fmt: skip
ACCEPTING = {"train": "max_broken=", "tokenizer train": "max_broken=", "table": "--settings max_broken="}
UPLOADS = ("tokenize", "convert", "merge", "subset", "export", "train")  # --out may be a URL of a bucket


def summary(command: str) -> str:
    """First docstring line of a command, read from its source: importing all commands would take seconds."""
    module, _, function = COMMANDS[command].partition(".")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_bytes())
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return (ast.get_docstring(found) or "").partition("\n")[0]


def overview() -> str:
    """What `tilework --help` shows."""
    commands = "\n".join(f"  {name:<20}{summary(name)}" for name in COMMANDS)
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    return (
        "usage: tilework COMMAND ...\n\n"
        "Train vision models from tokens instead of pixels. Start with: tilework start FOLDER, or tilework demo\n\n"
        f"commands (details: tilework COMMAND --help):\n{commands}\n\nexit codes:\n{codes}"
    )


def main(args: list[str] | None = None) -> None:
    """Run a command line; always ends in SystemExit."""
    words = sys.argv[1:] if args is None else args
    end_with_launcher()
    _say_it_ourselves()
    for stream in (sys.stdout, sys.stderr):  # a name may hold what the terminal's encoding does not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with suppress(ValueError):  # not the main thread: signals are someone else's
            signal.signal(signal.SIGTERM, _stop)
        _run(words)
        sys.exit(0)
    except TileworkError as error:
        print(f"tilework: {'' if isinstance(error, Stopped) else 'error: '}{error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except _Terminated:
        print(f"tilework: stopped by a signal{_how_to_go_on(words)}", file=sys.stderr)
        sys.exit(Stopped.exit_code)
    except KeyboardInterrupt:
        print(f"\ntilework: interrupted{_how_to_go_on(words)}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # of the disk or its permissions, wherever a file was opened
        if error.filename is None:
            raise
        known = InputError(f"cannot use {error.filename}", error.strerror or type(error).__name__)
        print(f"tilework: error: {known}", file=sys.stderr)
        sys.exit(known.exit_code)


def _say_it_ourselves() -> None:
    """Pillow's remarks about odd files stay unsaid: what cannot be read is named and listed by the command."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").addHandler(logging.NullHandler())


def _how_to_go_on(words: list[str]) -> str:
    known = {" ".join(words[:count]) for count in (1, 2)} & set(RESUMED)
    return ": repeat the command to resume" if known else ""


class _Terminated(KeyboardInterrupt):
    """SIGTERM; no `except Exception` of ours or of a library takes it for its own failure."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def _run(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(overview())
    elif args[0] == "--version":
        print(__version__)
    else:
        name, rest = _command(args)
        if name == "train" and is_folder(rest):  # of images, instead of a recipe
            name = "start"
        at = _url_of_output(name, rest)
        import_methods()
        rest = in_order(name, rest)
        check_inputs(name, rest)
        if at is None or name == "train":  # which uploads every checkpoint
            _call(name, rest)
        else:
            _call_and_upload(name, rest, at)


def _call(name: str, words: list[str]) -> None:
    module, _, function = COMMANDS[name].partition(".")
    call = getattr(import_module(f"tilework.cli.{module}"), function)
    ready = call_with_arguments(call, name, words)
    try:
        ready()
    except BrokenImagesError as error:
        option = "--max-broken " if "max_broken" in signature(call).parameters else ACCEPTING.get(name, "")
        raise (error.accepted_by(option) if option else error) from error


def _call_and_upload(name: str, words: list[str], at: str) -> None:
    """Run a command with a local output, then upload that."""
    from tilework.cli.output import shown_as
    from tilework.core.location import Url
    from tilework.store.upload import output
    from tilework.train.log import notice

    if "--shard" in words:
        raise ConfigError("--shard needs an --out that all processes see", "give a path, and upload the sealed store")
    with output(Url(at)) as place:
        if place.exists():
            notice(f"uploading what an earlier command has made for {at}", "--json" in words)
        else:
            with shown_as(str(place), at):
                _call(name, [word.replace(at, str(place)) for word in words])


def _url_of_output(name: str, words: list[str]) -> str | None:
    """The URL that a command shall write to; refused where it cannot. A Path would turn it into a local directory."""
    for flag, value in zip(words, [*words[1:], ""], strict=False):
        given = value if flag in ("--out", "--picture") else flag.partition("=")[2] if flag.startswith("--out=") else ""
        if "://" in given and (flag == "--picture" or name not in UPLOADS or given.startswith("hf://")):
            hint = "write to a local path, then " + ("'tilework push' it" if given.startswith("hf://") else "copy it")
            raise ConfigError(f"{flag.partition('=')[0]} cannot be a URL", hint)
        if "://" in given:
            return given
    return None


def _command(args: list[str]) -> tuple[str, list[str]]:
    """The command, of one word or two, and what follows it."""
    for words in (2, 1):
        name = " ".join(args[:words])
        if name in COMMANDS:
            return name, args[words:]
    family = [name for name in COMMANDS if name.split()[0] == args[0]]
    if family and set(args[1:]) <= {"-h", "--help"}:
        usage = ", ".join(f"tilework {name}" for name in family)
        print(f"usage: {usage}", file=sys.stdout if args[1:] else sys.stderr)
        sys.exit(0 if args[1:] else 2)
    name = " ".join(args[: 2 if family else 1])
    raise UsageError(f"unknown command '{name}'", nearest(name, family or COMMANDS))
