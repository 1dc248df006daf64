"""Compiled kernels of corruptions. Imports numba: only `core.compiled` imports this package."""

import numba

from tilework.evaluation.kernels.displace import check, displace

version = numba.__version__
