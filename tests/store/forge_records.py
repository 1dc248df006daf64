"""Forged tables and records through every codec; run with NUMBA_BOUNDSCHECK=1, where an index outside raises.

python tests/store/forge_records.py COUNT [SEED]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from tilework.core.errors import DamageError
from tilework.store import codecs
from tilework.store.codec import Codec

TOGETHER = 50  # forged records of one table


def forged_codec(name: str, rng: np.random.Generator) -> tuple[Codec, np.ndarray] | None:
    """A codec whose tables were tampered with and still loaded, and codes of its vocabulary."""
    vocabulary = int(rng.integers(1, 40))
    rows, columns = (int(n) for n in rng.integers(1, 7, 2))
    ids = rng.integers(0, vocabulary, (6, rows * columns))
    tables = {key: table.copy() for key, table in codecs[name].fit(ids, vocabulary, columns).tables().items()}
    for table in tables.values():
        if rng.random() < 0.5 and table.size:
            flat = table.reshape(-1).view(np.uint8)
            flat[rng.integers(flat.size)] = rng.integers(256) if rng.random() < 0.5 else flat[rng.integers(flat.size)]
    try:
        return codecs[name].load(tables, rows * columns, vocabulary, columns), ids
    except DamageError:
        return None


def forgeries(name: str, rng: np.random.Generator) -> Iterator[None]:
    """Decode forged records; one item for each."""
    found = forged_codec(name, rng)
    if found is None:
        return
    codec, ids = found
    records, lengths = codec.encode(ids)
    for _ in range(TOGETHER):
        data = np.frombuffer(records, np.uint8).copy()
        sizes = lengths.copy()
        kind = rng.integers(4)
        if kind == 0:
            data[:] = rng.integers(0, 256, len(data), np.uint8)
        elif kind == 1:
            data[rng.integers(len(data))] ^= np.uint8(1 << rng.integers(8))
        elif kind == 2:
            data[:] = rng.choice([0, 255])
        else:
            sizes = np.maximum(0, sizes + 2 * rng.integers(-3, 4, len(sizes)))
        starts = np.cumsum(sizes) - sizes
        try:
            out = codec.decode(data, starts, sizes)
            assert 0 <= out.min() <= out.max() < 40
        except DamageError:
            pass
        yield


def main() -> None:
    """Forge until there are enough."""
    count, rng = int(sys.argv[1]), np.random.default_rng(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    names = list(codecs)
    done = turn = 0
    while done < count:
        done += sum(1 for _ in forgeries(names[turn % len(names)], rng))
        turn += 1
    print(f"{count} forged")


if __name__ == "__main__":
    main()
