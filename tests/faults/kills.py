"""Rows 4 and 5: processes killed, terminated and interrupted at random moments go on to the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from faults.matrix import ROWS, Row, Trials
from faults.processes import contents, ended, killed_after, killed_at_sync, launch, left_behind
from faults.things import make_tokenizer
from small_data import write_images, write_pairs, write_store
from small_runs import SETTINGS
from tilework.store import spool_of


@dataclass(frozen=True)
class Work:
    """A command that is repeated after it was killed. data: made once; words: of the command, for data and output."""

    name: str
    data: Callable[[Path], object]
    words: Callable[[Path, Path], list[str]]
    result: Callable[[Path], bytes | None] = (
        Path.read_bytes
    )  # what must be the same of a file of the output; None: nothing


def weights(file: Path) -> bytes | None:
    """What a run learnt."""
    return file.read_bytes() if file.suffix == ".safetensors" else None


TIMES = ("seconds", "cpu_minutes", "throughput", "images_per_second")  # figures that differ from one time to the next


def figures(file: Path) -> bytes | None:
    """What an experiment found."""

    def timeless(found: Any) -> Any:
        if isinstance(found, dict):
            return {name: timeless(value) for name, value in found.items() if name not in TIMES}
        return [timeless(value) for value in found] if isinstance(found, list) else found

    return json.dumps(timeless(json.loads(file.read_bytes()))).encode() if file.name == "results.json" else None


def images_and_tokenizer(root: Path) -> None:
    """A folder of images and a tokenizer."""
    write_images(root / "images", count=12)
    make_tokenizer(root / "tokenizer")


def train_words(data: Path, out: Path, steps: int = 20) -> list[str]:
    settings = [*SETTINGS.split(), f"fit.steps={steps}", "fit.save_every=3", "fit.ema=0.9"]
    return ["train", "demo_token", *settings, "--data", f"{data}/x.tok", "--val", f"{data}/x.tok", "--out", f"{out}"]


def _dense(data: Path, out: Path) -> list[str]:
    settings = ["fit.epochs=0", "fit.steps=6", "fit.batch=2", "fit.save_every=2", "size=[32,32]", "model.channels=8"]
    settings += ["model.backbone.width=16", "model.backbone.heads=2", "augment=[{name: normalise}]"]
    return ["train", "seg_cpu", *settings, "--data", f"{data}/pairs", "--out", f"{out}"]


def _tokenize(data: Path, out: Path) -> list[str]:
    return ["tokenize", f"{data}/images", "--tokenizer", f"{data}/tokenizer", "--out", f"{out}"]


def two_stores(root: Path) -> None:
    """Two stores of one codebook."""
    write_store(root / "x.tok", count=200)
    write_store(root / "y.tok", count=150, seed=1)


def _from_stores(command: list[str], more: list[str], data: Path, out: Path) -> list[str]:
    return [*command, f"{data}/x.tok", *(word.format(data=data) for word in more), "--out", f"{out}"]


PIXELS = ["size=[32,32]", "augment=[{name: normalise}]", "evaluation=[{name: normalise}]"]
PIXELS += ["model.width=16", "model.heads=2", "model.depth=1"]


def photographs(root: Path) -> None:
    """Two folders of images and a tokenizer."""
    write_images(root / "train", count=8)
    write_images(root / "val", count=4, seed=1)
    make_tokenizer(root / "tokenizer")


def images_and_model(root: Path) -> None:
    """Images, and a classifier of their pixels."""
    write_images(root / "images", count=12)
    settings = ["fit.epochs=0", "fit.steps=2", "fit.batch=4", *PIXELS]
    words = ["train", "plain_pixel_cpu", *settings, "--data", f"{root}/images", "--out", f"{root}/model"]
    if code := ended(launch(words, root / "log.txt")):
        raise RuntimeError(f"training of the annotator ends with {code}: {(root / 'log.txt').read_text()[-500:]}")


def _table(data: Path, out: Path) -> list[str]:
    rows = [f"{name}: demo_token {SETTINGS} fit.steps={steps} fit.save_every=2" for name, steps in (("a", 4), ("b", 6))]
    return ["table", *rows, "--seeds", "2", "--data", f"{data}/x.tok", "--val", f"{data}/y.tok", "--out", f"{out}"]


def _compare(data: Path, out: Path) -> list[str]:
    settings = ["fit.epochs=0", "fit.steps=3", "fit.batch=4", "model.width=16", "model.heads=2", "model.depth=1"]
    recipes = ["--pixel-recipe", "demo_pixel", "--token-recipe", "demo_token", "--plain-recipe", "demo_token"]
    rows = ["--rows", "pixels@2", "uniform:0.5@1", "jpeg:20@1"]
    return ["compare", f"{data}/train", *settings, "--val", f"{data}/val", *recipes, *rows, "--out", f"{out}"]


def _frontier(data: Path, out: Path) -> list[str]:
    rows = ["--rows", "float16", "rounded:0.85", "pq:4", "jpeg:16:30"]
    settings = ["--settings", "fit.steps=2", "fit.batch=4", "fit.schedule.warmup_steps=1"]
    return ["frontier", f"{data}/train", "--val", f"{data}/val", *rows, "--out", f"{out}", *settings]


def _annotate(data: Path, out: Path) -> list[str]:
    return ["annotate", f"{data}/images", "--model", f"{data}/model", "--top", "2", "--out", f"{out}"]


def tokenized_parts(root: Path) -> None:
    """What `tokenize --shard` of two processes leaves: parts that are not yet a store."""
    images_and_tokenizer(root)
    for number in range(2):
        words = [*_tokenize(root, root / "x"), "--shard", f"{number}/2"]
        if code := ended(launch(words, root / "log.txt")):
            raise RuntimeError(f"tokenize --shard ends with {code}: {(root / 'log.txt').read_text()[-500:]}")


def _seal(data: Path, out: Path) -> list[str]:
    if not out.exists() and not spool_of(out).exists():
        shutil.copytree(spool_of(data / "x"), spool_of(out))
    return ["seal", f"{out}"]


WORKS = (
    Work("training", lambda root: write_store(root / "x.tok"), train_words, weights),
    Work("tokenize", images_and_tokenizer, _tokenize),
    Work("convert", two_stores, partial(_from_stores, ["convert"], ["--codec", "rans"])),
    Work("merge", two_stores, partial(_from_stores, ["merge"], ["{data}/y.tok", "--prefix", "a/", "b/"])),
    Work("subset", two_stores, partial(_from_stores, ["subset"], ["--fraction", "0.4"])),
    Work("dense training", lambda root: write_pairs(root / "pairs"), _dense, weights),
    Work("table", two_stores, _table, figures),
    Work("compare", photographs, _compare, figures),
    Work("frontier", photographs, _frontier, figures),
    Work("annotate", images_and_model, _annotate),
    Work("seal", tokenized_parts, _seal),
)
NAMED = {work.name: work for work in WORKS}
COUNTS = (
    (50, 1),
    (50, 1),
    (20, 1),
    (15, 0),
    (15, 0),
    (20, 0),
    (7, 0),
    (7, 0),
    (6, 0),
    (20, 0),
    (50, 0),
)  # nightly, in make test


def undisturbed(work: Work, folder: Path) -> dict[str, str]:
    """What the command leaves when nothing happens; its output lies as deep as those of trials."""
    (folder / "data").mkdir()
    (folder / "whole").mkdir()
    work.data(folder / "data")
    code = ended(launch(work.words(folder / "data", folder / "whole/out"), folder / "log.txt"))
    found = contents(folder / "whole/out", work.result)
    if code or not found:
        raise RuntimeError(f"{work.name} itself ends with {code}: {(folder / 'log.txt').read_text()[-500:]}")
    return found


def kills(work: Work, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Killed once or several times at random moments, a fifth of them inside a save, then run to the end."""
    data, log = folder / "data", folder / "log.txt"
    begun = time.monotonic()
    whole = undisturbed(work, folder)
    seconds = time.monotonic() - begun
    for number in range(count):
        place = folder / f"trial-{number}"
        place.mkdir()
        out, when = place / "out", []
        for _ in range(int(rng.integers(1, 4))):
            if number % 5 == 4:
                at = int(rng.integers(1, 30))
                when.append(f"at flush {at}")
                killed_at_sync(work.words(data, out), log, at)
            else:
                after = float(rng.uniform(0.02, 1)) * seconds
                when.append(f"after {after:.2f} of {seconds:.2f} s")
                killed_after(work.words(data, out), log, after)
        trouble = finish(work, data, out, whole, log)
        yield trouble and f"{work.name}, killed {', '.join(when)}: {trouble}"
        shutil.rmtree(place)


def finish(work: Work, data: Path, out: Path, whole: dict[str, str], log: Path) -> str | None:
    """Repeat a command to its end; what is wrong then, if anything."""
    code = ended(launch(work.words(data, out), log))
    if code == 7 and work.words(data, out)[0] != "train":  # a store that was whole already is not written again
        code = 0
    if code:
        return f"exit code {code}: {log.read_text()[-300:]}"
    found = contents(out, work.result)
    if found != whole:
        return f"other content: {sorted(name for name in found.keys() | whole if found.get(name) != whole.get(name))}"
    left = left_behind(out.parent)
    return f"left behind: {left}" if left else None


for work, (full, quick) in zip(WORKS, COUNTS, strict=True):
    ROWS.append(Row(4, f"SIGKILL: {work.name}", full, quick, partial(kills, work)))


def stops(with_signal: int, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """A training run that is asked to stop saves within 30 s, ends with its code, and goes on to the same weights."""
    work, data, log = NAMED["training"], folder / "data", folder / "log.txt"
    whole = undisturbed(work, folder)
    for number in range(count):
        out = folder / f"trial-{number}" / "out"
        out.parent.mkdir()
        child = launch(work.words(data, out), log)
        until = time.monotonic() + 60
        while not (out / "log.jsonl").is_file() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.3)))
        begun = time.monotonic()
        trouble = _stopped(child, with_signal)
        taken = time.monotonic() - begun
        trouble = trouble or (f"took {taken:.0f} s" if taken > 30 else None) or finish(work, data, out, whole, log)
        yield trouble and f"signal {with_signal}: {trouble}"


def _stopped(child: int, with_signal: int) -> str | None:
    os.kill(child, with_signal)
    found = ended(child)
    return None if found in (75, 0) else f"exit code {found}, not 75"  # 0: it had ended before


# 75 for both: the run has saved, and the same command goes on with it
ROWS.append(Row(5, "SIGTERM: training", 10, 1, partial(stops, signal.SIGTERM)))
ROWS.append(Row(5, "Ctrl-C: training", 10, 1, partial(stops, signal.SIGINT)))
