"""`tilework robustness`."""

from __future__ import annotations

from functools import partial
from math import isfinite, nan
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Device, DryRun, Json, OptionalLocal, OptionalPath
from tilework.cli.output import show
from tilework.core.errors import ConfigError

Names = Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(optional)")]


def robustness(
    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN ...", help_behavior_hint="(required)")],
    /,
    *,
    data: Path,
    out: Path,
    tokenizer: OptionalLocal = None,
    corruptions: Names = (),
    severities: tuple[int, ...] = (1, 2, 3, 4, 5),
    proxies: Names = (),
    shift: Annotated[tuple[str, ...], arg(metavar="NAME=DIR ...", help_behavior_hint="(optional)")] = (),
    attack: tuple[Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square", "random", "transfer"], ...] = (),
    gradient: tuple[Literal["ste", "soft", "unquantised"], ...] = ("ste", "soft", "unquantised"),
    eps: Annotated[tuple[str, ...], arg(metavar="EPS ...")] = (
        "0.25/255",
        "0.5/255",
        "1/255",
        "2/255",
        "4/255",
        "8/255",
    ),
    norm: Literal["linf", "l2"] = "linf",
    steps: int = 100,
    queries: int = 5000,
    restarts: int = 1,
    targets: int = 9,
    transfer: OptionalPath = None,
    codes: Annotated[tuple[int, ...], arg(metavar="N ...", help_behavior_hint="(optional)")] = (),
    count: int = 500,
    attack_count: int = 200,
    seed: int = 0,
    native: Annotated[bool, arg(help_behavior_hint="")] = False,
    bytes: Annotated[bool, arg(help_behavior_hint="")] = False,
    frost: OptionalPath = None,
    lpips: OptionalPath = None,
    batch: int = 64,
    device: Device = "auto",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Measure robustness of classifiers: corruptions, shifted data sets, attacks.

    All runs see the same bytes; for a model of tokens, images are changed in pixels and tokenized. Gradients of a
    tokenizer are estimates: the headline is the worst over all attacks, and signs of masked gradients are printed
    beside it. Repeat the command to resume; runs, corruptions and attacks can be added to the same --out.

    Try:
      tilework robustness runs/pixel runs/token --data photos/val --tokenizer tokenizer --corruptions noise blur
        --out robust
      tilework robustness runs/pixel runs/token --data photos/val --tokenizer tokenizer --attack apgd-ce square random
        --eps 1/255 4/255 --attack-count 100 --out robust
      tilework robustness tables/pixels/runs/DeiT tables/tokens --data photos/val --corruptions all --out robust

    Args:
        runs: Runs of classifiers, one row each. A table of 'tilework table --protocol', or OUT/runs/ROW of one, stands
            for its runs at the rates that it chose; seeds of a row make one row here.
        data: Folder of images, one sub-folder per class.
        out: Directory for cells, results.json, table.md, hits.safetensors and figures.
        tokenizer: Directory of the tokenizer, for runs on tokens.
        corruptions: Corruptions of ImageNet-C by name, or: noise, blur, imagenet-c (15), extra (4), all.
        severities: Severities of each corruption, 1 to 5.
        proxies: Restylings: edges, posterise, paint, halftone, negative, grey, recolour, shuffle. Proxies for drawn and
            painted images; not ImageNet-R or Sketch.
        shift: Shifted data sets. A file classes.csv (folder,class[;class]) in DIR maps folders that are not classes.
        attack: Attacks on pixels. apgd-ce, apgd-t, fab-t and square are AutoAttack. Random signs are added to
            those with gradients.
        gradient: How gradients through a tokenizer are estimated, for runs on tokens.
        eps: Radii in the range of pixels, 0 to 1, such as 8/255.
        norm: Norm that the radii are measured by.
        steps: Steps of apgd and fab-t.
        queries: Queries of square, for each image.
        restarts: Random restarts of apgd.
        targets: Classes that apgd-t and fab-t aim at, the likeliest first.
        transfer: Run on pixels whose adversarial images are shown to all runs.
        codes: Attack on tokens: numbers of codes that are swapped in each image.
        count: Number of images, drawn at random.
        attack_count: Number of these that are attacked.
        seed: Seed of corruptions and attacks; which images are drawn depends on the folder alone.
        native: Lengths of corruptions in pixels as published for 224 px; otherwise they are scaled to the images.
        bytes: Judge attacked images again, rounded to bytes; images that stand then are told beside the others.
        frost: Folder of frost textures; otherwise those of the package imagecorruptions-imaug, if it is installed.
        lpips: LPIPS weights of VGG-16 (safetensors), to say how visible swapped codes are.
        batch: Images at a time.
    """
    from tilework.analysis.robustness import Robustness
    from tilework.analysis.robustness.report import TABLE, markdown
    from tilework.experiments.table_runs import runs_in

    measured = tuple(run for path in runs for run in runs_in(path))
    job = Robustness(
        measured, data, out, tokenizer, corruptions, severities, proxies, tuple(map(_named, shift)), attack, gradient,
        tuple(map(_radius, eps)), norm, steps, queries, restarts, targets, transfer, codes, count, attack_count, seed,
        native, bytes, frost, lpips, batch, device, say=(lambda line: None) if json else partial(print, flush=True),
    )  # fmt: skip
    if dry_run:
        show(job.plan(), json)
        return
    results = job.run()
    if json:
        show(results, True)
        return
    print(markdown(results))
    print(f"Tables and figures are in {out}, all numbers in {out / 'results.json'}; the table above: {out / TABLE}.")


def _radius(text: str) -> float:
    parts = text.split("/")
    try:
        radius = float(parts[0]) / (float(parts[1]) if len(parts) == 2 else 1.0)
    except (ValueError, ZeroDivisionError):
        radius = nan
    if len(parts) > 2 or not isfinite(radius):
        raise ConfigError(f"eps '{text}' is no number", "write 8/255 or 0.03")
    return radius


def _named(text: str) -> tuple[str, Path]:
    name, sign, folder = text.partition("=")
    if not sign or not name or not folder:
        raise ConfigError(f"--shift {text} has no name", "write NAME=DIR, such as R=imagenet-r")
    return name, Path(folder)
