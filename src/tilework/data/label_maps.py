"""Label maps of images, beside a folder or in a store, and data that carry them along.

MAPS/maps.json, columns/key.safetensors, columns/label_map/00000.tiles; a store keeps them as a column of that name.

B batch | h, w locations | k classes of a location
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from tilework.core.batch import Batch
from tilework.core.config import decode
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.files import new_directory, read_plain, sha256, write
from tilework.core.location import Location, is_store
from tilework.core.sealed import read_json, write_sealed
from tilework.data.columns import ColumnKind, column_kinds
from tilework.data.images import ImageSource
from tilework.data.score_map import ScoreMap
from tilework.data.source import Around, Source
from tilework.data.tokens import TokenSource
from tilework.store import Store
from tilework.store.columns import ColumnEntry, RecordColumn, pack_column, unpack_column, write_column
from tilework.store.label_maps import VERSION, check_version, decode_maps, other_version

COLUMN, MAPS, KEYS = "label_map", "maps.json", "columns/key.safetensors"
CARD = f"{COLUMN}_card"  # column of a store: what the maps are, once
FORMAT = "tilework label maps"
MALFORMED = (ValueError, KeyError, TypeError, IndexError, RecursionError, ConfigError)  # what nonsense raises


@dataclass(frozen=True)
class MapsCard:
    """Where label maps come from and what their numbers mean."""

    classes: tuple[str, ...]  # in the order of their numbers
    grid: tuple[int, int]
    top: int  # classes kept for each location
    annotator: str
    size: int  # pixels of the square that the annotator saw: the image's middle, short side resized
    elsewhere: bool = False  # whether one more class is kept, behind the data's: all that they do not have


@dataclass(frozen=True)
class LabelMaps:
    """Records by the keys of images."""

    card: MapsCard
    keys: Sequence[str]
    records: RecordColumn

    @staticmethod
    def open(path: Path) -> LabelMaps:
        """Of a directory that `write_maps` wrote."""
        if not (path / MAPS).is_file():
            raise InputError(f"no label maps in {path}", "make them with 'tilework annotate IMAGES --out MAPS'")
        try:
            plain = read_json(path / MAPS)
            version = plain["version"]
            if plain["format"] != FORMAT or not isinstance(version, int):
                raise ValueError(f"format {plain['format']}, version {version}")
            if version != VERSION:
                raise other_version(str(path), version)
            card, entry = decode(MapsCard, plain["card"]), decode(ColumnEntry, plain["entry"])
            if plain.get("keys", sha256(path / KEYS)) != sha256(path / KEYS):  # older ones have no hash of them
                raise DamageError(f"{path / KEYS} is damaged", "restore it")
            keys = unpack_column(read_plain(path / KEYS), "text")
            if entry.kind != "bytes" or any(".." in Path(shard.file).parts for shard in entry.shards):
                raise ValueError("shards that cannot be")
            records = RecordColumn(path, entry)
            if len(keys) != len(records):
                raise ValueError(f"{len(keys)} keys of {len(records)} maps")
        except (*MALFORMED, OSError, SafetensorError, OverflowError) as error:
            raise DamageError(f"{path} is malformed", f"restore it ({' '.join(str(error).split())})") from error
        return LabelMaps(card, keys, records)

    @staticmethod
    def of_store(store: Store) -> LabelMaps:
        """Those of a store that was annotated."""
        if COLUMN not in (column.name for column in store.manifest.columns):
            raise InputError(f"{store.path} has no label maps", "make them with 'tilework annotate IMAGES --store'")
        records = store.column(COLUMN)
        if not isinstance(records, RecordColumn):
            raise DamageError(f"the label maps of {store.path} are no records", "restore it")
        try:
            card = decode(MapsCard, json.loads(store.column(CARD)[0]))
        except MALFORMED as error:
            raise DamageError(f"the label maps of {store.path} are malformed", f"({error})") from error
        check_version(records[0], str(store.path))
        return LabelMaps(card, store.column("key"), records)

    def attach(self, source: Source, name: str) -> Labelled:
        """The data with their maps."""
        if not isinstance(source, TokenSource | ImageSource):
            raise ConfigError(f"label maps cannot follow the samples of {name}", "give a token store or a folder")
        return Labelled(source, self, name)

    def take(self, index: np.ndarray) -> ScoreMap:
        """Maps of some images. index: (B,)."""
        ids, scores = decode_maps(self.records.take(index))
        classes, more = len(self.card.classes), int(self.card.elsewhere)
        if ids.shape[1:] != (*self.card.grid, self.card.top + more) or ids.max(initial=0) >= classes + more:
            raise DamageError("a label map does not fit its description", "restore it")
        if not more:
            return ScoreMap.of_scores(torch.from_numpy(ids).long(), torch.from_numpy(scores), classes)
        outside = ids == classes
        elsewhere = (scores * outside).sum(-1)  # (B, h, w)
        order = np.argsort(outside, axis=-1, kind="stable")[..., : self.card.top]  # the others, still descending
        ids, scores = (np.take_along_axis(part, order, -1) for part in (ids, np.where(outside, 0, scores)))
        ids = np.minimum(ids, classes - 1)  # a dropped entry has any class and no score
        return ScoreMap.of_scores(
            torch.from_numpy(ids).long(), torch.from_numpy(scores), classes, torch.from_numpy(elsewhere)
        )


def write_maps(path: Path, card: MapsCard, keys: Sequence[str], records: Iterable[Sequence[bytes]]) -> None:
    """Label maps as a directory of their own. records: in portions, in the order of the keys."""
    with new_directory(path) as root:
        entry = write_column(root, ColumnEntry(COLUMN, "bytes"), records)
        count = sum(shard.records for shard in entry.shards)
        if count != len(keys):
            raise InputError(f"{count} label maps for {len(keys)} images", "give one each")
        write(root / KEYS, pack_column(list(keys)))
        head = {"format": FORMAT, "version": VERSION, "card": asdict(card), "entry": asdict(entry)}
        write_sealed(root / MAPS, {**head, "keys": sha256(root / KEYS)})


class Labelled(Around):
    """A data set whose batches carry the label maps of their images."""

    def __init__(self, source: TokenSource | ImageSource, maps: LabelMaps, name: str) -> None:
        if maps.card.classes != source.classes:
            raise InputError(f"{name} has maps of other classes than the data", "annotate these images")
        if source.grid[0] != source.grid[1]:
            raise ConfigError("label maps cover squares, the data do not", "use images or codes of a square")
        if isinstance(source, TokenSource) and source.store.views > 1:
            raise ConfigError("label maps of several views of an image are not known", "use a store of one view")
        if isinstance(source, TokenSource) and source.frame == "squash":
            what = f"label maps cover the middle square of images, the codes of {name} squashed whole ones"
            raise ConfigError(what, "tokenize with --frame cover")
        keys = source.store.column("key") if isinstance(source, TokenSource) else source.folder.keys
        known = {key: number for number, key in enumerate(maps.keys)}
        missing = next((key for key in keys if key not in known), None)
        if missing is not None:
            raise InputError(f"{name} has no map of '{missing}'", "annotate these images")
        self.source, self.maps = source, maps
        self.numbers = np.array([known[key] for key in keys], np.int64)  # of each sample's map

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, index: np.ndarray) -> Batch:
        """Samples with their maps in column 'label_map'. index: (B,) int64."""
        batch = self.source.batch(index)
        return batch.changed(columns={**batch.columns, COLUMN: self.maps.take(self.numbers[index])})


def find_maps(data: Location, directory: str) -> LabelMaps:
    """Label maps of a directory, or of the store itself."""
    if directory:
        return LabelMaps.open(Path(directory))
    if is_store(data):
        return LabelMaps.of_store(Store(data))
    hint = "make them with 'tilework annotate', add --maps MAPS, or maps=MAPS to a row of a table"
    raise ConfigError(f"the objective needs label maps of {data}", hint)


column_kinds.add(COLUMN)(ColumnKind("maps", find_maps))
