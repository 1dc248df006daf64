"""A run from its settings to its results: everything checked, then the loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from tilework.augment import Augment, apply_all
from tilework.core.config import Plain, encode, read_yaml, to_yaml
from tilework.core.distributed import World, world
from tilework.core.errors import ConfigError, DamageError, OutputError
from tilework.core.files import is_free, locked, make_directory, write, write_json
from tilework.core.place import Place, Url
from tilework.core.place import place as place_of
from tilework.core.rng import Draws
from tilework.data import ImageSource, Part, Source, TokenSource
from tilework.data.label_maps import COLUMN, Labelled, LabelMaps
from tilework.evaluation import validate
from tilework.objectives import Objective
from tilework.runs.build import bind, build_objective, check_data, is_store, open_source
from tilework.runs.codes import CODEBOOK, Codes, digest
from tilework.runs.run import Run
from tilework.runs.start import Start
from tilework.runs.trained import CONFIG, DATA, QUARANTINE, RESULTS, read_json
from tilework.report import rows_of_pictures
from tilework.store import Store
from tilework.train import Job, Result, fit, time_steps
from tilework.train.log import counted, notice


def prepare(
    run: Run,
    data: Place,
    val: Place | None,
    out: Path,
    place: World,
    title: str,
    quiet: bool,
    start: Path | None = None,
) -> Job:
    """Check everything that can be checked before the first step, and put the job together."""
    if place.leads:
        _claim(out, run, start)
    needed = check_maps(run, data)
    begin = None if start is None else Start.read(start)
    quiet_here = quiet or not place.leads
    whole = open_source(data, run.size, run.max_broken, quiet=quiet_here, samples=run.samples)
    judge = None if val is None else open_source(val, run.size, run.max_broken, whole.classes, quiet_here)
    judge = None if judge is None else _carrying(judge, run.objective.task.validation_columns, val)
    assert isinstance(whole, TokenSource | ImageSource)
    labelled = Labelled(whole, _maps(run, data), run.maps or str(data)) if needed else whole
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
            return validate(run.objective.task, objective, judged, judge, evaluation, place, min(256, run.fit.batch))

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


def check_maps(run: Run, data: Place) -> bool:
    """Whether a run needs label maps; refuses one that lacks them, before the data are read."""
    needed = any(one.task.columns for one in (run.objective, *(extra.objective for extra in run.extra)))
    if run.maps and not needed:
        raise ConfigError("no objective of this recipe takes label maps", "leave --maps out")
    if needed and (isinstance(data, Url) or data.exists()):
        _maps(run, data)
    return needed


def _maps(run: Run, data: Place) -> LabelMaps:
    """Label maps of a directory, or of the store itself."""
    if run.maps:
        return LabelMaps.open(Path(run.maps))
    if is_store(data):
        return LabelMaps.of_store(Store(data))
    hint = "make them with 'tilework annotate', add --maps MAPS, or maps=MAPS to a row of a table"
    raise ConfigError(f"the objective needs label maps of {data}", hint)


def _carrying(source: Source, columns: tuple[str, ...], data: Place | None) -> Source:
    """Validation data whose batches carry columns; refused where one is missing. Stores keep their label maps."""
    if COLUMN in columns and isinstance(source, TokenSource):
        source = Labelled(source, LabelMaps.of_store(source.store), str(data))
    missing = set(columns) - source.batch(np.arange(1)).columns.keys() if columns else set()
    if missing:
        raise ConfigError(f"{data} has no column '{min(missing)}', which validation needs", "give a store that has it")
    return source


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
        same = read_json(out / DATA).get("start") == _from(out, start)
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
        judge, begin = place_of(val) if val else None, Path(start) if start else None
        return train_in(place, run, place_of(data), judge, begin, Path(out), title, quiet)


def train_in(
    place: World, run: Run, data: Place, val: Place | None, start: Path | None, out: Path, title: str, quiet: bool
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


def _same_codes(path: Path, expected: str) -> bool:
    try:
        return Codes.read(path, expected) is not None
    except DamageError:
        return False


def plan(run: Run, data: Place, val: Place | None, device: str, start: Path | None = None) -> Plain:
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
