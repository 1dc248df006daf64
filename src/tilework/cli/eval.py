"""`tilework eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Best, Data, Device, Json, OptionalPath
from tilework.cli.output import check_png, show


def evaluate(
    run: Annotated[Positional[Path], arg(metavar="RUN|MODEL")],
    /,
    data: Data,
    tokenizer: OptionalPath = None,
    best: Best = False,
    picture: OptionalPath = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Evaluate a trained model on a token store or an image folder.

    Try:
      tilework eval runs/token --data val.tok
      tilework eval runs/token --data photos/val --picture confusion.png
      tilework eval model --data val.tok

    Args:
        run: Directory that 'tilework train' or 'tilework export' wrote.
        data: Token store, image folder or label file.
        tokenizer: Directory of the tokenizer, to evaluate a model of tokens on images, if the run does not hold it.
        picture: PNG file for the confusion matrix.
    """
    from tilework.core.files import write
    from tilework.runs import evaluate_run

    if picture is not None:
        check_png(picture, "--picture")
    result = evaluate_run(run, data, tokenizer, device, best)
    summary = result.summary()
    if picture is not None:
        from tilework.report import confusion

        write(picture, confusion({run.name: result.confusion}, result.classes))
        summary["picture"] = str(picture)
    if json:
        show(summary, True)
        return
    del summary["confusion"]
    each, counts = summary.pop("per_class"), result.confusion.sum(1).tolist()
    show(summary, False)
    width = max(map(len, each))
    print(f"\nper class{'':<{max(0, width - 9)}}  images  accuracy")
    for (name, accuracy), count in zip(each.items(), counts, strict=True):
        print(f"{name:<{max(9, width)}}  {count:>6,}  {'-' if accuracy is None else f'{accuracy:8.1%}'}")
