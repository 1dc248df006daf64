"""What labels that follow their tokens cost.

    python benchmarks/align.py [--pairs N] [--batch N] [--repeats N] [--memory-batch N] [--json]

step_ratio: a training step of DeiT-S at 224 px with CutMix on whole patches and TL-Align, TransMix, or TL-Align as it
is written (labels of all 1,000 classes for every token, through explicit attention), over the step with labels by area.
Medians and quartiles over rounds in which every variant takes --repeats steps, of which the fastest counts, each round
beginning with another variant. peak_mb: what each adds to the largest memory of two steps, one process per variant;
`cutmix` is the whole of that process. max_difference: between the targets of TL-Align and of the matrix form, over all
classes. Random images, no drop path.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tilework.augment import PatchCutMix, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.memory import keep_freed_memory
from tilework.core.rng import Draws
from tilework.layers.attention import Attention
from tilework.layers.block import Block
from tilework.models import Vit, preset
from tilework.objectives import Classify, Objective, TlAlign, TransMix

CLASSES, SIDE, SMOOTHING = 1000, 224, 0.1


class MatrixForm(Classify):
    """TL-Align with the labels of all classes for every token, (B, 1 + N, K), beside the tokens."""

    def labels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits, and the label of the class token; (B, K) both."""
        assert batch.mix is not None
        whole = nn.functional.one_hot(batch.target.ids[:, 0], CLASSES) * (1 - SMOOTHING) + SMOOTHING / CLASSES
        own = batch.mix.at(*self.model.grid).flatten(1)[..., None]
        y = own * whole[:, None] + (1 - own) * whole[batch.mix.partner][:, None]
        with followed(self.model, torch.cat([y.mean(1, keepdim=True), y], 1)) as carried:
            out = self.model(batch.x, mix=batch.mix)
        return out.logits, carried[0][:, 0]

    def forward(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Mean loss."""
        logits, target = self.labels(batch)
        return {"loss": -(target * logits.log_softmax(-1)).sum(-1).mean()}


@contextmanager
def followed(model: nn.Module, labels: Tensor) -> Iterator[list[Tensor]]:
    """Labels of every token, renewed after every block by its attention matrix."""
    carried, seen = [labels], []
    layers = [module for module in model.modules() if isinstance(module, Attention)]

    @torch.no_grad()
    def renew(*_: Any) -> None:
        carried[0] = (carried[0] + seen.pop().mean(1) @ carried[0]) / 2

    hooks = [module.register_forward_hook(renew) for module in model.modules() if isinstance(module, Block)]
    for layer in layers:
        layer.seen = seen
    try:
        yield carried
    finally:
        for hook in hooks:
            hook.remove()
        for layer in layers:
            layer.seen = None


VARIANTS: dict[str, type[Classify]] = {
    "cutmix": Classify,
    "tl_align": TlAlign,
    "transmix": TransMix,
    "matrix_form": MatrixForm,
}


def network() -> Vit:
    """DeiT-S."""
    torch.manual_seed(0)
    model = preset("deit_s", drop_path=0.0).build(3, (SIDE, SIDE), CLASSES)
    assert isinstance(model, Vit)
    return model.train()


def images(count: int) -> Batch:
    """Random pixels."""
    x = torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    return Batch(x, Target.hard(torch.arange(count) % CLASSES), torch.arange(count))


def stepper(objective: Objective, optimiser: torch.optim.Optimizer, batch: Batch) -> Callable[[], None]:
    """A training step: mixture, forward, backward, update."""
    draws, mixing = Draws(0, 0, batch.index), PatchCutMix(16)

    def step() -> None:
        objective(apply_all([mixing], batch, draws), draws)["loss"].backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def seconds(step: Callable[[], None]) -> float:
    """How long a step takes."""
    begun = perf_counter()
    step()
    return perf_counter() - begun


def time_ratios(pairs: int, count: int, repeats: int) -> dict[str, list[float]]:
    """Median, lower and upper quartile of each variant over labels by area."""
    keep_freed_memory()  # as the training loop does
    model, batch = network(), images(count)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    steps = {name: stepper(kind(model, SMOOTHING), optimiser, batch) for name, kind in VARIANTS.items()}
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for number in range(pairs + 1):
        times = {}
        for name in np.roll(list(VARIANTS), number).tolist():
            times[name] = min(seconds(steps[name]) for _ in range(repeats))
        if number:  # the first round warms up
            for name, time in times.items():
                found[name].append(time / times["cutmix"])
    return {name: np.percentile(ratio, [50, 25, 75]).round(4).tolist() for name, ratio in found.items()}


def peak(name: str, count: int) -> float:
    """Largest memory of this process after two steps, in MB."""
    model = network()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    step = stepper(VARIANTS[name](model, SMOOTHING), optimiser, images(count))
    step()
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def peaks(count: int) -> dict[str, float]:
    """Memory of every variant, in a process of its own that gives back what it frees at once."""
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    found = {}
    for name in VARIANTS:
        line = [sys.executable, __file__, "--peak-of", name, "--memory-batch", str(count)]
        found[name] = float(subprocess.run(line, env=settings, check=True, capture_output=True, text=True).stdout)
    return {name: round(size if name == "cutmix" else size - found["cutmix"], 1) for name, size in found.items()}


@torch.no_grad()
def difference(count: int) -> float:
    """Largest difference of the two targets over all classes, attention sharpened as after training."""
    model, plain = network(), images(count)
    for block in model.blocks:
        block.get_submodule("attn.qkv").weight[: 2 * model.config.width] *= 10  # type: ignore[index, operator]
    batch = apply_all([PatchCutMix(16)], plain, Draws(0, 0, plain.index))
    target = TlAlign(model).answer(batch)[1]
    ours = torch.zeros(count, CLASSES).scatter_add_(1, target.ids, target.weight)
    ours = (1 - SMOOTHING) * ours + SMOOTHING / CLASSES
    return float((ours - MatrixForm(model).labels(batch)[1]).abs().max())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2, help="steps of a variant in a round; the fastest counts")
    parser.add_argument("--memory-batch", type=int, default=32)
    parser.add_argument("--peak-of", choices=list(VARIANTS), help="only the memory of one variant, in this process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.peak_of:
        print(peak(options.peak_of, options.memory_batch))
        return
    ratios = time_ratios(options.pairs, options.batch, options.repeats)
    del ratios["cutmix"]  # one
    result = {
        "step_ratio": {name: ratio[0] for name, ratio in ratios.items()},
        "quartiles": {name: ratio[1:] for name, ratio in ratios.items()},
        "peak_mb": peaks(options.memory_batch),
        "max_difference": difference(options.batch),
        "pairs": options.pairs,
        "repeats": options.repeats,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, (middle, low, high) in ratios.items():
        print(f"{name:<12}{middle:.3f} of a step with CutMix (quartiles {low:.3f} to {high:.3f})")
    for name, size in result["peak_mb"].items():
        print(f"{name:<12}{size:,.0f} MB{'' if name == 'cutmix' else ' more'}")
    print(f"largest difference of the targets: {result['max_difference']:.1e}")


if __name__ == "__main__":
    main()
