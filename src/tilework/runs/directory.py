"""The directory of a run: what it holds, how it is claimed, compared, resumed and read.

run.yaml                 settings
data.json                version, what the data look like, and where they lie
codebook.safetensors     codes of a token store, with learnt vectors when the run has ended
tokenizer/               of a token store, if it was found and is not large
checkpoints/, log.jsonl, log.csv, results.json, quarantine.json, pictures/
chain.yaml               in the directory above, where runs follow one another in 1-NAME, 2-NAME, ...
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from tilework.core.batch import Stage
from tilework.core.codebook import FILE as CODEBOOK
from tilework.core.codebook import Codebook
from tilework.core.config import Plain, decode, encode, first_difference, read_yaml, to_yaml
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError
from tilework.core.files import is_free, make_directory, read_plain, sha256, write
from tilework.core.location import PathOrHub, what_is
from tilework.core.sealed import read_json, write_sealed
from tilework.data.fingerprint import MADE_BY
from tilework.data.image_files import Frame
from tilework.runs.run import Chain, R, Run
from tilework.tokenizers.find import find_tokenizer
from tilework.train.checkpoint import best_checkpoint, latest_checkpoint

HUB = "hub"  # key in data.json: SHA-256 of files by names on the hub
SETTINGS, DATA, RESULTS, QUARANTINE, CHAIN = "run.yaml", "data.json", "results.json", "quarantine.json", "chain.yaml"
STARTED = "train.csv"  # beside the run that 'tilework start' made
BOXES = "boxes_set_aside.json"  # boxes that cannot be used
VERSION = 3  # 1 had no number, 2 no hash of settings and data
SAMPLES = "samples"  # key in data.json: fingerprints of the training and validation data
OUTSIDE = ("train", "val", "start", HUB, "settings", SAMPLES)  # keys of data.json that are not of the DataSpec


@dataclass(frozen=True)
class DataSpec:
    """What a trained model expects of its data."""

    stage: Stage
    channels: int
    grid: tuple[int, int]  # after the evaluation pipeline
    classes: tuple[str, ...]
    codebook: str  # SHA-256 of the code vectors; empty for pixels
    stored: tuple[int, int] | None = None  # grid before the evaluation pipeline
    frame: Frame = "cover"  # how images of any aspect became codes
    tokenizer: dict[str, str] = field(default_factory=dict)  # of codes: name, sha256, and place if it lies elsewhere
    licence: str = ""  # of the training data, as their store states it


@dataclass(frozen=True)
class RunDirectory:
    """Where a run lies; nothing is read until it is asked for."""

    path: Path

    @staticmethod
    def find(path: Path) -> RunDirectory:
        """The directory of a run, of a chain's last one, or of the one that 'start' made; refuses anything else."""
        if (path / STARTED).is_file() and (path / "run" / SETTINGS).is_file():
            path = path / "run"
        if (path / CHAIN).is_file():
            links = [link for link in sorted(path.glob("[1-9]-*")) if (link / SETTINGS).is_file()]
            if not links:
                raise InputError(f"the chain in {path} has not begun", "wait for the checkpoint of its first run")
            return RunDirectory(links[-1])
        if not (path / SETTINGS).is_file():
            other = what_is(path)
            what = f"{path} is {other}, not a run" if other else f"no run in {path}"
            raise InputError(what, "give a directory that 'tilework train' wrote")
        if not (path / DATA).is_file():
            raise InputError(f"the run in {path} was not started to the end", "run the same 'tilework train' again")
        return RunDirectory(path)

    @property
    def name(self) -> str:
        """What a run is called in tables and pictures: its directory, or its row and seed in a table."""
        path = self.path
        if path.name == "run" and path.parent.name.startswith("seed-"):
            return f"{path.parent.parent.name} {path.parent.name}"
        return path.parent.name or path.name if path.name == "run" else path.name or str(path)

    @property
    def finished(self) -> bool:
        """Whether it has trained to the end."""
        return (self.path / RESULTS).is_file()

    @property
    def checkpoints(self) -> Path:
        """The directory of its checkpoints."""
        return self.path / "checkpoints"

    def settings(self) -> Run:
        """What was trained; settings that older versions did not have take their defaults."""
        file = self.path / SETTINGS
        known = read_json(self.path / DATA).get("settings") if (self.path / DATA).is_file() else None
        if known not in (None, sha256(file)):  # runs of older versions have no hash of them
            raise DamageError(f"{file} was changed after the run began", "restore it")
        return _decoded(Run, file)

    def data(self) -> DataSpec:
        """What the data looked like."""
        plain = read_json(self.path / DATA)
        version = plain.pop("version", 1)
        if not isinstance(version, int) or version > VERSION:
            raise DamageError(f"{self.path} is a run of version {version}, this software reads {VERSION}", "update it")
        known = {key: value for key, value in plain.items() if key not in OUTSIDE}
        try:
            spec: DataSpec = decode(DataSpec, known)
        except ConfigError as error:
            raise DamageError(f"{self.path / DATA} is malformed", f"restore it ({error})") from error
        return spec

    def places(self) -> dict[str, Path]:
        """Where its data lie on this machine: "train" and "val", as far as they are found.

        A path is as the command that trained had it; one that does not lead there is looked for beside the run.
        """
        told = {name: read_json(self.path / DATA).get(name) for name in ("train", "val")}
        found = {}
        for name, text in told.items():
            if isinstance(text, str) and text and "://" not in text:
                paths = (Path(text), self.path.parent / Path(text).name)
                if there := next((path for path in paths if path.exists()), None):
                    found[name] = there
        return found

    def checkpoint(self, best: bool = False) -> Path:
        """The newest checkpoint, or the one with the best validation figure."""
        found = latest_checkpoint(self.checkpoints)
        if best and found is not None:
            chosen = best_checkpoint(self.checkpoints)
            if chosen is None:
                raise InputError(
                    f"{self.path} has no best checkpoint", "it was trained without --val; leave --best out"
                )
            return chosen
        if found is None:
            raise InputError(f"{self.path} has no checkpoint yet", "wait for the first one")
        return found

    def codebook(self) -> Codebook | None:
        """The codes it was trained on, with the vectors that it learnt for them; None for pixels."""
        if self.settings().objective.learns_table and not self.finished:
            raise InputError(
                f"{self.path} has not finished, and keeps its learnt code vectors at the end", "wait for it"
            )
        expected = self.data().codebook
        return Codebook.read(self.path, expected) if expected else None

    def tokenizer(self) -> Path | None:
        """The tokenizer of the codes it was trained on, if it is inside or where it was."""
        return find_tokenizer(self.data().tokenizer, self.path)

    def figures(self) -> dict[str, float]:
        """What validation gave at the end; empty before."""
        if not self.finished:
            return {}
        hashed = "settings" in read_json(self.path / DATA)  # runs of older versions have no hashes
        found = read_json(self.path / RESULTS, required=hashed)
        if hashed and "steps" not in found:
            raise DamageError(f"{self.path / RESULTS} holds no figures of a run", "restore it")
        return {k: v for k, v in found.items() if isinstance(v, int | float)}

    def log(self) -> list[Plain]:
        """What was logged, line by line."""
        try:
            lines = [json.loads(line) for line in read_plain(self.path / "log.jsonl").decode().splitlines()]
            if not all(isinstance(line, dict) for line in lines):
                raise ValueError("a line is no object")
            return lines
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{self.path} has no log that can be read", f"restore log.jsonl ({error})") from error

    def claim(self, run: Run, start: PathOrHub | None) -> None:
        """Refuse a directory that holds something else than this run."""
        if is_free(self.path):
            return
        if not (self.path / SETTINGS).is_file():
            raise OutputError(f"{self.path} holds other files", "choose another --out")
        check_same(self.path, _decoded(Run, self.path / SETTINGS), run, "run")
        if (self.path / DATA).is_file() and read_json(self.path / DATA).get("start") != self._relative(start):
            raise OutputError(f"{self.path} holds a run with another --start", "choose another --out, or repeat it")

    def check_samples(self, samples: Mapping[str, str | None]) -> None:
        """Refuse to go on with other data. samples: fingerprints of the training and validation data."""
        known = self.samples()
        for name, what in (("train", "training"), ("val", "validation")):
            if name in known and known[name] != samples[name]:
                hint = "choose another --out, or repeat its --data and --val; 'tilework eval' takes other data"
                raise OutputError(f"{self.path} holds a run on other {what} data", hint)

    def samples(self) -> dict[str, str | None]:
        """Fingerprints of its training and validation data; empty for runs of older versions."""
        known = read_json(self.path / DATA).get(SAMPLES) if (self.path / DATA).is_file() else None
        return known if isinstance(known, dict) and str(known.get("train")).startswith(MADE_BY) else {}

    def begin(self, run: Run, codes: str) -> None:
        """Settings of a run that begins or goes on, before any other file: they show whose directory it is.

        codes: hash of the codebook of its data.
        """
        make_directory(self.path)
        if (self.path / CODEBOOK).is_file():  # with learnt vectors, if the run has ended
            try:
                Codebook.read(self.path, codes)
            except DamageError as error:
                raise OutputError(f"{self.path} was trained on other codes", "choose another --out") from error
        write(self.path / SETTINGS, to_yaml(run).encode())

    def write(
        self,
        spec: DataSpec,
        codebook: Codebook | None,
        paths: Mapping[str, object],
        start: PathOrHub | None,
        hub: Mapping[str, Mapping[str, str]],
        samples: Mapping[str, str | None],
    ) -> None:
        """Data of a run that begins or goes on. paths: of training and validation data.

        hub: SHA-256 of the files it takes from the hub. samples: fingerprints of the data.
        """
        if codebook is not None and not (self.path / CODEBOOK).is_file():
            codebook.write(self.path)
        places = {name: str(path) if path else None for name, path in paths.items()}
        plain = {"version": VERSION, **asdict(spec), **places, "start": self._relative(start)}
        plain |= {"settings": sha256(self.path / SETTINGS), SAMPLES: dict(samples)}
        write_sealed(self.path / DATA, {**plain, HUB: hub} if hub else plain)

    def _relative(self, start: PathOrHub | None) -> str | None:
        """Where a start lies as seen from the run, so that a chain may move; a name on the hub stays."""
        return os.path.relpath(start, self.path) if isinstance(start, Path) else start


def claim_chain(path: Path, chain: Chain) -> list[RunDirectory]:
    """Take a directory for a chain; refuse one that holds something else, or a chain with a link torn out."""
    if is_free(path):
        make_directory(path)
        write(path / CHAIN, to_yaml(chain).encode())
    elif not (path / CHAIN).is_file():
        raise OutputError(f"{path} holds other files", "choose another --out")
    else:
        check_same(path, _decoded(Chain, path / CHAIN), chain, "chain")
    links = [RunDirectory(path / f"{number}-{link.name}") for number, link in enumerate(chain.links, 1)]
    for before, link in pairwise(links):
        if latest_checkpoint(link.checkpoints) is not None and not before.finished:
            what = f"{link.path} goes on from {before.path}, which is missing or unfinished"
            raise InputError(what, f"restore {before.path}")
    return links


def check_same(path: Path, kept: Run | Chain, wanted: Run | Chain, kind: str) -> None:
    """Refuse to go on with other settings; what older versions did not have counts as their default."""
    if kept != wanted:
        key, old, new = first_difference(encode(kept), encode(wanted))
        raise OutputError(
            f"{path} holds another {kind}: {key} is {old} there and {new} here",
            "choose another --out, or repeat its settings to go on with it",
        )


def _decoded(kind: type[R], path: Path) -> R:
    """Settings of a file; refused if this version does not know them."""
    try:
        found: R = decode(kind, read_yaml(path))
        return found
    except ConfigError as error:
        hint = "use the version that wrote them, or name its plug-in in TILEWORK_METHODS"
        raise DamageError(f"the settings in {path} are damaged or of another version", f"{hint} ({error})") from error
