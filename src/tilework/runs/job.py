"""A run from its settings to its results: everything checked, then the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from tilework.augment import AnyStep, apply_all, build_all
from tilework.core.config import Plain
from tilework.core.distributed import World, join_world
from tilework.core.files import locked, write, write_json
from tilework.core.location import Location, location
from tilework.core.rng import Draws
from tilework.data import Source
from tilework.data.masked import broken_files, images_without_class
from tilework.evaluation import validate
from tilework.objectives import Objective
from tilework.report import rows_of_pictures
from tilework.runs.build import (
    build_objective,
    check_data,
    find_columns,
    open_source,
    split_crop,
    training_source,
    validation_source,
)
from tilework.runs.directory import QUARANTINE, RESULTS, RunDirectory
from tilework.runs.run import Run
from tilework.runs.start import Start
from tilework.train import Job, Result, fit, time_steps
from tilework.train.log import counted, notice


def prepare(
    run: Run,
    data: Location,
    val: Location | None,
    out: Path,
    world: World,
    title: str,
    quiet: bool,
    start: Path | None = None,
) -> Job:
    """Check everything that can be checked before the first step, and put the job together."""
    directory, leads = RunDirectory(out), world.leads
    quiet_here = quiet or not leads
    if leads:
        directory.claim(run, start)
    task, columns = run.objective.task, find_columns(run, data)
    begin = None if start is None else Start.read(start)
    crop, rest = split_crop(run)
    whole = open_source(
        data, run.size, run.max_broken, quiet=quiet_here, samples=run.samples, crop=crop, frame=run.frame
    )
    validation = None if val is None else validation_source(run, val, whole.classes, quiet_here)
    source = training_source(run, whole, columns, str(data))
    spec, model = check_data(run, source, validation, data, val)
    if begin is not None:
        begin.fill(model, source.classes, quiet_here)
    codebook = source.codebook if begin is None else begin.codebook_for(source.codebook, quiet_here)
    objective = build_objective(run, model, codebook)
    steps, evaluation = (build_all(part, codebook, world.device) for part in (rest, run.evaluation))
    if leads:
        directory.write(run, spec, codebook, {"train": data, "val": val}, start)
        broken = [asdict(b) for s in (whole, validation) if s is not None for b in broken_files(s)]
        if broken:
            write_json(out / QUARANTINE, broken)
            notice(f"{counted(len(broken), 'image')} cannot be read: see {out / QUARANTINE}", quiet)
        for name, one in (("training", whole), ("validation", validation)):
            void = images_without_class(one)
            if void:
                notice(f"{counted(void, 'mask')} of {name} have no class at all", quiet)
    evaluate = None
    if validation is not None:

        def evaluate(judged: nn.Module) -> dict[str, float]:
            return validate(task, objective, judged, validation, evaluation, world, min(256, run.fit.batch))

    job = Job(objective, source, steps, run.fit, out, world, evaluate, title, quiet)
    if run.fit.picture_every and leads:
        job.after_step = _draw_some(run, objective, validation or source, evaluation, out, world)
    return job


def _draw_some(
    run: Run, objective: Objective, source: Source, evaluation: tuple[AnyStep, ...], out: Path, world: World
) -> Callable[[int], None]:
    """Pictures of a few samples every so often, in OUT/pictures."""
    index = np.linspace(0, len(source) - 1, min(10, len(source))).astype(np.int64)

    def draw(step: int) -> None:
        if step % run.fit.picture_every:
            return
        objective.eval()
        with torch.inference_mode():
            batch = source.batch(index).to(world.device)
            batch = apply_all(evaluation, batch, Draws(0, 0, batch.index))
            rows = objective.pictures(objective.model, batch)
        if rows:
            shown = {name: x.clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy() for name, x in rows.items()}
            write(out / f"pictures/step-{step:08d}.png", rows_of_pictures(shown))

    return draw


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
    with join_world(device) as world:
        validation, begin = location(val) if val else None, Path(start) if start else None
        return train_in(world, run, location(data), validation, begin, Path(out), title, quiet)


def train_in(
    world: World, run: Run, data: Location, val: Location | None, start: Path | None, out: Path, title: str, quiet: bool
) -> Result:
    """`train` among processes that know each other already."""
    job = prepare(run, data, val, out, world, title, quiet, start)
    with locked(out) if world.leads else nullcontext():
        result = fit(job)
        if world.leads:
            job.objective.save_artefact(result.model, out)
            learnt, codebook = job.objective.learnt_table(), job.source.codebook
            if learnt is not None and codebook is not None:
                codebook.with_learnt(learnt.cpu().numpy()).write(out)
            write_json(out / RESULTS, {"steps": result.steps, **result.metrics})
    world.wait()  # a run that starts from this one reads what was just written
    return result


def plan(run: Run, data: Location, val: Location | None, device: str, start: Path | None = None) -> Plain:
    """What a run would do and cost, measured on a few steps; leaves nothing behind."""
    with TemporaryDirectory() as folder, join_world(device) as world:
        job = prepare(run, data, val, Path(folder) / "run", world, "plan", quiet=True, start=start)
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
