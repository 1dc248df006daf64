"""`tilework`: finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys

import tyro

from tilework.cli.demo import demo
from tilework.cli.doctor import doctor
from tilework.cli.eval import evaluate
from tilework.cli.inspect import inspect
from tilework.cli.recipes import recipes
from tilework.cli.tokenize import tokenize
from tilework.cli.tokenizer import train_tokenizer
from tilework.cli.train import train
from tilework.cli.verify import verify
from tilework.core.errors import EXIT_CODES, TileworkError

DESCRIPTION = (
    "Train vision models from tokens instead of pixels. Start with: tilework demo\n\nExit codes:\n"
    + "\n".join(f"  {code:>2}  {meaning}" for code, meaning in EXIT_CODES.items())
)


def app() -> tyro.extras.SubcommandApp:
    """All commands."""
    commands = tyro.extras.SubcommandApp()
    commands.command(name="demo")(demo)
    tokenizer = tyro.extras.SubcommandApp()
    tokenizer.command(name="train")(train_tokenizer)
    commands.command(tokenizer, name="tokenizer", help="Train tokenizers.")
    commands.command(name="tokenize")(tokenize)
    commands.command(name="inspect")(inspect)
    commands.command(name="verify")(verify)
    commands.command(name="recipes")(recipes)
    commands.command(name="train")(train)
    commands.command(name="eval")(evaluate)
    commands.command(name="doctor")(doctor)
    return commands


def main(args: list[str] | None = None) -> None:
    """Run a command line; always ends in SystemExit."""
    try:
        app().cli(prog="tilework", description=DESCRIPTION, args=args, config=(tyro.conf.FlagCreatePairsOff,))
        sys.exit(0)
    except TileworkError as error:
        print(f"tilework: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
