"""`tilework eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Device, Json, OptionalPath
from tilework.cli.output import show


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    /,
    data: Data,
    tokenizer: OptionalPath = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Evaluate a trained model on a token store or an image folder.

    Try:
      tilework eval runs/token --data val.tok
      tilework eval runs/token --data photos/val --tokenizer tokenizer

    Args:
        run: Directory that 'tilework train' wrote.
        data: Token store or image folder.
        tokenizer: Directory of the tokenizer, to evaluate a model of tokens on an image folder.
    """
    from tilework.runs import evaluate_run

    result = evaluate_run(run, data, tokenizer, device)
    summary = result.summary()
    if not json:
        summary.pop("confusion")
        if len(result.classes) > 20:
            summary.pop("per_class")
    show(summary, json)
