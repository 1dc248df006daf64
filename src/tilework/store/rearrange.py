"""Stores from other stores: merge, subset, split, re-encode. All columns are kept.

B images | V views | K codes of the tokenizer | C code dim
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tilework.core.errors import InputError
from tilework.core.location import Location
from tilework.core.rng import words
from tilework.store.columns import take_values
from tilework.store.reader import Store
from tilework.store.writer import StoreWriter


def gather(
    out: Path,
    picks: Sequence[tuple[Store, np.ndarray]],
    codec: str = "",
    columns: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    prefixes: Sequence[str] = (),
) -> None:
    """Write a store of selected images of other stores, in the given order.

    codec: as for StoreWriter; that of the stores if it is not given and they agree.
    columns: beside label and key; those of the first store if not given. prefixes: of the keys of each.
    """
    stores = [store for store, _ in picks]
    first = stores[0]
    for other in stores[1:]:
        _check_alike(first, other)
    classes = tuple(dict.fromkeys(name for store in stores for name in store.classes))
    used, codebook = _all_codes(stores)
    names = [c.name for c in first.manifest.columns] if columns is None else list(columns)
    extra = [name for name in names if name not in ("label", "key")]
    writer = StoreWriter(
        out,
        codebook,
        classes,
        codec=codec or (first.manifest.codec if len({s.manifest.codec for s in stores}) == 1 else "auto"),
        tokenizer=first.manifest.tokenizer,
        preprocessing=_joined([store.manifest.preprocessing for store in stores]),
        frame=first.manifest.frame,
        licence=_joined([store.manifest.licence for store in stores]),
        used=used,
        views=first.views,
        synonyms=_all_synonyms(stores, len(codebook)),
        original_bytes=_original_bytes(picks),
    )
    total, done = sum(len(index) for _, index in picks), 0
    with writer:
        for place, (store, index) in enumerate(picks):
            number = np.array([classes.index(name) for name in store.classes])
            labels, keys = number[store.column("label")], np.array(store.column("key"), object)
            if prefixes:
                keys = np.array([prefixes[place] + key for key in keys], object)
            values = {name: store.column(name) for name in extra}
            for start in range(0, len(index), store.together):
                part = index[start : start + store.together]
                taken = {name: take_values(column, part) for name, column in values.items()}
                writer.add(store.used[_codes(store, part)], labels[part], keys[part].tolist(), **taken)
                done += len(part)
                progress(done, total)


def _original_bytes(picks: Sequence[tuple[Store, np.ndarray]]) -> int:
    """Of the image files, where stores are taken whole and all know it; else 0."""
    known = [store.manifest.original_bytes if len(index) == len(store) else 0 for store, index in picks]
    return sum(known) if all(known) else 0


def merge(
    out: Path,
    stores: Sequence[Store],
    codec: str = "",
    columns: Sequence[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    prefixes: Sequence[str] = (),
) -> None:
    """All images of several stores of one tokenizer; classes are matched by name.

    prefixes: of the keys of each store, where the same key stands for different images.
    """
    for other in stores[1:]:
        _check_alike(stores[0], other)
    if prefixes and (len(prefixes) != len(stores) or len(set(prefixes)) < len(prefixes)):
        raise InputError(f"{len(prefixes)} prefixes for {len(stores)} stores", "give each a different one")
    seen: dict[str, Location] = {}
    for number, store in enumerate(stores):
        for key in store.column("key"):
            key = f"{prefixes[number]}{key}" if prefixes else key
            if key in seen:
                raise InputError(
                    f"'{key}' is in {seen[key]} and in {store.path}",
                    "keys must be unique: add --prefix, or leave images out with 'tilework subset'",
                )
            seen[key] = store.path
    gather(out, [(store, np.arange(len(store))) for store in stores], codec, columns, progress, prefixes)


def random_rank(count: int, seed: int) -> np.ndarray:
    """A random rank of each of `count` images, a function of the seed. Returns (count,) int64."""
    high, low = words(seed, 0, np.arange(count), "subset", 2).T
    return (high << 31) ^ low


def pick_fraction(store: Store, fraction: float, seed: int = 0, score: str = "") -> np.ndarray:
    """Sorted indices of a share of each class, at least one image: random, or with the highest score."""
    if not 0 < fraction <= 1:
        raise InputError(f"fraction {fraction} is out of range", "give a number above 0 and at most 1")
    if score:
        rank = -np.asarray(store.column(score), np.float64)
        if rank.shape != (len(store),):
            raise InputError(f"column '{score}' has shape {rank.shape}", "one number per image is needed")
    else:
        rank = random_rank(len(store), seed)
    return first_of_each(store.column("label"), rank, fraction)


def first_of_each(labels: np.ndarray, rank: np.ndarray, fraction: float) -> np.ndarray:
    """Sorted indices of the share of each class with the lowest rank, at least one. labels, rank: (N,)."""
    chosen = []
    for label in np.unique(labels):
        index = np.flatnonzero(labels == label)
        best = index[np.argsort(rank[index], kind="stable")]
        chosen.append(best[: max(1, round(fraction * len(index)))])
    return np.sort(np.concatenate(chosen))


def pick_keys(store: Store, keys: Sequence[str]) -> np.ndarray:
    """Indices of images by key, in the order of the store."""
    number = {key: i for i, key in enumerate(store.column("key"))}
    if unknown := next((key for key in keys if key not in number), None):
        raise InputError(f"{store.path} has no image '{unknown}'", "check the list of keys")
    return np.unique(np.array([number[key] for key in keys], np.int64))


def _codes(store: Store, index: np.ndarray) -> np.ndarray:
    """All views of some images. Returns (B, H, W), or (B, V, H, W) with several."""
    views = [store.batch(index, view) for view in range(store.views)]
    return views[0] if len(views) == 1 else np.stack(views, 1)


def _check_alike(first: Store, other: Store) -> None:
    a, b = first.manifest, other.manifest
    same = a.tokenizer.get("sha256") == b.tokenizer.get("sha256") and a.tokenizer_codes == b.tokenizer_codes
    if not same:  # first: other grids follow from it
        raise InputError(f"{other.path} was made with another tokenizer than {first.path}", "tokenize it again")
    alike = (("grid", a.grid, b.grid), ("number of views", a.views, b.views), ("frame", a.frame, b.frame))
    for what, mine, yours in alike:
        if mine != yours:
            raise InputError(f"{other.path} has another {what} than {first.path}", f"{yours} and {mine}")
    _, here, there = np.intersect1d(first.used, other.used, return_indices=True)
    if not np.array_equal(first.codebook.vectors[here], other.codebook.vectors[there]):
        raise InputError(f"{other.path} has other code vectors than {first.path}", "tokenize it again")


def _all_codes(stores: Sequence[Store]) -> tuple[np.ndarray, np.ndarray]:
    """Union of the stores' used codes, (K',), and a codebook of the tokenizer's size with their vectors, (K, C)."""
    codes = max(stores[0].manifest.tokenizer_codes, *(int(store.used.max()) + 1 for store in stores))
    table = np.zeros((codes, stores[0].codebook.code_dim), np.float32)
    for store in stores:
        table[store.used] = store.codebook.vectors
    return np.unique(np.concatenate([store.used for store in stores])), table


def _all_synonyms(stores: Sequence[Store], codes: int) -> np.ndarray | None:
    """Synonyms in the tokenizer's numbers, (K, n), by the first store that has a code; None where a store has none."""
    books = [store.codebook for store in stores]
    given = [book.synonyms for book in books if book.synonyms is not None]
    if len(given) < len(books):
        return None
    count = min(synonyms.shape[1] for synonyms in given)
    table = np.tile((np.arange(codes, dtype=np.int32)[:, None] + 1) % codes, (1, count))  # of codes that none has
    for book, synonyms in reversed(list(zip(books, given, strict=True))):
        table[book.used] = book.used[synonyms[:, :count]]
    return table


def _joined(texts: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))
