"""Token augmentations, decoded and in the features of a classifier (SeiT++, figures 3, 5, A-D; SeiT, A.1, A.2).

n samples | C code dim | H, W code grid | D width
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import CutMix, apply_all
from tilework.augment.adapter import Adapter
from tilework.augment.affine import Geometry, warp
from tilework.augment.color_adapt import adapt_colour
from tilework.augment.embed import look_up
from tilework.core.batch import Batch, Mix
from tilework.core.config import Plain
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, InputError
from tilework.core.files import new_directory, write, write_json
from tilework.core.location import Location
from tilework.core.rng import Draws
from tilework.data import Source, TokenSource
from tilework.evaluation import linear_accuracy
from tilework.report import curves, rows_of_pictures, scatter_panels
from tilework.runs.build import open_source
from tilework.runs.trained import Trained
from tilework.tokenizers import Tokenizer
from tilework.tokenizers.decode_encode import mixed
from tilework.tokenizers.tokenizer import decoder_of

KINDS = {
    "flip": Geometry(crop=0.0, flip=1.0, turn=0.0),
    "affine": Geometry(crop=0.0, flip=0.0, turn=1.0),
    "resized crop": Geometry(crop=1.0, flip=0.0, turn=0.0, area=(0.3, 0.6)),
}
LABEL_PRESERVING = Geometry(area=(0.35, 1.0), crop=1.0, flip=0.5, turn=0.5)
CLASSES, EACH = 10, 60  # of the separability figure


@dataclass(frozen=True)
class Views:
    """Decoder and TokenAdapt that the images are made with."""

    tokenizer: Tokenizer
    adapter: Adapter

    def decode(self, z: Tensor) -> Tensor:
        """Images decoded from code vectors, (n, 3, H, W). z: (n, C, H, W)."""
        return self.tokenizer.pixels(z.permute(0, 2, 3, 1)).clamp(0, 1)

    def lookup(self, ids: Tensor) -> Tensor:
        """Code vectors, (n, C, H, W). ids: (n, H, W)."""
        return look_up(ids, self.adapter.vectors)

    def geometry(self, batch: Batch) -> dict[str, dict[str, Tensor]]:
        """Each augmentation applied to code vectors, through TokenAdapt, and to the decoded image."""
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
        """Colour augmentations of code vectors, decoded."""
        z = self.lookup(batch.x)
        torch.manual_seed(0)
        scale = self.adapter.vectors.std()  # makes noise as strong as on standardised code vectors
        noise, constant = scale * torch.randn_like(z), scale * torch.randn(len(z), z.shape[1], 1, 1, device=z.device)
        changed = {
            "original": z,
            "brightness 0.2": z + 0.2 * scale,
            "contrast 1.2": 1.2 * z,
            "noise (A.1)": z + noise,
            "constants (A.2)": z + constant,
            "Emb-Noise": z + noise + constant,
            "ColorAdapt": adapt_colour(z, z.roll(1, 0)),
            "colour reference": z.roll(1, 0),
        }
        return {name: self.decode(x) for name, x in changed.items()}


@torch.inference_mode()
def augment_views(
    data: Location,
    tokenizer: Path,
    adapter: Path,
    out: Path,
    runs: Sequence[Path] = (),
    pixels: tuple[Path, Path] | None = None,
    count: int = 8,
    device: str = "auto",
) -> Plain:
    """Write figures of augmentations, class separability of features, and training curves.

    runs: features come from the first, curves from all. pixels: a run on pixels and a folder of images.
    """
    chosen, trained = pick_device(device), [Trained.open(path) for path in runs]
    source = open_source(data, (0, 0), 0.0)
    if not isinstance(source, TokenSource) or source.codebook is None:
        raise InputError(f"{data} is not a token store", "run 'tilework tokenize' first")
    if not 0 < count <= len(source):
        raise ConfigError(f"--count {count} is not between 1 and the {len(source)} images", "change --count")
    decoder, _ = decoder_of(tokenizer, source.codebook)
    views = Views(decoder.to(chosen), Adapter.open(adapter, source.codebook, chosen))
    batch = source.batch(np.linspace(0, len(source) - 1, count).astype(np.int64)).to(chosen)
    found: Plain = {}
    with new_directory(out) as root:
        for name, rows in views.geometry(batch).items():
            write(root / f"{name.replace(' ', '-')}.png", rows_of_pictures(_arrays(rows)))
        write(root / "colours.png", rows_of_pictures(_arrays(views.colours(batch))))
        if runs:
            panels = {"codes": token_features(trained[0], data, None, chosen)}
            panels["TokenAdapt"] = token_features(trained[0], data, adapter, chosen)
            if pixels is not None:
                panels["pixels"] = pixel_features(*pixels, chosen)
            found["linear_accuracy"] = {name: separability(x, y) for name, (x, y) in panels.items()}
            points = {
                f"{name}: {found['linear_accuracy'][name]:.1%}": (projected(x), y.cpu().numpy())
                for name, (x, y) in panels.items()
            }
            write(root / "separability.png", scatter_panels(points))
            write(root / "curves.png", curves({one.name: one.directory.log() for one in trained}))
        write_json(root / "results.json", found)
    return found


def token_features(
    trained: Trained, data: Location, adapter: Path | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Features of augmented codes of some classes, and labels; augmented directly, or through TokenAdapt."""
    model, opened = trained.classifier.to(device).eval(), trained.on(data, device, classes="any")
    source, codebook = opened.source, opened.source.codebook
    if codebook is None or source.stage != "ids":
        what = f"{trained.path} is not a classifier of codes of this tokenizer"
        raise InputError(what, "give a run trained on a token store of it")
    network = None if adapter is None else Adapter.open(adapter, codebook, device)
    found, labels = [], []
    for part in _some_of_each(source):
        part = part.to(device)
        affine, size = LABEL_PRESERVING.sample(Draws(2, 0, part.index), part), source.grid
        if network is None:
            grid = F.affine_grid(affine, [len(part.x), 1, *size], align_corners=False)
            moved = F.grid_sample(part.x[:, None].float(), grid, "nearest", "border", align_corners=False)
            ids = moved[:, 0].to(part.x.dtype)
        else:
            ids = network(look_up(part.x, network.vectors), affine, size).to(part.x.dtype)
        x = apply_all(opened.steps, part.changed(x=ids), Draws(0, 0, part.index)).x
        found.append(model(x).tokens.mean(1))
        labels.append(part.target.ids[:, 0])
    return torch.cat(found), torch.cat(labels)


def pixel_features(path: Path, images: Path, device: torch.device) -> tuple[Tensor, Tensor]:
    """Features of augmented images of some classes, and labels, by a run on pixels."""
    trained = Trained.open(path)
    if trained.spec.stage != "pixels":
        raise InputError(f"{path} was not trained on pixels", "give a run on images")
    model, opened = trained.classifier.to(device).eval(), trained.on(images, device)
    found, labels = [], []
    for part in _some_of_each(opened.source):
        part = part.to(device)
        affine = LABEL_PRESERVING.sample(Draws(2, 0, part.index), part)
        moved = part.changed(x=warp(part.x.float(), affine, trained.run.size))
        found.append(model(apply_all(opened.steps, moved, Draws(0, 0, part.index)).x).tokens.mean(1))
        labels.append(part.target.ids[:, 0])
    return torch.cat(found), torch.cat(labels)


def separability(x: Tensor, labels: Tensor) -> float:
    """Accuracy of a linear classifier, trained on one half of the points and tested on the other."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    with torch.inference_mode(False):
        x, labels = x.clone()[order], labels.clone().unique(return_inverse=True)[1][order]
        half = len(x) // 2
        return linear_accuracy((x[:half], labels[:half]), (x[half:], labels[half:]))[0]


def projected(x: Tensor) -> np.ndarray:
    """Projection onto the first two principal components, (n, 2)."""
    centred = x - x.mean(0)
    return (centred @ torch.linalg.svd(centred, full_matrices=False)[2][:2].T).cpu().numpy()


def _some_of_each(source: Source) -> list[Batch]:
    """The first samples of evenly spaced classes, one batch per class."""
    labels = source.labels
    chosen = np.linspace(0, len(source.classes) - 1, min(CLASSES, len(source.classes))).round().astype(int)
    found = [np.flatnonzero(labels == label)[:EACH] for label in chosen]
    return [source.batch(part) for part in found if len(part)]


def _arrays(rows: dict[str, Tensor]) -> dict[str, np.ndarray]:
    return {name: x.clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy() for name, x in rows.items()}
