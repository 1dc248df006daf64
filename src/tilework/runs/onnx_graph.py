"""A network as ONNX graphs: raw input in, logits out, the evaluation pipeline inside; heads of regions beside it.

B batch | H, W input grid | K codes or classes
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tilework.augment import AnyStep, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError, MachineError, TileworkError
from tilework.core.rng import Draws
from tilework.models import Output
from tilework.tokenizers import Tokenizer
from tilework.tokenizers.images_as_codes import code_numbers

SAMPLES = 8  # that outputs are compared on
TOLERANCE = 1e-4  # of ONNX logits; those from safetensors must be equal


@dataclass(frozen=True)
class Graph:
    """An ONNX file: raw input in, logits out; or regions of a feature pyramid in, what a head says of them out."""

    input: str
    output: str
    max_difference: float  # from the run's logits, by onnxruntime
    tolerance: float = TOLERANCE


def through(model: nn.Module, steps: Sequence[AnyStep], x: Tensor) -> Tensor:
    """Logits of raw input, by the evaluation pipeline and the network.

    Of a network that finds objects, class logits and box offsets of every anchor, (B, A, K + 4).
    """
    return _flat(_answer(model, steps, x))


def _answer(model: nn.Module, steps: Sequence[AnyStep], x: Tensor) -> Output:
    index = torch.arange(x.shape[0], device=x.device)
    batch = apply_all(steps, Batch(x, Target.hard(index), index), Draws(0, 0, index))
    out: Output = model(batch.x)
    return out


def _flat(out: Output) -> Tensor:
    return out.logits if out.offsets is None else torch.cat([out.logits, out.offsets], -1)


class Whole(nn.Module):
    """The evaluation pipeline and the network in one, from raw input to logits."""

    def __init__(self, model: nn.Module, steps: Sequence[AnyStep]) -> None:
        super().__init__()
        self.model = model
        self.steps = tuple(steps)

    def forward(self, x: Tensor) -> Tensor:
        """See `through`."""
        return through(self.model, self.steps, x)


class WithPyramid(Whole):
    """The same with the levels of the pyramid, which heads of regions read."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Logits and levels, the finest first."""
        out = _answer(self.model, self.steps, x)
        return _flat(out), *out.stages


class FromPixels(nn.Module):
    """The tokenizer before all that: from pixels to logits."""

    number: Tensor  # (K,) of each code of the tokenizer in the codebook

    def __init__(self, tokenizer: Tokenizer, codebook: Codebook, whole: Whole) -> None:
        super().__init__()
        self.tokenizer, self.whole = tokenizer, whole
        self.register_buffer("number", torch.from_numpy(code_numbers(tokenizer, codebook)).long())

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, 3, H, W) uint8."""
        ids = self.number[self.tokenizer.nearest(self.tokenizer.features(x / 255))]
        if self.tokenizer.stacked:
            ids = ids.permute(0, 3, 1, 2)
        elif self.tokenizer.length is not None:
            ids = ids[:, None]  # a sequence is a grid of one row
        return self.whole(ids)


def write_graph(file: Path, whole: nn.Module, x: Tensor, metadata: dict[str, str], others: str = "offsets") -> Graph:
    """A network as one ONNX file (weights beside it above 2 GB), run again on two batch sizes.

    others: what outputs behind the logits are called, numbered where there are several.
    """
    runtime = onnxruntime()
    kind = "regions" if x.is_floating_point() else "pixels" if x.dtype == torch.uint8 else "ids"
    with torch.inference_mode():
        answer = whole(x)
    wanted: tuple[Tensor, ...] = answer if isinstance(answer, tuple) else (answer,)
    names = ["logits", *(others if len(wanted) == 2 else f"{others}_{i}" for i in range(len(wanted) - 1))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the exporter's own parts
            program = torch.onnx.export(
                whole,
                (x,),
                input_names=[kind],
                output_names=names,
                dynamic_shapes={"x": {0: "batch"}},
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # stack traces, with the paths of this machine
        program.model.metadata_props.update(metadata)
        program.save(file)
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        found = [session.run(None, {kind: x[:n].numpy()}) for n in (1, SAMPLES)]
    except (OSError, TileworkError):
        raise
    except Exception as error:  # of the exporter or the runtime, each of its own kind
        raise ConfigError("this model cannot be written as ONNX", f"leave --onnx out ({first_line(error)})") from error
    differences = [
        difference(torch.from_numpy(one), each[: len(one)])
        for batch in found
        for one, each in zip(batch, wanted, strict=True)
    ]
    if not all(one <= TOLERANCE for one in differences):  # nor is NaN
        raise TileworkError(
            f"the ONNX logits differ by {max(differences):.3g}, more than {TOLERANCE}", "leave --onnx out"
        )
    shape = ", ".join(map(str, x.shape[1:]))
    numbers = ", numbered as in the store: folder in 'used' of codebook.safetensors" if kind == "ids" else ""
    kept = f"{kind} (B, {shape}) {str(x.dtype)[6:]}{numbers}"
    shapes = (", ".join(map(str, one.shape[1:])) for one in wanted)
    return Graph(
        kept, "; ".join(f"{name} (B, {s}) float32" for name, s in zip(names, shapes, strict=True)), max(differences)
    )


def onnxruntime() -> Any:
    """The module; refuses where a package for ONNX is missing."""
    try:
        return [import_module(name) for name in ("onnx", "onnxscript", "onnxruntime")][-1]
    except ImportError as error:
        raise MachineError(
            f"--onnx needs a package that is not here ({error})", "pip install 'tilework[onnx]'"
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error of others."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest one."""
    return (found - wanted).abs().max().item()
