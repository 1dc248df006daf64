"""Configuration to objects: sources, model, objective, and the job for the loop."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from tilework.augment import Augment, apply_all, check_chain
from tilework.augment.adapter import check_codes
from tilework.core.batch import Stage
from tilework.core.config import Plain, decode, encode, read_yaml, to_yaml
from tilework.core.distributed import World, pick_device, world
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError, TileworkError
from tilework.core.files import is_free, locked, make_directory, write, write_json
from tilework.core.rng import Draws
from tilework.data import ImageFolder, ImageSource, Part, Source, TokenSource
from tilework.data.label_maps import Labelled, LabelMaps
from tilework.data.part import part_of
from tilework.evaluation import Classification, average, classify, features, knn_accuracy, linear_accuracy
from tilework.models import Model
from tilework.models.weights import adopt, read_weights
from tilework.objectives import Combined, Objective, ObjectiveConfig
from tilework.recipes.codes import CODEBOOK, Codes, digest
from tilework.recipes.run import Run
from tilework.report import rows_of_pictures
from tilework.store import Store
from tilework.tokenizers import load_tokenizer
from tilework.tokenizers.tokenize import Tokenizing, tokenize
from tilework.train import Job, Result, fit, time_steps
from tilework.train.checkpoint import latest_checkpoint, load_model_weights, model_tensors
from tilework.train.log import Bar, counted, notice

CONFIG, DATA, RESULTS, QUARANTINE = "run.yaml", "data.json", "results.json", "quarantine.json"
DESCRIPTION = "model.json"


@dataclass(frozen=True)
class DataSpec:
    """What a trained model expects of its data."""

    stage: str
    channels: int
    grid: tuple[int, int]  # after the evaluation pipeline
    classes: tuple[str, ...]
    codebook: str  # SHA-256 of the code vectors; empty for pixels
    stored: tuple[int, int] | None = None  # grid before the evaluation pipeline


def is_store(path: Path) -> bool:
    """Whether a path is meant as a token store rather than as a folder of images."""
    return (path / "manifest.json").exists() or path.suffix == ".tok"


def open_source(
    path: Path,
    size: tuple[int, int],
    max_broken: float,
    classes: tuple[str, ...] | None = None,
    quiet: bool = False,
    samples: int = 0,
) -> Source:
    """A token store or a folder of images, whichever is there. samples: of the images, drawn at random; 0: all."""
    if not path.exists():
        raise InputError(f"no such data: {path}", "give a token store or a folder of images")
    if is_store(path):
        return TokenSource(Store(path), classes)
    bar: list[Bar] = []

    def progress(done: int, total: int) -> None:
        if not bar:
            bar.append(Bar(f"read {path.name}", total, quiet=quiet))
        bar[0].update(done)

    try:
        folder = ImageFolder.open(path, classes)
        chosen = folder.take(part_of(len(folder), samples)) if samples else folder
        return ImageSource.read(chosen, size, max_broken, progress)
    finally:
        for one in bar:
            one.close()


def bind(
    augments: Sequence[Augment], source: Source, device: torch.device, table: Tensor | None = None
) -> tuple[Augment, ...]:
    """Augmentations with the codebook of their data, or learnt vectors in its place, on the device."""
    codebook, table = (None if t is None else t.to(device) for t in (source.codebook, table))
    return tuple(augment.bind(codebook, table) for augment in augments)


def data_spec(run: Run, source: Source, steps: Sequence[Augment] | None = None) -> DataSpec:
    """What the model gets after the evaluation pipeline, or after other steps, found by running it on one sample."""
    part = source.batch(np.arange(1))
    chosen = (*(run.evaluation if steps is None else steps), *run.objective.inlet())
    x = apply_all(bind(chosen, source, part.x.device), part, Draws(0, 0, part.index)).x
    if x.ndim != 4:
        raise ConfigError(f"the evaluation pipeline ends in {x.ndim - 1}-d samples", "add 'embed' to run.evaluation")
    grid = (x.shape[2], x.shape[3])
    return DataSpec(source.stage, x.shape[1], grid, source.classes, digest(source.codebook), source.grid)


def build_model(run: Run, spec: DataSpec) -> nn.Module:
    """The network of a run, freshly initialised from its seed."""
    torch.manual_seed(run.fit.seed)
    return run.model.build(spec.channels, spec.grid, len(spec.classes) if run.objective.labels else 0)


def build_objective(run: Run, model: nn.Module, codebook: Tensor | None = None) -> Objective:
    """The objective with its auxiliary ones. codebook: (K, C) of token stores."""
    main = run.objective.build(model, codebook)
    if not run.extra:
        return main
    names = [ObjectiveConfig.choices.name_of(type(extra.objective)) for extra in run.extra]
    if any(one.inlet() for one in (run.objective, *(extra.objective for extra in run.extra))):
        raise ConfigError("an objective that takes codes stands alone", "leave run.extra empty")
    built = [(extra.weight, extra.objective.build(model, codebook)) for extra in run.extra]
    parts = dict(zip(names, built, strict=True))
    return Combined(main, parts)


@dataclass(frozen=True)
class Start:
    """Weights to begin with, and where they come from."""

    path: Path
    tensors: dict[str, Tensor]
    classes: tuple[str, ...] | None = None  # that its head tells apart, where known
    grid: tuple[int, int] | None = None  # of its tokens, where known
    codes: Codes | None = None  # that it was trained on, where known

    @staticmethod
    def read(path: Path) -> Start:
        """Of a run, or of a checkpoint file: an exported model's, or other people's."""
        if not path.exists():
            raise InputError(f"no weights at {path}", "give a run or a checkpoint file")
        if path.is_file():
            beside = path.parent / DESCRIPTION  # of an exported model
            known = _read_json(beside).get("codebook") if beside.is_file() else None
            return Start(path, read_weights(path), codes=Codes.read(path.parent, known) if known else None)
        run, spec, checkpoint = _open_run(path)
        with torch.device("meta"):
            model = run.model.build(spec.channels, spec.grid, len(spec.classes))
        codes = run_codes(path, run, spec)
        return Start(path, model_tensors(checkpoint), spec.classes, getattr(model, "grid", None), codes)

    def table_for(self, source: Source) -> Tensor | None:
        """Vectors that were learnt to stand for the codes of the data, where there are any. Returns (K, C)."""
        if self.codes is None or source.codebook is None:
            return None
        return self.codes.table_for(source.codebook, self.path)

    def fill(self, model: nn.Module, classes: tuple[str, ...], quiet: bool = True) -> None:
        """Copy the weights; the stem, the head and the positions may be of other sizes."""
        if not isinstance(model, Model):
            raise ConfigError(f"a {type(model).__name__} cannot start from {self.path}", "leave out --start")
        tensors = self.tensors
        if self.classes not in (None, classes):  # as many, perhaps, but others
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(model.head_names)}
        try:
            adopted = adopt(model, tensors, self.grid)
        except TileworkError as error:
            raise type(error)(f"{self.path}: {error.what}", error.hint) from error
        fresh, resized = (
            ", ".join(sorted({name.split(".")[0] for name in names})) or "nothing"
            for names in (adopted.replaced, adopted.resized)
        )
        notice(f"starts from {self.path} (fresh: {fresh}; resized: {resized})", quiet)


def check_data(
    run: Run, source: Source, judge: Source | None, data: Path, val: Path | None
) -> tuple[DataSpec, nn.Module]:
    """Refuse data that do not fit a run or each other; returns what the data are like and a fresh network."""
    run.objective.check(source.classes, run.fit.total_steps(len(source)))
    for chain in (run.augment, run.evaluation):
        check_chain(chain, source.stage)
    if source.stage == "ids" and run.codes not in (None, source.grid):
        made, found = (f"{grid[0]}x{grid[1]}" for grid in (run.codes, source.grid))
        raise ConfigError(
            f"the recipe is made for {made} codes, {data} has {found}",
            "use a recipe or tokenizer that fits, or set codes=null and change the crops",
        )
    if judge is not None and (judge.stage, judge.grid) != (source.stage, source.grid):
        raise InputError(f"{val} is not of the same kind as {data}", "use two stores, or two folders, alike")
    spec = data_spec(run, source)
    model = build_model(run, spec)
    for chain in (run.augment, run.evaluation):
        check_chain((*chain, *run.objective.inlet()), source.stage, _takes(model))
    if judge is not None and data_spec(run, judge).codebook != spec.codebook:
        raise InputError(f"{val} has another codebook than {data}", f"tokenize it like that one: --like {data}")
    trained = data_spec(run, source, run.augment)
    if (trained.channels, trained.grid) != (spec.channels, spec.grid):
        found, wanted = (f"{s.channels} channels on {s.grid[0]}x{s.grid[1]}" for s in (trained, spec))
        raise ConfigError(f"training ends in {found}, evaluation in {wanted}", "change the crops of both")
    if run.fit.ema and run.objective.learns_table:
        raise ConfigError("the vectors of codes are not averaged with the weights", "set fit.ema=0")
    if len(source) < run.fit.batch:
        raise ConfigError(f"{len(source)} samples do not fill a batch of {run.fit.batch}", "lower fit.batch")
    return spec, model


def prepare(
    run: Run,
    data: Path,
    val: Path | None,
    out: Path,
    place: World,
    title: str,
    quiet: bool,
    start: Path | None = None,
) -> Job:
    """Check everything that can be checked before the first step, and put the job together."""
    if place.leads:
        _claim(out, run, start)
    begin = None if start is None else Start.read(start)
    quiet_here = quiet or not place.leads
    whole = open_source(data, run.size, run.max_broken, quiet=quiet_here, samples=run.samples)
    judge = None if val is None else open_source(val, run.size, run.max_broken, whole.classes, quiet_here)
    needed = any(one.columns for one in (run.objective, *(extra.objective for extra in run.extra)))
    if run.maps and not needed:
        raise ConfigError("no objective of this recipe takes label maps", "leave --maps out")
    labelled = _with_maps(run, whole, data) if needed else whole
    source = Part(labelled, run.samples) if run.samples and isinstance(whole, TokenSource) else labelled
    spec, model = check_data(run, source, judge, data, val)
    if begin is not None:
        begin.fill(model, source.classes, quiet_here)
    objective = build_objective(run, model, source.codebook)
    table = None if begin is None else begin.table_for(source)
    if table is not None:
        objective.adopt_table(table)
    if place.leads:
        make_directory(out)
        write(out / CONFIG, to_yaml(run).encode())
        paths = {"train": data, "val": val, "start": _from(out, start)}
        write_json(out / DATA, {**asdict(spec), **{k: str(v) if v else None for k, v in paths.items()}})
        if (out / CODEBOOK).is_file():  # with the table, if the run has finished
            if not _same_codes(out, spec.codebook):
                raise OutputError(f"{out} was trained on other codes", "choose another --out")
        elif isinstance(whole, TokenSource):
            used = torch.from_numpy(whole.store.used)
            Codes(torch.from_numpy(whole.store.codebook), used, table).write(out)
        broken = [asdict(b) for s in (whole, judge) for b in getattr(s, "broken", ())]
        if broken:
            write_json(out / QUARANTINE, broken)
            notice(f"{counted(len(broken), 'image')} cannot be read: see {out / QUARANTINE}", quiet)
    evaluation = bind(run.evaluation, source, place.device, table)
    evaluate = None
    if judge is not None:

        def evaluate(judged: nn.Module) -> dict[str, float]:
            return average(objective, judged, judge, evaluation, place, min(256, run.fit.batch))

    augment = bind(run.augment, source, place.device, table)
    job = Job(objective, source, augment, run.fit, out, place, evaluate, title, quiet)
    if run.fit.picture_every and place.leads:
        job.after_step = _draw_some(run, objective, judge or source, evaluation, out, place)
    return job


def _draw_some(
    run: Run, objective: Objective, source: Source, evaluation: tuple[Augment, ...], out: Path, place: World
) -> Callable[[int], None]:
    """Pictures of a few samples every so often, in OUT/pictures."""
    index = np.linspace(0, len(source) - 1, min(10, len(source))).astype(np.int64)

    def draw(step: int) -> None:
        if step % run.fit.picture_every:
            return
        objective.model.eval()
        with torch.inference_mode():
            batch = source.batch(index).to(place.device)
            batch = apply_all(evaluation, batch, Draws(0, 0, batch.index))
            rows = objective.pictures(objective.model, batch)
        if rows:
            shown = {name: x.clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy() for name, x in rows.items()}
            write(out / f"pictures/step-{step:08d}.png", rows_of_pictures(shown))

    return draw


def _with_maps(run: Run, source: Source, data: Path) -> Source:
    """The data with their label maps, of a directory or of the store itself."""
    assert isinstance(source, TokenSource | ImageSource)
    if run.maps:
        return Labelled(source, LabelMaps.open(Path(run.maps)), run.maps)
    if not isinstance(source, TokenSource):
        raise ConfigError(f"the objective needs label maps of {data}", "make them with 'tilework annotate', add --maps")
    return Labelled(source, LabelMaps.of_store(source.store), str(data))


def _takes(model: nn.Module) -> Stage:
    takes: Stage | None = getattr(model, "takes", None)
    if takes is None:
        raise ConfigError(f"{type(model).__name__} does not say what it takes", "choose another model")
    return takes


def _from(out: Path, start: Path | None) -> str | None:
    """Where the start lies as seen from the run, so that a chain may move."""
    return None if start is None else os.path.relpath(start, out)


def _claim(out: Path, run: Run, start: Path | None) -> None:
    """Refuse a directory that holds something else."""
    if is_free(out):
        return
    if not (out / CONFIG).is_file():
        raise OutputError(f"{out} holds other files", "choose another --out")
    same = read_yaml(out / CONFIG) == encode(run)
    if same and (out / DATA).is_file():
        same = _read_json(out / DATA).get("start") == _from(out, start)
    if not same:
        raise OutputError(f"{out} holds another run", "choose another --out, or repeat its settings to go on with it")


def train(
    run: Run,
    data: Path | str,
    val: Path | str | None,
    out: Path | str,
    device: str = "auto",
    title: str = "train",
    quiet: bool = False,
    start: Path | str | None = None,
) -> Result:
    """Run a recipe on data, from the newest checkpoint in `out` if there is one, and write results.json.

    start: a run or a checkpoint file whose weights to begin with.
    """
    with world(device) as place:
        judge, begin = (Path(path) if path else None for path in (val, start))
        return train_in(place, run, Path(data), judge, begin, Path(out), title, quiet)


def train_in(
    place: World, run: Run, data: Path, val: Path | None, start: Path | None, out: Path, title: str, quiet: bool
) -> Result:
    """`train` among processes that know each other already."""
    job = prepare(run, data, val, out, place, title, quiet, start)
    with locked(out) if place.leads else nullcontext():
        result = fit(job)
        if place.leads:
            job.objective.keep(result.model, out)
            if (table := job.objective.learnt_table()) is not None:
                replace(Codes.read(out, digest(job.source.codebook)), table=table).write(out)
            write_json(out / RESULTS, {"steps": result.steps, **result.metrics})
    place.wait()  # a run that starts from this one reads what was just written
    return result


def _read_json(path: Path) -> Plain:
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


def _same_codes(path: Path, expected: str) -> bool:
    try:
        return Codes.read(path, expected) is not None
    except DamageError:
        return False


def _open_run(path: Path) -> tuple[Run, DataSpec, Path]:
    """Settings of a run, its data's shape, and its newest checkpoint."""
    path = run_place(path)
    if not (path / CONFIG).is_file() or not (path / DATA).is_file():
        raise InputError(f"no run in {path}", "give a directory that 'tilework train' wrote")
    run: Run = decode(Run, read_yaml(path / CONFIG))
    plain = {k: v for k, v in _read_json(path / DATA).items() if k not in ("train", "val", "start")}
    checkpoint = latest_checkpoint(path / "checkpoints")
    if checkpoint is None:
        raise InputError(f"{path} has no checkpoint yet", "wait for the first one")
    return run, decode(DataSpec, plain), checkpoint


def load_run(path: Path) -> tuple[Run, DataSpec, nn.Module]:
    """A finished or running run: its settings, its data's shape, and the weights that evaluation uses."""
    run, spec, checkpoint = _open_run(path)
    model = build_model(run, spec)
    load_model_weights(checkpoint, model)
    return run, spec, model


def evaluate_run(
    path: Path | str, data: Path | str, tokenizer: Path | str | None = None, device: str = "auto"
) -> Classification:
    """Accuracy and confusion of a trained run on a store or a folder; images are tokenized if the run needs it."""
    place, path, data = pick_device(device), run_place(Path(path)), Path(data)
    run, spec, model = load_run(path)
    if not isinstance(model, Model) or not run.objective.labels:
        raise InputError(f"{path} trained no classifier", "give a classifier's run, or use 'tilework probe'")
    source = open_source(data, run.size, run.max_broken, quiet=True)
    if spec.stage == "ids" and isinstance(source, ImageSource):
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
    source = open_source(Path(data), run.size, run.max_broken, quiet=True)
    judge = open_source(Path(val), run.size, run.max_broken, source.classes, quiet=True)
    codes = run_codes(path, run, spec)
    steps = (*run.evaluation, *run.objective.inlet())
    found = []
    for part, name in ((source, data), (judge, val)):
        if part.stage != spec.stage or data_spec(run, part).grid != spec.grid:
            raise InputError(f"{name} is not of the kind the run was trained on", "give data of the same tokenizer")
        table = None
        if codes is not None and part.codebook is not None:
            check_codes(part.codebook, codes.codebook, path)
            table = codes.table_for(part.codebook, path)
        found.append(features(model, part, bind(steps, part, place, table), place))
    linear, decay = linear_accuracy(found[0], found[1])
    knn = knn_accuracy(found[0], found[1], neighbours)
    return {"linear": linear, "knn": knn, "weight_decay": decay, "neighbours": neighbours, "samples": len(found[1][1])}


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


def plan(run: Run, data: Path, val: Path | None, device: str, start: Path | None = None) -> Plain:
    """What a run would do and cost, measured on a few steps; leaves nothing behind."""
    with TemporaryDirectory() as folder, world(device) as place:
        job = prepare(run, data, val, Path(folder) / "run", place, "plan", quiet=True, start=start)
        seconds, steps = time_steps(job)
    parameters = sum(p.numel() for p in job.objective.parameters())
    return {
        "samples": len(job.source),
        "input": job.source.stage,
        "grid": list(job.source.grid),
        "classes": len(job.source.classes),
        "parameters": parameters,
        "steps": steps,
        "seconds_per_step": seconds,
        "estimated_minutes": seconds * steps / 60,
        "checkpoint_mb": parameters * 4 * (4 if run.fit.ema else 3) / 1e6,
    }
