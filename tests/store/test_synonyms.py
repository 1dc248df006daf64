"""Nearest codes. Oracle: cosines one by one."""

from __future__ import annotations

import numpy as np
import pytest

from tilework.store.synonyms import nearest_codes


@pytest.mark.parametrize("codes", [2, 30, 1500])
def test_synonyms_are_the_nearest_by_cosine(codes: int) -> None:
    book = np.random.default_rng(1).normal(size=(codes, 8)).astype(np.float32)
    found = nearest_codes(book, 4)
    assert found.shape == (codes, min(4, codes - 1))
    for code in {0, 1, codes // 2, codes - 1}:
        cosine = [book[code] @ other / np.linalg.norm(book[code]) / np.linalg.norm(other) for other in book]
        assert found[code].tolist() == [i for i in np.argsort(cosine)[::-1].tolist() if i != code][:4]


def test_equal_codes_come_by_number() -> None:
    assert nearest_codes(np.ones((4, 2), np.float32), 3).tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert nearest_codes(np.ones((1, 2), np.float32)).shape == (1, 0)
