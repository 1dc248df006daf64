"""The walk over a data set: one process or several, batches of any size, columns, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, multiprocessing

from small_evaluation import CASES, CPU, Answers, Location, ask, measure, process
from tilework.augment import Augment, Flip
from tilework.core.batch import Batch
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.evaluation import Accuracy, Averages, Classified, Evaluator, evaluate
from tilework.models import Output

SIZE = 2


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each of two processes found of every case."""
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(process, (SIZE, folder), nprocs=SIZE)
    return folder


@pytest.mark.parametrize("case", range(len(CASES)), ids=str)
def test_two_processes_find_what_one_finds(case: int, together: Path) -> None:
    count, batch = CASES[case]
    figures, held = measure(CPU, count, batch)
    for rank in range(SIZE):
        assert json.loads((together / f"{case}-{rank}.json").read_text()) == pytest.approx(figures, rel=1e-12)
        found = load_file(together / f"{case}-{rank}.safetensors")
        assert found.keys() == held.keys()
        for name, value in held.items():
            assert found[name].dtype == value.dtype
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=f"{name} of process {rank}")
    assert figures["samples"] == count


@pytest.mark.parametrize("batch", [1, 2, 7, 22, 23, 400])
def test_batch_size_does_not_matter(batch: int) -> None:
    whole, held = measure(CPU, 23, 23)
    found, parts = measure(CPU, 23, batch)
    assert found == pytest.approx(whole, rel=1e-12)
    for name, value in held.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-12, atol=1e-12)


class Columns(Evaluator[Output]):
    """Whether the column still is what the model saw."""

    def update(self, batch: Batch, output: Output) -> None:
        column = batch.columns["place"]
        assert isinstance(column, Location)
        self.add(equal=(column.values == output.logits).all(1).sum())
        self.keep(batch, seen=column.values)

    def compute(self) -> dict[str, float]:
        return {"equal": float(self.total("equal"))}


def test_columns_go_through_the_steps_and_reach_the_evaluator() -> None:
    source, one = Answers(40), Columns()
    assert evaluate(ask, source, [Flip()], [one], CPU, batch=7) == {"equal": 40}
    seen, plain = one.rows("seen"), source.logits
    moved = (seen != plain).any(1)
    assert torch.equal(seen[moved], plain.flip(1)[moved])
    assert 8 < int(moved.sum()) < 32, "some were flipped, some not"


def test_draws_follow_the_seed_and_the_sample() -> None:
    found = []
    for seed, batch in ((0, 7), (0, 40), (1, 7)):
        evaluate(ask, Answers(40), [Flip()], [one := Columns()], CPU, batch, seed)
        found.append(one.rows("seen"))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_scores_of_an_objective_are_averaged_once_each() -> None:
    def scores(batch: Batch) -> dict[str, Tensor]:
        return {"first": batch.x[:, 0, 0, 0], "number": batch.index.float(), "samples": torch.ones(len(batch.x))}

    source = Answers(23)
    found = evaluate(scores, source, (), [Averages()], CPU, batch=5)
    assert found["first"] == pytest.approx(sum(source.logits[:, 0].tolist()) / 23)
    assert found["number"] == sum(range(23)) / 23
    assert found["samples"] == 1


def test_gradients_can_be_asked_for() -> None:
    def scores(batch: Batch) -> dict[str, Tensor]:
        with torch.enable_grad():
            x = batch.x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(x.square().sum(), x)
        return {"slope": slope.flatten(1).sum(1)}

    source = Answers(9)
    found = evaluate(scores, source, (), [Averages()], CPU, batch=4)
    assert found["slope"] == pytest.approx(2 * source.logits.double().sum().item() / 9, rel=1e-5)


def test_two_figures_of_one_name_are_refused() -> None:
    source = Answers(4)
    with pytest.raises(ConfigError, match="two evaluators give 'top1'"):
        evaluate(ask, source, (), [Accuracy(), Classified(source.classes)], CPU)


@dataclass(frozen=True)
class Broken(Augment):
    """A step that fails."""

    def apply(self, batch: Batch, p: object) -> Batch:
        raise ZeroDivisionError

    def sample(self, draws: Draws, batch: Batch) -> None:
        return None


def test_an_error_in_a_step_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        evaluate(ask, Answers(4), [Broken()], [Accuracy()], CPU)
