"""Whether TokenProp and MoTo do what they are made for, not whether they raise accuracy.

    python benchmarks/stem_effects.py --images DIR --out RUNS [--seeds 0 1 2] [--steps 400] [--json]

DIR has train/ and val/, each with a folder per class. Trains `good_plain_cpu`, `good_token_prop_cpu` and
`good_moto_cpu` on 1,000 images with each seed, into RUNS, where finished runs are not trained again, and reads their
frozen stems:

least_squares: error of the best linear map from a token to its patch at half the resolution, fitted on 1,000 training
images, judged on 500 validation images. decoder: error of the decoder of table 16 at a quarter of its width, trained on
the tokens of the same images, Adam 1e-3 falling to 0, mean of two starts. Both in units of normalised pixels; t: of
the paired differences over seeds (2 degrees of freedom need 4.3 for 95 %).

entropy: of MoTo's layout as a share of log n, 1 for a uniform one. from_instance_norm: distance of MoTo's map from that
of the same layer with a uniform layout, which is instance norm, over the norm of the latter; after: of the tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import apply_all
from tilework.core.rng import Draws
from tilework.layers.moto import Moto, relative_entropy
from tilework.layers.pixel_decoder import PixelDecoder, resized
from tilework.layers.stem_moto import MotoStem
from tilework.layers.stems import Stem
from tilework.models.model import stem_of
from tilework.runs.trained import Trained

RECIPES = {"plain": "good_plain_cpu", "token_prop": "good_token_prop_cpu", "moto": "good_moto_cpu"}
CPU = torch.device("cpu")


def trained(images: Path, out: Path, name: str, seed: int, steps: int) -> Trained:
    """A run of the recipe; one that is there is taken as it is."""
    settings = [RECIPES[name], "samples=1000", f"fit.steps={steps}", f"fit.seed={seed}"]
    places = ["--data", str(images / "train"), "--val", str(images / "val"), "--out", str(out / f"{name}-{seed}")]
    subprocess.run([sys.executable, "-m", "tilework", "train", *settings, *places], check=True, stdout=sys.stderr)
    return Trained.open(out / f"{name}-{seed}")


def some(run: Trained, folder: Path, count: int) -> Tensor:
    """Images as the run sees them in evaluation, (B, 3, H, W)."""
    data = run.on(folder, CPU)
    index = np.linspace(0, len(data.source) - 1, count).astype(np.int64)
    batch = data.source.batch(index)
    return apply_all(data.steps, batch, Draws(0, 0, batch.index)).x


def least_squares(stem: Stem, train: Tensor, val: Tensor) -> float:
    """Squared error per value of half-size patches, restored from single tokens by a linear map."""

    def pairs(x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = stem(x)  # (B, D, h, w)
        small = F.avg_pool2d(x, 2)
        side = small.shape[2] // tokens.shape[2]
        patches = F.unfold(small, side, stride=side)  # (B, 3 side side, h w)
        flat = tokens.flatten(2).transpose(1, 2).flatten(0, 1)
        return torch.cat([flat, torch.ones(len(flat), 1)], 1).double(), patches.transpose(1, 2).flatten(0, 1).double()

    seen, wanted = pairs(train)
    slope = torch.linalg.lstsq(seen, wanted).solution
    judged, there = pairs(val)
    return float((judged @ slope - there).square().mean())


def decoder_error(stem: Stem, train: Tensor, val: Tensor, seed: int, steps: int = 400, batch: int = 32) -> float:
    """Squared error per value of images at 64 px, restored from all tokens by a small decoder."""
    torch.manual_seed(seed)
    decoder = PixelDecoder(stem.width, 3, wide=0.25)
    optimiser = torch.optim.Adam(decoder.parameters(), lr=1e-3, betas=(0.5, 0.999))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    tokens, wanted = stem(train), resized(train, (64, 64))
    chosen = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        for _ in range(steps):
            index = torch.randint(len(train), (batch,), generator=chosen)
            optimiser.zero_grad()
            (resized(decoder(tokens[index]), (64, 64)) - wanted[index]).square().mean().backward()
            optimiser.step()
            schedule.step()
    return float((resized(decoder(stem(val)), (64, 64)) - resized(val, (64, 64))).square().mean())


def layout(stem: Stem, x: Tensor) -> dict[str, float]:
    """How far MoTo is from a uniform layout, and its output from instance norm."""
    assert isinstance(stem, MotoStem)
    assert isinstance(stem.moto, Moto)
    assert stem.thin is not None
    assert stem.fold is not None
    features = stem.thin(x)
    shares = stem.moto.shares(features, stem.moto.places(features))  # (B, n, P)
    ours, plain = (stem.moto.modulate(features, s) for s in (shares, torch.full_like(shares, 1 / shares.shape[1])))
    ours_tokens, plain_tokens = (stem.inner(stem.fold(y)) for y in (ours, plain))
    return {
        "entropy": float(relative_entropy(shares)),
        "from_instance_norm": float((ours - plain).norm() / plain.norm()),
        "after": float((ours_tokens - plain_tokens).norm() / plain_tokens.norm()),
    }


def paired(first: list[float], second: list[float]) -> dict[str, Any]:
    """Both, and their differences: mean and t."""
    apart = np.subtract(second, first)
    spread = apart.std(ddof=1) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
    t = round(float(apart.mean() / spread), 2) if spread > 0 else None
    return {"plain": first, "token_prop": second, "difference": round(float(apart.mean()), 5), "t": t}


@torch.no_grad()
def main() -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=400, help="of training, in batches of the recipe")
    parser.add_argument("--json", action="store_true", help="JSON without spaces")
    options = parser.parse_args()
    errors: dict[str, dict[str, list[float]]] = {"least_squares": {}, "decoder": {}, "top1": {}}
    moto = {}
    for seed in options.seeds:
        for name in RECIPES:
            run = trained(options.images, options.out, name, seed, options.steps)
            train, val = some(run, options.images / "train", 1000), some(run, options.images / "val", 500)
            stem = stem_of(run.encoder).eval()
            if name == "moto":
                moto[f"seed {seed}"] = layout(stem, val[:200])
                continue
            found = {
                "least_squares": least_squares(stem, train, val),
                "decoder": float(np.mean([decoder_error(stem, train, val, start) for start in (0, 1)])),
                "top1": run.figures["top1"],
            }
            for what, value in found.items():
                errors[what].setdefault(name, []).append(round(value, 5))
            print(f"seed {seed}, {name}: {found}", file=sys.stderr)
    table = {what: paired(both["plain"], both["token_prop"]) for what, both in errors.items()}
    print(json.dumps({"steps": options.steps, "token_prop": table, "moto": moto}, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
