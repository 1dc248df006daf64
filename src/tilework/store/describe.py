"""What there is to tell of a store: sizes, classes, code statistics, origin."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilework.core.location import Url
from tilework.store.reader import Store


@dataclass(frozen=True)
class Description:
    """Figures of a store; those that need every shard are taken when they are asked for."""

    store: Store

    @cached_property
    def balance(self) -> np.ndarray:
        """Images of each class, (K,)."""
        labels = np.asarray(self.store.column("label"))
        return np.bincount(labels, minlength=len(self.store.classes))

    @property
    def has_masks(self) -> bool:
        """Whether its classes are those of pixels."""
        return "mask" in (column.name for column in self.store.manifest.columns)

    @cached_property
    def histogram(self) -> np.ndarray:
        """How often each code occurs, (K,)."""
        return self.store.histogram()

    @cached_property
    def codes(self) -> dict[str, float]:
        """Statistics of codes; empty for a URL, whose shards are not fetched for them."""
        if isinstance(self.store.path, Url):
            return {}
        counts = self.histogram
        p = counts[counts > 0] / counts.sum()
        bits = float(-(p * np.log2(p)).sum())
        return {
            "codes_used": int((counts > 0).sum()),
            "entropy_bits_per_token": bits,
            "entropy_bytes_per_image": bits * self.store.manifest.length / 8,
        }

    @property
    def bytes_per_image(self) -> float:
        """Of everything, codebook, labels and names included."""
        return sum(self.store.sizes.values()) / len(self.store)

    def values(self) -> dict[str, object]:
        """Everything, by name."""
        store, manifest = self.store, self.store.manifest
        columns = manifest.columns
        original = manifest.original_bytes / len(store)
        known = {"original_bytes_per_image": original, "times_smaller": original / self.bytes_per_image}
        return {
            "store": str(store.path),
            "images": len(store),
            "grid": list(store.grid),
            "codes": store.vocabulary,
            "tokenizer_codes": manifest.tokenizer_codes,
            "views": store.views,
            "columns": {column.name: column.kind for column in columns},
            "codec": manifest.codec,
            "bytes": sum(store.sizes.values()),
            "bytes_per_image": self.bytes_per_image,
            **(known if manifest.original_bytes else {}),
            "parts": store.sizes,
            "column_bytes_per_image": {c.name: store.column_bytes(c.name) / len(store) for c in columns},
            **self.codes,
            "classes": len(store.classes),
            "images_per_class": {n: int(c) for n, c in zip(store.classes, self.balance, strict=True)},
            "tokenizer": manifest.tokenizer,
            "preprocessing": manifest.preprocessing,
            "frame": manifest.frame,
            "licence": manifest.licence or "not stated",
            "software": manifest.software,
        }
