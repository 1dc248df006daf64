"""Compiled kernels of corruptions. Imports numba: only `core.compiled` imports this package."""

import numba

from tilework.evaluation.kernels.displace import check, displace
from tilework.evaluation.kernels.edges import distance, join

version = numba.__version__
