"""What each method adds in our converged tables, beside what its paper says: a chart, and a table of docs/results.md.

    python benchmarks/effects.py [--tables results/tables] [--out docs/effects.png] [--page docs/results.md]

Paired differences in points of accuracy with 95 % intervals, of rows that have all their seeds.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
from math import sqrt
from pathlib import Path
from statistics import mean

from tilework.report.curve_figures import Effect, effect_chart
from tilework.report.marked import write_between

BEGIN, END = "<!-- effects -->", "<!-- end of effects -->"
TENTH = "at a tenth of the rate, fp32"
STEM = "pixels-500-stem"  # pixels with the patch embedding at a tenth of the rate, the baseline that counts
# name | table | row | what it is compared with | points in the paper (ImageNet, its own network), None: not there
CHART = {  # what the chart shows, and the table
    "SeiT, on tokens": (
        ("Token-EDA", "seit-tokens-1000", "EDA", "plain crops", None),
        ("CutMix", "seit-tokens-1000", "CutMix", "plain crops", None),
        ("EDA and CutMix", "seit-tokens-500", "EDA, CutMix", "plain crops", None),
        ("EDA and CutMix", "seit-tokens-1000-200", "EDA, CutMix", "plain crops", None),
        ("EDA and CutMix", "seit-tokens-2000", "EDA, CutMix", "plain crops", None),
        ("EDA and CutMix", "seit-tokens-all", "EDA, CutMix", "plain crops", None),
        ("Emb-Noise", "seit-tokens-1000", "Emb-Noise", "plain crops", None),
        ("17 flowers after Imagenette", "flowers-tokens", "from Imagenette", "from nothing", None),
    ),
    "SeiT++, on tokens": (
        ("ColorAdapt", "seitpp-1000", "ColorAdapt", "EDA, CutMix", 1.0),
        ("TokenAdapt", "seitpp-1000", "TokenAdapt", "EDA, CutMix", 3.1),
        ("TokenAdapt and ColorAdapt", "seitpp-1000", "TokenAdapt, ColorAdapt", "EDA, CutMix", 4.1),
        ("decode, augment, encode", "seitpp-1000", "decode, augment, encode", "EDA, CutMix", 2.8),
        ("masked modelling first", "mtm-500", "MTM, CutMix", "CutMix, no MTM", None),
        ("masked modelling first", "mtm-1000", "MTM, CutMix", "CutMix, no MTM", 1.1),
        ("masked modelling first", "mtm-2000", "MTM, CutMix", "CutMix, no MTM", None),
        ("SeiT++ whole", "mtm-1000", "MTM, TokenAdapt, ColorAdapt", "CutMix, no MTM", 3.8),
    ),
    "LV-ViT": (
        ("MixToken", STEM, "MixToken", "plain crops", None),
        ("MixToken", "pixels-1000-stem", "MixToken", "plain crops", None),
        ("MixToken", "pixels-2000-stem", "MixToken", "plain crops", None),
        ("token labels", STEM, "MixToken, token labels among ten classes", "MixToken", None),
        ("MixToken", "seit-tokens-500", "MixToken", "plain crops", None),
        ("token labels", "labels-tokens-1000", "token labels", "class", None),
    ),
    "TL-Align": (
        ("CutMix", STEM, "CutMix", "plain crops", None),
        ("TransMix", STEM, "TransMix", "CutMix", 0.3),
        ("TL-Align", STEM, "TL-Align", "CutMix", 0.8),
        ("TransMix", "align-tokens-1000", "TransMix", "CutMix", 0.3),
        ("TL-Align", "align-tokens-1000", "TL-Align", "CutMix", 0.8),
    ),
    "Good tokenizers": (
        ("patches at a tenth of the rate, fp32", "pixels-500", f"stem {TENTH}", "plain crops", None),
        ("intra, local, inter", STEM, "intra, local, inter", "plain crops", 2.2),
        ("instance norm", STEM, "instance norm on tokens", "plain crops", 0.3),
        ("layer norm", STEM, "layer norm on tokens", "plain crops", -0.2),
        ("MoTo", STEM, "MoTo on tokens", "plain crops", 1.8),
        ("TokenProp", STEM, "TokenProp", "plain crops", 0.9),
        ("MoTo and TokenProp", STEM, "MoTo on tokens, TokenProp", "plain crops", 2.8),
        ("MoTo", STEM, "MixToken, MoTo on tokens", "MixToken", None),
        ("MoTo", "seit-tokens-500", "MoTo after the stem, even start", "plain crops", None),
    ),
}
FURTHER = {  # what the table alone shows
    "SeiT, on tokens": (
        ("stem at a tenth of the rate, fp32", "seit-tokens-500", f"EDA, CutMix, stem {TENTH}", "EDA, CutMix", None),
        ("EDA, CutMix and Emb-Noise", "seit-tokens-1000", "EDA, CutMix, Emb-Noise", "plain crops", None),
        ("17 flowers after Imagenette", "flowers-tokens", "plain crops, from Imagenette", "plain crops", None),
    ),
    "SeiT++, on tokens": (
        ("masked modelling, one rate", "mtm-1000", "MTM, CutMix, one rate for all layers", "CutMix, no MTM", None),
        ("token labels", "mtm-1000", "MTM, CutMix, token labels", "MTM, CutMix", None),
        ("TokenAdapt and ColorAdapt", "mtm-1000", "MTM, TokenAdapt, ColorAdapt", "MTM, CutMix", 2.7),
    ),
    "LV-ViT": (
        ("MixToken", STEM, "MixToken", "CutMix", None),
        ("MixToken", "pixels-500", "MixToken", "plain crops", None),
        ("MixToken", "pixels-500", "MixToken", "CutMix, mean", None),
        ("MixToken", "pixels-500", f"MixToken, stem {TENTH}", f"stem {TENTH}", None),
        ("MixToken", "seit-tokens-500", "MixToken", "EDA, CutMix", None),
        ("token labels", "pixels-500", "token labels", "plain crops", None),
        ("token labels, sharper maps", "pixels-500", "token labels among ten classes", "plain crops", None),
        ("token labels", "pixels-500", "MixToken, token labels", "MixToken", None),
        ("MixToken and token labels", "pixels-500", "MixToken, token labels", "plain crops", None),
        ("ReLabel, sharper maps", STEM, "ReLabel among ten classes", "plain crops", None),
        ("token labels, own maps", STEM, "own labels", "plain crops", None),
    ),
    "TL-Align": (
        ("CutMix", "pixels-500", "CutMix", "plain crops", None),
        ("CutMix", "seit-pixels-1000-200", "weak (CutMix)", "plain crops", None),
        ("random patches instead of a box", "pixels-500", "random", "CutMix", None),
        ("blocks instead of a box", "pixels-500", "blocks", "CutMix", None),
        ("TransMix", "pixels-500", "TransMix", "CutMix", 0.3),
        ("TL-Align", "pixels-500", "TL-Align", "CutMix", 0.8),
        ("TL-Align of random patches", "pixels-500", "random, TL-Align", "random", None),
        ("TL-Align of blocks", "pixels-500", "blocks, TL-Align", "blocks", None),
        ("TL-Align", "mtm-1000", "MTM, CutMix, TL-Align", "MTM, CutMix", None),
    ),
    "Good tokenizers": (
        ("patches at a tenth of the rate, fp32", "pixels-500", f"MixToken, stem {TENTH}", "MixToken", None),
        ("MoTo", STEM, "MoTo on tokens", "instance norm on tokens", 1.5),
        ("TokenProp", STEM, "MoTo on tokens, TokenProp", "MoTo on tokens", 1.0),
        ("frozen patches", "pixels-500", "frozen", f"stem {TENTH}", -0.4),
        ("frozen patches", "pixels-500", "frozen", "plain crops", -0.4),
        ("intra windows", "pixels-500", "intra", "plain crops", 0.7),
        ("intra, local", "pixels-500", "intra, local", "plain crops", 1.1),
        ("intra, local, inter", "pixels-500", "intra, local, inter", "plain crops", 2.2),
        ("MoTo, wide start", "pixels-500", "MoTo on tokens", "plain crops", 1.8),
        ("MoTo", "pixels-500", "MoTo on tokens, even start", "plain crops", 1.8),
        ("MoTo", "pixels-500", "MoTo on tokens, even start", "instance norm on tokens", 1.5),
        ("instance norm in its place", "pixels-500", "instance norm on tokens", "plain crops", 0.3),
        ("layer norm in its place", "pixels-500", "layer norm on tokens", "plain crops", -0.2),
        ("batch norm in its place", "pixels-500", "batch norm on tokens", "plain crops", -0.3),
        ("MoTo and TokenProp", "pixels-500", "MoTo on tokens, TokenProp", "plain crops", 2.8),
        ("TokenProp", "pixels-500", "MoTo on tokens, TokenProp", "MoTo on tokens, even start", 1.0),
        ("TokenProp", "pixels-500", "TokenProp", "plain crops", 0.9),
        ("MoTo, wide start", "seit-tokens-500", "MoTo after the stem", "plain crops", None),
        ("MoTo", "seit-tokens-500", "EDA, CutMix, MoTo, even start", "EDA, CutMix", None),
    ),
}


Named = tuple[str, str, str, str, float | None]


def measured(tables: Path, named: dict[str, tuple[Named, ...]]) -> list[Effect]:
    """The effects whose rows both have three seeds or more."""
    found = []
    for group, effects in named.items():
        for name, table, row, base, paper in effects:
            file = tables / table / "results.json"
            results = json.loads(file.read_bytes()) if file.is_file() else {"rows": [], "resolvable": None}
            rows = {one["row"]: one for one in results["rows"]}
            both = [rows[one] for one in (row, base) if one in rows]
            pairs = [dict(zip(one["seeds"], one["top1"], strict=True)) for one in both]
            shared = sorted(pairs[0].keys() & pairs[1].keys()) if len(both) == 2 else []
            if len(shared) < 3 or not results["resolvable"]:
                print(f"{group}, {name} ({table}): not measured yet")
                continue
            apart = [100 * (pairs[0][seed] - pairs[1][seed]) for seed in shared]
            half = 100 * results["resolvable"] * sqrt(results["protocol"]["seeds"] / len(shared))
            kind = "pixels" if "images" in both[0].get("bytes_per_image", {}) else "tokens"
            optim = results["settings"][base]["fit"]["optim"] if kind == "pixels" else {}
            kind += " at the full rate" if optim.get("stem_scale") == 1.0 else ""
            protocol = results["protocol"]
            on = f"{kind}, {protocol['samples']:,} x {protocol['passes']}"
            right = 100 * both[0]["training_right"] if "training_right" in both[0] else 100 * both[0]["training"]
            found.append(Effect(group, name, base, on, mean(apart), half, paper, tuple(apart), right))
    return found


def markdown(effects: list[Effect]) -> str:
    """Effects as a table."""
    lines = [
        "| paper | row | against | data, images x passes | ours | pairs | 95 % | paper | training (%) | reading |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in effects:
        pairs = ", ".join(f"{pair:+.1f}" for pair in one.pairs)
        paper = "" if one.paper is None else f"{one.paper:+.1f}"
        lines.append(
            f"| {one.group.partition(',')[0]} | {one.name} | {one.base} | {one.on} | {one.ours:+.1f} | {pairs} | "
            f"± {one.half:.1f} | {paper} | {one.right:.0f} | {one.reading} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=Path("results/tables"))
    parser.add_argument("--out", type=Path, default=Path("docs/effects.png"))
    parser.add_argument("--page", type=Path, help="a page whose table of effects is written anew")
    args = parser.parse_args()
    shown, further = measured(args.tables, CHART), measured(args.tables, FURTHER)
    text = f"{markdown(shown)}\nFurther comparisons, which the chart leaves out:\n\n{markdown(further)}"
    print(text)
    args.out.write_bytes(effect_chart(shown))
    if args.page:
        write_between(args.page, BEGIN, END, text)


if __name__ == "__main__":
    main()
