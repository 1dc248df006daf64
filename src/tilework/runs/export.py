"""A trained model as a folder of its own: weights as safetensors, settings as JSON, a graph as ONNX if asked for.

What only training needs stays behind. The outputs are compared with the run's before the folder appears.
B batch | H, W input grid | K codes or classes | C code dim
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from tilework.augment import AnyStep, Augment, apply_all, build_all, output_shape
from tilework.core.batch import Batch, Shape, Stage, Target
from tilework.core.codebook import FILE as CODEBOOK
from tilework.core.codebook import Codebook
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError, DamageError, InputError, MachineError, OutputError, TileworkError
from tilework.core.files import new_directory, sha256, write, write_json
from tilework.core.location import location
from tilework.core.rng import Draws
from tilework.models import Model, ModelConfig
from tilework.runs.start import DESCRIPTION
from tilework.runs.trained import Trained
from tilework.version import __version__

WEIGHTS, GRAPH = "model.safetensors", "model.onnx"
FORMAT, VERSION = "tilework model", 1
SAMPLES = 8  # that outputs are compared on
TOLERANCE = 1e-4  # of ONNX logits; those from safetensors must be equal
LARGEST = 1 << 26  # bytes of model.json
CPU = torch.device("cpu")
LARGEST_SETTING = 1 << 16  # widths and depths beyond this are not a model's


@dataclass(frozen=True)
class Graph:
    """The ONNX file: raw input in, logits out."""

    input: str
    output: str
    max_difference: float  # from the run's logits, by onnxruntime
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Description:
    """What model.json says beside its format and version."""

    model: ModelConfig
    stage: Stage  # of the raw input
    channels: int  # these two: after the evaluation pipeline, as the network takes them
    grid: tuple[int, int]
    size: tuple[int, int]  # of images, in pixels
    classes: tuple[str, ...]
    evaluation: tuple[Augment, ...]
    codebook: str  # SHA-256 of the code vectors; empty for pixels
    sha256: dict[str, str] = field(default_factory=dict)  # of the other files
    compared: str = ""  # what the outputs were compared on
    max_difference: float = 0.0  # from the run's logits
    onnx: Graph | None = None
    software: str = f"tilework {__version__}"


@dataclass(frozen=True)
class Exported:
    """A model that was exported, ready for inference."""

    model: Model
    classes: tuple[str, ...]
    stage: Stage
    grid: tuple[int, int]
    size: tuple[int, int]
    steps: tuple[AnyStep, ...]  # from raw input to what the model takes
    codebook: Codebook | None = None

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Tensor:
        """Classify raw input: ids (B, H, W), stacks of them (B, C, H, W), or pixels (B, 3, H, W) in 0..255.

        Returns (B, K), or (B, K, h, w) of a network that segments.
        """
        return _Whole(self.model, self.steps)(x)


class _Whole(nn.Module):
    """The evaluation pipeline and the network in one, from raw input to logits."""

    def __init__(self, model: nn.Module, steps: Sequence[AnyStep]) -> None:
        super().__init__()
        self.model = model
        self.steps = tuple(steps)

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(x.shape[0], device=x.device)
        batch = apply_all(self.steps, Batch(x, Target.hard(index), index), Draws(0, 0, index))
        return self.model(batch.x).logits


def export_run(path: Path | str, out: Path | str, onnx: bool = False, data: Path | str | None = None) -> Description:
    """Write the model of a run as a new folder, with the weights that evaluation uses.

    data: a store or a folder of images to compare outputs on, instead of random input; its grid becomes the graph's.
    """
    path, out = Path(path), Path(out)
    if out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    if onnx:
        _onnxruntime()
    trained = Trained.open(path)
    model, run, spec, codebook = trained.predictor, trained.run, trained.spec, trained.codebook
    whole = _Whole(model, trained.steps(CPU)).eval()
    x = _samples(trained, data)
    with torch.inference_mode():
        logits = whole(x)
    with new_directory(out) as folder:
        # cloned: tied weights are written under each of their names
        write(folder / WEIGHTS, save({name: value.contiguous().clone() for name, value in model.state_dict().items()}))
        if codebook is not None:
            codebook.write(folder)
        graph = _write_graph(folder / GRAPH, whole, x, logits) if onnx else None
        description = Description(
            model=run.model,
            stage=decode(Stage, spec.stage, "stage"),
            channels=spec.channels,
            grid=spec.grid,
            size=run.size,
            classes=spec.classes,
            evaluation=run.model_input,
            codebook=spec.codebook,
            onnx=graph,
            sha256={file.name: sha256(file) for file in sorted(folder.iterdir())},
            compared=f"{SAMPLES} {'random inputs' if data is None else 'samples of data'}",
        )
        write_json(folder / DESCRIPTION, {"format": FORMAT, "version": VERSION, **encode(description)})
        difference = _difference(load_exported(folder).logits(x), logits)
        if difference != 0:  # nor is NaN
            raise TileworkError(f"the exported model of {path} differs from the run by {difference:.3g}", "report this")
    return description


def load_exported(path: Path | str) -> Exported:
    """Read a folder that `export_run` wrote; no code in it can run."""
    path = Path(path)
    about = _description(path)
    for name in (WEIGHTS, CODEBOOK) if about.codebook else (WEIGHTS,):
        if not (path / name).is_file() or sha256(path / name) != about.sha256.get(name):
            raise DamageError(f"{path / name} is missing or damaged", "export the run again")
    codebook = Codebook.read(path, about.codebook) if about.codebook else None
    try:
        tensors = load((path / WEIGHTS).read_bytes())
        with torch.device("meta"):  # sizes first: nothing is allocated by settings that do not fit the file
            shapes = {k: v.shape for k, v in _build(about).state_dict().items()}
        if shapes != {k: v.shape for k, v in tensors.items()}:
            raise ConfigError("other tensors than the settings ask for")
        model = _build(about)
        model.load_state_dict(tensors)
        channels = 3 if codebook is None else codebook.code_dim
        if output_shape(about.evaluation, Shape(about.stage, channels, about.size)).stage != model.takes:
            raise ConfigError("the evaluation pipeline does not end in what the model takes")
        steps = build_all(about.evaluation, codebook)
    except MachineError:
        raise
    except Exception as error:  # senseless settings can raise anything in a constructor
        raise DamageError(f"{path / WEIGHTS} does not fit {DESCRIPTION}", f"export again ({_line(error)})") from error
    return Exported(
        model.eval(),
        about.classes,
        about.stage,
        about.grid,
        about.size,
        steps,
        codebook,
    )


def _description(path: Path) -> Description:
    file = path / DESCRIPTION
    if not file.is_file():
        raise InputError(f"no exported model in {path}", "make one with 'tilework export RUN'")
    if file.stat().st_size > LARGEST:
        raise DamageError(f"{file} is larger than it can be", "export the run again")
    try:
        plain = json.loads(file.read_bytes())
        plain = plain if isinstance(plain, dict) else {}
        if plain.pop("format", None) != FORMAT:
            raise DamageError(f"{file} does not describe a model", "export the run again")
        if (version := plain.pop("version", None)) != VERSION:
            raise DamageError(f"{path} has model version {version}, this software reads {VERSION}", "update Tilework")
        if _largest(plain) > LARGEST_SETTING:
            raise ConfigError(f"a setting is larger than {LARGEST_SETTING}")
        description: Description = decode(Description, plain)
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise DamageError(f"{file} is malformed", f"export the run again ({error})") from error
    return description


def _largest(plain: Any) -> int:
    """The largest whole number among plain values."""
    if isinstance(plain, dict):
        plain = list(plain.values())
    if isinstance(plain, list):
        return max(map(_largest, plain), default=0)
    return plain if isinstance(plain, int) else 0


def _build(about: Description) -> Model:
    model = about.model.build(about.channels, about.grid, len(about.classes))
    if not isinstance(model, Model):
        raise ConfigError(f"a {type(model).__name__} is not a classifier")
    return model


def _samples(trained: Trained, data: Path | str | None) -> Tensor:
    """Raw input: ids (B, H, W) or stacks (B, C, H, W) int64, or pixels (B, 3, H, W) uint8.

    Random but the same every time without data.
    """
    run, spec, codebook = trained.run, trained.spec, trained.codebook
    if data is not None:
        source = trained.on(location(data), CPU).source
        x = source.batch(np.linspace(0, len(source) - 1, SAMPLES).astype(np.int64)).x
        return x if spec.stage == "pixels" else x.long()
    generator = torch.Generator().manual_seed(0)
    if codebook is not None:
        stack = (codebook.code_dim,) if spec.stage == "stacks" else ()
        shape = (SAMPLES, *stack, *(spec.stored or spec.grid))
        return torch.randint(len(codebook), shape, generator=generator)
    return torch.randint(256, (SAMPLES, 3, *run.size), generator=generator, dtype=torch.uint8)


def _line(error: Exception) -> str:
    """The first line of an error of others."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _difference(found: Tensor, wanted: Tensor) -> float:
    return (found - wanted).abs().max().item()


def _onnxruntime() -> Any:
    try:
        return [import_module(name) for name in ("onnx", "onnxscript", "onnxruntime")][-1]
    except ImportError as error:
        raise MachineError(
            f"--onnx needs a package that is not here ({error})", "pip install 'tilework[onnx]'"
        ) from error


def _write_graph(file: Path, whole: _Whole, x: Tensor, logits: Tensor) -> Graph:
    """The whole of it as one ONNX file (weights beside it above 2 GB), run again on two batch sizes."""
    runtime, kind = _onnxruntime(), "pixels" if x.dtype == torch.uint8 else "ids"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the exporter's own parts
            program = torch.onnx.export(
                whole,
                (x,),
                input_names=[kind],
                output_names=["logits"],
                dynamic_shapes={"x": {0: "batch"}},
                dynamo=True,
                verbose=False,
            )
        assert program is not None
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # stack traces, with the paths of this machine
        program.save(file)
        session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        found = [torch.from_numpy(session.run(None, {kind: x[:n].numpy()})[0]) for n in (1, SAMPLES)]
    except OSError:
        raise
    except Exception as error:  # of the exporter or the runtime, each of its own kind
        raise ConfigError("this model cannot be written as ONNX", f"leave --onnx out ({_line(error)})") from error
    difference = _difference(torch.cat(found), torch.cat([logits[:1], logits]))
    if not difference <= TOLERANCE:  # nor is NaN
        raise TileworkError(f"the ONNX logits differ by {difference:.3g}, more than {TOLERANCE}", "leave --onnx out")
    shape = ", ".join(map(str, x.shape[1:]))
    numbers = ", numbered as in the store: folder in 'used' of codebook.safetensors" if kind == "ids" else ""
    kept = f"{kind} (B, {shape}) {str(x.dtype)[6:]}{numbers}"
    return Graph(kept, f"logits (B, {', '.join(map(str, logits.shape[1:]))}) float32", difference)
