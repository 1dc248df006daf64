"""What TokenAdapt and masked token modelling do and cost.

    python benchmarks/adapt.py --images DIR [--tokenizer T] [--adapter OUT/token_adapt] [--limit N] [--json]

DIR has train/ and val/, each with a folder per class. agreement: share of codes equal to those of the augmented image,
over DIR/val, for flip, affine map and crop: through TokenAdapt; of the grid moved as it is; of the cheapest learnt
rival, lookup: the grid moved, then every code replaced by what most often stands in its place, counted on DIR/train;
and of decoding, augmenting and encoding. flip_of_bound: TokenAdapt's over the last. distance: of the code vectors from
the right ones, 1 for two codes at random; near-synonyms hardly count. Without --tokenizer and --adapter both are
trained first by the recipes `small_tokenizer` and `token_adapt_cpu`: about half an hour on two cores.

step_ratio: a training step with half of the batch through TokenAdapt, or decoded, augmented and encoded by a ViT-VQGAN
(base; random weights, only time counts), over the step without; 32x32 codes. mtm_step_ratio: a step of masked token
modelling at mask 0.75 over one that hides a single patch. Medians of interleaved pairs with quartiles, in processor
time, which other work on the machine hardly changes.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilework.augment import Augment, TokenAdapt, TokenCrop, apply_all
from tilework.augment.adapter import load_adapter, save_adapter
from tilework.augment.affine import Geometry
from tilework.augment.scale import Scale
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.distributed import World
from tilework.core.rng import Draws
from tilework.data import ImageSource, Part, Source, in_order
from tilework.evaluation import validate
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.models import Model, TokenAdaptModelConfig
from tilework.objectives import Adapt, AdaptConfig, Classify, MaskedConfig, Objective
from tilework.objectives.adapt import nearest_places
from tilework.recipes import recipes
from tilework.recipes.seit import vit
from tilework.recipes.seitpp import patch_vit
from tilework.runs import Artefacts, equip, train
from tilework.tokenizers import DecodeEncode, Tokenizer, VitVqganConfig, load_tokenizer, save_tokenizer

CPU = World(0, 1, torch.device("cpu"))
GRID, CROP, CLASSES = 32, 28, 1000
BATCH = {"s": 8, "b": 4}  # by network
KINDS = {
    "flip": Geometry(crop=0.0, flip=1.0, turn=0.0),
    "affine": Geometry(crop=0.0, flip=0.0, turn=1.0),
    "crop": Geometry(crop=1.0, flip=0.0, turn=0.0),
}


def trained(images: Path, tokenizer: Path | None, adapter: Path | None, folder: Path) -> tuple[Path, Path]:
    """What was given, or trained now."""
    if tokenizer is None:
        run, tokenizer = recipes["small_tokenizer"].run, folder / "tokenizer"
        model = train(run, images / "train", None, folder / "tokenizer.run", quiet=True).model
        assert isinstance(model, Tokenizer)
        save_tokenizer(tokenizer, model, run.model, run.size)
    if adapter is None:
        run, adapter = equip(recipes["token_adapt_cpu"].run, Artefacts(tokenizer=tokenizer)), folder / "adapt"
        train(run, images / "train", None, adapter, quiet=True)
        adapter = adapter / "token_adapt"
    return tokenizer, adapter


def agreements(images: Path, tokenizer: Path, adapter: Path, limit: int) -> dict[str, Any]:
    """By kind of augmentation, through the network and by its rivals."""
    network, known = load_adapter(adapter)
    settings = json.loads((adapter / "token_adapt.json").read_text())
    config = TokenAdaptModelConfig(known.code_dim, settings["width"], settings["heads"], settings.get("codes", 0))
    model = config.build(3, (0, 0), 0)
    objective = AdaptConfig(tokenizer=str(tokenizer)).build(model)
    model.load_state_dict(network.state_dict())  # after the objective, which starts it anew
    size = load_tokenizer(tokenizer)[1].size
    seen, judged = (_some(ImageSource.load(images / part, size, None, 0.05), limit) for part in ("train", "val"))
    found = validate(AdaptConfig.task, objective, model, judged, (Scale(),), CPU, batch=64)
    agreement: dict[str, Any] = {"identity": found["identity"], "identity_distance": found["identity_distance"]}
    for kind, geometry in KINDS.items():
        counts = torch.zeros(len(known), len(known), dtype=torch.long)
        for _, _, grid, target in _moved(objective, seen, geometry):
            pairs = (grid * len(known) + target).flatten()
            counts.view(-1).index_add_(0, pairs, torch.ones_like(pairs))
        best = torch.where(counts.sum(1) > 0, counts.argmax(1), torch.arange(len(known)))
        rivals: dict[str, list[Tensor]] = {}
        for ids, affine, grid, target in _moved(objective, judged, geometry):
            again = objective.codes(objective.image(objective.tokenizer.decode(ids), affine, ids.shape[1:]))
            for name, there in ((f"{kind}_lookup", best[grid]), (f"{kind}_decode_encode", again)):
                rivals.setdefault(name, []).append((there == target).float().mean((1, 2)))
                rivals.setdefault(f"{name}_distance", []).append(objective.distance(there, target))
        agreement |= {f"{kind}_adapt": found[kind], f"{kind}_adapt_distance": found[f"{kind}_distance"]}
        agreement |= {name: found[name] for name in (f"{kind}_grid", f"{kind}_grid_distance")}
        agreement |= {name: float(torch.cat(values).mean()) for name, values in rivals.items()}
    agreement["flip_of_bound"] = agreement["flip_adapt"] / agreement["flip_decode_encode"]
    return {**agreement, "images": len(judged)}


def _some(source: ImageSource, limit: int) -> Source:
    return Part(source, limit) if limit < len(source) else source


def _moved(objective: Adapt, source: Source, geometry: Geometry) -> Any:
    """Codes of images, their maps, the grids moved, and the codes of the moved images; maps are those of `score`."""
    for batch in in_order(source, 64):
        x = batch.x.float() / 255
        affine, ids = geometry.sample(Draws(0, 0, batch.index), batch), objective.codes(x)
        yield ids, affine, nearest_places(ids, affine), objective.codes(objective.image(x, affine, ids.shape[1:]))


def ratios(first: Callable[[], object], second: Callable[[], object], pairs: int) -> list[float]:
    """Median, lower and upper quartile of first / second."""
    found = []
    for number in range(pairs + 1):
        times = []
        for work in (first, second):
            begun = process_time()
            work()
            times.append(process_time() - begun)
        if number:  # the first pair warms up
            found.append(times[0] / times[1])
    return [round(float(q), 4) for q in np.percentile(found, [50, 25, 75])]


def stepper(objective: Objective, augment: Augment | None, batch: Batch) -> Callable[[], None]:
    """A training step: augmentation, forward, backward, update."""
    optimiser = torch.optim.AdamW(objective.parameters(), lr=1e-5, fused=True)
    draws = Draws(0, 0, batch.index)

    def step() -> None:
        part = batch if augment is None else apply_all([augment], batch, draws)
        objective(part, draws)["loss"].backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def codes(count: int, codebook: Tensor, side: int = GRID) -> Batch:
    """Random codes."""
    ids = torch.randint(len(codebook), (count, side, side), dtype=torch.int32)
    return Batch(ids, Target.hard(torch.arange(count)), torch.arange(count))


def costs(folder: Path, pairs: int, sizes: Sequence[str] = ("s", "b")) -> dict[str, Any]:
    """Step ratios at the sizes of the paper."""
    config = VitVqganConfig()
    tokenizer = config.build(3, (8 * GRID, 8 * GRID), 0)
    save_tokenizer(folder / "vit_vqgan", tokenizer, config, (8 * GRID, 8 * GRID))
    codebook = tokenizer.codebook.detach()[:391].clone()
    save_adapter(folder / "token_adapt", TokenAdaptNetwork(codebook.shape[1]), codebook, {"name": "", "sha256": ""})
    del tokenizer
    plain = TokenCrop((CROP, CROP)).build(Codebook.of(codebook))
    adapt = TokenAdapt(adapter=str(folder / "token_adapt")).build(Codebook.of(codebook))
    through = DecodeEncode(tokenizer=str(folder / "vit_vqgan")).build(Codebook.of(codebook))
    step_ratio: dict[str, list[float]] = {}
    for name, count in ((size, BATCH[size]) for size in sizes):
        batch = codes(count, codebook)
        model = vit(f"vit_{name}").build(codebook.shape[1], (CROP, CROP), CLASSES)
        objective = Classify(model)
        one, two = stepper(objective, adapt, batch), stepper(objective, plain, batch)
        step_ratio[f"tokenadapt_{name}"] = ratios(one, two, pairs)
        print(f"TokenAdapt, ViT-{name}: {step_ratio[f'tokenadapt_{name}']}", file=sys.stderr)
        if name == "s":
            three = stepper(objective, through, batch)
            step_ratio["decode_augment_encode"] = ratios(three, two, max(3, pairs // 5))
    mtm: dict[str, list[float]] = {}
    for name, count in ((size, BATCH[size]) for size in sizes):
        batch = codes(count, codebook, CROP)
        steps = []
        for ratio in (0.75, 0.001):
            model = patch_vit(f"vit_{name}").build(codebook.shape[1], (CROP, CROP), 0)
            assert isinstance(model, Model)
            masked = MaskedConfig(ratio=(ratio, ratio)).build(model, Codebook.of(codebook))
            steps.append(stepper(masked, None, batch))
        mtm[name] = ratios(steps[0], steps[1], pairs)
    return {"step_ratio": step_ratio, "mtm_step_ratio": mtm}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--adapter", type=Path)
    parser.add_argument("--limit", type=int, default=2000, help="images to count and to measure on")
    parser.add_argument("--pairs", type=int, default=15, help="of steps that costs are measured by; 0: no costs")
    parser.add_argument("--sizes", nargs="+", choices=BATCH, default=list(BATCH), help="of networks: ViT-S, ViT-B")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, adapter = trained(options.images, options.tokenizer, options.adapter, Path(folder))
        agreement = agreements(options.images, tokenizer, adapter, options.limit)
        measured = costs(Path(folder), options.pairs, options.sizes) if options.pairs else {}
    quartiles = {part: {name: q[1:] for name, q in found.items()} for part, found in measured.items()}
    medians = {part: {name: q[0] for name, q in found.items()} for part, found in measured.items()}
    result = {"agreement": agreement, **medians, "quartiles": quartiles}
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in agreement.items():
        print(f"{name:<28}{value:,}" if name == "images" else f"{name:<28}{value:.1%}")
    for part, found in measured.items():
        for name, (middle, low, high) in found.items():
            print(f"{part} {name}: {middle:.3f} (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
