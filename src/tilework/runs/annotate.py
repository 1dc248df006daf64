"""Annotators by name, and label maps of a folder of images."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from tilework.augment import Augment, CentreCrop, Normalise, build_all
from tilework.core.config import Plain
from tilework.core.errors import BrokenImagesError, InputError, OutputError, TileworkError
from tilework.core.files import locked, remove_unfinished, write_json
from tilework.core.hub import exactly
from tilework.core.location import Location, PathOrHub
from tilework.data.image_files import Broken
from tilework.data.image_folder import ImageFolder
from tilework.data.label_maps import CARD, COLUMN, LabelMaps, MapsCard, write_maps
from tilework.data.map_spool import SETTINGS, MapSpool
from tilework.evaluation.annotate import Among, Annotator, annotate, match_classes
from tilework.models import EfficientnetLite0Config, Model, create_model
from tilework.models.efficientnet_lite import published_weights
from tilework.models.weights import adopt, read_weights
from tilework.runs.export import open_model
from tilework.runs.teacher import timm_weights
from tilework.store import Store
from tilework.tokenizers.receipts import quarantine_of
from tilework.train.log import Bar, counted, notice

IMAGENET = 1000  # classes


def open_annotator(
    name: str,
    weights: PathOrHub | None,
    classes: Path | None,
    names: tuple[str, ...],
    size: int,
    top: int,
    among: Among = "all",
) -> Annotator:
    """A model of ours on pixels, EfficientNet-Lite0, or a network of timm. names: classes of the data."""
    told = None if classes is None else _read_classes(classes)
    steps: tuple[Augment, ...]
    if name == "efficientnet_lite0":
        config = EfficientnetLite0Config()
        model: Model = config.build(3, (size, size), IMAGENET)
        model.load_state_dict(published_weights())
        return Annotator(
            model, (Normalise(config.mean, config.std),), match_classes(names, None, told), size, top, among
        )
    if name.startswith("timm:"):
        known = timm_weights(name, weights)
        model = create_model(known.model, grid=(size, size), classes=IMAGENET)
        adopt(model, read_weights(known.file))
        return Annotator(model, (known.normalise,), match_classes(names, None, told), size, top, among)
    trained = open_model(name)
    run, spec, model = trained.run, trained.spec, trained.classifier
    if spec.stage != "pixels":
        raise InputError(f"{name} is no classifier of pixels", "give a run on images, efficientnet_lite0 or timm:NAME")
    if any(isinstance(step, CentreCrop) and step.size != run.size for step in run.evaluation):
        steps = tuple(step for step in run.evaluation if not isinstance(step, CentreCrop))  # it sees the whole
        side = spec.grid[0]
    else:
        steps, side = run.evaluation, run.size[0]
    if spec.grid[0] != spec.grid[1]:
        raise InputError(f"{name} takes images of {spec.grid[0]}x{spec.grid[1]}", "give one that takes squares")
    return Annotator(model, build_all(steps), match_classes(names, spec.classes, told), side, top, among)


@dataclass(frozen=True)
class Annotation:
    """Label maps of a folder, for a directory, a store of the same images, or both; repeated, it goes on."""

    images: Path
    annotator: str
    weights: PathOrHub | None
    classes: Path | None
    size: int
    top: int
    out: Path | None
    store: Location | None
    device: torch.device
    max_broken: float = 0.05
    replace: bool = False  # maps that the store has
    quiet: bool = False
    among: Among = "all"

    def run(self) -> Plain:
        """Annotate what is left, then write all of it; returns what there is to tell."""
        known = None if self.store is None else Store(self.store)
        self._check(known)
        folder = ImageFolder.open(self.images, None if known is None else known.classes)
        if known is not None:
            there = set(folder.keys)
            if missing := next((key for key in known.column("key") if key not in there), None):
                what = f"{self.images} has no image '{missing}' of {self.store}"
                raise InputError(what, "give the images it was made from")
        annotator = open_annotator(
            self.annotator, self.weights, self.classes, folder.classes, self.size, self.top, self.among
        )
        first = annotator.scores(torch.zeros(1, 3, annotator.size, annotator.size, dtype=torch.uint8))[0]
        grid, elsewhere = (first.shape[1], first.shape[2]), first.shape[3] > self.top
        card = MapsCard(folder.classes, grid, self.top, exactly(self.annotator), annotator.size, elsewhere)
        spool = MapSpool.open(self._spool_path, {"card": asdict(card), "of": _digest(folder.keys, annotator.model)})
        with locked(spool.path):
            remove_unfinished(spool.path)
            if self.out is not None:
                remove_unfinished(self.out.parent, self.out.name)
            self._fill(spool, annotator, folder)
            broken = [record for record in spool if isinstance(record, Broken)]
            found = self._write(spool, card, folder, broken, known)
        spool.remove()
        return found

    @property
    def _spool_path(self) -> Path:
        beside = Path(str(self.out or self.store))
        return beside.with_name(f"{beside.name}{'' if self.out else '.maps'}.spool")

    def _check(self, known: Store | None) -> None:
        if self.out is not None and self.out.exists():
            if self._is_rest(self.out):
                MapSpool(self._spool_path).remove()
            raise OutputError(f"{self.out} exists", "choose another --out")
        if known is None:
            return
        known.check_writable()
        there = {column.name for column in known.manifest.columns}
        if {COLUMN, CARD} <= there and not self.replace:
            hint = "it was annotated before: add --replace, or add maps beside it with --out MAPS"
            raise OutputError(f"{self.store} has a column '{COLUMN}'", hint)

    def _is_rest(self, out: Path) -> bool:
        """Whether the spool was left by a process that was killed when all was written."""
        try:
            spooled = json.loads((self._spool_path / SETTINGS).read_bytes())["card"]
            written = asdict(LabelMaps.open(out).card)
        except (TileworkError, OSError, ValueError, KeyError, TypeError):
            return False
        return bool(spooled == json.loads(json.dumps(written)))

    def _fill(self, spool: MapSpool, annotator: Annotator, folder: ImageFolder) -> None:
        """Annotate the images that have no record yet."""
        done = spool.count()
        if done:
            notice(f"resuming after image {done:,} of {len(folder):,}", self.quiet)
        broken = sum(isinstance(record, Broken) for record in spool)
        bar = Bar("annotate", len(folder), done, quiet=self.quiet)
        rest = folder.take(np.arange(done, len(folder)))
        try:
            for part in annotate(annotator, rest, self.device, progress=lambda more: bar.update(done + more)):
                bad = [record for record in part if isinstance(record, Broken)]
                broken += len(bad)
                if broken > self.max_broken * len(folder):
                    spool.remove()
                    what = f"{broken} of {len(folder)} images in {self.images} cannot be read"
                    first = f"(the last: {bad[-1].path}: {bad[-1].reason})"
                    raise BrokenImagesError(f"{what} {first}", broken=broken, total=len(folder))
                spool.add(part)
        finally:
            bar.close()

    def _write(
        self, spool: MapSpool, card: MapsCard, folder: ImageFolder, broken: list[Broken], known: Store | None
    ) -> Plain:
        bad = {one.path for one in broken}
        keys = [key for key in folder.keys if key not in bad]
        if known is not None and (missing := next((key for key in known.column("key") if key in bad), None)):
            spool.remove()
            raise InputError(f"image '{missing}' of {self.store} cannot be read any more", "restore it")
        if broken:
            place = quarantine_of(self.out or Path(str(self.store)))
            write_json(place, [asdict(one) for one in broken])
            notice(f"{counted(len(broken), 'image')} cannot be read: see {place}", self.quiet)
        if known is not None:
            record = {key: one for key, one in zip(folder.keys, spool, strict=True) if isinstance(one, bytes)}
            for column in (CARD, COLUMN):  # of maps before, or of a command that was killed here
                known.drop_column(column)
            known.add_column(COLUMN, [record[key] for key in known.column("key")])
            known.add_column(CARD, [json.dumps(asdict(card)), *[""] * (len(known) - 1)])  # once
        if self.out is not None:
            write_maps(self.out, card, keys, ([one] for one in spool if isinstance(one, bytes)))
        total = sum(len(one) for one in spool if isinstance(one, bytes))
        return {
            **{name: str(path) for name, path in (("out", self.out), ("store", self.store)) if path is not None},
            "images": len(keys),
            **({"quarantined": len(broken)} if broken else {}),
            "grid": list(card.grid),
            "classes_per_place": card.top,
            "bytes_per_image": total / len(keys),
            "raw_bytes_per_image": card.grid[0] * card.grid[1] * card.top * 4,
        }


def _digest(keys: Sequence[str], model: Model) -> str:
    """Of the list of images and the weights: another of either needs another annotation."""
    digest = hashlib.sha256(json.dumps(list(keys)).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _read_classes(path: Path) -> dict[str, int]:
    """Lines NAME,NUMBER."""
    try:
        with path.open(newline="") as file:
            return {name: int(number) for name, number in csv.reader(file)}
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} is no list of classes", f"write lines NAME,NUMBER ({error})") from error
