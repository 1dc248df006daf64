"""Mixed images, their labels and the content of their tokens (TL-Align, figure 4; supplement, figures 2 and 3).

B images | N tokens | L blocks
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tilework.analysis.explain import Explained
from tilework.augment import BlockMix, PatchCutMix, RandomMix, apply_all
from tilework.augment.patch_mixing import PatchMixing
from tilework.core.batch import Batch, Mix
from tilework.core.config import Plain
from tilework.core.distributed import World, pick_device
from tilework.core.errors import ConfigError
from tilework.core.files import new_directory, write, write_json
from tilework.core.location import Location
from tilework.core.rng import Draws
from tilework.data.part import Chosen
from tilework.evaluation import evaluate
from tilework.evaluation.mixing_ratio import MixingRatio, MixingRatios, mixing_ratios
from tilework.report import label_maps, ratio_panels, rows_of_pictures
from tilework.tokenizers import load_tokenizer
from tilework.tokenizers.tokenizer import decoder_of

STRATEGIES: dict[str, type[PatchMixing]] = {"CutMix": PatchCutMix, "random": RandomMix, "block-wise": BlockMix}
SEED, PAIRS, PART = 3, 256, 64  # PAIRS: mixed images that results.json averages over; PART: at a time


def align_views(
    run: Path, data: Location, out: Path, tokenizer: Path | None = None, count: int = 8, device: str = "auto"
) -> Plain:
    """Write figures of mixed images, label maps and shares by layer; returns what results.json holds."""
    chosen = pick_device(device)
    one = Explained.open(run, data, chosen)
    if not one.model.tracks:
        hint = "give a run of a ViT, T2T-ViT, PVT or Swin"
        raise ConfigError(f"the model of {run} cannot track mixed labels (TL-Align)", hint)
    if not 1 < count <= len(one.source):
        raise ConfigError(f"--count {count} is not between 2 and the {len(one.source)} images", "change --count")
    decoder = None if tokenizer is None else load_tokenizer(tokenizer)[0].to(chosen).requires_grad_(False)
    if tokenizer is not None and one.source.codebook is not None:
        decoder_of(tokenizer, one.source.codebook)  # refuses another tokenizer than that of the data
    index = some(len(one.source), count)
    batch = mixable(one, index, chosen)
    mixes = {name: strategy(batch, kind, one.model.grid) for name, kind in STRATEGIES.items()}
    mix = mixes["CutMix"]
    ratios = mixing_ratios(one.model, batch.x, mix)
    pictures = one.pictures(index, decoder, chosen)
    shown = {name: one.pictures(index, decoder, chosen, mix) for name, mix in mixes.items()}
    with new_directory(out) as root:
        rows = {"first": pictures, "second": pictures[mix.partner], **shown}
        write(root / "mixing.png", rows_of_pictures({name: _array(x) for name, x in rows.items()}))
        write(root / "labels.png", label_maps(_label_rows(pictures, shown["CutMix"], ratios, mix, one.model.grid)))
        write(root / "ratio.png", ratio_panels(_panels(ratios)))
        found = {"run": str(run), "data": str(data), **agreement(one, chosen)}
        write_json(root / "results.json", found)
    return found


def mixable(one: Explained, index: np.ndarray, device: torch.device) -> Batch:
    """Samples as the model takes them, not mixed yet."""
    batch = one.source.batch(index).to(device)
    return apply_all(one.steps, batch, Draws(SEED, 0, batch.index))


def strategy(batch: Batch, kind: type[PatchMixing], grid: tuple[int, int]) -> Mix:
    """A mixture of whole tokens. grid: token grid of the model."""
    return kind(batch.x.shape[-1] // grid[1]).sample(Draws(SEED, 0, batch.index), batch)


def agreement(one: Explained, device: torch.device) -> Plain:
    """Distance and correlation between label rules and token similarity, over many mixed images."""
    index = some(len(one.source), min(PAIRS, len(one.source)))
    index = index[: len(index) - (len(index) % PART == 1)]  # one alone has no partner
    number = torch.from_numpy(index).to(device)

    def mixed(batch: Batch) -> MixingRatios:
        batch = batch.changed(index=number[batch.index])  # draws depend on the sample, not on its position here
        return mixing_ratios(one.model, batch.x, strategy(batch, PatchCutMix, one.model.grid))

    ratio = MixingRatio()
    found = evaluate(mixed, Chosen(one.source, index), one.steps, [ratio], World(0, 1, device), PART, SEED)
    return {
        "pairs": found["pairs"],
        "distance": {name: _numbers(x) for name, x in ratio.distance().items()},
        "correlation": {name: _numbers(x) for name, x in ratio.correlation().items()},
        "moved": found["moved"],  # mean change of the labels by TL-Align
    }


def some(total: int, count: int) -> np.ndarray:
    """Indices in random order: neighbours get mixed, and are mostly of different classes."""
    return np.random.default_rng(SEED).permutation(total)[:count]


def _label_rows(
    pictures: Tensor, mixed: Tensor, ratios: MixingRatios, mix: Mix, grid: tuple[int, int]
) -> list[tuple[str, np.ndarray, list[str]]]:
    """Figure 3: both images, the mixture, its labels by area and after the last block by TL-Align."""
    first, last = ratios.own.cpu().numpy(), ratios.last_map(grid).cpu().numpy()
    return [
        ("first", _array(pictures), []),
        ("second", _array(pictures[mix.partner]), []),
        ("mixed", _array(mixed), []),
        ("labels by area", first, [f"first {share:.0%}" for share in ratios.area.tolist()]),
        ("TL-Align", last, [f"first {share:.0%}" for share in ratios.read.tolist()]),
    ]


def _panels(ratios: MixingRatios) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Figure 4: share of the first image in the class token or pooled tokens, by block, for every mixture."""
    aligned, similarity = (ratios.of_image(x).cpu().numpy() for x in (ratios.aligned, ratios.similarity))  # (L, B)
    layers = 1 + len(aligned)
    panels = []
    for i, area in enumerate(ratios.area.tolist()):
        lines = {
            "TL-Align": np.concatenate([[area], aligned[:, i]]),
            "similarity": np.concatenate([[np.nan], similarity[:, i]]),
            "area": np.full(layers, area),
        }
        if ratios.trans_mix is not None:
            lines["TransMix"] = np.full(layers, float(ratios.trans_mix[i]))
        panels.append((f"mixture {i + 1}", lines))
    return panels


def _array(x: Tensor) -> np.ndarray:
    return x.clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()


def _numbers(x: Tensor) -> list[float]:
    return [round(value, 4) for value in x.tolist()]
