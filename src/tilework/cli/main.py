"""`tilework`: finds the command, runs it, and turns errors into one line and an exit code.

Only the module of the command that was asked for is imported, so that the overview comes at once.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from types import FrameType

from tilework.core.errors import EXIT_CODES, ConfigError, Stopped, TileworkError
from tilework.core.methods import import_methods
from tilework.core.registry import nearest
from tilework.version import __version__

# command: (module in tilework.cli, function, first line of its docstring)
COMMANDS = {
    "demo": ("demo", "demo", "From photographs to a token-trained model and a report, in a few minutes on two cores."),
    "tokenizer train": ("tokenizer", "train_tokenizer", "Train a tokenizer on a folder of images."),
    "tokenizer import": (
        "tokenizer",
        "import_tokenizer",
        "Take over other people's tokenizer: its layout is recognised by the names of its tensors.",
    ),
    "tokenizer dct": (
        "tokenizer",
        "make_dct",
        "Make the tokenizer of DCT coefficients: JPEG's, at a chosen quality. Nothing is trained.",
    ),
    "tokenizer card": (
        "tokenizer",
        "card",
        "Measure a tokenizer on images: PSNR, SSIM, code usage, bits, speed; written beside it with a picture.",
    ),
    "tokenize": (
        "tokenize",
        "tokenize",
        "Turn images in a folder, tar or Parquet files into a token store; stopped, the same command goes on.",
    ),
    "inspect": ("inspect", "inspect", "Show what is in a token store, in figures and as a picture."),
    "verify": ("verify", "verify", "Check every file and every record of a token store."),
    "convert": ("convert", "convert", "Turn a store into another form or codec, or other people's files into a store."),
    "merge": ("merge", "merge", "Put several token stores of one tokenizer together; classes are matched by name."),
    "subset": (
        "subset",
        "subset",
        "Keep some images of a token store: a share of each class, the best of each by a score, or those of a list.",
    ),
    "split": ("subset", "split", "Split a token store in two, the same share of each class."),
    "column": (
        "column",
        "column",
        "Add a column to a token store: one value per image, beside the shards, which stay as they are.",
    ),
    "seal": ("seal", "seal", "Make a token store of what several processes have spooled beside it (STORE.spool)."),
    "recipes": ("recipes", "recipes", "List the recipes with their figures, or show one as YAML."),
    "train": (
        "train",
        "train",
        "Train a model by a recipe or a chain of them; the same command again goes on where it stopped.",
    ),
    "compare": (
        "compare",
        "compare",
        "Storage against accuracy on your own images: pixels, samples of them, small ones, bad ones, and tokens.",
    ),
    "table": (
        "table",
        "table",
        "Several recipes, settings or seeds on the same data, as one table: ablations and sweeps.",
    ),
    "annotate": (
        "annotate",
        "annotate",
        "Let a classifier label every place of every image: label maps for token labelling.",
    ),
    "explain": ("explain", "explain", "Draw where models look: relevance of each patch for the likeliest classes."),
    "export": ("export", "export", "Write the model of a run for inference, without what only training needs."),
    "eval": ("eval", "evaluate", "Measure a trained model on a token store or an image folder."),
    "probe": ("probe", "probe", "Measure what the frozen features of a run know: linear classifier and neighbours."),
    "analyze augment": (
        "analyze",
        "augment",
        "Show what augmentations do to codes: decoded, and to the features of a classifier.",
    ),
    "analyze align": (
        "analyze",
        "align",
        "Show what is in the tokens of mixed images, layer by layer, and what their labels say.",
    ),
    "analyze stems": (
        "analyze",
        "stems",
        "Measure what stems let through and how much their tokens differ.",
    ),
    "analyze tokenizers": (
        "analyze",
        "tokenizers",
        "Compare tokenizers on one image folder: bits, stored bytes, PSNR, code usage, and accuracy.",
    ),
    "doctor": (
        "doctor",
        "doctor",
        "Show versions, devices, and missing extras with the line that installs them.",
    ),
}


def overview() -> str:
    """What `tilework --help` shows."""
    commands = "\n".join(f"  {name:<20}{line}" for name, (_, _, line) in COMMANDS.items())
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    return (
        "usage: tilework COMMAND ...\n\n"
        "Train vision models from tokens instead of pixels. Start with: tilework demo\n\n"
        f"commands (tilework COMMAND --help says more):\n{commands}\n\nexit codes:\n{codes}"
    )


def main(args: list[str] | None = None) -> None:
    """Run a command line; always ends in SystemExit."""
    try:
        with suppress(ValueError):  # not the main thread: signals are someone else's
            signal.signal(signal.SIGTERM, _stop)
        _run(sys.argv[1:] if args is None else args)
        sys.exit(0)
    except TileworkError as error:
        print(f"tilework: {'' if isinstance(error, Stopped) else 'error: '}{error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped("stopped by a signal", "run it again to go on")


def _run(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        print(overview())
    elif args[0] == "--version":
        print(__version__)
    else:
        name, rest = _command(args)
        _check_output(rest)
        import tyro

        import_methods()
        module, function, _ = COMMANDS[name]
        call = getattr(import_module(f"tilework.cli.{module}"), function)
        tyro.cli(call, prog=f"tilework {name}", args=rest, config=(tyro.conf.FlagCreatePairsOff,))


def _check_output(words: list[str]) -> None:
    """Nothing is written to URLs; a Path would take one for a directory."""
    for flag, value in zip(words, [*words[1:], ""], strict=False):
        given = value if flag in ("--out", "--picture") else flag.partition("=")[2] if flag.startswith("--out=") else ""
        if "://" in given:
            raise ConfigError(f"{flag.partition('=')[0]} cannot be a URL", "write to this machine, then copy it")


def _command(args: list[str]) -> tuple[str, list[str]]:
    """The command, of one word or two, and what follows it."""
    for words in (2, 1):
        name = " ".join(args[:words])
        if name in COMMANDS:
            return name, args[words:]
    family = [f"tilework {name}" for name in COMMANDS if name.split()[0] == args[0]]
    if family and set(args[1:]) <= {"-h", "--help"}:
        print(f"usage: {', '.join(family)}", file=sys.stdout if args[1:] else sys.stderr)
        sys.exit(0 if args[1:] else 2)
    print(f"tilework: error: unknown command '{args[0]}': {nearest(args[0], COMMANDS)}", file=sys.stderr)
    sys.exit(2)
