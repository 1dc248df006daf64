"""What augmentations do to codes, decoded and seen by a classifier (SeiT++, figures 3, 5, A, B, C, D; SeiT, A.1, A.2).

n samples | C code dim | H, W code grid | D width
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import CutMix, apply_all
from tilework.augment.adapter import Adapter, check_codes
from tilework.augment.affine import Geometry, warp
from tilework.augment.color_adapt import adapt_colour
from tilework.core.batch import Batch, Mix
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, InputError
from tilework.core.files import new_directory, write, write_json
from tilework.core.place import Place
from tilework.core.rng import Draws
from tilework.data import ImageSource, TokenSource
from tilework.evaluation import linear_accuracy
from tilework.models import Model
from tilework.report import curves, rows_of_pictures, scatter_panels
from tilework.runs.build import bind, open_source
from tilework.runs.trained import load_run, run_codes, run_name, run_place
from tilework.tokenizers import Tokenizer, load_tokenizer
from tilework.tokenizers.decode_encode import mixed

KINDS = {
    "flip": Geometry(crop=0.0, flip=1.0, turn=0.0),
    "affine": Geometry(crop=0.0, flip=0.0, turn=1.0),
    "resized crop": Geometry(crop=1.0, flip=0.0, turn=0.0, area=(0.3, 0.6)),
}
LABELS_STAY = Geometry(area=(0.35, 1.0), crop=1.0, flip=0.5, turn=0.5)
CLASSES, EACH = 10, 60  # of the separability figure


@dataclass(frozen=True)
class Views:
    """What pictures are made with."""

    tokenizer: Tokenizer
    adapter: Adapter
    codebook: Tensor  # (K, C) of the data

    def decode(self, z: Tensor) -> Tensor:
        """Pictures of code vectors, (n, 3, H, W). z: (n, C, H, W)."""
        return self.tokenizer.pixels(z.permute(0, 2, 3, 1)).clamp(0, 1)

    def lookup(self, ids: Tensor) -> Tensor:
        """Code vectors, (n, C, H, W). ids: (n, H, W)."""
        return F.embedding(ids.long(), self.codebook).permute(0, 3, 1, 2)

    def geometry(self, batch: Batch) -> dict[str, dict[str, Tensor]]:
        """Each augmentation of the code vectors themselves, through TokenAdapt, and of the decoded picture."""
        z, draws = self.lookup(batch.x), Draws(1, 0, batch.index)
        count, size = len(z), (z.shape[2], z.shape[3])
        double = (2 * size[0], 2 * size[1])
        still = torch.eye(2, 3).repeat(count, 1, 1).to(z)
        partner = torch.arange(count, device=z.device).roll(1)
        cases: dict[str, tuple[Tensor, Mix | None]] = {
            name: (geometry.sample(draws, batch), None) for name, geometry in KINDS.items()
        }
        cases["mixup 0.5"] = (still, Mix(partner, torch.full((count, *double), 0.5, device=z.device)))
        cases["cutmix"] = (still, Mix(partner, CutMix().own(draws, double)))
        picture, shown = self.decode(z), {}
        for name, (affine, mix) in cases.items():
            plain = warp(z, affine, size)
            shown[name] = {
                "original": picture,
                "codes": self.decode(plain if mix is None else mix.apply(plain)),
                "TokenAdapt": self.decode(self.lookup(self.adapter(z, affine, size, mix))),
                "pixels": mixed(warp(picture, affine, (picture.shape[2], picture.shape[3])), mix),
            }
        return shown

    def colours(self, batch: Batch) -> dict[str, Tensor]:
        """Changes of colour on code vectors, decoded."""
        z = self.lookup(batch.x)
        torch.manual_seed(0)
        scale = self.codebook.std()  # of code vectors: noise is as strong as where they are standardised
        noise, constant = scale * torch.randn_like(z), scale * torch.randn(len(z), z.shape[1], 1, 1, device=z.device)
        changed = {
            "original": z,
            "brightness 0.2": z + 0.2 * scale,
            "contrast 1.2": 1.2 * z,
            "noise (A.1)": z + noise,
            "constants (A.2)": z + constant,
            "Emb-Noise": z + noise + constant,
            "ColorAdapt": adapt_colour(z, z.roll(1, 0)),
            "colours of": z.roll(1, 0),
        }
        return {name: self.decode(x) for name, x in changed.items()}


@torch.inference_mode()
def augment_views(
    data: Place,
    tokenizer: Path,
    adapter: Path,
    out: Path,
    runs: Sequence[Path] = (),
    pixels: tuple[Path, Path] | None = None,
    count: int = 8,
    device: str = "auto",
) -> dict[str, Any]:
    """Write pictures of augmentations, the separability of a run's features, and curves of runs.

    runs: the first is the classifier whose features are looked at. pixels: a pixel run and a folder of images.
    """
    place = pick_device(device)
    source = open_source(data, (0, 0), 0.0)
    if not isinstance(source, TokenSource) or source.codebook is None:
        raise InputError(f"{data} is no token store", "give the codes of images")
    if not 0 < count <= len(source):
        raise ConfigError(f"{count} pictures of {len(source)} images cannot be shown", "change --count")
    decoder, _ = load_tokenizer(tokenizer)
    check_codes(source.codebook, decoder.codebook, tokenizer)
    codebook = source.codebook.to(place)
    views = Views(decoder.to(place).requires_grad_(False), Adapter.open(adapter, codebook), codebook)
    batch = source.batch(np.linspace(0, len(source) - 1, count).astype(np.int64)).to(place)
    found: dict[str, Any] = {}
    with new_directory(out) as root:
        for name, rows in views.geometry(batch).items():
            write(root / f"{name.replace(' ', '-')}.png", rows_of_pictures(_arrays(rows)))
        write(root / "colours.png", rows_of_pictures(_arrays(views.colours(batch))))
        if runs:
            panels = {"codes": token_features(runs[0], source, None, place)}
            panels["TokenAdapt"] = token_features(runs[0], source, views.adapter, place)
            if pixels is not None:
                panels["pixels"] = pixel_features(*pixels, place)
            found["linear_accuracy"] = {name: separability(x, y) for name, (x, y) in panels.items()}
            points = {
                f"{name}: {found['linear_accuracy'][name]:.1%}": (projected(x), y.cpu().numpy())
                for name, (x, y) in panels.items()
            }
            write(root / "separability.png", scatter_panels(points))
            write(root / "curves.png", curves({run_name(path): _log(path) for path in runs}))
        write_json(root / "results.json", found)
    return found


def token_features(
    path: Path, source: TokenSource, adapter: Adapter | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Features of augmented codes of some classes, and labels: moved as they are, or through TokenAdapt."""
    path = run_place(path)
    run, spec, model = load_run(path)
    if not isinstance(model, Model) or spec.stage != "ids" or spec.stored != source.grid:
        raise InputError(f"{path} is no classifier of such codes", "give a run on a store of the same tokenizer")
    codes = run_codes(path, run, spec)
    table = None if codes is None or source.codebook is None else codes.table_for(source.codebook, path)
    steps = bind((*run.evaluation, *run.objective.inlet()), source, device, table)
    model.to(device).eval()
    found, labels = [], []
    for part in _some_of_each(source):
        part = part.to(device)
        affine, size = LABELS_STAY.sample(Draws(2, 0, part.index), part), (source.grid[0], source.grid[1])
        if adapter is None:
            places = F.affine_grid(affine, [len(part.x), 1, *size], align_corners=False)
            moved = F.grid_sample(part.x[:, None].float(), places, "nearest", "border", align_corners=False)
            ids = moved[:, 0].to(part.x.dtype)
        else:
            z = F.embedding(part.x.long(), adapter.codebook).permute(0, 3, 1, 2)
            ids = adapter(z, affine, size).to(part.x.dtype)
        x = apply_all(steps, part.changed(x=ids), Draws(0, 0, part.index)).x
        found.append(model(x).tokens.mean(1))
        labels.append(part.target.ids[:, 0])
    return torch.cat(found), torch.cat(labels)


def pixel_features(path: Path, images: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    """The same of pixels, with a pixel run."""
    run, spec, model = load_run(run_place(path))
    if not isinstance(model, Model) or spec.stage != "pixels":
        raise InputError(f"{path} is no classifier of pixels", "give a run on images")
    source = ImageSource.load(images, run.size, spec.classes, run.max_broken)
    steps = bind(run.evaluation, source, device)
    model.to(device).eval()
    found, labels = [], []
    for part in _some_of_each(source):
        part = part.to(device)
        affine = LABELS_STAY.sample(Draws(2, 0, part.index), part)
        moved = part.changed(x=warp(part.x.float(), affine, run.size))
        found.append(model(apply_all(steps, moved, Draws(0, 0, part.index)).x).tokens.mean(1))
        labels.append(part.target.ids[:, 0])
    return torch.cat(found), torch.cat(labels)


def separability(x: Tensor, labels: Tensor) -> float:
    """Accuracy of a linear classifier on half of the points, learnt from the others."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    with torch.inference_mode(False):
        x, labels = x.clone()[order], labels.clone().unique(return_inverse=True)[1][order]
        half = len(x) // 2
        return linear_accuracy((x[:half], labels[:half]), (x[half:], labels[half:]))[0]


def projected(x: Tensor) -> np.ndarray:
    """The two directions of largest variance, (n, 2)."""
    centred = x - x.mean(0)
    return (centred @ torch.linalg.svd(centred, full_matrices=False)[2][:2].T).cpu().numpy()


def _some_of_each(source: TokenSource | ImageSource) -> list[Batch]:
    """The first samples of some classes, spread over all, in batches by class."""
    labels = source.labels
    chosen = np.linspace(0, len(source.classes) - 1, min(CLASSES, len(source.classes))).round().astype(int)
    parts = [np.flatnonzero(labels == label)[:EACH] for label in chosen]
    return [source.batch(part) for part in parts if len(part)]


def _arrays(rows: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: x.clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy() for name, x in rows.items()}


def _log(path: Path) -> list[dict[str, Any]]:
    file = run_place(path) / "log.jsonl"
    if not file.is_file():
        raise InputError(f"{path} has no log", "give a run that 'tilework train' wrote")
    return [json.loads(line) for line in file.read_text().splitlines()]
