"""How fast small networks train on one core, by precision and by how attention is computed.

    python benchmarks/small_training.py [--rounds N] [--width N] [--heads N] [--json]

Images per second of CPU time of a whole step (ViT of depth 4, 49 patches of 14x14 code vectors, batch 64, AdamW), as
medians with quartiles over interleaved rounds, and ratios to full precision round by round. `loss` is that of the last
of --rounds steps on the same batch from the same first weights: what the precision does to training.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
from collections.abc import Callable
from time import process_time

import numpy as np
import torch
from torch.nn import functional as F

from tilework.core.memory import keep_freed_memory
from tilework.layers import attention
from tilework.layers.stems import TokenPatchStemConfig
from tilework.models import VitConfig

BATCH = 64
FORMS = {"fp32": (False, 0), "bf16, fused attention": (True, 0), "bf16": (True, attention.FEW)}


def stepper(width: int, heads: int, half: bool, few: int) -> Callable[[], float]:
    """A training step that returns its loss; all forms start alike."""
    torch.manual_seed(0)
    config = VitConfig(width=width, depth=4, heads=heads, pool="mean", stem=TokenPatchStemConfig())
    model = config.build(32, (14, 14), 10)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x, y = torch.randn(BATCH, 32, 14, 14), torch.randint(0, 10, (BATCH,))

    def step() -> float:
        attention.FEW = few
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(x).logits
        loss = F.cross_entropy(logits.float(), y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return float(loss.detach())

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    steps = {name: stepper(args.width, args.heads, *form) for name, form in FORMS.items()}
    rates: dict[str, list[float]] = {name: [] for name in FORMS}
    losses = {name: step() for name, step in steps.items()}
    for _ in range(args.rounds):
        for name, step in steps.items():
            begun = process_time()
            losses[name] = step()
            rates[name].append(BATCH / (process_time() - begun))
    results = {
        name: {
            "images_per_second": [round(float(q)) for q in np.percentile(found, [25, 50, 75])],
            "ratio": [round(float(q), 3) for q in np.percentile(np.divide(found, rates["fp32"]), [25, 50, 75])],
            "loss": round(losses[name], 4),
        }
        for name, found in rates.items()
    }
    if args.json:
        print(json.dumps({"width": args.width, "heads": args.heads, "rounds": args.rounds, **results}, indent=2))
        return
    for name, row in results.items():
        low, middle, high = row["images_per_second"]
        print(f"{name:22} {middle:6} images/s ({low}-{high}), {row['ratio'][1]} of fp32, loss {row['loss']}")


if __name__ == "__main__":
    main()
