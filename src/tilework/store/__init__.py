"""Token stores: a directory of checksummed shards with a manifest. numpy only, usable without torch."""

from tilework.store.codec import Codec, codecs
from tilework.store.packed import Packed
from tilework.store.reader import Store
from tilework.store.writer import StoreWriter

__all__ = ["Codec", "Packed", "Store", "StoreWriter", "codecs"]
