"""A trained model as a folder of its own: weights as safetensors, settings as JSON, ONNX graphs if asked for.

What only training needs stays behind. The outputs are compared with the run's before the folder appears.
B batch | H, W input grid | K codes or classes | C code dim
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from tilework.augment import AnyStep, Augment, build_all, output_shape
from tilework.core.batch import Shape, Stage
from tilework.core.codebook import FILE as CODEBOOK
from tilework.core.codebook import Codebook
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError, DamageError, InputError, MachineError, OutputError, TileworkError
from tilework.core.files import new_directory, read_plain, sha256, write
from tilework.core.hub import local
from tilework.core.location import location, path_or_hub, what_is
from tilework.core.sealed import read_json, write_sealed
from tilework.core.torch_files import load_tensors
from tilework.data.image_files import Frame, framing
from tilework.models import Detector, Model, ModelConfig
from tilework.objectives import ClassifyConfig
from tilework.runs.directory import DataSpec, RunDirectory
from tilework.runs.onnx_graph import (
    SAMPLES,
    FromPixels,
    Graph,
    Whole,
    WithPyramid,
    difference,
    first_line,
    onnxruntime,
    through,
    write_graph,
)
from tilework.runs.predict import Prediction, predict
from tilework.runs.run import Run
from tilework.runs.start import DESCRIPTION, WEIGHTS
from tilework.runs.trained import Trained
from tilework.tokenizers import Tokenizer
from tilework.tokenizers.find import keep_tokenizer
from tilework.tokenizers.images_as_codes import code_numbers
from tilework.tokenizers.tokenizer import Card
from tilework.version import __version__

GRAPH = "model.onnx"
FORMAT, VERSION = "tilework model", 3  # 1 had no tokenizer, 2 no hash of the description
LARGEST = 1 << 26  # bytes of model.json
CPU = torch.device("cpu")
LARGEST_SETTING = 1 << 16  # widths and depths beyond this are not a model's


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
    heads: dict[str, Graph] = field(default_factory=dict)  # of regions, by file; for networks that look at regions
    stored: tuple[int, int] | None = None  # grid of the raw input
    frame: Frame = "cover"  # how images of any aspect became codes
    preprocessing: str = ""  # of images, as a sentence
    tokenizer: dict[str, str] = field(
        default_factory=dict
    )  # name and sha256; it lies in tokenizer/ where it was at hand
    figures: dict[str, float] = field(default_factory=dict)  # of the run, by validation
    licence: str = ""  # of the training data
    software: str = f"tilework {__version__}"


class Exported(nn.Module):
    """A trained model, ready for inference: of an exported folder, or of a run. Raw input in, logits out."""

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.trained = trained
        self.model: Model = trained.predictor
        self._steps: dict[torch.device, tuple[AnyStep, ...]] = {}
        self.eval()

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.trained.spec.classes

    @property
    def stage(self) -> Stage:
        """Of raw input: "ids", "stacks" or "pixels"."""
        return decode(Stage, self.trained.spec.stage, "stage")

    @property
    def grid(self) -> tuple[int, int]:
        """That the network takes."""
        return self.trained.spec.grid

    @property
    def size(self) -> tuple[int, int]:
        """Of images, in pixels."""
        return self.trained.run.size

    @property
    def codebook(self) -> Codebook | None:
        """What codes stand for; None for pixels."""
        return self.trained.codebook

    @property
    def steps(self) -> tuple[AnyStep, ...]:
        """From raw input on a CPU to what the model takes."""
        return self.steps_on(CPU)

    def steps_on(self, device: torch.device) -> tuple[AnyStep, ...]:
        """The same for input on any device."""
        if device not in self._steps:
            self._steps[device] = self.trained.steps(device)
        return self._steps[device]

    def forward(self, x: Tensor) -> Tensor:
        """Classify raw input: ids (B, H, W), stacks of them (B, C, H, W), or pixels (B, 3, H, W) in 0..255.

        Returns (B, K), (B, K, h, w) of a network that segments, or (B, A, K + 4), logits and box offsets of every
        anchor, of one that finds objects. Gradients reach the network's parameters.
        """
        self._check(x)
        return through(self.model, self.steps_on(x.device), x)

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Tensor:
        """The same without gradients."""
        return self(x)

    def predict(
        self,
        photographs: Path | str | Sequence[Path | str],
        top: int = 5,
        device: str = "auto",
        tokenizer: Path | str | None = None,
    ) -> list[Prediction]:
        """The likeliest classes of photographs, of all images below a folder, or of a token store."""
        several = [photographs] if isinstance(photographs, Path | str) else list(photographs)
        return predict(self.trained, several, top, device, None if tokenizer is None else Path(tokenizer))

    def _check(self, x: Tensor) -> None:
        """Refuse input of another shape, type or range, before the network does in its own words."""
        codebook, shape = self.codebook, tuple(x.shape)
        stored = self.trained.spec.stored
        if codebook is None:
            if x.ndim != 4 or shape[1] != 3 or (stored is not None and shape[2:] != stored):
                wanted = "H, W" if stored is None else f"{stored[0]}, {stored[1]}"
                raise InputError(f"pixels of shape {shape}", f"(B, 3, {wanted}) in 0..255 are needed")
            return
        stack = (codebook.code_dim,) if self.stage == "stacks" else ()
        sides = stored or shape[1 + len(stack) :]
        if x.is_floating_point() or shape[1:] != (*stack, *sides) or len(sides) != 2:
            wanted = ", ".join(map(str, (*stack, *(stored or ("H", "W")))))
            raise InputError(f"codes of shape {shape} and type {x.dtype}", f"whole numbers (B, {wanted}) are needed")
        if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < len(codebook):
            what = f"codes {int(x.min())}..{int(x.max())}"
            raise InputError(what, f"0 to {len(codebook) - 1} are known, numbered as in the store")


def export_run(
    path: Path | str,
    out: Path | str,
    onnx: bool = False,
    data: Path | str | None = None,
    pixels: bool = False,
    best: bool = False,
    tokenizer: Path | None = None,
) -> Description:
    """Write the model of a run as a new folder that needs nothing else, with the weights that evaluation uses.

    data: a store or a folder of images to compare outputs on, instead of random input; its grid becomes the graph's.
    pixels: the graph begins with pixels, tokenizer included. best: by validation, not the last checkpoint.
    tokenizer: of the run's codes, if the run does not hold it.
    """
    path, out = Path(path), Path(out)
    if out.exists():
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    if pixels and not onnx:
        raise ConfigError("--pixels is about the ONNX graph", "add --onnx")
    if onnx:
        onnxruntime()
    trained = Trained.open(path, best)
    encoder = _encoder(trained, tokenizer)
    if pixels and trained.codebook is not None and encoder is None:
        raise InputError(f"{path} does not hold its tokenizer", "add --tokenizer DIRECTORY")
    model, run, spec, codebook = trained.predictor, trained.run, trained.spec, trained.codebook
    heads = model.region_heads() if isinstance(model, Detector) else {}
    if heads and pixels and codebook is not None:
        raise ConfigError("--pixels is not for networks that look at regions of codes", "leave --pixels out")
    whole = Whole(model, trained.steps(CPU)).eval()
    x = _samples(trained, data)
    with torch.inference_mode():
        logits = whole(x)
    with new_directory(out) as folder:
        # cloned: tied weights are written under each of their names
        write(folder / WEIGHTS, save({name: value.contiguous().clone() for name, value in model.state_dict().items()}))
        if codebook is not None:
            codebook.write(folder)
        known, seen = dict(spec.tokenizer), run.size if encoder is None else trained.canvas(*encoder)
        if encoder is not None:
            known = encoder[1].made_by
            if encoder[1].place is not None:  # else it comes with Tilework, and its codes are the codebook
                keep_tokenizer(encoder[1].place, folder, None)
        description = Description(
            model=run.model,
            stage=decode(Stage, spec.stage, "stage"),
            channels=spec.channels,
            grid=spec.grid,
            size=run.size,
            classes=spec.classes,
            evaluation=run.model_input,
            codebook=spec.codebook,
            compared=f"{SAMPLES} {'random inputs' if data is None else 'samples of data'}",
            stored=spec.stored,
            frame=spec.frame,
            preprocessing=f"{framing(seen, spec.frame)}, values from 0 to 255",
            tokenizer={k: v for k, v in known.items() if k != "place"},
            figures=trained.figures,
            licence=spec.licence,
        )
        graph, graphs, texts = None, dict[str, Graph](), _metadata(description)
        if onnx and pixels and codebook is not None:
            assert encoder is not None
            from_pixels = FromPixels(encoder[0], codebook, whole).eval()
            graph = write_graph(folder / GRAPH, from_pixels, _pixels(trained.canvas(*encoder)), texts)
        elif onnx:
            first = WithPyramid(model, whole.steps).eval() if heads else whole
            graph = write_graph(folder / GRAPH, first, x, texts, "level")
            for name, (head, shape) in heads.items():
                regions = torch.randn(SAMPLES, *shape, generator=torch.Generator().manual_seed(0))
                graphs[f"{name}.onnx"] = write_graph(folder / f"{name}.onnx", head, regions, texts)
        hashes = {file.name: sha256(file) for file in sorted(folder.iterdir()) if file.is_file()}
        description = replace(description, onnx=graph, heads=graphs, sha256=hashes)
        write_sealed(folder / DESCRIPTION, {"format": FORMAT, "version": VERSION, **encode(description)})
        apart = difference(load_exported(folder).logits(x), logits)
        if apart != 0:  # nor is NaN
            raise TileworkError(f"the exported model of {path} differs from the run by {apart:.3g}", "report this")
    return description


def _encoder(trained: Trained, given: Path | None) -> tuple[Tokenizer, Card] | None:
    """The tokenizer of a run's codes: the one given, or that which the run holds or knows."""
    if trained.codebook is None or (given is None and not trained.has_tokenizer):
        return None
    tokenizer, card = trained.find_tokenizer(given, "what is exported")
    code_numbers(tokenizer, trained.codebook)  # refuses another one
    return tokenizer, card


def load_exported(path: Path | str) -> Exported:
    """A run or an exported model, of a directory or hf://OWNER/NAME, ready for inference; no code in it can run."""
    return Exported(open_model(path))


def open_model(path: Path | str, best: bool = False) -> Trained:
    """An exported model or a run, of a directory or the hub, to be opened on data. best: of a run, by validation."""
    path = local(path_or_hub(path))
    if not (Path(path) / DESCRIPTION).is_file():
        if not what_is(Path(path)):
            raise InputError(f"no run or exported model in {path}", "give a directory of 'tilework train' or 'export'")
        return Trained.open(path, best)
    if best:
        raise ConfigError(f"{path} is an exported model, which has one set of weights", "leave --best out")
    return _open_exported(Path(path))


def _open_exported(path: Path) -> Trained:
    about = _description(path)
    for name in (WEIGHTS, CODEBOOK) if about.codebook else (WEIGHTS,):
        if not (path / name).is_file() or sha256(path / name) != about.sha256.get(name):
            raise DamageError(f"{path / name} is missing or damaged", "export the run again")
    codebook = Codebook.read(path, about.codebook) if about.codebook else None
    try:
        tensors = load_tensors(read_plain(path / WEIGHTS))
        with torch.device("meta"):  # sizes first: nothing is allocated by settings that do not fit the file
            shapes = {k: v.shape for k, v in _build(about).state_dict().items()}
        if shapes != {k: v.shape for k, v in tensors.items()}:
            raise ConfigError("other tensors than the settings ask for")
        model = _build(about)
        model.load_state_dict(tensors)
        channels = 3 if codebook is None else codebook.code_dim
        if output_shape(about.evaluation, Shape(about.stage, channels, about.size)).stage != model.takes:
            raise ConfigError("the evaluation pipeline does not end in what the model takes")
        build_all(about.evaluation, codebook)
    except MachineError:
        raise
    except Exception as error:  # senseless settings can raise anything in a constructor
        raise DamageError(
            f"{path / WEIGHTS} does not fit {DESCRIPTION}", f"export again ({first_line(error)})"
        ) from error
    run = Run(about.model, ClassifyConfig(), augment=(), evaluation=about.evaluation, size=about.size)
    spec = DataSpec(
        about.stage, about.channels, about.grid, about.classes, about.codebook, about.stored, about.frame,
        about.tokenizer, about.licence,
    )  # fmt: skip
    return Trained(RunDirectory(path), run, spec, model.eval(), codebook or "pixels", about.figures)


def _description(path: Path) -> Description:
    file = path / DESCRIPTION
    if not file.is_file():
        raise InputError(f"no exported model in {path}", "make one with 'tilework export RUN'")
    if file.stat().st_size > LARGEST:
        raise DamageError(f"{file} is larger than it can be", "export the run again")
    try:
        plain = read_json(file)
        if plain.pop("format", None) != FORMAT:
            raise DamageError(f"{file} does not describe a model", "export the run again")
        if (version := plain.pop("version", None)) not in (1, 2, VERSION):
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
    return _pixels(run.size)


def _pixels(size: tuple[int, int]) -> Tensor:
    """Random images, the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (SAMPLES, 3, *size), generator=generator, dtype=torch.uint8)


def _metadata(about: Description) -> dict[str, str]:
    """What an ONNX file says about itself, as text."""
    values = {"classes": list(about.classes), "figures": about.figures, "tokenizer": about.tokenizer}
    texts = {"preprocessing": about.preprocessing, "licence": about.licence, "software": about.software}
    return {**{name: json.dumps(value) for name, value in values.items()}, **texts}
