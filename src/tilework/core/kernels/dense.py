"""Dense random numbers of samples: xoshiro128++ (Blackman and Vigna, 2021) in lanes, normals by Box and Muller (1958).

Each sample has a generator of its own in 64 lanes, whose states are blocks of Philox, keyed by a seed and numbered by
sample and lane. Logarithm, sine and cosine are polynomials, so that sixteen numbers are made at a time.

B samples | N numbers of a sample | P positions | C channels
"""

from __future__ import annotations

import numpy as np

from tilework.core.compiled import jit
from tilework.core.kernels.philox import block

U32, U64, F32 = np.uint32, np.uint64, np.float32
LANES = 64
PART = 512  # words made at a time; a multiple of the lanes


@jit
def start(seed: np.ndarray, number: int, state: np.ndarray) -> None:
    """seed: two words, int64; number: of the sample; state: (4, LANES) uint32."""
    for lane in range(LANES):
        c0, c1, c2, c3 = block(U64(number), U64(lane), U64(0), U64(0), U64(seed[0]), U64(seed[1]))
        state[0, lane], state[1, lane], state[2, lane], state[3, lane] = c0, c1, c2, c3


@jit
def words(state: np.ndarray, out: np.ndarray) -> None:
    """The next words of all lanes, in turns. out: (PART,) uint32."""
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    for at in range(0, PART, LANES):
        part = out[at : at + LANES]
        for k in range(LANES):
            a, b, c, d = s0[k], s1[k], s2[k], s3[k]
            total, moved = U32(a + d), b << U32(9)  # numba adds in 64 bits
            part[k] = (total << U32(7) | total >> U32(25)) + a
            c ^= a
            d ^= b
            s1[k], s0[k], s2[k] = b ^ c, a ^ d, c ^ moved
            s3[k] = d << U32(11) | d >> U32(21)


@jit
def box_muller(first: np.ndarray, second: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Two independent normals of two words: x = r cos a, y = r sin a, r = sqrt(-2 ln u). All (PART,)."""
    for i in range(PART):
        x[i] = F32(first[i] >> U32(8)) * F32(2**-24) + F32(2**-25)  # u, in (0, 1)
    bits = x.view(np.uint32)
    for i in range(PART):  # u = 2^y x, x in [1, 2)
        y[i] = F32(np.int32(bits[i] >> U32(23)) - 127)
        bits[i] = bits[i] & U32(0x7FFFFF) | U32(0x3F800000)
    for i in range(PART):
        large = x[i] > F32(2**0.5)
        f = (x[i] * F32(0.5) if large else x[i]) - F32(1)
        e = y[i] + F32(1) if large else y[i]
        # ln(1 + f) = f - f^2 / 2 + f^3 p(f): coefficients of Cephes' logf
        p = F32(7.0376836292e-2)
        p = p * f - F32(1.1514610310e-1)
        p = p * f + F32(1.1676998740e-1)
        p = p * f - F32(1.2420140846e-1)
        p = p * f + F32(1.4249322787e-1)
        p = p * f - F32(1.6668057665e-1)
        p = p * f + F32(2.0000714765e-1)
        p = p * f - F32(2.4999993993e-1)
        p = p * f + F32(3.3333331174e-1)
        radius = np.sqrt(F32(-2) * (f * f * f * p - F32(0.5) * f * f + f + e * F32(0.69314718056)))
        half = F32(np.int32(second[i])) * F32(np.pi / 2 * 2**-31)  # of the angle, in [-pi / 2, pi / 2)
        q = half * half
        sine = F32(2.7557319e-6) - q * F32(2.5052108e-8)
        sine = q * (q * (q * sine - F32(1.9841270e-4)) + F32(8.3333333e-3)) - F32(1.6666667e-1)
        sine = half + half * q * sine
        cosine = F32(2.4801587e-5) - q * F32(2.7557319e-7)
        cosine = q * (q * (q * cosine - F32(1.3888889e-3)) + F32(4.1666667e-2)) - F32(0.5)
        cosine = F32(1) + q * cosine
        x[i] = radius * (F32(1) - F32(2) * sine * sine)
        y[i] = radius * (F32(2) * sine * cosine)


@jit
def draw_normals(state: np.ndarray, drawn: np.ndarray, made: np.ndarray) -> None:
    """The next standard normals. drawn: (2, PART) uint32, overwritten; made: (2, PART) float32."""
    words(state, drawn[0])
    words(state, drawn[1])
    box_muller(drawn[0], drawn[1], made[0], made[1])


@jit
def uniforms(numbers: np.ndarray, wanted: np.ndarray, out: np.ndarray, seed: np.ndarray) -> int:
    """Uniforms in [0, 1) of 24 bits for the samples wanted, ones for the others. numbers: (B,); out: (B, N)."""
    state, drawn = np.empty((4, LANES), np.uint32), np.empty(PART, np.uint32)
    count = out.shape[1]
    for i in range(len(out)):
        row = out[i]
        if not wanted[i]:
            row[:] = 1
            continue
        start(seed, numbers[i], state)
        for at in range(0, count, PART):
            words(state, drawn)
            part = row[at : at + PART]
            for k in range(len(part)):
                part[k] = F32(drawn[k] >> U32(8)) * F32(2**-24)
    return -1


@jit
def add_channel_noise(x: np.ndarray, numbers: np.ndarray, scale: np.ndarray, out: np.ndarray, seed: np.ndarray) -> int:
    """x + scale (n_c + n): a normal for each channel and one for each element. A scale of 0 draws nothing.

    x, out: (B, P, C) float32; numbers: (B,) of the samples, which key the numbers; scale: (B,) float32.
    """
    state, drawn = np.empty((4, LANES), np.uint32), np.empty((2, PART), np.uint32)
    made = np.empty((2, PART), np.float32)
    count, channels = out.shape[0], out.shape[2]
    common = np.empty(PART + channels, np.float32)  # n_c again and again
    for i in range(count):
        row, to, times = x[i].reshape(-1), out[i].reshape(-1), scale[i]
        if times == 0:
            for k in range(len(row)):
                to[k] = row[k]
            continue
        start(seed, numbers[i], state)
        for at in range(0, channels, PART):
            draw_normals(state, drawn, made)
            for k in range(min(PART, channels - at)):
                common[at + k] = made[0, k] * times
        for k in range(channels, len(common)):
            common[k] = common[k - channels]
        for at in range(0, len(row), 2 * PART):
            draw_normals(state, drawn, made)
            for half in range(2):
                first = at + half * PART
                some, given, new = to[first : first + PART], row[first : first + PART], made[half]
                shared = common[first % channels :]
                for k in range(len(some)):
                    some[k] = given[k] + (new[k] * times + shared[k])
    return -1
