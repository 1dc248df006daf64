"""CRC32C (Castagnoli), eight bytes at a time: by the processor's instruction, or by tables (Kounavis and Berry, 2005).

B records | G groups of records that share a checksum
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

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
def eight_bytes(crc: np.uint32, data: np.ndarray, at: np.uintp) -> np.uint32:
    """The checksum eight bytes further."""
    one = crc ^ (
        U32(data[at])
        | U32(data[at + np.uintp(1)]) << U32(8)
        | U32(data[at + np.uintp(2)]) << U32(16)
        | U32(data[at + np.uintp(3)]) << U32(24)
    )
    return (
        TABLES[7, one & BYTE]
        ^ TABLES[6, one >> U32(8) & BYTE]
        ^ TABLES[5, one >> U32(16) & BYTE]
        ^ TABLES[4, one >> U32(24)]
        ^ TABLES[3, data[at + np.uintp(4)]]
        ^ TABLES[2, data[at + np.uintp(5)]]
        ^ TABLES[1, data[at + np.uintp(6)]]
        ^ TABLES[0, data[at + np.uintp(7)]]
    )


def has_instruction() -> bool:
    """Whether code is compiled for this very processor, and that has the instruction of SSE 4.2."""
    described = config.CPU_NAME or config.CPU_FEATURES  # by environment variables: for another one
    return not described and bool(llvmlite.binding.get_host_cpu_features().get("sse4.2", False))


if has_instruction():

    @intrinsic
    def instruction(typing_context: Any, crc: Any, word: Any) -> Any:
        """crc32 of a processor with SSE 4.2. crc, word: uint64."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            wide = ir.IntType(64)
            form = ir.FunctionType(wide, [wide, wide])
            return builder.call(builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), form), arguments)

        return types.uint64(types.uint64, types.uint64), generate

    @jit
    def eight_bytes(crc: np.uint32, data: np.ndarray, at: np.uintp) -> np.uint32:
        """The checksum eight bytes further."""
        word = U64(0)
        for k in range(8):  # becomes one load
            word |= U64(data[at + np.uintp(k)]) << U64(8 * k)
        return U32(instruction(U64(crc), word))


@jit
def checksum(data: np.ndarray, start: int, size: int) -> int:
    """CRC32C of some bytes."""
    crc = U32(0xFFFFFFFF)
    at, end = np.uintp(start), np.uintp(start + size)
    while at + np.uintp(8) <= end:
        crc = eight_bytes(crc, data, at)
        at += np.uintp(8)
    while at < end:
        crc = crc >> U32(8) ^ TABLES[0, (crc ^ data[at]) & BYTE]
        at += np.uintp(1)
    return crc ^ U32(0xFFFFFFFF)


@jit
def checksums(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
    """CRC32C of every range of bytes. out: (B,) uint32."""
    for i in range(len(starts)):
        out[i] = checksum(data, starts[i], sizes[i])
    return -1


@jit
def check_records(data: np.ndarray, edges: np.ndarray, crcs: np.ndarray, group: int, local: np.ndarray) -> int:
    """Compare the groups that records are in with their CRC32C. edges: (G + 1,) of groups; crcs: (G,); local: (B,)."""
    last = -1
    for i in range(len(local)):
        k = local[i] // group
        if k != last and checksum(data, edges[k], edges[k + 1] - edges[k]) != crcs[k]:
            return i
        last = k
    return -1


@jit
def copy_records(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray, places: np.ndarray) -> int:
    """Records to their places in another array."""
    for i in range(len(starts)):
        start, size, place = starts[i], sizes[i], places[i]
        out[place : place + size] = data[start : start + size]
    return -1


def check() -> None:
    """Raise if this machine does not compile or compute as it should."""
    if checksum(np.frombuffer(b"123456789", np.uint8), 0, 9) != 0xE3069283:
        raise RuntimeError("a compiled kernel gave a wrong result")
