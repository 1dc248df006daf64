"""State of evaluators: any order and any split of the samples give the same figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from small_evaluation import CLASSES, Answers, Sums, ask
from tilework.evaluation import Accuracy, Classified, Confusion, Evaluator, Features
from tilework.models import Output

MAKE = {
    "accuracy": Accuracy,
    "confusion": lambda: Confusion(CLASSES),
    "classified": lambda: Classified(Answers.classes),
    "features": Features,
    "sums": Sums,
}


def seen(name: str, source: Answers, parts: list[list[int]]) -> Evaluator[Output]:
    """An evaluator that saw some samples, batch by batch."""
    one = MAKE[name]()
    for part in parts:
        batch = source.batch(np.array(part, np.int64))
        one.update(batch, ask(batch))
    return one


def rows(one: Evaluator[Output]) -> dict[str, torch.Tensor]:
    return {name: one.rows(name) for name in one.state() if len(one.state()[name]) > 1}


@pytest.mark.parametrize("name", list(MAKE))
@settings(max_examples=25, deadline=None)
@given(data=st.data(), count=st.integers(2, 12))
def test_order_and_split_do_not_matter(name: str, data: st.DataObject, count: int) -> None:
    source = Answers(count)
    whole = seen(name, source, [list(range(count))])
    order = data.draw(st.permutations(range(count)))
    cuts = sorted(data.draw(st.sets(st.integers(1, count - 1))))
    batches = [order[a:b] for a, b in zip([0, *cuts], [*cuts, count], strict=True)]
    processes = data.draw(st.lists(st.integers(0, 2), min_size=len(batches), max_size=len(batches)))
    parts = [seen(name, source, [b for b, p in zip(batches, processes, strict=True) if p == r]) for r in range(3)]
    for r, part in enumerate(parts):
        if r not in processes:  # saw nothing: as the loop does
            parts[r] = part = seen(name, source, [[0]])
            part.clear()
    states = [part.state() for part in parts]
    shuffled = data.draw(st.permutations(states))
    merged = parts[0]
    merged.merge(shuffled)
    assert merged.compute() == pytest.approx(whole.compute(), rel=1e-12, abs=1e-12)
    for key, value in rows(whole).items():
        assert torch.equal(rows(merged)[key], value), key


def test_a_cleared_evaluator_knows_names_and_shapes_only() -> None:
    one = seen("sums", Answers(5), [[0, 1], [2]])
    before = one.state()
    one.clear()
    state = one.state()
    assert list(state) == list(before)
    for name, value in state.items():
        assert value.dtype == before[name].dtype
        assert value.shape[1:] == before[name].shape[1:]
    assert {name: len(value) for name, value in state.items()} == {
        "total": 1,
        "high": 1,
        "index": 0,
        "twice": 0,
        "positive": 0,
    }
    assert not state["total"].any()
    assert not state["high"].any()


def test_sums_keep_what_float32_would_lose() -> None:
    class Count(Sums):
        def see(self, value: torch.Tensor) -> None:
            self.add(total=value)

    one = Count()
    one.see(torch.tensor(2.0**24))
    for _ in range(3):
        one.see(torch.tensor(1.0))  # in float32, 2^24 + 1 is 2^24
    assert one.total("total") == 2**24 + 3
    assert one.total("total").dtype == torch.float64
    small = Count()
    for _ in range(3):
        small.see(torch.tensor(200, dtype=torch.uint8))
    assert small.total("total") == 600


def test_merging_its_own_state_changes_nothing() -> None:
    for name in MAKE:
        one = seen(name, Answers(7), [[3, 1], [0, 2, 6], [4], [5]])
        before = one.compute()
        one.merge([one.state()])
        assert one.compute() == before
