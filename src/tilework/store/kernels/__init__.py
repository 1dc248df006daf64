"""Compiled kernels of the store. Imports numba: only `core.compiled` imports this package.

Kernels take arrays whose sizes their callers have checked, and check themselves what only the data say. A kernel that
reads records returns the number of one that is damaged, or -1.
"""

import numba

from tilework.store.kernels.checksum import check, checksum, checksums, copy_records, find_records, records_end
from tilework.store.kernels.context import decode_context
from tilework.store.kernels.learn import gather_rows, learn_tree, scatter_rows
from tilework.store.kernels.mix import code_mix, decode_mix
from tilework.store.kernels.packed import decode_packed, encode_packed
from tilework.store.kernels.pairwise import code_pairwise, decode_pairwise
from tilework.store.kernels.stack import decode_stack
from tilework.store.kernels.streams import decode_static, encode_streams

version = numba.__version__
