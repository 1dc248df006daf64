"""Compiled kernels of the random numbers. Imports numba: only `core.compiled` imports this package."""

import numba

from tilework.core.kernels.dense import add_channel_noise, uniforms
from tilework.core.kernels.philox import check, draw

version = numba.__version__
