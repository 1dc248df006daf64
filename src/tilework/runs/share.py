"""Stores, tokenizers, runs and exported models to the Hugging Face Hub and back, complete and checked."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tilework.core import hub
from tilework.core.config import Plain
from tilework.core.errors import DamageError, InputError, OutputError
from tilework.core.files import is_free, locked, make_directory, sha256, sync_tree
from tilework.core.location import HubName, Url, location, what_is
from tilework.core.sealed import read_json, sealed
from tilework.runs.card import card_of
from tilework.runs.directory import DATA
from tilework.store import manifest
from tilework.train.checkpoint import best_checkpoint, latest_checkpoint
from tilework.train.log import notice

STORE = manifest.NAME
PART = ".pull"  # ending of a directory that is being filled


def push(path: Path, name: HubName, private: bool = False, dry_run: bool = False, quiet: bool = False) -> Plain:
    """Put what a directory holds on the hub, with a card; returns what there is to tell."""
    marker = hub.pushable(path, name)
    if marker == STORE and not name.kind:
        name = HubName(name.replace("hf://", "hf://datasets/", 1))
    check_whole(path, marker)
    files: dict[str, Path | bytes] = {file: path / file for file in _files(path, marker)}
    files |= {file: _without_paths(path / file) for file in files if file.rpartition("/")[2] == DATA}
    size = sum(len(file) if isinstance(file, bytes) else file.stat().st_size for file in files.values())
    told = {"files": len(files) + 1, "bytes": size}
    if dry_run:
        return {"would_push": str(path), "to": str(name), **told}
    notice(f"pushing {size:,} bytes in {len(files) + 1} files", quiet)
    made = hub.upload(name, marker, files, card_of(path, marker, name), private)
    return {"pushed": str(path), "to": str(name), "commit": made.revision, **told}


def pull(repository: hub.Repository, out: Path, progress: Callable[[int, int], None]) -> Plain:
    """Fetch what a repository or a folder of it holds; nothing has the name of the output before all is checked."""
    name = repository.name
    if not is_free(out):
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    marker, names = repository.shared()
    if not marker:
        hint = "weights of others are given as they are, such as --start hf://OWNER/NAME/FILE"
        raise InputError(f"{name} holds no store, tokenizer, run or exported model of Tilework", hint)
    part, prefix = out.with_name(out.name + PART), f"{name.file}/" if name.file else ""
    hub.check_room(repository, [prefix + file for file in names], part)
    if not is_free(part) and not (part / ".cache" / "huggingface").is_dir():
        raise OutputError(f"{part} holds other files", "choose another --out")
    make_directory(part)
    with locked(part):
        names = [marker, *(file for file in names if file != marker)]
        if marker == STORE:
            hub.download(repository, prefix + STORE, part)
            listed = manifest.read(part / prefix).files
            if missing := next((file for file in listed if file not in names), None):
                raise DamageError(f"{name} is not complete", f"it has no {missing}; ask its owner to push it again")
            names = [STORE, *listed]
        sizes, done = [repository.files[prefix + file].bytes for file in names], 0
        for file, size in zip(names, sizes, strict=True):
            hub.download(repository, prefix + file, part)
            progress(done := done + size, sum(sizes))
        check_whole(part / prefix, marker)
        shutil.rmtree(part / ".cache", ignore_errors=True)
        sync_tree(part)
        if out.exists():
            out.rmdir()  # empty, as was checked
        (part / prefix).rename(out)
    shutil.rmtree(part, ignore_errors=True)
    kind = what_is(out)
    return {"pulled": str(out), "from": str(repository.name), "kind": kind, "files": len(names), "bytes": sum(sizes)}


def check_whole(path: Path, marker: str) -> None:
    """Refuse a directory whose files are not those that it lists."""
    hashes: dict[str, str] = {}
    if marker == STORE:
        hashes = {file: entry.sha256 for file, entry in manifest.read(path).files.items()}
    elif marker == "model.json":
        hashes = {str(k): str(v) for k, v in dict(read_json(path / marker).get("sha256") or {}).items()}
    elif marker == "tokenizer.json":
        hashes = {"weights.safetensors": str(read_json(path / marker).get("sha256"))}
    else:
        for run in sorted(path.glob("[1-9]-*")) if marker == "chain.yaml" else [path]:
            for folder in _checkpoints(run):
                state = read_json(folder / "state.json").get("sha256") or {}
                hashes |= {(folder / file).relative_to(path).as_posix(): str(v) for file, v in dict(state).items()}
        if not hashes:
            raise InputError(f"{path} has no checkpoint yet", "wait for the first one")
    for file, wanted in hashes.items():
        if not re.fullmatch(hub.SHARED[marker], file) or not (path / file).is_file() or sha256(path / file) != wanted:
            raise DamageError(f"{path / file} is missing or damaged", "restore it")


def _files(path: Path, marker: str) -> list[str]:
    """What is pushed: files that belong to it, of checkpoints the newest and the best."""
    if marker == STORE:
        return [STORE, *manifest.read(path).files]
    pattern, found = hub.SHARED[marker], sorted(file for file in path.rglob("*") if file.is_file())
    runs = sorted(path.glob("[1-9]-*")) if marker == "chain.yaml" else [path]
    kept = {folder for run in runs for folder in _checkpoints(run)}
    names = [(file, file.relative_to(path).as_posix()) for file in found]
    return [
        name
        for file, name in names
        if re.fullmatch(pattern, name) and (not file.parent.name.startswith("step-") or file.parent in kept)
    ]


def _checkpoints(run: Path) -> set[Path]:
    found = (latest_checkpoint(run / "checkpoints"), best_checkpoint(run / "checkpoints"))
    return {folder for folder in found if folder is not None}


def _without_paths(file: Path) -> bytes:
    """data.json of a run with the names of its data only, not where they lay on this machine."""
    plain = read_json(file)
    for key in ("train", "val"):
        if isinstance(given := plain.get(key), str):
            place = location(given)
            plain[key] = given if isinstance(place, Url) else place.name
    return sealed(plain)
