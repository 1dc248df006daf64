"""What each method adds in our converged tables, beside what its paper says: the chart of the README.

    python benchmarks/effects.py [--tables results/tables] [--out docs/effects.png]

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

from tilework.report.curve_figures import effect_chart

# name | table | row | what it is compared with | points in the paper (ImageNet-1k, its own network), None: not there
EFFECTS = (
    ("Token-EDA (SeiT)", "seit-tokens-1000", "EDA", "plain crops", None),
    ("CutMix on codes (SeiT)", "seit-tokens-1000", "CutMix", "plain crops", None),
    ("EDA and CutMix, 200 passes (SeiT)", "seit-tokens-1000-200", "EDA, CutMix", "plain crops", None),
    ("EDA and CutMix, 500 images, 200 passes", "seit-tokens-500", "EDA, CutMix", "plain crops", None),
    ("CutMix on pixels, 1,000 images", "seit-pixels-1000-200", "weak (CutMix)", "plain crops", None),
    ("Emb-Noise (SeiT)", "seit-tokens-1000", "Emb-Noise", "plain crops", None),
    ("all three (SeiT), not converged", "seit-tokens-1000", "EDA, CutMix, Emb-Noise", "plain crops", None),
    ("EDA and CutMix, 2x2 patches of codes", "seitpp-1000", "EDA, CutMix", "plain crops", None),
    ("ColorAdapt (SeiT++)", "seitpp-1000", "ColorAdapt", "EDA, CutMix", 1.0),
    ("TokenAdapt after ColorAdapt (SeiT++)", "seitpp-1000", "TokenAdapt, ColorAdapt", "ColorAdapt", 3.1),
    ("TokenAdapt and ColorAdapt (SeiT++)", "seitpp-1000", "TokenAdapt, ColorAdapt", "EDA, CutMix", 4.1),
    ("masked modelling (SeiT++)", "mtm-1000", "MTM, CutMix", "CutMix, no MTM", 1.1),
    ("masked modelling, 500 labelled images", "mtm-500", "MTM, CutMix", "CutMix, no MTM", None),
    ("SeiT++ whole", "mtm-1000", "MTM, TokenAdapt, ColorAdapt", "CutMix, no MTM", 3.8),
    ("TokenAdapt, ColorAdapt after masked modelling", "mtm-1000", "MTM, TokenAdapt, ColorAdapt", "MTM, CutMix", 2.7),
    ("TL-Align after masked modelling", "mtm-1000", "MTM, CutMix, TL-Align", "MTM, CutMix", None),
    ("token labels on tokens (LV-ViT)", "labels-tokens-1000", "token labels", "class", None),
    ("CutMix on pixels, 500 images", "pixels-500", "CutMix", "plain crops", None),
    ("MixToken (LV-ViT)", "pixels-500", "MixToken", "plain crops", None),
    ("token labels, pixels (LV-ViT)", "pixels-500", "token labels", "plain crops", None),
    ("MixToken and token labels, pixels (LV-ViT)", "pixels-500", "MixToken, token labels", "plain crops", 0.9),
    ("token labels after MixToken (LV-ViT)", "pixels-500", "MixToken, token labels", "MixToken", None),
    ("ReLabel", "pixels-500", "ReLabel", "plain crops", None),
    ("TransMix on tokens", "align-tokens-1000", "TransMix", "CutMix", 0.3),
    ("TL-Align on tokens", "align-tokens-1000", "TL-Align", "CutMix", 0.8),
    ("TransMix on pixels", "pixels-500", "TransMix", "CutMix", 0.3),
    ("TL-Align on pixels", "pixels-500", "TL-Align", "CutMix", 0.8),
    ("frozen patches (Good tokenizers)", "pixels-500", "frozen", "plain crops", -0.4),
    ("intra windows (Good tokenizers)", "pixels-500", "intra", "plain crops", 0.7),
    ("MoTo after the patches (Good tokenizers)", "pixels-500", "MoTo on tokens", "plain crops", 1.8),
    ("instance norm after the patches", "pixels-500", "instance norm on tokens", "plain crops", 0.3),
    ("TokenProp (Good tokenizers)", "pixels-500", "TokenProp", "plain crops", 0.9),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=Path, default=Path("results/tables"))
    parser.add_argument("--out", type=Path, default=Path("docs/effects.png"))
    args = parser.parse_args()
    shown = []
    for name, table, row, base, paper in EFFECTS:
        file = args.tables / table / "results.json"
        results = json.loads(file.read_bytes()) if file.is_file() else {"rows": [], "resolvable": None}
        rows = {one["row"]: one for one in results["rows"]}
        found = [dict(zip(rows[one]["seeds"], rows[one]["top1"], strict=True)) for one in (row, base) if one in rows]
        shared = found[0].keys() & found[1].keys() if len(found) == 2 else set()
        if len(shared) >= 3 and results["resolvable"]:
            ours = 100 * mean(found[0][seed] - found[1][seed] for seed in shared)
            smallest = 100 * results["resolvable"] * sqrt(results["protocol"]["seeds"] / len(shared))
            shown.append((name, paper, ours, smallest))
            said = "seen" if abs(ours) > smallest else "not resolved"
            print(f"{name:38} {ours:+5.1f} ({said}; {smallest:.1f}), paper {paper}")
        else:
            print(f"{name:38} not measured yet")
    if shown:
        args.out.write_bytes(effect_chart(shown))


if __name__ == "__main__":
    main()
