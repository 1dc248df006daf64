"""`tilework probe`."""

from __future__ import annotations

from typing import Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Device, Json, Local
from tilework.cli.output import show


def probe(
    run: Annotated[Positional[Local], arg(metavar="RUN")],
    /,
    *,
    data: Data,
    val: Data,
    neighbours: int = 20,
    solver: Literal["lbfgs", "sgd"] = "lbfgs",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Linear probe and k-NN accuracy of the frozen features of a run.

    Features are what a head reads: the class token, or the mean of the last block's tokens. For runs without labels
    (masked token modelling, MoCo), and for classifiers on other data of the same tokenizer.

    Try:
      tilework train mtm_cpu --data train.tok --val val.tok --out pre
      tilework probe pre --data train.tok --val val.tok

    Args:
        run: Directory of a run or a chain.
        data: Labelled token store or image folder to fit the probes on.
        val: Labelled token store or image folder to evaluate on.
        neighbours: k of the k-NN classifier.
        solver: Of the linear classifier; sgd is MoCo v3's, with 90 epochs over the features of whole images.
    """
    from tilework.runs import probe_run

    show(probe_run(run, data, val, device, neighbours, solver), json)
