"""Compiled kernels of the token input. Imports numba: only `core.compiled` imports this package.

Kernels return the number of a sample with a code that is not in the table, or -1.
"""

import numba

from tilework.augment.kernels.crop import check, crop, outside
from tilework.augment.kernels.edits import edit, squares
from tilework.augment.kernels.maps import mix

version = numba.__version__
