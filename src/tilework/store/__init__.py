"""Token stores: a directory of checksummed shards with a manifest. numpy only, usable without torch."""

from tilework.store.choose import choose_codec
from tilework.store.codec import Codec, codecs
from tilework.store.mix import Mix
from tilework.store.packed import Packed
from tilework.store.pairwise import Pairwise
from tilework.store.rans import Rans
from tilework.store.rans_context import RansContext
from tilework.store.rans_stack import RansStack
from tilework.store.reader import Store
from tilework.store.rearrange import gather, merge, pick_fraction, pick_keys
from tilework.store.seal import seal
from tilework.store.spool import Plan, Spool, spool_of
from tilework.store.writer import StoreWriter

__all__ = [
    "Codec",
    "Mix",
    "Packed",
    "Pairwise",
    "Plan",
    "Rans",
    "RansContext",
    "RansStack",
    "Spool",
    "Store",
    "StoreWriter",
    "choose_codec",
    "codecs",
    "gather",
    "merge",
    "pick_fraction",
    "pick_keys",
    "seal",
    "spool_of",
]
