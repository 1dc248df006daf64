"""The card of a repository on the hub: what it holds, what was measured, and the commands that use it."""

from __future__ import annotations

from math import prod
from pathlib import Path

from tilework.core.config import Plain, read_yaml
from tilework.core.hub import WRITTEN
from tilework.core.location import HubName
from tilework.core.sealed import read_json
from tilework.runs.directory import RunDirectory
from tilework.store import manifest
from tilework.version import __version__

FIGURES = 12  # of a run or a tokenizer, at most
LARGEST = 1e300  # beyond it a whole number is none that was measured, and cannot be shortened
CLASSES = 20  # named, at most


def card_of(path: Path, marker: str, name: HubName) -> str:
    """README.md for what a directory holds."""
    about = {"manifest.json": _store, "tokenizer.json": _tokenizer, "model.json": _exported}.get(marker, _run)
    what, rows, commands, tags = about(path, str(name))
    table = "\n".join(f"| {key} | {_cell(value)} |" for key, value in rows.items() if value not in ("", None))
    return (
        f"---\nlibrary_name: tilework\ntags:\n- tilework\n- vision-tokens\n{tags}---\n{WRITTEN}\n"
        f"# {name.repo.partition('/')[2]}\n\n{what}\n\n| | |\n|---|---|\n{table}\n\n"
        f"## Use\n\n```\npip install 'tilework[hub]'\n{commands}\n```\n\n"
        f"Files are safetensors, JSON and YAML (a store has shards of its own): loading them runs no code. Every file "
        f"is checked by its SHA-256.\nWritten by Tilework {__version__}.\n"
    )


def _store(path: Path, name: str) -> tuple[str, Plain, str, str]:
    about = manifest.read(path)
    size, grid = sum(file.bytes for file in about.files.values()), "x".join(map(str, about.grid))
    what = (
        f"A token store: {about.images:,} images as codes of a tokenizer, {size / about.images:,.0f} bytes per image."
    )
    rows: Plain = {
        "images": f"{about.images:,}" + (f", {about.views} crops of each" if about.views > 1 else ""),
        "classes": _classes(about.classes),
        "codes of an image": f"{grid} = {prod(about.grid):,}, of {about.vocabulary:,} kinds",
        "bytes": f"{size:,}, codec {about.codec}",
        "columns": ", ".join(column.name for column in about.columns),
        "tokenizer": _known(about.tokenizer),
        "images became codes": about.preprocessing,
        "licence": about.licence or "not stated",
    }
    commands = f"tilework pull {name} --out train.tok\ntilework inspect train.tok\n"
    return what, rows, commands + "tilework train linear_cpu --data train.tok --out runs/linear", ""


def _tokenizer(path: Path, name: str) -> tuple[str, Plain, str, str]:
    about = read_json(path / "tokenizer.json")
    card = read_json(path / "card.json") if (path / "card.json").is_file() else {}
    model = about.get("model")
    size = about.get("size")
    what = "A tokenizer: it turns images into small grids or sequences of codes, from which models are trained."
    rows: Plain = {
        "kind": model.get("name") if isinstance(model, dict) else "",
        "images": f"{'x'.join(map(str, size))} px" if isinstance(size, list) else "",
        "origin": about.get("origin"),
        "SHA-256 of the weights": about.get("sha256"),
        "measured on": f"{card['images']:,} images of {Path(str(card.get('data'))).name}" if card.get("images") else "",
        **_figures(card),
    }
    return what, rows, f"tilework tokenize photos/train --tokenizer {name} --out train.tok", "- image-tokenizer\n"


def _exported(path: Path, name: str) -> tuple[str, Plain, str, str]:
    about = read_json(path / "model.json")
    return _model(about, about.get("figures") or {}, name, "A trained model of Tilework, ready for inference.")


def _run(path: Path, name: str) -> tuple[str, Plain, str, str]:
    directory = RunDirectory.find(path)
    about = read_json(directory.path / "data.json")
    about["model"] = read_yaml(directory.path / "run.yaml").get("model")
    figures = directory.figures()
    return _model(about, figures, name, "A training run of Tilework: settings, log, checkpoints and results.")


def _model(about: Plain, figures: Plain, name: str, what: str) -> tuple[str, Plain, str, str]:
    model, codes = about.get("model"), about.get("codebook")
    rows: Plain = {
        "network": model.get("name") if isinstance(model, dict) else "",
        "input": "codes of a tokenizer" if codes else "pixels",
        "grid": "x".join(map(str, about.get("stored") or about.get("grid") or ())),
        "tokenizer": _known(about.get("tokenizer") or {}) if codes else "",
        "classes": _classes(tuple(about.get("classes") or ())),
        "preprocessing": about.get("preprocessing"),
        "licence of the training data": about.get("licence") or "not stated",
        **_figures(figures),
    }
    commands = f"tilework predict {name} holiday.jpg\ntilework pull {name} --out model"
    return (
        what,
        rows,
        commands,
        "- image-classification\npipeline_tag: image-classification\n" if len(about.get("classes") or ()) > 1 else "",
    )


def _figures(values: Plain) -> Plain:
    """Numbers that were measured, most of them by name."""
    numbers = [(k, v) for k, v in values.items() if isinstance(v, float | int) and not isinstance(v, bool)]
    numbers = [(k, v) for k, v in numbers if abs(v) <= LARGEST]
    return {key.replace("_", " "): f"{value:,.4g}" for key, value in numbers[:FIGURES]}


def _known(tokenizer: Plain) -> str:
    digest = str(tokenizer.get("sha256") or "")
    return f"{tokenizer.get('name', '')} (SHA-256 {digest[:16]}...)" if digest else str(tokenizer.get("name", ""))


def _classes(names: tuple[str, ...]) -> str:
    more = f", and {len(names) - CLASSES} more" if len(names) > CLASSES else ""
    return f"{len(names)}: {', '.join(names[:CLASSES])}{more}"


def _cell(value: object) -> str:
    """Text in a table: one line, nothing that ends a cell or is taken for a tag."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")
