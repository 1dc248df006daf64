"""Accuracy against the bytes of a training set, tokens and pixels, in our converged tables (SeiT, figure 1).

    python benchmarks/storage_curve.py [--store runs/train.tok] [--out docs/storage-curve.png] [--page docs/results.md]

The best row of pixels and of tokens at every number of images, as mean and deviation over seeds. Bytes of tokens are
those of their codes, and of codebook and tables, which a set of any size needs whole; of pixels those of the files.
Sizes of the store are read from results/storage-curve.json, or from --store, which writes that file.
"""

from __future__ import annotations

import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

from tilework.core.config import Plain
from tilework.report.figures import storage_accuracy
from tilework.report.marked import write_between
from tilework.store import Store

BEGIN, END = "<!-- storage -->", "<!-- end of storage -->"
SIZES = Path("results/storage-curve.json")
KINDS = {  # what is compared | tables, and the row of each
    "tokens, plain crops": (
        ("seit-tokens-500", "plain crops"),
        ("seit-tokens-1000-200", "plain crops"),
        ("seit-tokens-2000", "plain crops"),
        ("seit-tokens-all", "plain crops"),
    ),
    "tokens, EDA and CutMix": (
        ("seit-tokens-500", "EDA, CutMix"),
        ("seit-tokens-1000-200", "EDA, CutMix"),
        ("seit-tokens-2000", "EDA, CutMix"),
        ("seit-tokens-all", "EDA, CutMix"),
    ),
    "pixels, plain crops": (
        ("pixels-500-stem", "plain crops"),
        ("pixels-1000-stem", "plain crops"),
        ("pixels-2000-stem", "plain crops"),
        ("pixels-all", "plain crops"),
    ),
    "pixels, MixToken": (
        ("pixels-500-stem", "MixToken"),
        ("pixels-1000-stem", "MixToken"),
        ("pixels-2000-stem", "MixToken"),
        ("pixels-all", "MixToken"),
    ),
}


def measured(tables: Path, sizes: Plain) -> dict[str, list[tuple[int, float, float, float, float]]]:
    """Of every kind: images, bytes of all of them, mean accuracy, its deviation, training images right."""
    found: dict[str, list[tuple[int, float, float, float, float]]] = {}
    for kind, rows in KINDS.items():
        for table, name in rows:
            file = tables / table / "results.json"
            results = json.loads(file.read_bytes()) if file.is_file() else {"rows": []}
            row = next((one for one in results["rows"] if one["row"] == name), {"seeds": []})
            if len(row["seeds"]) < 3:
                print(f"{kind}: {table} is not whole yet")
                continue
            count = results["protocol"]["samples"]
            stored = row["bytes_per_image"]
            size = stored["images"] * count if "images" in stored else sizes["codes"] * count + sizes["fixed"]
            figures = mean(row["top1"]), stdev(row["top1"]), row.get("training_right", row["training"])
            found.setdefault(kind, []).append((count, size, *figures))
    return found


def markdown(found: dict[str, list[tuple[int, float, float, float, float]]]) -> str:
    """A line for every number of images: all kinds, and the share of the best pixels that the best tokens reach.

    Where a kind was not measured there is no share: the missing row may be the best.
    """
    lines = [
        f"| images | {' | '.join(f'{kind} (%)' for kind in found)} | bytes of tokens | bytes of pixels | "
        "share of bytes | share of accuracy |",
        f"|---|{'---|' * len(found)}---|---|---|---|",
    ]
    for count in sorted({one[0] for ones in found.values() for one in ones}):
        here = {kind: next((one for one in ones if one[0] == count), None) for kind, ones in found.items()}
        cells = ["" if one is None else f"{100 * one[2]:.1f} ± {100 * one[3]:.1f}" for one in here.values()]
        best: dict[str, tuple[float, float]] = {}
        for kind, one in here.items():
            if one is not None:
                source = kind.partition(",")[0]
                best[source] = max(best.get(source, (0.0, 0.0)), (one[2], one[1]))
        (tokens, few), (pixels, many) = best.get("tokens", (0.0, 0.0)), best.get("pixels", (0.0, 0.0))
        sizes = [f"{size / 1000:,.0f} kB" if size else "" for size in (few, many)]
        shares = [f"{100 * few / many:.1f} %", f"{100 * tokens / pixels:.0f} %"] if all(here.values()) else ["", ""]
        lines.append(f"| {count:,} | {' | '.join([*cells, *sizes, *shares])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=Path("results/tables"))
    parser.add_argument("--store", type=Path, help="the store that the tables of tokens were trained on")
    parser.add_argument("--out", type=Path, default=Path("docs/storage-curve.png"))
    parser.add_argument("--page", type=Path, help="a page whose table is written anew")
    args = parser.parse_args()
    if args.store:
        store = Store(args.store)
        fixed = store.sizes["codebook"] + store.manifest.files["tables.safetensors"].bytes
        codes = (store.sizes["tokens"] + store.sizes["codebook"] - fixed) / len(store)
        SIZES.write_text(json.dumps({"codes": codes, "fixed": fixed}, indent=2) + "\n")
    found = measured(args.tables, json.loads(SIZES.read_bytes()))
    text = markdown(found)
    print(text)
    points = [(f"{kind}:{count:,}", *rest[:3]) for kind, ones in found.items() for count, *rest in ones]
    args.out.write_bytes(storage_accuracy(points))
    if args.page:
        write_between(args.page, BEGIN, END, text)


if __name__ == "__main__":
    main()
