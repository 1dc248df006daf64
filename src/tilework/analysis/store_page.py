"""The part of a report about a token store: bytes, classes, codes, samples."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import numpy as np

from tilework.analysis.run_page import Headline, Wanted
from tilework.core.location import Location
from tilework.data.class_names import shown_names
from tilework.report import Card, Page
from tilework.report.plots import bar_plot
from tilework.runs.pictures import check_images, stored_samples
from tilework.store import Store
from tilework.store.describe import Description

MOST_CLASSES = 40  # in the table; of more the smallest and the largest


def add_store(page: Page, path: Location, wanted: Wanted) -> Headline:
    """Everything about a store; returns its line of the summary."""
    store = Store(path)
    if wanted.images is not None:
        check_images(store, wanted.images)
    about, manifest = Description(store), store.manifest
    grid = "x".join(map(str, store.grid))
    told = f"{len(store):,} images as {grid} of {store.vocabulary:,} codes"
    page.heading(f"{Path(str(path)).name}: {told}")
    figures = [("bytes per image", f"{about.bytes_per_image:,.0f}"), ("images", f"{len(store):,}")]
    if manifest.original_bytes:
        original = manifest.original_bytes / len(store)
        figures += [
            ("bytes per image file", f"{original:,.0f}"),
            ("times smaller", f"{original / about.bytes_per_image:,.1f}"),
        ]
    figures += [("classes", f"{len(store.classes):,}")]
    if about.codes:
        figures.append(("bits per code (entropy)", f"{about.codes['entropy_bits_per_token']:.2f}"))
    page.tiles(figures)
    page.heading("Bytes", 3)
    rows = [[name, f"{size:,}", f"{size / len(store):,.1f}"] for name, size in store.sizes.items()]
    rows += [
        [
            f"of which column '{c.name}'",
            f"{store.column_bytes(c.name):,}",
            f"{store.column_bytes(c.name) / len(store):,.1f}",
        ]
        for c in manifest.columns
    ]
    page.table(["part", "bytes", "bytes per image"], rows)
    names = shown_names(store.classes, wanted.names)
    if not about.has_masks:
        page.heading("Images of each class", 3)
        order = np.argsort(-about.balance, kind="stable") if len(names) > MOST_CLASSES else np.arange(len(names))
        half = MOST_CLASSES // 2
        some = order if len(order) <= MOST_CLASSES else np.concatenate([order[:half], order[-half:]])
        counts = about.balance[some]
        page.table(
            ["class", "images"],
            [[names[i], f"{about.balance[i]:,}"] for i in some.tolist()],
            (counts / max(1, counts.max())).tolist(),
        )
        if len(order) > MOST_CLASSES:
            page.text(f"The {half} largest and the {half} smallest of {len(names):,} classes.")
    if about.codes:
        page.heading("Codes", 3)
        used = np.sort(about.histogram)[::-1]
        plot = bar_plot(used[used > 0].tolist(), "codes, the most frequent first", "occurrences", log=True)
        said = f"{about.codes['codes_used']:,} of {store.vocabulary:,} codes occur."
        page.plots([(plot, said)])
    page.heading("Samples", 3)
    shown = np.linspace(0, len(store) - 1, min(wanted.count, len(store))).astype(np.int64)
    labels = np.asarray(store.column("label"))[shown].tolist()
    samples = stored_samples(store, shown * store.views, wanted.tokenizer, wanted.images)
    page.cards([Card(s.pictures, s.key, [(names[label], None)]) for s, label in zip(samples, labels, strict=True)])
    page.text(
        "Pictures are decoded from the codes, or are the codes as colours"
        + ("; photographs stand before them." if any(s.photograph is not None for s in samples) else ".")
    )
    page.heading("Origin and commands", 3)
    rows = [["codec", manifest.codec], ["tokenizer", manifest.tokenizer.get("name", "not stated")]]
    rows += [["preprocessing", manifest.preprocessing or "not stated"], ["licence", manifest.licence or "not stated"]]
    page.table(["what", "value"], [*rows, ["software", manifest.software]])
    name = quote(str(path))
    made_for: dict[tuple[int, ...], str] = {(16, 16): "seit_cpu", (7, 7): "teacher_vit_cpu"}
    recipe = made_for.get(store.grid, "linear_cpu")  # which takes any codes
    train = f"tilework train {recipe} --data {name} --val VAL --out RUN"
    page.commands([f"tilework inspect {name}", f"tilework verify {name}", train])
    return [Path(str(path)).name, told, "", f"{about.bytes_per_image:,.0f}"]
