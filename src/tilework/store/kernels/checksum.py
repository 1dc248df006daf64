"""CRC32C (Castagnoli), eight bytes at a time by eight tables (Kounavis and Berry, 2005).

B records
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit

POLYNOMIAL = 0x82F63B78  # reflected
U32, U64 = np.uint32, np.uint64


def _tables() -> np.ndarray:
    """What the byte at distance 0..7 from the end of a block does to the checksum, (8, 256)."""
    tables = np.zeros((8, 256), np.uint32)
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ np.uint32(POLYNOMIAL), crc >> 1).astype(np.uint32)
    tables[0] = crc
    for number in range(1, 8):
        before = tables[number - 1]
        tables[number] = before >> 8 ^ crc[before & 255]
    return tables


TABLES = _tables()
BYTE = U32(255)


@jit
def checksum(data: np.ndarray, start: int, size: int) -> int:
    """CRC32C of some bytes."""
    crc = U32(0xFFFFFFFF)
    at, end = np.uintp(start), np.uintp(start + size)
    while at + np.uintp(8) <= end:
        one = crc ^ (
            U32(data[at])
            | U32(data[at + np.uintp(1)]) << U32(8)
            | U32(data[at + np.uintp(2)]) << U32(16)
            | U32(data[at + np.uintp(3)]) << U32(24)
        )
        crc = (
            TABLES[7, one & BYTE]
            ^ TABLES[6, one >> U32(8) & BYTE]
            ^ TABLES[5, one >> U32(16) & BYTE]
            ^ TABLES[4, one >> U32(24)]
            ^ TABLES[3, data[at + np.uintp(4)]]
            ^ TABLES[2, data[at + np.uintp(5)]]
            ^ TABLES[1, data[at + np.uintp(6)]]
            ^ TABLES[0, data[at + np.uintp(7)]]
        )
        at += np.uintp(8)
    while at < end:
        crc = crc >> U32(8) ^ TABLES[0, (crc ^ data[at]) & BYTE]
        at += np.uintp(1)
    return crc ^ U32(0xFFFFFFFF)


@jit
def checksums(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
    """CRC32C of every record. out: (B,) uint32."""
    for i in range(len(starts)):
        out[i] = checksum(data, starts[i], sizes[i])
    return -1


@jit
def copy_records(
    data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, crcs: np.ndarray, out: np.ndarray, places: np.ndarray
) -> int:
    """Records to their places in another array, each compared with its CRC32C."""
    for i in range(len(starts)):
        start, size, place = starts[i], sizes[i], places[i]
        out[place : place + size] = data[start : start + size]
        if checksum(out, place, size) != crcs[i]:
            return i
    return -1


def check() -> None:
    """Raise if this machine does not compile or compute as it should."""
    if checksum(np.frombuffer(b"123456789", np.uint8), 0, 9) != 0xE3069283:
        raise RuntimeError("a compiled kernel gave a wrong result")
