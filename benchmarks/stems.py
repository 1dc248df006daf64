"""What MoTo and TokenProp cost.

    python benchmarks/stems.py [--pairs N] [--sides 64 128 ...] [--json]

moto_ms and attention_ms: one forward pass of MoTo, and of self-attention among all pixels, by side of a square map of
16 channels, batch 1 (table 3 of the paper); null where the matrix of attention would take more than --memory GB.
step_ratio: a training step of DeiT-S at 224 px with MoTo, or with TokenProp, over the step without. deltas: what MoTo
before the patches, and on the tokens, adds to networks: parameters, and 10^9 multiply-adds of a forward pass at 224 px.
Medians of interleaved pairs, with quartiles; of training steps the fastest of --repeats counts.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tilework.core.batch import Batch, Target
from tilework.core.memory import keep_freed_memory
from tilework.core.rng import Draws
from tilework.layers.attention import Attention
from tilework.layers.moto import Moto
from tilework.layers.stem_moto import MotoStemConfig
from tilework.models import create_model
from tilework.objectives import Classify, Combined, Objective, TokenPropConfig

CHANNELS, SIDES = 16, (64, 96, 128, 160, 224, 384, 512, 1024)
NETWORKS = ("deit_s", "deit_b", "t2t_vit_14", "pvt_small", "pvt_medium", "pvt_v2_b2", "swin_t", "swin_s")


def seconds(works: list[Callable[[], object]], pairs: int, repeats: int = 1) -> list[list[float]]:
    """Times of each work, taken in turn, the fastest of so many; the first round warms up."""
    found: list[list[float]] = [[] for _ in works]
    for number in range(pairs + 1):
        for work, times in zip(works, found, strict=True):
            taken = []
            for _ in range(repeats):
                begun = perf_counter()
                work()
                taken.append(perf_counter() - begun)
            if number:
                times.append(min(taken))
    return found


def quartiles(values: list[float]) -> list[float]:
    """Median, lower and upper quartile."""
    return [round(float(q), 4) for q in np.percentile(values, [50, 25, 75])]


@torch.inference_mode()
def forward_times(sides: list[int], pairs: int, memory: float) -> dict[str, dict[str, list[float] | None]]:
    """Milliseconds of MoTo and of attention among pixels, by side."""
    moto, attention = Moto(CHANNELS).eval(), Attention(CHANNELS, 1).eval()
    attention.seen = []  # the matrix itself, as the paper's implementation had it
    found: dict[str, dict[str, list[float] | None]] = {"moto_ms": {}, "attention_ms": {}}
    for side in sides:
        x = torch.randn(1, CHANNELS, side, side)
        tokens = x.flatten(2).transpose(1, 2).contiguous()

        def attend(tokens: torch.Tensor = tokens) -> None:
            attention(tokens)
            assert attention.seen is not None
            attention.seen.clear()

        fits = 3 * 4 * side**4 < memory * 1e9
        works: list[Callable[[], object]] = [lambda x=x: moto(x), *([attend] if fits else [])]
        times = seconds(works, pairs)
        found["moto_ms"][str(side)] = quartiles([1000 * t for t in times[0]])
        found["attention_ms"][str(side)] = quartiles([1000 * t for t in times[1]]) if fits else None
    return found


def stepper(objective: Objective, batch: Batch) -> Callable[[], None]:
    """A training step: forward, backward, update."""
    optimiser = torch.optim.AdamW([p for p in objective.parameters() if p.requires_grad], lr=1e-5, fused=True)

    def step() -> None:
        objective(batch, Draws(0, 0, batch.index))["loss"].backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def step_ratios(pairs: int, count: int, side: int, repeats: int) -> dict[str, list[float]]:
    """Steps with MoTo and with TokenProp over the plain one."""
    batch = Batch(torch.randn(count, 3, side, side), Target.hard(torch.arange(count)), torch.arange(count))
    plain = create_model("deit_s", grid=(side, side))
    moto = create_model("deit_s", grid=(side, side), stem=MotoStemConfig())
    both = Combined(Classify(plain), {"token_prop": (0.001, TokenPropConfig().build(plain))})
    base = stepper(Classify(plain), batch)
    found = {}
    for name, objective in (("moto", Classify(moto)), ("tokenprop", both)):
        first, second = seconds([stepper(objective, batch), base], pairs, repeats)
        found[name] = quartiles([a / b for a, b in zip(first, second, strict=True)])
    return found


def size(model: nn.Module, side: int = 224) -> tuple[int, float]:
    """Parameters, and 10^9 multiply-adds of a forward pass."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.randn(1, 3, side, side))
    return sum(p.numel() for p in model.parameters()), counter.get_total_flops() / 2e9


def deltas(names: list[str]) -> dict[str, dict[str, Any]]:
    """What MoTo adds to each network, before the patches and on the tokens."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        plain = create_model(name)
        config: Any = plain.config
        before = size(plain)
        for place in ("pixel", "token"):
            after = size(create_model(name, stem=MotoStemConfig(config.stem, place=place)))  # type: ignore[arg-type]
            key = name if place == "pixel" else f"{name}_token"
            found[key] = {"params": after[0] - before[0], "gmac": round(after[1] - before[1], 4)}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--sides", type=int, nargs="+", default=list(SIDES))
    parser.add_argument("--memory", type=float, default=4.0, help="GB that a pass of attention may take")
    parser.add_argument("--batch", type=int, default=8, help="of the training steps")
    parser.add_argument("--repeats", type=int, default=2, help="steps of a variant in a pair; the fastest counts")
    parser.add_argument("--side", type=int, default=224, help="pixels, of the training steps")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    keep_freed_memory()  # as the training loop does
    times: dict[str, dict[str, Any]] = forward_times(options.sides, options.pairs, options.memory)
    times["step_ratio"] = step_ratios(options.pairs, options.batch, options.side, options.repeats)
    medians = {part: {key: q and q[0] for key, q in found.items()} for part, found in times.items()}
    spread = {part: {key: q and q[1:] for key, q in found.items()} for part, found in times.items()}
    result = {**medians, "deltas": deltas(options.networks), "quartiles": spread}
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for part, found in times.items():
        for key, q in found.items():
            print(f"{part} {key}: " + (f"{q[0]:.3f} (quartiles {q[1]:.3f} to {q[2]:.3f})" if q else "too large"))
    for name, delta in result["deltas"].items():
        print(f"{name:<20}{delta['params']:+,} parameters{delta['gmac']:+10.4f} GMAC")


if __name__ == "__main__":
    main()
