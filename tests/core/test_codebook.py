"""Codebooks: files, cuts and supersets, learnt vectors, nearest codes against sorting everything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tilework.core.codebook import FILE, Codebook, are_synonyms, cut_synonyms
from tilework.core.errors import DamageError


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def some(learnt: np.ndarray | None = None) -> Codebook:
    return Codebook(noise(6, 3), np.array([5, 3, 9, 0, 1, 2], np.int32), learnt)


@pytest.mark.parametrize("learnt", [None, noise(6, 3, seed=1)], ids=["without", "with"])
def test_what_is_written_is_read(learnt: np.ndarray | None, tmp_path: Path) -> None:
    book = some(learnt)
    assert book.digest == hashlib.sha256(book.vectors.astype("<f4").tobytes()).hexdigest()
    book.write(tmp_path)
    found = Codebook.read(tmp_path, book.digest)
    assert np.array_equal(found.vectors, book.vectors)
    assert np.array_equal(found.used, book.used)
    assert (found.learnt is None) == (learnt is None)
    assert np.array_equal(found.table(), book.table())
    assert set(load_file(tmp_path / FILE)) == {"codebook", "used"} | ({"table"} if learnt is not None else set())


def spoil(**tensors: np.ndarray | None) -> Callable[[Path], None]:
    """Other tensors in the file of six codes of three numbers; None: gone."""

    def change(file: Path) -> None:
        changed = {**load_file(file), **tensors}
        save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, file)

    return change


def zeros(*shape: int, value: float = 0.0, kind: type = np.float32) -> np.ndarray:
    return np.full(shape, value, kind)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda file: file.unlink(), "cannot be read"),
    "cut short": (lambda file: file.write_bytes(file.read_bytes()[:-5]), "cannot be read"),
    "no tensors": (lambda file: file.write_bytes(b"\xff" * 64), "cannot be read"),
    "no codebook": (spoil(codebook=None), "cannot be read"),
    "no numbers": (spoil(used=None), "cannot be read"),
    "flat codebook": (spoil(codebook=zeros(18)), "no codebook"),
    "half codebook": (spoil(codebook=zeros(6, 3, kind=np.float16)), "no codebook"),
    "too few numbers": (spoil(used=np.arange(5)), "no codebook"),
    "another codebook": (spoil(codebook=zeros(6, 3)), "not the codebook that the model was trained with"),
    "a table of fewer codes": (spoil(table=zeros(5, 3)), "do not fit its codebook"),
    "a table of other width": (spoil(table=zeros(6, 4)), "do not fit its codebook"),
    "a table of no numbers": (spoil(table=zeros(6, 3, value=np.nan)), "do not fit its codebook"),
    "an endless table": (spoil(table=zeros(6, 3, value=np.inf)), "do not fit its codebook"),
    "synonyms of fewer codes": (spoil(synonyms=np.ones((5, 2), np.int32)), "synonyms that do not fit"),
    "synonyms beyond the codes": (spoil(synonyms=np.full((6, 2), 6, np.int32)), "synonyms that do not fit"),
    "synonyms of themselves": (spoil(synonyms=np.arange(6, dtype=np.int32)[:, None]), "synonyms that do not fit"),
    "synonyms of no kind": (spoil(synonyms=np.zeros((6, 2))), "synonyms that do not fit"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_files_are_refused(kind: str, tmp_path: Path) -> None:
    damage, words = DAMAGE[kind]
    some(noise(6, 3, seed=1)).write(tmp_path)
    damage(tmp_path / FILE)
    with pytest.raises(DamageError, match=words) as raised:
        Codebook.read(tmp_path, some().digest)
    assert FILE in str(raised.value)


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("count", [1, 7, 2000])
def test_a_cut_knows_its_positions(count: int, offset: int) -> None:
    whole = Codebook.of(noise(2000, 8) + np.float32(offset), noise(2000, 8, seed=1))
    order = np.random.default_rng(2).permutation(2000)[:count]
    for vectors in (whole.vectors[order], whole.vectors[order] * np.float32(1 + 1e-7)):  # rounded by another device
        cut = Codebook.of(vectors)
        positions = cut.positions_in(whole)
        assert positions is not None
        assert np.array_equal(positions, order)
        learnt = whole.learnt_for(cut)
        assert learnt is not None
        assert np.array_equal(learnt, whole.learnt[order])


def test_supersets_and_other_codebooks_have_no_positions() -> None:
    book = Codebook.of(noise(20, 4), noise(20, 4, seed=1))
    more = np.concatenate([noise(20, 4), noise(1, 4, seed=3)])
    for strange in (noise(20, 4, seed=2), more, noise(20, 5), noise(20, 0), noise(0, 4)):
        other = Codebook.of(strange)
        assert other.positions_in(book) is None
        assert book.learnt_for(other) is None
    assert book.positions_in(Codebook.of(more)) is not None


def test_learnt_vectors_stand_for_the_others_as_they_are() -> None:
    plain, learnt = Codebook.of(noise(50, 4) * 3 + 2), noise(50, 4, seed=1)
    assert plain.table() is plain.vectors
    standard = plain.table(standardise=True)
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(standard.std(0), 1, atol=1e-5)
    assert np.array_equal(plain.with_learnt(learnt).table(standardise=True), learnt)
    assert plain.with_learnt(learnt).digest == plain.digest, "which codes they are is told by the tokenizer's vectors"


def slow_nearest(vectors: np.ndarray, count: int) -> np.ndarray:
    """Everything sorted: falling cosine, then rising number."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    near = unit @ unit.T
    np.fill_diagonal(near, -np.inf)
    return np.argsort(-near, axis=1, kind="stable")[:, : min(count, len(vectors) - 1)]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**16))
def test_nearest_codes_are_those_of_sorting_everything(codes: int, dim: int, count: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).integers(-2, 3, (codes, dim)).astype(np.float32)  # many ties, zeros too
    found = Codebook.of(vectors).nearest(count)
    assert found.dtype == np.int32
    assert np.array_equal(found, slow_nearest(vectors, count))


def test_nearest_codes_of_more_than_one_portion() -> None:
    vectors = noise(2500, 16)
    assert np.array_equal(Codebook.of(vectors).nearest(5), slow_nearest(vectors, 5))


def test_a_codebook_without_vectors_says_so() -> None:
    assert Codebook.of(noise(4, 0)).code_dim == 0
    assert len(replace(some(), learnt=None)) == 6


# synonyms that the data came with


def shuffled(codes: int, count: int) -> np.ndarray:
    """Synonyms that have nothing to do with vectors, (codes, count)."""
    rng = np.random.default_rng(0)
    return np.array([rng.permutation(np.delete(np.arange(codes), i))[:count] for i in range(codes)], np.int32)


def test_given_synonyms_go_before_the_nearest(tmp_path: Path) -> None:
    plain = Codebook.of(noise(9, 3))
    book = replace(plain, synonyms=shuffled(9, 4))
    assert np.array_equal(book.nearest(3), shuffled(9, 4)[:, :3])
    assert np.array_equal(book.nearest(5), plain.nearest(5)), "four are not five"
    assert book.digest == plain.digest
    assert np.array_equal(book.with_learnt(noise(9, 3, seed=2)).nearest(4), shuffled(9, 4))
    book.write(tmp_path)
    assert np.array_equal(Codebook.read(tmp_path, book.digest).nearest(4), shuffled(9, 4))


@given(st.integers(2, 12), st.integers(1, 6), st.data())
def test_synonyms_follow_a_cut(codes: int, count: int, data: st.DataObject) -> None:
    """Against a loop: those that are kept come first, in their order, then the nearest kept codes."""
    vectors, synonyms = noise(codes, 3), shuffled(codes, min(count, codes - 1))
    used = np.array(sorted(data.draw(st.sets(st.integers(0, codes - 1), min_size=2))))
    found = cut_synonyms(synonyms, vectors, used)
    assert are_synonyms(found, len(used))
    assert found.shape == (len(used), min(synonyms.shape[1], len(used) - 1))
    for code, row in zip(used.tolist(), used[found].tolist(), strict=True):
        kept = [one for one in synonyms[code].tolist() if one in used][: len(row)]
        cosine = vectors @ vectors[code] / np.linalg.norm(vectors, axis=1)
        others = sorted(set(used.tolist()) - {code, *kept}, key=lambda one: -cosine[one])
        assert row == (kept + others)[: len(row)]
