"""Rows of a frontier: how each keeps the images, and what a classifier reads from it.

N images | D channels of the teacher | C code dim | K codes
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log2, prod
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, features
from torch import Tensor

from tilework.core.config import resolve
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, DamageError, MachineError
from tilework.core.files import new_directory, write_json
from tilework.core.registry import Registry
from tilework.core.sealed import read_json
from tilework.data.image_files import File, open_image, to_rgb
from tilework.data.image_folder import ImageFolder
from tilework.data.images import decode_all
from tilework.data.split import make_class_folders
from tilework.recipes import run_of
from tilework.store import Store
from tilework.store.finish import is_finished
from tilework.tokenizers import load_tokenizer
from tilework.tokenizers.box import FRAMES, LEVELS, Form, box_like, fitted_box
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.kmeans import kmeans
from tilework.tokenizers.quantise import best
from tilework.tokenizers.rounded import RoundedQuantiser, evenly_spaced
from tilework.tokenizers.tokenize import tokenize as write_codes
from tilework.train.log import Bar

if TYPE_CHECKING:
    from tilework.experiments.frontier import Frontier

POOLED = "other crops, augmentation, dense labels, pictures"  # what pooled features lack
PARTS = ("train", "val")
MAX_BROKEN = 0.05  # share of images that may be unreadable
CODERS = {"jpeg": "JPEG", "webp": "WEBP", "avif": "AVIF"}
TRAINED = {"box": "linear_cpu", "vit": "teacher_vit_cpu", "tokens": "seit_cpu", "pixels": "plain_pixel_cpu"}  # recipes
TRAINED |= dict.fromkeys(CODERS, "plain_pixel_cpu")
PQ_DIMS, PQ_CODES = 256, 256  # principal components of pooled features; codes of each byte


@dataclass(frozen=True)
class Point:
    """What a row costs and what it is worth."""

    bytes: float  # per image: codes, features or files alone
    whole: float  # the same with codebooks, tables, labels and names
    accuracy: tuple[float, ...]  # of each seed
    command: str  # that makes it
    lacks: str = ""  # what cannot be done with it


Measure = Callable[["Frontier", str], Point]
rows: Registry[Measure] = Registry("row")


def check(kind: str, value: str) -> None:
    """Refuse a value that a kind of row cannot have."""
    forms = {"float16": "", "int8": "", "pixels": r"\w*", "box": "pooled|corners", "pq": r"\d+",
             "rounded": r"\d+(\.\d+)?", "codes": r"\d+(x\d+)?", "kmeans": r"\d+(x\d+)?", "vit": r"\d+(x\d+)?",
             "tokens": ".+", **dict.fromkeys(CODERS, r"\d+:\d+")}  # fmt: skip
    if not re.fullmatch(forms[kind], value):
        wanted = {
            "": kind,
            r"\d+": f"{kind}:64",
            r"\d+:\d+": f"{kind}:SIDE:QUALITY",
            r"\d+(\.\d+)?": f"{kind}:0.85",
            r"\w*": "pixels:RECIPE",
            ".+": "tokens:TOKENIZER, a directory of 'tilework tokenizer train'",
            "pooled|corners": "box:pooled or box:corners",
        }.get(forms[kind], f"{kind}:512x2")
        raise ConfigError(f"'{kind}:{value}' is no row", f"write it as {wanted}")
    if kind in CODERS:
        side, quality = map(int, value.split(":"))
        if not 8 <= side <= 1024 or not 1 <= quality <= 100:
            raise ConfigError(f"{side} px of quality {quality}", "give 8 to 1024 px and a quality from 1 to 100")
        if kind in ("webp", "avif") and not features.check(kind):
            raise MachineError(f"this Pillow cannot write {kind}", "leave the row out, or install one that can")
    if kind == "rounded" and not 0.01 <= float(value) <= 100:
        raise ConfigError(f"steps of {value} deviations", "give 0.01 to 100")
    if kind == "pq" and not 1 <= int(value) <= PQ_DIMS:
        raise ConfigError(f"{value} bytes of features", f"give 1 to {PQ_DIMS}")
    if kind in ("codes", "kmeans", "vit") and not 2 <= int(value.split("x")[0]) <= 1 << 16:
        raise ConfigError(f"{value} codes", f"give 2 to {1 << 16}")


@rows.add("box")
def box(self: Frontier, value: str) -> Point:
    """A store as `tilework tokenize --codes VALUE` writes it, and the recipe that `tilework start` takes."""
    form: Form = "corners" if value == "corners" else "pooled"
    train, val = (self.out / "data" / f"box-{value}-{part}.tok" for part in PARTS)
    device = pick_device(self.device)
    for path, part in ((train, "train"), (val, "val")):
        if is_finished(path):
            continue
        folder, bar = self.folder(part), Bar(f"tokenize {part}", len(self.folder(part)), quiet=self.quiet)
        if part == "train":
            tokenizer, card = fitted_box(folder, device, FRAMES[form], form=form)
        else:
            known = Store(train)
            tokenizer, card = box_like(str(train), known.manifest.tokenizer, known.codebook.vectors)
        job = Tokenizing(tokenizer, card, device, frame=FRAMES[card.form or "grid"])
        write_codes(folder, job, path, used=np.arange(len(tokenizer.codebook)), progress=bar.update)
        bar.close()
    store = Store(train)
    return Point(store.sizes["tokens"] / len(store), sum(store.sizes.values()) / len(store),
                 self.trained(f"box:{value}", run_of(TRAINED["box"]), train, val),
                 f"tilework tokenize TRAIN --codes {value}; tilework train linear_cpu", POOLED)  # fmt: skip


@rows.add("float16")
def float16(self: Frontier, value: str) -> Point:
    """The mean of the teacher's map, two bytes a channel."""
    size = 2.0 * self.pooled["train"].shape[1]
    accuracy = self.linear(*(self.pooled[part].half().float() for part in PARTS))
    return Point(size, size, accuracy, "features of the teacher, tilework frontier --rows float16", POOLED)


@rows.add("int8")
def int8(self: Frontier, value: str) -> Point:
    """The same, one byte a channel."""
    low, high = self.pooled["train"].amin(0), self.pooled["train"].amax(0)
    step = ((high - low) / 255).clamp(min=1e-9)
    accuracy = self.linear(*(((self.pooled[part] - low) / step).round().clamp(0, 255) for part in PARTS))
    size = float(len(low))
    whole = size + 8 * len(low) / len(self.labels("train"))
    return Point(size, whole, accuracy, "features of the teacher, tilework frontier --rows int8", POOLED)


@rows.add("rounded")
def rounded(self: Frontier, value: str) -> Point:
    """The same in a store, each channel rounded to steps of so many of its deviations."""
    channels, side = self.pooled["train"].shape[1], next(self.maps("train")).shape[1]
    codes = RoundedQuantiser(LEVELS, channels)
    codes.embedding.weight.data = evenly_spaced(self.pooled["train"], LEVELS, float(value))
    ids = {part: codes.nearest(self.pooled[part]) for part in PARTS}  # (N, D)
    path = self.out / "data" / f"rounded-{float(value):g}-train.tok"
    if not is_finished(path):
        self.write(path, "train", codes.codebook.detach(), [ids["train"][:, None, None]])
    store = Store(path)
    accuracy = self.linear(*(codes.values(ids[part]).detach() for part in PARTS))
    command = (f"tilework tokenizer teacher TRAIN quantiser=rounded step={value} pool={side} code_dim={channels} "
               f"codes={LEVELS} --out T; tilework tokenize TRAIN --tokenizer T; tilework train linear_cpu")  # fmt: skip
    return Point(store.sizes["tokens"] / len(store), sum(store.sizes.values()) / len(store), accuracy, command, POOLED)


@rows.add("pq")
def pq(self: Frontier, value: str) -> Point:
    """Product quantisation of the mean (Jegou et al., 2011), rotated so that every part has as much variance."""
    count, train = int(value), self.pooled["train"]
    centre = train.mean(0)
    directions = torch.linalg.svd(train - centre, full_matrices=False)[2][:PQ_DIMS].T  # (D, R)
    turn = torch.linalg.qr(torch.randn(directions.shape[1], directions.shape[1], generator=_generator()))[0]
    projected = {part: (self.pooled[part] - centre) @ directions @ turn for part in PARTS}
    edges = [directions.shape[1] * i // count for i in range(count + 1)]
    if edges[1] == 0:
        raise ConfigError(f"{count} bytes of {directions.shape[1]} numbers", "give fewer bytes, or more images")
    kept: dict[str, list[Tensor]] = {part: [] for part in PARTS}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for low, high in pairwise(edges):
            table = kmeans(projected["train"][:, low:high], min(PQ_CODES, len(train)))
            half = table.square().sum(1) / 2
            for part in PARTS:
                x = projected[part][:, low:high]
                kept[part].append(table[best(x, lambda y, t=table, h=half: y @ t.T - h, len(table))])  # type: ignore[misc]
    accuracy = self.linear(*(torch.cat(kept[part], 1) for part in PARTS))
    tables = 2 * (PQ_CODES * directions.shape[1] + directions.numel())
    command = f"features of the teacher, tilework frontier --rows pq:{value}"
    return Point(float(count), count + tables / len(train), accuracy, command, POOLED)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _codes(self: Frontier, value: str, diffusion: bool) -> tuple[Path, Path, float, float]:
    """Stores, bytes of codes and of the whole store, per image."""
    codes, depth = (int(one) for one in [*value.split("x"), "1"][:2])
    train, val = self.codes(codes, depth, diffusion)
    store = Store(train)
    packed = prod(store.grid) * max(1, ceil(log2(codes))) / 8
    coded = store.sizes["tokens"] / len(store)
    return train, val, min(packed, coded), sum(store.sizes.values()) / len(store)


def _command(value: str, diffusion: bool) -> str:
    codes, depth = [*value.split("x"), "1"][:2]
    more = ("" if depth == "1" else f" depth={depth}") + ("" if diffusion else " diffusion=false")
    return f"tilework tokenizer teacher TRAIN codes={codes}{more} --out T; tilework tokenize TRAIN --tokenizer T"


@rows.add("codes")
def codes(self: Frontier, value: str) -> Point:
    """Codes of the teacher's map with error diffusion; a linear classifier of the mean of their vectors."""
    train, val, size, whole = _codes(self, value, True)
    return Point(size, whole, self.linear(self.means(train), self.means(val)),
                 f"{_command(value, True)}; tilework train linear_cpu")  # fmt: skip


@rows.add("kmeans")
def plain(self: Frontier, value: str) -> Point:
    """The nearest codes, nothing handed on."""
    train, val, size, whole = _codes(self, value, False)
    return Point(size, whole, self.linear(self.means(train), self.means(val)),
                 f"{_command(value, False)}; tilework train linear_cpu")  # fmt: skip


@rows.add("vit")
def vit(self: Frontier, value: str) -> Point:
    """The same codes, a small ViT with crops, CutMix and noise."""
    train, val, size, whole = _codes(self, value, True)
    run, grid = run_of(TRAINED["vit"]), Store(train).grid
    crop = replace(run.augment[0], size=(grid[0], grid[1]))  # type: ignore[call-arg]
    run = replace(run, codes=None, augment=(crop, *run.augment[1:]))
    return Point(size, whole, self.trained(f"vit:{value}", run, train, val),
                 f"{_command(value, True)}; tilework train teacher_vit_cpu")  # fmt: skip


@rows.add("tokens")
def tokens(self: Frontier, value: str) -> Point:
    """A store of a trained tokenizer, and SeiT's recipe with crops of 7/8 of its grid."""
    tokenizer, card = load_tokenizer(Path(value))
    tokenizer.check_grid()
    stem = f"tokens-{card.sha256[:12]}"
    train, val = (self.out / "data" / f"{stem}-{part}.tok" for part in PARTS)
    job = Tokenizing(tokenizer, card, pick_device(self.device))
    for path, part in ((train, "train"), (val, "val")):
        if not is_finished(path):
            folder, bar = self.folder(part), Bar(f"tokenize {part}", len(self.folder(part)), quiet=self.quiet)
            write_codes(folder, job, path, used=np.arange(len(tokenizer.codebook)), progress=bar.update)
            bar.close()
    store = Store(train)
    grid = list(store.grid[:2])
    crop = [side * 7 // 16 * 2 for side in grid]  # even: the stem halves it
    sizes = (f"codes={grid}", f"augment.token_crop.size={crop}", f"evaluation.centre_crop.size={crop}")
    run = resolve(run_of(TRAINED["tokens"]), None, sizes)
    return Point(store.sizes["tokens"] / len(store), sum(store.sizes.values()) / len(store),
                 self.trained(f"tokens:{value}", run, train, val),
                 f"tilework tokenize TRAIN --tokenizer {value}; tilework train seit_cpu")  # fmt: skip


def _files(self: Frontier, kind: str, value: str) -> Point:
    """All images, their short side resized and the middle cut out, as small files; a small ViT on their pixels."""
    side, quality = map(int, value.split(":"))
    paths = {}
    for part in PARTS:
        folder = self.folder(part)
        paths[part] = self.out / "data" / f"{kind}-{side}-{quality}-{part}"
        if not paths[part].exists():
            _write_files(folder, paths[part], kind, side, quality)
    size = _bytes_of(paths["train"])
    run = run_of(TRAINED[kind])
    accuracy = self.trained(f"{kind}:{value}", run, paths["train"], paths["val"])
    return Point(
        size, size, accuracy, f"{kind.upper()} files of {side} px, quality {quality}; tilework train plain_pixel_cpu"
    )


def _write_files(folder: ImageFolder, out: Path, kind: str, side: int, quality: int) -> None:
    """Bytes are those of the coder; files are kept as PNG of what it gives back, which every reader knows.

    Images that cannot be read are left out, as in every other row.
    """

    def coded(path: File) -> tuple[Image.Image, int]:
        with open_image(path) as image:
            rgb = to_rgb(image)
        short = min(rgb.size)
        left, top = (rgb.width - short) // 2, (rgb.height - short) // 2
        small = rgb.resize((side, side), Image.Resampling.BICUBIC, (left, top, left + short, top + short))
        data = io.BytesIO()
        small.save(data, CODERS[kind], quality=quality)
        return Image.open(io.BytesIO(data.getvalue())).convert("RGB"), len(data.getvalue())

    sizes = []
    with new_directory(out) as root:
        make_class_folders(root, folder.classes)
        for i, (image, size) in decode_all(folder, coded, [], MAX_BROKEN, lambda done, total: None):
            image.save(root / folder.classes[int(folder.labels[i])] / f"{i:08d}.png")
            sizes.append(size)
        write_json(root / "bytes.json", {"bytes_per_image": mean(sizes)})


def _bytes_of(path: Path) -> float:
    size = read_json(path / "bytes.json").get("bytes_per_image")
    if not isinstance(size, float | int):
        raise DamageError(f"{path / 'bytes.json'} is malformed", f"remove {path}, and it is made again")
    return float(size)


for _kind in CODERS:
    rows.add(_kind)(lambda self, value, kind=_kind: _files(self, kind, value))  # type: ignore[misc]


@rows.add("pixels")
def pixels(self: Frontier, value: str) -> Point:
    """The files as they are, and a recipe for pixels."""
    folder, recipe = self.folder("train"), value or TRAINED["pixels"]
    size = folder.bytes / len(folder)
    accuracy = self.trained(f"pixels:{recipe}", run_of(recipe), self.images, self.val)
    return Point(size, size, accuracy, f"tilework train {recipe} --data TRAIN")
