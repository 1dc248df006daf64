"""`tilework export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Best, Json, Local, OptionalData, OptionalLocal
from tilework.cli.output import show

Onnx = Annotated[bool, arg(help="Also write an ONNX graph, from raw input to logits.", help_behavior_hint="")]

Pixels = Annotated[bool, arg(help="Let the ONNX graph begin with pixels, tokenizer included.", help_behavior_hint="")]


def export(
    run: Annotated[Positional[Local], arg(metavar="RUN")],
    /,
    out: Path,
    onnx: Onnx = False,
    pixels: Pixels = False,
    data: OptionalData = None,
    tokenizer: OptionalLocal = None,
    best: Best = False,
    json: Json = False,
) -> None:
    """Export the model of a run for inference, optionally to ONNX.

    Try:
      tilework export runs/token --out model
      tilework export runs/token --out model --onnx --data val.tok
      tilework export runs/token --out model --onnx --pixels

    Args:
        run: Directory that 'tilework train' wrote.
        out: New directory for weights, settings, codebook, tokenizer and ONNX graph: 'tilework predict' needs no more.
        data: Token store or image folder to check outputs on, instead of random input; sets the input size of ONNX.
        tokenizer: Directory of the tokenizer, if the run does not hold it.
    """
    from tilework.core.console import notice
    from tilework.runs.export import export_run

    if onnx:
        notice(f"writing the ONNX graph as well takes {'half a minute' if pixels else 'some seconds'}", json)
    made = export_run(run, out, onnx, data, pixels, best, tokenizer)
    values = {
        "model": str(out),
        "input": made.stage,
        "classes": len(made.classes),
        "files": {
            file.relative_to(out).as_posix(): file.stat().st_size for file in sorted(out.rglob("*")) if file.is_file()
        },
        "compared": made.compared,
        "max_difference": made.max_difference,
    }
    if made.onnx is not None:
        values |= {"onnx_input": made.onnx.input, "onnx_max_difference": made.onnx.max_difference}
    show(values, json)
