"""Attribution maps of classifiers for their top predicted classes.

B images | H, W pixels | h, w token grid
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import AnyStep, CentreCrop, apply_all
from tilework.core.batch import Mix
from tilework.core.distributed import pick_device
from tilework.core.errors import ConfigError, InputError
from tilework.core.files import write
from tilework.core.location import Location
from tilework.core.rng import Draws
from tilework.data import Source, TokenSource
from tilework.data.class_names import shown_names
from tilework.data.masked import innermost
from tilework.evaluation.layer_relevance import relevance
from tilework.evaluation.relevance import gradient, gradient_attention, rollout
from tilework.models import Model
from tilework.report import heat_pictures
from tilework.runs.pictures import SIDE, check_images, folder_of, stored_photographs
from tilework.runs.trained import Trained
from tilework.tokenizers import Tokenizer, load_tokenizer
from tilework.tokenizers.tokenizer import decoder_of

Method = Literal["relevance", "gradient_attention", "rollout", "gradient"]
OF_A_CLASS = {
    "relevance": relevance,
    "gradient_attention": gradient_attention,
    "gradient": gradient,
}  # rollout: of none


@dataclass(frozen=True)
class Explained:
    """A model, its data, and the preprocessing between them."""

    name: str
    model: Model
    source: Source
    steps: tuple[AnyStep, ...]
    classes: tuple[str, ...]
    crop: tuple[int, int] | None  # centre crop of the evaluation pipeline
    tokenizer: Path | None = None  # that the run holds

    @staticmethod
    def open(path: Path, data: Location, device: torch.device) -> Explained:
        """Open a run and data to explain."""
        trained = Trained.open(path)
        model, opened = trained.classifier.to(device).eval(), trained.on(data, device)
        if prod(opened.source.grid[:2]) == 1:
            what = f"the codes of {data} are of whole images, without positions to draw"
            raise ConfigError(what, "explain a run on codes of 'tilework tokenize --codes grid', or on pixels")
        crop = next((step.size for step in trained.run.evaluation if isinstance(step, CentreCrop)), None)
        classes, tokenizer = trained.spec.classes, trained.tokenizer
        return Explained(trained.name, model, opened.source, opened.steps, classes, crop, tokenizer)

    def pictures(
        self, index: np.ndarray, tokenizer: Tokenizer | None, device: torch.device, mix: Mix | None = None
    ) -> Tensor:
        """The model's input as pixels in [0, 1], (B, 3, H, W), decoded from codes and mixed if `mix` is given."""
        x = self.source.batch(index).x.to(device)
        if self.source.stage == "pixels":
            height, width = self.crop or (x.shape[2], x.shape[3])
            top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
            pixels = x[..., top : top + height, left : left + width].float() / 255
            return pixels if mix is None else mix.apply(pixels)
        if tokenizer is None or self.source.codebook is None:
            what = "a token store can be drawn only with its tokenizer, or with its photographs"
            raise ConfigError(what, "add --tokenizer DIRECTORY or --images FOLDER")
        tokenizer.check_grid()
        table = torch.from_numpy(self.source.codebook.vectors).to(device)
        vectors = F.embedding(x.long(), table)  # (B, H, W, C)
        if mix is not None:  # codes outside the crop are not mixed
            height, width = self.crop or (x.shape[1], x.shape[2])
            top, left = (x.shape[1] - height) // 2, (x.shape[2] - width) // 2
            edges = (left, x.shape[2] - width - left, top, x.shape[1] - height - top)
            whole = replace(mix, own=F.pad(mix.at(height, width), edges, value=1.0))
            vectors = whole.apply(vectors.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        pixels = tokenizer.pixels(vectors).clamp(0, 1)
        if self.crop is None:
            return pixels
        sides = [(c * tokenizer.patch, s) for c, s in zip(self.crop, pixels.shape[2:], strict=True)]
        (height, tall), (width, wide) = sides
        top, left = (tall - height) // 2, (wide - width) // 2
        return pixels[..., top : top + height, left : left + width]

    def photographs(self, index: np.ndarray, images: Path | None) -> np.ndarray | None:
        """What the model saw of a store's photographs, (B, H, W, 3) in [0, 1]; None where data are photographs.

        images: their folder, if it is not the one noted beside the store; None too where neither is known.
        """
        inner = innermost(self.source)
        if not isinstance(inner, TokenSource):
            return None
        if images is not None:
            check_images(inner.store, images)
        elif folder_of(inner.store) is None:
            return None
        found = [one.photograph for one in stored_photographs(inner.store, index, images)]
        empty = np.full((SIDE, SIDE, 3), 127, np.uint8)  # of one that is not there
        whole = np.stack([empty if one is None else one for one in found]) / 255
        height, width = (
            round(SIDE * c / g) for c, g in zip(self.crop or self.source.grid, self.source.grid, strict=True)
        )
        top, left = (SIDE - height) // 2, (SIDE - width) // 2
        return whole[:, top : top + height, left : left + width]

    def heat(self, index: np.ndarray, method: Method, rank: int, device: torch.device) -> tuple[Tensor, list[str]]:
        """Relevance of each patch for the class predicted at a rank, (B, h, w), and its name and probability."""
        batch = self.source.batch(index).to(device)
        x = apply_all(self.steps, batch, Draws(0, 0, batch.index)).x
        with torch.no_grad():
            best = self.model(x).logits.softmax(-1).topk(min(rank + 1, len(self.classes)), -1)
        chosen, likely = best.indices[:, -1], best.values[:, -1]
        of_class = OF_A_CLASS.get(method)
        found = rollout(self.model, x) if of_class is None else of_class(self.model, x, chosen)
        words = [f"{self.classes[c]} {p:.0%}" for c, p in zip(chosen.tolist(), likely.tolist(), strict=True)]
        return found, words


def explain(
    runs: Sequence[Path],
    data: Sequence[Location],
    out: Path,
    method: Method = "relevance",
    tokenizer: Path | None = None,
    count: int = 6,
    ranks: int = 2,
    device: str = "auto",
    images: Path | None = None,
    names: Path | None = None,
) -> dict[str, str]:
    """Write a figure: images in columns, a row of heat maps per run and rank; returns the predictions of each row.

    data: one for each run, or one for all. images: the folder that stores were made from, whose photographs are drawn.
    names: file with names of the classes.
    """
    if not runs:
        raise ConfigError("no run to explain", "give one or more RUN")
    if ranks < 1:
        raise ConfigError(f"--classes is {ranks}", "give 1 or more")
    if len(data) not in (1, len(runs)):
        raise ConfigError(f"{len(data)} paths in --data for {len(runs)} runs", "give one for all, or one for each")
    if out.suffix != ".png":
        raise ConfigError(f"--out {out} is not a PNG file", "choose a name that ends in .png")
    chosen = pick_device(device)
    paths = list(data) * len(runs) if len(data) == 1 else list(data)
    models = [Explained.open(run, path, chosen) for run, path in zip(runs, paths, strict=True)]
    models = [replace(one, classes=shown_names(one.classes, names)) for one in models]
    held = tokenizer or next((one.tokenizer for one in models if one.tokenizer is not None), None)
    decoder = None if held is None else load_tokenizer(held)[0].to(chosen).requires_grad_(False)
    if decoder is not None and not decoder.decodes:
        if tokenizer is not None:
            what = f"the tokenizer {tokenizer} has no decoder to draw codes with"
            raise ConfigError(what, "leave --tokenizer out and add --images FOLDER: their photographs are drawn")
        held = decoder = None  # the run's own
    for one in models:
        if held is not None and one.source.codebook is not None:
            decoder_of(held, one.source.codebook)  # refuses another tokenizer than that of the data
    if len({len(one.source) for one in models}) > 1:
        raise InputError("the data sets have different numbers of images", "give the same images to all runs")
    total = len(models[0].source)
    if not 0 < count <= total:
        raise ConfigError(f"--count {count} is not between 1 and the {total} images", "change --count")
    index = np.linspace(0, total - 1, count).astype(np.int64)
    rows: list[tuple[str, np.ndarray, np.ndarray | None, list[str]]] = []
    for one in models:
        seen = one.photographs(index, images)
        shown = seen if seen is not None and decoder is None else None
        if shown is None:
            shown = one.pictures(index, decoder, chosen).permute(0, 2, 3, 1).cpu().numpy()
        if not rows:
            truth = [f"true: {one.classes[label]}" for label in one.source.labels[index].tolist()]
            pixels = one.source.stage == "pixels" or shown is seen
            if seen is not None and not pixels:
                rows.append(("photograph", seen, None, truth))
            rows.append(("photograph" if pixels else "from codes", shown, None, [""] * count if rows else truth))
        for rank in range(min(ranks, len(one.classes)) if method in OF_A_CLASS else 1):
            heat, words = one.heat(index, method, rank, chosen)
            label = f"{one.name}, top {rank + 1}" if method in OF_A_CLASS else one.name
            rows.append((label, shown, heat.cpu().numpy(), words))
    write(out, heat_pictures(rows))
    return {name: ", ".join(words) for name, _, heat, words in rows if heat is not None}
