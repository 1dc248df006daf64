"""Runs as their directories keep them: opened, judged, probed."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from tilework.augment.adapter import check_codes
from tilework.core.config import Plain, decode, read_yaml
from tilework.core.distributed import World, pick_device
from tilework.core.errors import DamageError, InputError
from tilework.core.place import place as place_of
from tilework.data import ImageFolder, ImageSource, Source, TokenSource
from tilework.evaluation import Classification, Features, Probe, classify, evaluate
from tilework.models import Model
from tilework.runs.build import DataSpec, bind, build_model, data_spec, open_source
from tilework.runs.codes import Codes
from tilework.runs.run import Run
from tilework.store import Store
from tilework.tokenizers import load_tokenizer
from tilework.tokenizers.tokenize import Tokenizing, tokenize
from tilework.train.checkpoint import latest_checkpoint, load_model_weights

CONFIG, DATA, RESULTS, QUARANTINE = "run.yaml", "data.json", "results.json", "quarantine.json"
DESCRIPTION = "model.json"  # of an exported model


def read_json(path: Path) -> Plain:
    """A file that holds one object."""
    try:
        plain = json.loads(path.read_bytes())
        if not isinstance(plain, dict):
            raise ValueError("no object")
        return plain
    except (OSError, ValueError) as error:
        raise DamageError(f"{path} is not JSON", f"restore it ({error})") from error


def run_place(path: Path) -> Path:
    """The directory of a run, or of the last one of a chain."""
    if (path / "chain.yaml").is_file():
        return max((p for p in path.glob("[1-9]-*") if (p / CONFIG).is_file()), default=path)
    return path


def run_name(path: Path) -> str:
    """What a run is called in pictures: its directory, or its row and seed in a table."""
    return f"{path.parent.parent.name} {path.parent.name}" if path.name == "run" else path.name or str(path)


def run_codes(path: Path, run: Run, spec: DataSpec) -> Codes | None:
    """The codes of a run, with the vectors that it learnt for them; None for pixels."""
    place = run_place(path)
    if run.objective.learns_table and not (place / RESULTS).is_file():
        raise InputError(f"{place} has not finished: its vectors of codes are kept at the end", "wait for it")
    return Codes.read(place, spec.codebook) if spec.codebook else None


def open_run(path: Path) -> tuple[Run, DataSpec, Path]:
    """Settings of a run, its data's shape, and its newest checkpoint."""
    path = run_place(path)
    if not (path / CONFIG).is_file() or not (path / DATA).is_file():
        raise InputError(f"no run in {path}", "give a directory that 'tilework train' wrote")
    run: Run = decode(Run, read_yaml(path / CONFIG))
    plain = {k: v for k, v in read_json(path / DATA).items() if k not in ("train", "val", "start")}
    checkpoint = latest_checkpoint(path / "checkpoints")
    if checkpoint is None:
        raise InputError(f"{path} has no checkpoint yet", "wait for the first one")
    return run, decode(DataSpec, plain), checkpoint


def load_run(path: Path) -> tuple[Run, DataSpec, nn.Module]:
    """A finished or running run: its settings, its data's shape, and the weights that evaluation uses."""
    run, spec, checkpoint = open_run(path)
    model = build_model(run, spec)
    load_model_weights(checkpoint, model)
    return run, spec, model


def evaluate_run(
    path: Path | str, data: Path | str, tokenizer: Path | str | None = None, device: str = "auto"
) -> Classification:
    """Accuracy and confusion of a trained run on a store or a folder; images are tokenized if the run needs it."""
    place, path, data = pick_device(device), run_place(Path(path)), place_of(data)
    run, spec, model = load_run(path)
    if not isinstance(model, Model) or not run.objective.task.labels:
        raise InputError(f"{path} trained no classifier", "give a classifier's run, or use 'tilework probe'")
    source = open_source(data, run.size, run.max_broken, quiet=True)
    if spec.stage != "pixels" and isinstance(source, ImageSource) and isinstance(data, Path):
        if tokenizer is None:
            raise InputError(f"{path} was trained on tokens, {data} holds images", "add --tokenizer, or tokenize them")
        with TemporaryDirectory() as folder:
            store = Path(folder) / "data.tok"
            encoder, card = load_tokenizer(Path(tokenizer))
            used = Codes.read(path, spec.codebook).used.numpy()
            images = ImageFolder.open(data, spec.classes)
            tokenize(images, Tokenizing(encoder, card, place), store, used=used, max_broken=run.max_broken)
            tokens = TokenSource(Store(store), spec.classes)
            return _judge(path, run, spec, model, tokens, place, str(tokenizer))
    return _judge(path, run, spec, model, source, place, str(data))


def probe_run(
    path: Path | str, data: Path | str, val: Path | str, device: str = "auto", neighbours: int = 20
) -> dict[str, float]:
    """What the frozen features of a run know of labelled data: accuracy of a linear classifier and of neighbours."""
    place, path = pick_device(device), run_place(Path(path))
    run, spec, model = load_run(path)
    if not isinstance(model, Model):
        raise InputError(f"{path} trained a {type(model).__name__}", "give the run of a classifier or an encoder")
    source = open_source(place_of(data), run.size, run.max_broken, quiet=True)
    judge = open_source(place_of(val), run.size, run.max_broken, source.classes, quiet=True)
    codes = run_codes(path, run, spec)
    steps = (*run.evaluation, *run.objective.inlet())
    seen, model = Features(), model.to(place).eval()
    for part, name, one in ((source, data, seen), (judge, val, Probe(seen, neighbours))):
        if part.stage != spec.stage or data_spec(run, part).grid != spec.grid:
            raise InputError(f"{name} is not of the kind the run was trained on", "give data of the same tokenizer")
        table = None
        if codes is not None and part.codebook is not None:
            check_codes(part.codebook, codes.codebook, path)
            table = codes.table_for(part.codebook, path)
        bound = bind(steps, part, place, table)
        found = evaluate(lambda batch: model(batch.x), part, bound, [one], World(0, 1, place))
    return found


def _judge(
    path: Path, run: Run, spec: DataSpec, model: nn.Module, source: Source, device: torch.device, name: str
) -> Classification:
    if source.stage != spec.stage or source.classes != spec.classes:
        raise InputError(f"{name} does not have the kind or the classes the model was trained on", "give data like it")
    found = data_spec(run, source)
    if (found.codebook, found.grid) != (spec.codebook, spec.grid):
        raise InputError(f"{name} has another codebook or grid than the training data", "use the same tokenizer")
    table = Codes.read(path, spec.codebook).table if spec.codebook else None
    return classify(model, source, bind(run.evaluation, source, device, table), device)
