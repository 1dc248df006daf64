"""Label maps that are being made: records in the order of the images, so that a stopped annotation goes on.

SPOOL/annotation.json says of what; SPOOL/records has for each image a length, a checksum and its record: M and the map,
or B and the reason why it cannot be read.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilework.core.config import Plain
from tilework.core.errors import DamageError, OutputError
from tilework.core.files import crc32c, make_directory, write_json
from tilework.data.image_files import Broken

HEAD = struct.Struct("<II")  # bytes of a record, and their CRC32C
SETTINGS, RECORDS = "annotation.json", "records"
Record = bytes | Broken  # a map, or why there is none


@dataclass(frozen=True)
class MapSpool:
    """A directory beside the output, removed when that is there."""

    path: Path

    @staticmethod
    def open(path: Path, settings: Plain) -> MapSpool:
        """A new one, or that of a command that was stopped; refuses one with other settings."""
        if (path / SETTINGS).is_file():
            try:
                known = json.loads((path / SETTINGS).read_bytes())
            except ValueError as error:
                raise DamageError(f"{path / SETTINGS} is not JSON", f"remove {path}") from error
            if known != json.loads(json.dumps(settings)):
                raise OutputError(
                    f"{path} holds an annotation by another model, of other images or with other settings",
                    "repeat that command, or remove it",
                )
        else:
            make_directory(path)
            write_json(path / SETTINGS, settings)
        return MapSpool(path)

    def count(self) -> int:
        """Images that are done; what a kill has cut short is removed."""
        done, end = 0, 0
        for payload in self._payloads():
            done, end = done + 1, end + HEAD.size + len(payload)
        file = self.path / RECORDS
        if file.is_file() and file.stat().st_size > end:
            os.truncate(file, end)
        return done

    def add(self, records: Sequence[Record]) -> None:
        """Append records of the next images."""
        whole = b""
        for record in records:
            reason = json.dumps([record.path, record.reason]).encode() if isinstance(record, Broken) else b""
            payload = b"M" + record if isinstance(record, bytes) else b"B" + reason
            whole += HEAD.pack(len(payload), crc32c(payload)) + payload
        try:
            with (self.path / RECORDS).open("ab") as file:
                file.write(whole)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}", str(error)) from error

    def __iter__(self) -> Iterator[Record]:
        for payload in self._payloads():
            yield payload[1:] if payload[:1] == b"M" else Broken(*map(str, json.loads(payload[1:])))

    def _payloads(self) -> Iterator[bytes]:
        """Whole records up to the first that is cut short or damaged."""
        file = self.path / RECORDS
        if not file.is_file():
            return
        left = file.stat().st_size
        with file.open("rb") as stream:
            while left >= HEAD.size:
                size, check = HEAD.unpack(stream.read(HEAD.size))
                left -= HEAD.size + size
                if left < 0:
                    return
                payload = stream.read(size)
                if crc32c(payload) != check:
                    return
                yield payload

    def remove(self) -> None:
        """Clear up."""
        shutil.rmtree(self.path, ignore_errors=True)
