"""Every reader of files that others may have made, with senseless variants of what it reads."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pyarrow
import pyarrow.parquet

from faults.senseless import json_file, label_file, weights, xml_boxes, yaml_settings
from faults.senseless_files import mask_file, npy_file, parquet_file, picture, seit_file, tar_file, token_files
from faults.things import (
    make_adapter,
    make_maps,
    make_run,
    make_tokenizer,
    read_adapter,
    read_maps,
    read_run,
    read_tokenizer,
    tilework,
)
from small_data import write_images, write_objects, write_pairs, write_voc
from store.test_store_fuzz import Subject, examine, forge, make_subjects
from tilework.core.config import decode, read_yaml
from tilework.data.detected import Detected, ObjectSource, open_objects
from tilework.data.images import ImageSource
from tilework.data.label_file import LabelFile
from tilework.data.masked import PairSource
from tilework.data.npy_files import read_npy
from tilework.data.open_images import open_images
from tilework.data.pairs import open_pairs
from tilework.data.parquet_tokens import ParquetTokens
from tilework.data.seit_files import read_seit
from tilework.data.tar_tokens import TarTokens
from tilework.data.token_files import Tokens, store_tokens
from tilework.runs.run import Run
from tilework.store import Store

HOUR, MINUTES = 3600, 600  # of processor time: of formats that others write, and of files that only we do
STEP = "run/checkpoints/step-00000004"


@dataclass(frozen=True)
class Parser:
    """A reader of untrusted files. write: changes what `make` put into a folder, with the right checksums.

    It returns what undoes that, unless writing the sound files again is quick.
    """

    name: str
    make: Callable[[Path], object]
    write: Callable[[Path, Random], Callable[[], None] | None]
    read: Callable[[Path], object]
    seconds: int = HOUR  # of a nightly run


class Stores:
    """Stores whose checksums, hashes and seal are right, whatever they hold."""

    def __init__(self) -> None:
        self.subjects: list[Subject] = []
        self.path = Path()

    def make(self, folder: Path) -> None:
        """One of every kind."""
        self.subjects = make_subjects(folder)
        self.path = Path()

    def write(self, folder: Path, rng: Random) -> Callable[[], None]:
        """One of them, forged."""
        draft = forge(self.subjects, rng)
        changed = draft.lay_out()
        self.path = draft.subject.path
        return partial(draft.clear, changed)

    def read(self, folder: Path) -> None:
        """All that it has; of all of them at first, so that kernels are compiled."""
        for path in [self.path] if self.path.parts else [subject.path for subject in self.subjects]:
            for error in examine(path)[1]:
                raise error


def checkpoint(folder: Path, rng: Random) -> None:
    """Weights, the optimiser's state or the card of a checkpoint."""
    files = sorted((folder / STEP).iterdir())
    file = rng.choice([one for one in files if one.suffix in (".safetensors", ".json")])
    if file.suffix == ".json":
        json_file(f"{STEP}/{file.name}", folder, rng)
    else:
        weights(f"{STEP}/{file.name}", f"{STEP}/state.json", folder, rng)


def read_settings(folder: Path) -> None:
    """Settings alone, and the run that they are of."""
    decode(Run, read_yaml(folder / "run/run.yaml"))
    read_run(folder / "run")


def read_images(path: Path) -> None:
    """Every image, at one size."""
    ImageSource.load(path, (16, 16), None, 1.0).batch(np.arange(1))


def read_shards(file: str, folder: Path) -> None:
    """Names, labels and bytes of images in a container."""
    images = open_images(folder / file)
    _ = images.keys, images.labels
    for one in images.files(range(len(images))):
        if not isinstance(one, Path):
            one.read()


def read_objects(path: Path, outlines: bool = False) -> None:
    """Boxes, and outlines where there are some."""
    found = open_objects(path)
    if found is None:  # no JSON object, which is no data with boxes
        return
    source = ObjectSource.scan(found, (32, 32), max_broken=1.0)
    index = np.arange(len(source))
    source.batch(index)
    if outlines:
        for one, sides in zip(source.objects(index), source.sides_of(index).tolist(), strict=True):
            if all(shape is not None for shape in one.shapes):
                one.check_layers((int(sides[0]), int(sides[1])))
        if all(shape is not None for one in source.objects(index) for shape in one.shapes):
            Detected(source, source, source.frame, True).batch(index)


def read_pairs(path: Path) -> None:
    """Images with their masks."""
    found = open_pairs(path)
    if found is None:
        return
    source = PairSource.scan(found, (32, 32), max_broken=1.0)
    source.masks(np.arange(len(source)))


def into_store(read: Callable[[Path, Path], None], folder: Path) -> None:
    """A store of somebody's codes, read again."""
    out = folder / "out.tok"
    try:
        read(folder, out)
        store = Store(out)
        store.batch(np.arange(len(store)))
    finally:
        for left in folder.glob("out*"):
            shutil.rmtree(left)


def _tokens(opened: Callable[[list[Path]], Tokens], ending: str, folder: Path, out: Path) -> None:
    store_tokens(opened(sorted((folder / "tokens").glob(f"*{ending}"))), out)


def _npy(folder: Path, out: Path) -> None:
    read_npy(folder / "codes.npy", out, folder / "codebook.npy", folder / "labels.npy")


def _make_npy(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(folder / "codes.npy", rng.integers(0, 9, (4, 2, 3)))
    np.save(folder / "labels.npy", np.arange(4) % 2)
    np.save(folder / "codebook.npy", rng.normal(size=(9, 4)).astype(np.float32))


def _converted(to: str, out: str, folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(folder / "codes.npy", rng.integers(0, 9, (4, 2, 3)))
    np.save(folder / "codebook.npy", rng.normal(size=(9, 4)).astype(np.float32))
    tilework("convert", folder / "codes.npy", "--codebook", folder / "codebook.npy", "--out", folder / "sound.tok")
    tilework("convert", folder / "sound.tok", "--to", to, "--out", folder / out)


def _images(folder: Path) -> None:
    write_images(folder / "images", count=2, side=16)
    (folder / "labels.csv").write_text("path,label\nclass0/000.png,a\nclass1/000.png,b\nclass2/001.png,a\n")


def _parquet(folder: Path) -> None:
    _images(folder)
    body = (folder / "images/class0/001.png").read_bytes()
    pyarrow.parquet.write_table(pyarrow.table({"image": [body] * 4, "label": [0, 1, 0, 1]}), folder / "x.parquet")


def _tar(folder: Path) -> None:
    _images(folder)
    with tarfile.open(folder / "x.tar", "w") as tar:
        for number in range(3):
            tar.add(folder / f"images/class{number}/000.png", f"{number}.png")


def _voc(folder: Path) -> None:
    write_voc(folder, {"a": [("dog", 5, 5, 20, 30)], "b": [("cat", 1, 1, 50, 39), ("dog", 10, 2, 30, 12)]})


def _in(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: make(folder / name)


STORES = Stores()
PARSERS = (
    Parser("store", STORES.make, STORES.write, STORES.read),
    Parser("checkpoint", _in("run", make_run), checkpoint, _in("run", read_run)),
    Parser("settings (YAML)", _in("run", make_run), yaml_settings, read_settings),
    Parser(
        "COCO JSON", partial(write_objects, count=4), partial(json_file, "instances.json"),
        lambda folder: read_objects(folder / "instances.json", outlines=True),
    ),
    Parser("VOC XML", _voc, xml_boxes, lambda folder: read_objects(folder / "ImageSets/Main/train.txt")),
    Parser("tar", _tar, tar_file, partial(read_shards, "x.tar")),
    Parser("Parquet", _parquet, parquet_file, partial(read_shards, "x.parquet")),
    Parser(
        "safetensors", _in("t", make_tokenizer), partial(weights, "t/weights.safetensors", "t/tokenizer.json"),
        _in("t", read_tokenizer),
    ),
    Parser("images", _images, picture, lambda folder: read_images(folder / "images")),
    Parser("data.json", _in("run", make_run), partial(json_file, "run/data.json"), _in("run", read_run), MINUTES),
    Parser("results.json", _in("run", make_run), partial(json_file, "run/results.json"), _in("run", read_run), MINUTES),
    Parser(
        "tokenizer.json", _in("t", make_tokenizer), partial(json_file, "t/tokenizer.json"), _in("t", read_tokenizer),
        MINUTES,
    ),
    Parser(
        "token_adapt.json", _in("a", make_adapter), partial(json_file, "a/token_adapt.json"), _in("a", read_adapter),
        MINUTES,
    ),
    Parser(
        "TokenAdapt weights", _in("a", make_adapter), partial(weights, "a/weights.safetensors", "a/token_adapt.json"),
        _in("a", read_adapter), MINUTES,
    ),
    Parser("maps.json", _in("m", make_maps), partial(json_file, "m/maps.json"), _in("m", read_maps), MINUTES),
    Parser(
        "label file", _images, label_file, lambda folder: LabelFile.read(folder / "labels.csv",
        folder / "images").numbers(),
        MINUTES,
    ),
    Parser("masks", _in("pairs", write_pairs), mask_file, _in("pairs", read_pairs), MINUTES),
    Parser("npy", _make_npy, npy_file, partial(into_store, _npy), MINUTES),
    Parser(
        "SeiT's files", partial(_converted, "seit", "seit"), seit_file,
        partial(into_store, lambda folder, out: read_seit(folder / "seit", out, (2, 3))), MINUTES,
    ),
    Parser(
        "codes in tar", partial(_converted, "wds", "tokens"), token_files,
        partial(into_store, partial(_tokens, TarTokens.open, ".tar")), MINUTES,
    ),
    Parser(
        "codes in Parquet", partial(_converted, "parquet", "tokens"), token_files,
        partial(into_store, partial(_tokens, ParquetTokens.open, ".parquet")), MINUTES,
    ),
)  # fmt: skip
