"""Rows 9, 12 and 15: dirty folders, several processes on one output, readers while a store is replaced."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from faults.kills import NAMED, Work, undisturbed
from faults.matrix import ROWS, Row, Trials
from faults.processes import contents, ended, launch, left_behind
from faults.things import make_tokenizer
from small_data import write_store
from small_runs import wait_for
from tilework.core.errors import TileworkError
from tilework.store import Store


def picture(file: Path, rng: np.random.Generator, mode: str = "RGB", **options: object) -> None:
    """A small photograph of noise in some format."""
    side = tuple(rng.integers(8, 40, 2))
    Image.fromarray(rng.integers(0, 255, (*side, 3)).astype(np.uint8)).convert(mode).save(file, **options)


def dirt(folder: Path, number: int, rng: np.random.Generator) -> str:
    """One file of 25 kinds; returns what should become of it: good, broken or skipped."""
    kind, file = number % 25, folder / f"{number:06d}"
    modes = {5: "L", 6: "RGBA", 7: "P", 8: "CMYK", 9: "1", 10: "LA"}
    if kind < 5:
        picture(file.with_suffix((".jpg", ".png", ".webp", ".bmp", ".gif")[kind]), rng)
        return "good"
    if kind in modes:
        picture(file.with_suffix(".jpg" if modes[kind] == "CMYK" else ".png"), rng, modes[kind])
        return "good"
    if kind == 11:
        picture(file.with_suffix(".tif"), rng)
        return "good"
    if kind == 12:  # another format than its ending says
        picture(file.with_suffix(".png"), rng, format="JPEG")
        return "good"
    if kind == 13:
        picture(folder / f"{number} ümlaut und Leerzeichen.JPG", rng)
        return "good"
    broken = {
        14: (".jpg", b""),
        15: (".png", b"no image at all"),
        16: (".png", b"\x89PNG\r\n\x1a\n" + rng.bytes(60)),
        17: (".jpg", b"\xff\xd8\xff\xe0" + bytes(200)),
        18: (".webp", b"RIFF\x10\0\0\0WEBPVP8 " + rng.bytes(20)),
        19: (".gif", b"GIF89a" + b"\xff" * 8),
    }
    if kind in broken:
        ending, data = broken[kind]
        file.with_suffix(ending).write_bytes(data)
        return "broken"
    if kind == 20:  # cut in the middle
        picture(file.with_suffix(".png"), rng)
        data = file.with_suffix(".png").read_bytes()
        file.with_suffix(".png").write_bytes(data[: len(data) // 2])
        return "broken"
    others = {21: (".txt", b"notes"), 22: (".pdf", b"%PDF-1.4"), 23: (".npy", b"\x93NUMPY"), 24: (".zip", b"PK\3\4")}
    ending, data = others[kind]
    file.with_suffix(ending).write_bytes(data)
    return "skipped"


def dirty(count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """What goes in comes out as good, quarantined or skipped; a trial is a file."""
    wanted = {"good": 0, "broken": 0, "skipped": 0}
    for number in range(count):
        place = folder / "images" / f"class{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        wanted[dirt(place, number, rng)] += 1
    make_tokenizer(folder / "tokenizer")
    words = ["tokenize", f"{folder}/images", "--tokenizer", f"{folder}/tokenizer", "--max-broken", "0.9"]
    code = ended(launch([*words, "--out", f"{folder}/x.tok", "--json"], folder / "log.txt"))
    told = (folder / "log.txt").read_text()
    if code:
        yield f"exit code {code}: {told[-300:]}"
        return
    found = json.loads(told[told.index("{") :])
    got = {"good": found["images"], "broken": found["quarantined"], "skipped": found["skipped_files"]}
    for kind, number in wanted.items():
        for _ in range(number):
            yield None if got == wanted else f"{kind}: {got} of {wanted}"


ROWS.append(Row(9, "dirty folder of 25 kinds of files", 10_000, 100, dirty))


def together(work: Work, processes: int, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Several processes with one output: each succeeds or says that it is in use or there; bytes as of one alone."""
    data, whole = folder / "data", undisturbed(work, folder)
    for number in range(count):
        log, out = folder / f"log-{number}.txt", folder / f"trial-{number}" / "out"
        out.parent.mkdir()
        children = []
        for _ in range(processes):
            children.append(launch(work.words(data, out), log))
            time.sleep(float(rng.uniform(0, 0.2)))
        codes = sorted(ended(child) for child in children)
        trouble = None
        if codes[0] != 0 or not set(codes) <= {0, 7} or "Traceback" in log.read_text():
            trouble = f"exit codes {codes}: {log.read_text()[-400:]}"
        elif contents(out, work.result) != whole:
            trouble = "other content than one process gives"
        elif left := left_behind(out.parent):
            trouble = f"left behind: {left}"
        yield trouble and f"{processes} processes, {work.name}: {trouble}"
        shutil.rmtree(out.parent)


TOGETHER = (("training", 3, 5), ("tokenize", 8, 10), ("convert", 4, 10), ("seal", 4, 10), ("table", 2, 5))
for name, processes, full in TOGETHER:
    ROWS.append(Row(12, f"{processes} processes: {name}", full, 0, partial(together, NAMED[name], processes)))


def _read(folder: Path, sound: list[bytes], number: int) -> None:
    """Open and read again and again; note what is neither of the stores nor a refusal of ours."""
    found = []
    while not (folder / "stop").exists():
        try:
            store = Store(folder / "x.tok")
            if store.batch(np.arange(len(store))).tobytes() not in sound:
                found.append("content of neither store")
        except TileworkError:
            pass
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        (folder / f"reads-{number}").touch()
    (folder / f"found-{number}").write_text("\n".join(found))


def replaced(how: str, count: int, rng: np.random.Generator, folder: Path) -> Trials:
    """Readers see one store or the other, or a refusal, while the directory is exchanged; a trial is an exchange."""
    stores = [write_store(folder / f"{name}.tok", count=60, seed=seed) for name, seed in (("a", 1), ("b", 2))]
    sound = [Store(path).batch(np.arange(60)).tobytes() for path in stores]
    place = folder / "x.tok"
    shutil.copytree(stores[0], place)
    readers: list[threading.Thread | multiprocessing.process.BaseProcess] = []
    for number in range(3):
        start = threading.Thread if how == "threads" else multiprocessing.get_context(how).Process
        readers.append(start(target=_read, args=(folder, sound, number)))
        readers[-1].start()
    wait_for(lambda: len(list(folder.glob("reads-*"))) == len(readers))
    for number in range(count):
        fresh, old = folder / f"fresh-{number}", folder / f"old-{number}"
        shutil.copytree(stores[(number + 1) % 2], fresh)
        place.rename(old)
        fresh.rename(place)
        shutil.rmtree(old)
    (folder / "stop").touch()
    for reader in readers:
        reader.join()
    troubles = sorted({line for file in folder.glob("found-*") for line in file.read_text().splitlines()})
    for _ in range(count):
        yield f"readers in {how}: {troubles[:3]}" if troubles else None


for how, quick in (("threads", 40), ("fork", 0), ("spawn", 0)):
    ROWS.append(Row(15, f"store replaced under readers: {how}", 2_000, quick, partial(replaced, how)))
