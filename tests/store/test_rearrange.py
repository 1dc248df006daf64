"""Stores made of stores: nothing is lost, codes and classes of different cuts meet again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilework.core.errors import InputError, OutputError
from tilework.store import Store, StoreWriter, gather, merge, pick_fraction, pick_keys

CODEBOOK = np.random.default_rng(3).normal(size=(20, 4)).astype(np.float32)
TOKENIZER = {"name": "t", "sha256": "ab"}


def make(path: Path, codes: range, classes: tuple[str, ...], prefix: str, count: int = 12, **settings: object) -> Store:
    """A store that uses only some codes, with a column of every kind."""
    rng = np.random.default_rng(len(prefix) + codes.start)
    views = int(settings.get("views", 1))  # type: ignore[call-overload]
    shape = (count, views, 3, 2) if views > 1 else (count, 3, 2)
    fields = {"tokenizer": TOKENIZER, "cut": True, "codec": "packed", "shard_images": 5, **settings}
    with StoreWriter(path, CODEBOOK, classes, **fields) as writer:  # type: ignore[arg-type]
        writer.add(
            rng.choice(list(codes), shape),
            np.arange(count) % len(classes),
            [f"{prefix}{i}" for i in range(count)],
            score=rng.random(count),
            note=[f"note {prefix}{i}" for i in range(count)],
            blob=[bytes([i] * i) for i in range(count)],
            boxes=[np.full((i % 3, 4), i, np.float32) for i in range(count)],
        )
    return Store(path)


def original(store: Store, index: np.ndarray | None = None, view: int = 0) -> np.ndarray:
    """Codes as the tokenizer numbers them."""
    return store.used[store.batch(np.arange(len(store)) if index is None else index, view)]


def assert_columns(store: Store, index: np.ndarray, of: Store) -> None:
    for name in ("score", "note", "blob", "boxes", "key"):
        found, expected = store.column(name), of.column(name)
        for row, i in enumerate(index.tolist()):
            assert np.array_equal(found[row], expected[i])


def test_merge_unites_codes_and_classes(tmp_path: Path) -> None:
    a = make(tmp_path / "a.tok", range(0, 9), ("ant", "bee"), "a")
    b = make(tmp_path / "b.tok", range(6, 15), ("bee", "cat"), "b", licence="CC0", codec="rans")
    merge(tmp_path / "c.tok", [a, b])
    c = Store(tmp_path / "c.tok")
    assert np.array_equal(original(c), np.concatenate([original(a), original(b)]))
    assert np.array_equal(c.codebook.vectors, CODEBOOK[c.used])
    assert c.classes == ("ant", "bee", "cat")
    named = [c.classes[i] for i in c.column("label")]
    assert named == [s.classes[i] for s in (a, b) for i in s.column("label")]
    assert c.manifest.licence == "CC0"
    assert c.verify(deep=True) == []
    assert list(c.column("note")) == a.column("note") + b.column("note")
    assert c.column("blob")[:] == a.column("blob")[:] + b.column("blob")[:]


def test_merge_of_the_same_keys_or_of_strangers_is_refused(tmp_path: Path) -> None:
    a = make(tmp_path / "a.tok", range(9), ("ant",), "a")
    with pytest.raises(InputError, match="'a0' is in"):
        merge(tmp_path / "c.tok", [a, a])
    other = make(tmp_path / "o.tok", range(9), ("ant",), "o", tokenizer={"name": "u", "sha256": "cd"})
    with pytest.raises(InputError, match="another tokenizer"):
        merge(tmp_path / "c.tok", [a, other])
    views = make(tmp_path / "v.tok", range(9), ("ant",), "v", views=2)
    with pytest.raises(InputError, match="another number of views"):
        merge(tmp_path / "c.tok", [a, views])
    lacking = tmp_path / "l.tok"
    with StoreWriter(lacking, CODEBOOK, ["ant"], tokenizer=TOKENIZER) as writer:
        writer.add(np.zeros((2, 3, 2), int), [0, 0], ["x", "y"])
    with pytest.raises(InputError, match="no column 'blob'"):
        merge(tmp_path / "c.tok", [a, Store(lacking)])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tok", "l.tok", "o.tok", "v.tok"]
    merge(tmp_path / "c.tok", [a, Store(lacking)], columns=["label", "key"])
    assert len(Store(tmp_path / "c.tok")) == 14


@pytest.mark.parametrize("codec", ["packed", "rans", "rans-context", "pairwise", "auto"])
def test_another_codec_changes_nothing_else(tmp_path: Path, codec: str) -> None:
    a = make(tmp_path / "a.tok", range(2, 11), ("ant", "bee"), "a", views=2)
    gather(tmp_path / "b.tok", [(a, np.arange(len(a)))], codec)
    b = Store(tmp_path / "b.tok")
    assert codec in (b.manifest.codec, "auto")
    for view in (0, 1):
        assert np.array_equal(b.batch(np.arange(12), view), a.batch(np.arange(12), view))
    assert np.array_equal(b.used, a.used)
    assert np.array_equal(b.codebook.vectors, a.codebook.vectors)
    assert_columns(b, np.arange(12), a)


def test_fraction_takes_a_share_of_each_class(tmp_path: Path) -> None:
    a = make(tmp_path / "a.tok", range(9), ("ant", "bee", "cat"), "a", count=60)
    index = pick_fraction(a, 0.25, seed=1)
    assert np.bincount(a.column("label")[index]).tolist() == [5, 5, 5]
    assert not np.array_equal(index, pick_fraction(a, 0.25, seed=2))
    assert np.array_equal(index, pick_fraction(a, 0.25, seed=1))
    gather(tmp_path / "b.tok", [(a, index)])
    b = Store(tmp_path / "b.tok")
    assert np.array_equal(original(b), original(a, index))
    assert_columns(b, index, a)
    assert len(pick_fraction(a, 0.001)) == 3  # at least one of each
    for wrong in (0, -1, 1.5, float("nan")):
        with pytest.raises(InputError, match="fraction"):
            pick_fraction(a, wrong)


def test_score_keeps_the_best_of_each_class(tmp_path: Path) -> None:
    a = make(tmp_path / "a.tok", range(9), ("ant", "bee"), "a", count=20)
    index, scores, labels = pick_fraction(a, 0.3, score="score"), a.column("score"), a.column("label")
    for label in (0, 1):
        kept, all_of = scores[index[labels[index] == label]], scores[labels == label]
        assert sorted(kept) == sorted(all_of)[-3:]
    with pytest.raises(InputError, match="no column 'socre'"):
        pick_fraction(a, 0.3, score="socre")


def test_keys_pick_images(tmp_path: Path) -> None:
    a = make(tmp_path / "a.tok", range(9), ("ant",), "a")
    assert pick_keys(a, ["a7", "a2", "a7"]).tolist() == [2, 7]
    with pytest.raises(InputError, match="no image 'b1'"):
        pick_keys(a, ["a1", "b1"])


def test_taken_output_is_refused(tmp_path: Path) -> None:
    a = make(tmp_path / "a.tok", range(9), ("ant",), "a")
    with pytest.raises(OutputError, match="exists"):
        gather(a.path, [(a, np.arange(3))])
    assert len(Store(a.path)) == 12
