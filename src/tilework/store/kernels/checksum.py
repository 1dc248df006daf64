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
def finish(crc: np.uint32, data: np.ndarray, at: np.uintp, end: np.uintp) -> int:
    """The checksum of a range from where it was taken to, `at`."""
    while at + np.uintp(8) <= end:
        crc = eight_bytes(crc, data, at)
        at += np.uintp(8)
    while at < end:
        crc = crc >> U32(8) ^ TABLES[0, (crc ^ data[at]) & BYTE]
        at += np.uintp(1)
    return crc ^ U32(0xFFFFFFFF)


@jit
def checksum(data: np.ndarray, start: int, size: int) -> int:
    """CRC32C of some bytes."""
    return finish(U32(0xFFFFFFFF), data, np.uintp(start), np.uintp(start + size))


@jit
def group_bounds(bounds: np.ndarray, group: int, number: int) -> tuple[np.uintp, np.uintp]:
    """Where a group of records begins and ends. bounds: (N + 1,); group: records of each but the last."""
    return np.uintp(bounds[number * group]), np.uintp(bounds[min((number + 1) * group, len(bounds) - 1)])


@jit
def groups_differ(
    data: np.ndarray, bounds: np.ndarray, crcs: np.ndarray, group: int, groups: np.ndarray, count: int
) -> bool:
    """Whether any of the first `count` groups differs from its checksum; four at a time: none waits for its last step.

    bounds: (N + 1,); crcs: (G,); group: records of each; groups: numbers of some.
    """
    for i in range(0, count, 4):
        g0, g1 = groups[i], groups[min(i + 1, count - 1)]  # the last one fills up
        g2, g3 = groups[min(i + 2, count - 1)], groups[min(i + 3, count - 1)]
        a0, e0 = group_bounds(bounds, group, g0)
        a1, e1 = group_bounds(bounds, group, g1)
        a2, e2 = group_bounds(bounds, group, g2)
        a3, e3 = group_bounds(bounds, group, g3)
        c0 = c1 = c2 = c3 = U32(0xFFFFFFFF)
        for _ in range(min(min(e0 - a0, e1 - a1), min(e2 - a2, e3 - a3)) >> np.uintp(3)):
            c0, c1 = eight_bytes(c0, data, a0), eight_bytes(c1, data, a1)
            c2, c3 = eight_bytes(c2, data, a2), eight_bytes(c3, data, a3)
            a0, a1, a2, a3 = a0 + np.uintp(8), a1 + np.uintp(8), a2 + np.uintp(8), a3 + np.uintp(8)
        c0, c1 = finish(c0, data, a0, e0), finish(c1, data, a1, e1)
        c2, c3 = finish(c2, data, a2, e2), finish(c3, data, a3, e3)
        if c0 != crcs[g0] or c1 != crcs[g1] or c2 != crcs[g2] or c3 != crcs[g3]:
            return True
    return False


@jit
def checksums(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
    """CRC32C of every range of bytes. out: (B,) uint32."""
    for i in range(len(starts)):
        out[i] = checksum(data, starts[i], sizes[i])
    return -1


@jit
def find_records(
    data: np.ndarray, bounds: np.ndarray, crcs: np.ndarray, group: int,
    local: np.ndarray, found_starts: np.ndarray, found_sizes: np.ndarray,
) -> int:  # fmt: skip
    """Where records lie, their groups compared with their CRC32C: 0 if one differs, else -1.

    bounds: where records begin, and the end of the last, (N + 1,); crcs: (G,) of groups of so many records;
    local, found_starts, found_sizes: (B,).
    """
    groups, count, last = np.empty(len(local), np.int64), 0, -1
    for i in range(len(local)):
        k = local[i]
        found_starts[i], found_sizes[i] = bounds[k], np.int64(bounds[k + 1]) - np.int64(bounds[k])
        if k // group != last:
            last = k // group
            groups[count] = last
            count += 1
    return 0 if groups_differ(data, bounds, crcs, group, groups, count) else -1


@jit
def records_end(starts: np.ndarray, sizes: np.ndarray) -> int:
    """Where the last of some records ends; -1 if one begins before 0 or has a negative size. starts, sizes: (B,)."""
    last = 0
    for i in range(len(starts)):
        if starts[i] < 0 or sizes[i] < 0 or starts[i] > 1 << 62:
            return -1
        last = max(last, starts[i] + sizes[i])
    return last


@jit
def copy_records(
    data: np.ndarray, bounds: np.ndarray, crcs: np.ndarray, group: int,
    local: np.ndarray, out: np.ndarray, at: int, starts: np.ndarray, sizes: np.ndarray,
) -> int:  # fmt: skip
    """Records to another array, from `at` on, and their starts there; checked as by `find_records`."""
    if find_records(data, bounds, crcs, group, local, starts, sizes) >= 0:
        return 0
    for i in range(len(local)):
        start, size = starts[i], sizes[i]
        out[at : at + size] = data[start : start + size]
        starts[i] = at
        at += size
    return -1


def check() -> None:
    """Raise if this machine does not compile or compute as it should."""
    if checksum(np.frombuffer(b"123456789", np.uint8), 0, 9) != 0xE3069283:
        raise RuntimeError("a compiled kernel gave a wrong result")
