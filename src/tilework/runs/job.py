"""A run from its settings to its results: everything checked, then the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn

from tilework.augment import AnyStep, apply_all, build_all
from tilework.core.config import Plain
from tilework.core.distributed import World, join_world
from tilework.core.errors import Stopped
from tilework.core.files import locked, remove_unfinished, write, write_json
from tilework.core.location import Location, PathOrHub, Url, location, path_or_hub
from tilework.core.rng import Draws
from tilework.core.sealed import write_sealed
from tilework.data import Source
from tilework.data.detected import boxes_set_aside, clipped_boxes
from tilework.data.fingerprint import fingerprint
from tilework.data.masked import broken_files, images_without_class
from tilework.data.streamed_images import StreamedImages, streamed_of
from tilework.evaluation import validate
from tilework.objectives import Objective
from tilework.report import rows_of_pictures
from tilework.runs.build import (
    build_objective,
    check_data,
    find_columns,
    held_source,
    open_source,
    remark,
    split_crop,
    store_of,
    training_source,
    validation_source,
    with_batch,
)
from tilework.runs.directory import BOXES, QUARANTINE, RESULTS, DataSpec, RunDirectory
from tilework.runs.pins import hashes_of, pin_settings, pin_start
from tilework.runs.run import Run
from tilework.runs.start import Start
from tilework.store.upload import Mirror
from tilework.tokenizers.find import find_tokenizer, keep_tokenizer, place_from
from tilework.train import HELD, TRAINING, Job, Result, find_rate, fit, stop_signals, time_steps
from tilework.train.execution import check_execution
from tilework.train.log import counted, notice


def prepare(
    run: Run,
    data: Location,
    val: Location | None,
    out: Path,
    world: World,
    title: str,
    quiet: bool,
    start: PathOrHub | None = None,
) -> Job:
    """Check everything that can be checked before the first step, and put the job together."""
    check_execution(run.fit, world.size)
    directory, leads = RunDirectory(out), world.leads
    quiet_here = quiet or not leads
    if leads:
        directory.claim(run, start)
    task, columns = run.objective.task, find_columns(run, data)
    begin = None if start is None else Start.read(start)
    crop, rest = split_crop(run)
    whole = open_source(
        data,
        run.size,
        run.max_broken,
        quiet=quiet_here,
        samples=run.samples,
        crop=crop,
        draw=run.draw,
        level=run.classes,
        frame=run.frame,
    )
    validation = None if val is None else validation_source(run, val, whole.classes, quiet_here)
    source = training_source(run, whole, columns, str(data))
    asked, run = run, with_batch(run, len(source), world.size, quiet_here)  # the directory keeps what was asked for
    spec, model = check_data(run, source, validation, data, val)
    remark(whole, validation, data, val, quiet_here or not task.labels, part=run.samples > 0)
    if begin is not None:
        begin.fill(model, source.classes, quiet_here)
    codebook = source.codebook if begin is None else begin.codebook_for(source.codebook, quiet_here)
    objective = build_objective(run, model, codebook)
    if begin is not None:
        begin.finish(objective)
    steps, evaluation = (build_all(part, codebook, world.device) for part in (rest, run.evaluation))
    if leads:
        samples = {"train": fingerprint(whole), "val": None if validation is None else fingerprint(validation)}
        directory.check_samples(samples)
        directory.begin(asked, spec.codebook)
        spec, hub = _with_tokenizer(spec, source, out), hashes_of(run, start)
        directory.write(spec, codebook, {"train": data, "val": val}, start, hub, samples)
        broken = [asdict(b) for s in (whole, validation) if s is not None for b in broken_files(s)]
        if broken:
            write_json(out / QUARANTINE, broken)
            notice(f"{counted(len(broken), 'image')} cannot be read: see {out / QUARANTINE}", quiet)
        if boxes := [asdict(b) for s in (whole, validation) for b in boxes_set_aside(s)]:
            write_json(out / BOXES, boxes)
            notice(f"{counted(len(boxes), 'box')} cannot be used: see {out / BOXES}", quiet)
        for name, one in (("training", whole), ("validation", validation)):
            void = images_without_class(one)
            if void:
                notice(f"{counted(void, 'mask')} of {name} without a class anywhere", quiet)
            if cut := clipped_boxes(one):
                notice(f"{counted(cut, 'box')} of {name} reach beyond their images: cut at the edge", quiet)
    for part, streamed in (("", whole), ("val-", validation)):
        if isinstance(streamed, StreamedImages):
            streamed.quarantine.write_to(out / f"quarantine-{part}{world.rank}.jsonl")
    held = held_source(run, data, whole.classes)
    looks = {"": validation, HELD: held, TRAINING: source if run.fit.evaluate_training else None}
    evaluate = None
    if any(part is not None for part in looks.values()):

        def evaluate(judged: nn.Module) -> dict[str, float]:
            found: dict[str, float] = {}
            for prefix, part in looks.items():
                if part is not None:
                    figures = validate(task, objective, judged, part, evaluation, world, min(256, run.fit.batch))
                    found |= {prefix + name: value for name, value in figures.items()}
            return found

    job = Job(objective, source, steps, run.fit, out, world, evaluate, title, quiet)
    job.metric, job.higher_is_better = task.metric, task.higher_is_better
    if run.fit.picture_every and leads:
        job.after_step = _draw_some(run, objective, validation or source, evaluation, out, world)
    return job


def _with_tokenizer(spec: DataSpec, source: Source, out: Path) -> DataSpec:
    """The same with the place of the store's tokenizer, where a copy of it would be large; else it is copied."""
    store = store_of(source)
    if store is None or isinstance(store.path, Url):
        return spec
    found = find_tokenizer(store.manifest.tokenizer, store.path.parent)
    if found is None or keep_tokenizer(found, out):
        return spec
    return replace(spec, tokenizer={**spec.tokenizer, **place_from(out, found)})


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
    out: Location | str,
    device: str = "auto",
    title: str = "train",
    quiet: bool = False,
    start: Path | str | None = None,
    tensorboard: bool = False,
) -> Result:
    """Run a recipe on data, from the newest checkpoint in `out` if there is one, and write results.json.

    out: a directory, or a URL of a bucket that every checkpoint is uploaded to.
    start: a run or a checkpoint file whose weights to begin with, or a name on the hub.
    """
    with join_world(device) as world:
        place = location(out) if isinstance(out, str) else out
        mirror = Mirror(place) if isinstance(place, Url) else None
        folder = place if mirror is None else mirror.local
        assert isinstance(folder, Path)
        if mirror is not None and world.first_here:
            mirror.pull()
        world.wait()
        validation, begin = location(val) if val else None, path_or_hub(start) if start else None
        run, begin = pin_settings(run, folder), pin_start(begin, folder)
        push = mirror.push if mirror is not None and world.leads else None
        return train_in(world, run, location(data), validation, begin, folder, title, quiet, tensorboard, push)


def train_in(
    world: World,
    run: Run,
    data: Location,
    val: Location | None,
    start: PathOrHub | None,
    out: Path,
    title: str,
    quiet: bool,
    tensorboard: bool = False,
    push: Callable[[], None] | None = None,
) -> Result:
    """`train` among processes that know each other already. push: called when files of `out` have changed."""
    job = prepare(run, data, val, out, world, title, quiet, start)
    job.tensorboard = tensorboard
    job.saved = push or job.saved
    with locked(out) if world.leads else nullcontext(), stop_signals(job.stop):
        if world.leads:
            for folder in (out, out / "checkpoints"):
                remove_unfinished(folder)
        result = fit(job)
        if world.leads:
            job.objective.save_artefact(result.model, out)
            learnt, codebook = job.objective.learnt_table(), job.source.codebook
            if learnt is not None and codebook is not None:
                codebook.with_learnt(learnt.cpu().numpy()).write(out)
            _say_broken(job, out)
            write_sealed(out / RESULTS, result.summary)
            job.saved()
    if world.any(bool(job.stop)):  # it came after the last step; what follows this run shall not begin
        raise Stopped(f"stopped when {out} was finished", "repeat the command to go on with what follows")
    world.wait()  # a run that starts from this one reads what was just written
    return result


def _say_broken(job: Job, out: Path) -> None:
    """Images that this process met and could not decode."""
    streamed = streamed_of(job.source)
    if streamed is not None and streamed.quarantine.found:
        count = counted(len(streamed.quarantine.found), "image")
        notice(f"{count} could not be read, others took their places: see {out}/quarantine-*.jsonl", job.quiet)


def plan(run: Run, data: Location, val: Location | None, device: str, start: PathOrHub | None = None) -> Plain:
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


def try_rates(run: Run, data: Location, device: str, start: PathOrHub | None = None, steps: int = 100) -> Plain:
    """A learning-rate range test for a run; leaves nothing behind."""
    with TemporaryDirectory() as folder, join_world(device) as world:
        job = prepare(run, data, None, Path(folder) / "run", world, "rates", quiet=True, start=start)
        found = find_rate(job, steps)
    return {
        "lr_of_recipe": run.fit.optim.lr,
        "suggested_lr": found.suggested,
        "lowest_loss_at": found.lowest,
        "rates": list(found.rates),
        "losses": list(found.losses),
    }
