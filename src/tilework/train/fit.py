"""The training loop: any objective, on one device or under torchrun; resumed runs equal uninterrupted ones bit by bit.

Randomness is a function of (seed, step, rank) and of the samples, so a checkpoint holds only tensors and a step number.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tilework.augment import AnyStep, apply_all
from tilework.core.batch import Batch
from tilework.core.distributed import World
from tilework.core.errors import DamageError, Stopped, TrainingError
from tilework.core.memory import keep_freed_memory
from tilework.core.processor import has_bf16
from tilework.core.rng import Draws, step_seed
from tilework.data import Loader, Source
from tilework.objectives import Objective
from tilework.train.best import Best
from tilework.train.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    load_optimiser,
    optimiser_tensors,
    remove_old,
    save_checkpoint,
)
from tilework.train.execution import check_execution, recompute_blocks
from tilework.train.log import Bar, RunLog, notice, read_log
from tilework.train.optim import build_optimiser
from tilework.train.settings import FitConfig
from tilework.train.sharded import Sharded, check_sharding, gathered

FIRST = 20  # losses at the start, whose mean later ones are compared with
EXPLODED = 3.0  # times that mean
HELD, TRAINING = "held_", "train_"  # prefixes of figures of training samples: held back, trained on


@dataclass
class Job:
    """Input of `fit`."""

    objective: Objective
    source: Source
    augment: Sequence[AnyStep]
    config: FitConfig
    out: Path
    world: World
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None  # metrics of a model
    title: str = "train"
    quiet: bool = False
    after_step: Callable[[int], None] = field(default=lambda step: None)  # for tests and sample images
    saved: Callable[[], None] = field(default=lambda: None)  # in the process that saves, after each checkpoint
    metric: str = "top1"  # by which the best checkpoint is known
    higher_is_better: bool = True
    tensorboard: bool = False  # whether to write events for TensorBoard beside the log
    stop: list[int] = field(default_factory=list)  # signals received that ask to stop


@dataclass(frozen=True)
class Result:
    """Output of `fit`."""

    model: nn.Module  # with averaged (EMA) weights if the run has them
    steps: int
    metrics: dict[str, float]  # of the last evaluation
    seconds: float  # of this call
    leads: bool = True  # whether this is rank 0, which logs and saves
    skipped: int = 0  # steps without finite gradients
    stopped_early: bool = False

    @property
    def summary(self) -> dict[str, float]:
        """What results.json holds."""
        early = {"stopped_early": True} if self.stopped_early else {}
        return {"steps": self.steps, "skipped_steps": self.skipped, **early, **self.metrics}


def fit(job: Job) -> Result:
    """Train, resuming from the newest checkpoint in `job.out` if there is one."""
    return Fit(job).run()


def time_steps(job: Job, count: int = 3) -> tuple[float, int]:
    """Seconds per step, measured on a few after a warm-up step, and the number of steps of the run."""
    loop = Fit(job)
    begun = monotonic()
    for step, batch in enumerate(loop.loader.run(0, min(1 + count, loop.total))):
        begun = monotonic() if step == 1 else begun
        loop._step(step, batch)
        float(loop.pending[-1][1]["norm"])  # wait for the device
    return (monotonic() - begun) / max(1, min(count, loop.total - 1)), loop.total


class Fit:
    """The loop of one process."""

    def __init__(self, job: Job) -> None:
        config, world = job.config, job.world
        self.job, self.config, self.world = job, config, world
        if world.device.type == "cpu":
            keep_freed_memory()
        check_execution(config, world.size)
        if config.shard:
            check_sharding(job.objective)
        if world.size > 1 and world.device.type == "cuda":  # CPU processes keep statistics of their own
            nn.SyncBatchNorm.convert_sync_batchnorm(job.objective)
        self.whole = self.objective = job.objective.to("cpu" if config.shard else world.device)
        average = get_ema_multi_avg_fn(config.ema) if config.ema else None
        self.whole_ema = self.ema = AveragedModel(self.whole.model, multi_avg_fn=average) if average else None
        checkpoint = latest_checkpoint(job.out / "checkpoints")
        self.start = load_checkpoint(checkpoint, self.whole, self.whole_ema) if checkpoint else 0
        self.sharded = Sharded(self.whole, self.whole_ema, world) if config.shard else None
        if self.sharded is not None:
            self.objective, self.ema = self.sharded.objective, self.sharded.ema
        self.optimiser = build_optimiser(self.objective, config.optim)
        if checkpoint:
            load_optimiser(checkpoint, self.optimiser)
        if config.activation_checkpointing:
            recompute_blocks(self.objective.model)
        if config.compile:
            self.objective.model.compile()
        self.wrapped: nn.Module = self.objective
        if world.size > 1 and self.sharded is None:
            self.wrapped = DistributedDataParallel(self.objective)
        pin = world.device.type == "cuda"
        self.loader = Loader(
            job.source,
            config.batch,
            config.seed,
            world.rank,
            world.size,
            pin=pin,
            repeats=config.repeats,
            order=config.order,
            lanes=config.lanes,
        )
        self.total = config.total_steps(len(job.source))
        self.pending: list[tuple[int, dict[str, Tensor]]] = []  # steps whose numbers are still on the device
        self.streak = 0
        lines = read_log(job.out / "log.jsonl", self.start)
        self.skipped = sum("skipped" in line for line in lines)
        self.best = Best(job.metric, job.higher_is_better, lines)
        # losses that a later one is compared with: the first of this process, or of the log that it resumes
        self.first: list[float] = [line["loss"] for line in lines if "loss" in line][:FIRST]
        self.warned = False
        self.metrics: dict[str, float] = {}

    @property
    def gives_up(self) -> bool:
        """Whether validation has not improved for as long as it may."""
        return 0 < self.config.early_stop <= self.best.stale

    @property
    def evaluated(self) -> nn.Module:
        """The model that evaluation and export use."""
        return self.whole_ema.module if self.whole_ema is not None else self.whole.model

    def run(self) -> Result:
        """Train to the end, or until stopped."""
        with stop_signals(self.job.stop):
            return self._run()

    def _run(self) -> Result:
        begun = monotonic()
        quiet = self.job.quiet or not self.world.leads
        self.log = RunLog(self.job.out / "log.jsonl", self.start, not self.world.leads, self.job.tensorboard)
        done, ended = self.start, self.start == self.total or (self.start > 0 and self.gives_up)
        if ended:
            notice(f"{self.job.out} is already finished: nothing to train", quiet)
        elif self.start:
            notice(f"resuming {self.job.out} after step {self.start} of {self.total}", quiet)
        if not ended and self.config.precision == "bf16" and self.world.device.type == "cpu" and not has_bf16():
            notice("this processor has no instructions for bf16: fit.precision=fp32 trains ten times faster", quiet)
        if self.world.leads:
            with suppress(DamageError):  # a pointer to a missing one: the next save may set it
                remove_old(self.job.out / "checkpoints", self.config.keep, self._due)  # that a kill has left
        self.bar = Bar(self.job.title, self.total, self.start, quiet)
        try:
            for step, batch in enumerate(self.loader.run(done, done if ended else self.total), done):
                self._step(step, batch)
                self._after(step + 1)
                self.job.after_step(step + 1)
                done = step + 1
                if self.gives_up:
                    break
            if not self.metrics:  # resumed after the last step, whose metrics are in the log
                self._evaluate(done, log=False)
            self._say_end(done, quiet)
        finally:
            self.bar.close()
            self.log.close()
        seconds = monotonic() - begun
        return Result(self.evaluated, done, self.metrics, seconds, self.world.leads, self.skipped, done < self.total)

    def _say_end(self, done: int, quiet: bool) -> None:
        if done < self.total:
            better = f"{self.best.metric} has not improved since step {self.best.step}"
            notice(f"stopped early after step {done} of {self.total}: {better}", quiet)
        if self.skipped:
            where = f"{self.job.out}/nonfinite-*.jsonl"
            notice(f"{self.skipped} of {done} steps were skipped: gradients were not finite (see {where})", quiet)

    def _step(self, step: int, batch: Batch) -> None:
        """One optimiser step; the device skips it if the gradient is not finite."""
        config, epoch = self.config, step // self.loader.steps
        seed_noise(self.world.device, step_seed(config.seed, step, self.world.rank))
        self.wrapped.train()
        logged: dict[str, Tensor] = {}
        parts = _split(batch.to(self.world.device), config.accumulate)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            draws = Draws(config.seed, epoch, part.index, step, self.total)
            weight = len(part.index) * self.world.size / config.batch  # gradients are averaged over processes
            bf16 = config.precision == "bf16"
            part = apply_all(self.job.augment, part, draws)  # in full precision
            with self._apart(last), torch.autocast(self.world.device.type, torch.bfloat16, enabled=bf16):
                out = self.wrapped(part, draws)
                (out["loss"] * weight).backward()
            for name, value in out.items():
                logged[name] = logged.get(name, 0) + value.detach() * weight
        gradients = [p.grad for p in self.objective.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)  # the same in every process: gradients are averaged by now
        if config.optim.clip:
            torch.nn.utils.clip_grads_with_norm_(self.objective.parameters(), config.optim.clip, norm)
        norm = gathered(norm)
        factor = self._set_rate(step)
        self.optimiser.found_inf = (~norm.isfinite()).float()  # type: ignore[attr-defined]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update_parameters(self.objective.model)
        self.pending.append((step, {**logged, "norm": norm, "lr": torch.tensor(factor * config.optim.lr)}))

    def _apart(self, last: bool) -> AbstractContextManager[None]:
        """Processes exchange gradients after the last part of a batch only."""
        if self.sharded is not None:
            self.sharded.sync(last)
        elif isinstance(self.wrapped, DistributedDataParallel) and not last:
            return self.wrapped.no_sync()
        return nullcontext()

    def _set_rate(self, step: int) -> float:
        schedule = self.config.schedule
        warmup = (schedule.warmup_epochs * self.loader.steps + schedule.warmup_steps) / self.total
        # the middle of the step: neither the first nor the last one has a rate of zero
        factor = schedule.factor((step + 0.5) / self.total, warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = factor * self.config.optim.lr * group["scale"]
        return factor

    def _after(self, done: int) -> None:
        """Log, evaluate, save and stop when due. done: steps taken."""
        config = self.config
        looks = done % config.log_every == 0 or done == self.total or self.world.device.type == "cpu"
        if looks:
            self._read_pending(done)
        epoch_ends = done % self.loader.steps == 0
        epoch = done // self.loader.steps
        best = False
        if done == self.total or (epoch_ends and config.evaluate_every and epoch % config.evaluate_every == 0):
            self._evaluate(done)
            best = bool(self.metrics) and self.best.see(done, self.metrics)
        stopping = looks and self.world.any(bool(self.job.stop))
        if self._due(done) or best or stopping or done == self.total or self.gives_up:
            self._save(done, best)
        if stopping and done < self.total:
            raise Stopped(
                f"stopped after step {done} of {self.total}, checkpoint in {self.job.out}",
                "repeat the command to resume",
            )

    def _due(self, done: int) -> bool:
        """Whether a checkpoint is saved after so many steps whatever happens."""
        return done % (self.config.save_every or self.loader.steps) == 0

    def _save(self, done: int, best: bool) -> None:
        if self.sharded is not None:
            self.sharded.gather()
        slots = optimiser_tensors(self.optimiser, self.world.leads)
        if self.world.leads:
            folder = self.job.out / "checkpoints"
            save_checkpoint(folder, done, self.whole, slots, self.whole_ema, self.config.keep, best, self._due)
            self.job.saved()
        self.world.wait()

    def _read_pending(self, done: int) -> None:
        """Copy losses of past steps to the host and log them; count skipped steps."""
        for step, values in self.pending:
            stacked = torch.stack([value.float().to(self.world.device) for value in values.values()])
            means = self.world.sum(stacked) / self.world.size
            numbers = dict(zip(values, means.tolist(), strict=True))
            finite = numbers["norm"] == numbers["norm"] and abs(numbers["norm"]) != float("inf")
            self.streak = 0 if finite else self.streak + 1
            if finite:
                self._compare(step, numbers["loss"])
            else:
                self._report_skipped(step, numbers)
            if not finite or (step + 1) % self.config.log_every == 0 or step + 1 == self.total:
                shown = {name: round(value, 7) for name, value in numbers.items()} if finite else {"skipped": True}
                self.log.write(step=step + 1, epoch=step // self.loader.steps, **shown)
                known = _short(self.metrics) if self.bar.live else ""  # a line shows validation only when it is new
                self.bar.update(done, note=f"loss {numbers['loss']:.3f} {known}")
        self.pending.clear()

    def _compare(self, step: int, loss: float) -> None:
        """Say once that the loss has exploded."""
        if len(self.first) < FIRST:
            self.first.append(loss)
            return
        usual = sum(self.first) / len(self.first)
        if not self.warned and usual > 0 and loss > EXPLODED * usual:
            self.warned = True
            what = f"the loss rose from {usual:.3g} to {loss:.3g} at step {step + 1}"
            notice(f"{what}: lower fit.optim.lr, set fit.optim.clip=1, or try --find-lr", not self._speaks)

    @property
    def _speaks(self) -> bool:
        return self.world.leads and not self.job.quiet

    def _report_skipped(self, step: int, numbers: dict[str, float]) -> None:
        if not self.skipped:
            notice(f"step {step + 1} is skipped: its gradients are not finite", not self._speaks)
        self.skipped += 1
        samples = self.loader.indices(step).tolist()
        line = {"step": step + 1, "rank": self.world.rank, "loss": str(numbers["loss"]), "samples": samples}
        with (self.job.out / f"nonfinite-{self.world.rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if self.streak >= self.config.patience:
            raise TrainingError(
                f"gradients were not finite in {self.streak} consecutive steps, up to step {step + 1}",
                f"lower fit.optim.lr or set fit.optim.clip; samples are listed in {self.job.out}/nonfinite-*.jsonl",
            )

    def _evaluate(self, done: int, log: bool = True) -> None:
        if self.job.evaluate is not None:
            with nullcontext() if self.sharded is None else self.sharded.gathered():
                self.metrics = self.job.evaluate(self.evaluated)
            shown = {logged_name(name): round(value, 6) for name, value in self.metrics.items()}
            if log:
                self.log.write(step=done, epoch=done // self.loader.steps, **shown)
            self.bar.update(done, note=_short(self.metrics), now=True)


def logged_name(metric: str) -> str:
    """Name of a figure in the log: val_* for those of validation data."""
    return metric if metric.startswith((HELD, TRAINING)) else f"val_{metric}"


def seed_noise(device: torch.device, seed: int) -> None:
    """Seed torch's CPU and device generators; `torch.manual_seed` takes a millisecond where CUDA is idle."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def _split(batch: Batch, parts: int) -> list[Batch]:
    """Parts of a batch, equal up to one sample, for gradient accumulation."""
    if parts == 1:
        return [batch]
    edges = [i * len(batch.x) // parts for i in range(parts + 1)]
    return [batch.rows(slice(a, b)) for a, b in pairwise(edges)]


def _short(metrics: dict[str, float]) -> str:
    shown = " ".join(f"{name} {value:.3f}" for name, value in metrics.items())
    return f"| val {shown}" if shown else ""


@contextmanager
def stop_signals(received: list[int]) -> Iterator[None]:
    """Record SIGTERM and SIGINT, so that what is under way is saved first; a second SIGINT interrupts at once."""

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    old: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            old[number] = signal.signal(number, note)
    except ValueError:  # not the main thread: signals are someone else's
        pass
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
