"""A minute of the fault matrix: a few trials of every row that is quick enough; `make faults` runs all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import faults.__main__
from faults.damage import judge, made
from faults.fuzz import GUIDED, Choices, Trial, drawn, guided, judged
from faults.matrix import ROWS, Outcome, Row
from faults.parsers import PARSERS, Parser
from faults.things import THINGS
from tilework.core.errors import InputError
from tilework.core.memory import keep_freed_memory

QUICK = [row for row in ROWS if row.quick]


@pytest.mark.parametrize("row", QUICK, ids=[row.name for row in QUICK])
def test_a_few_faults_of_each_kind(row: Row, tmp_path: Path) -> None:
    outcome = Outcome(row.name)
    for trouble in row.trials(row.quick, np.random.default_rng((1, row.number)), tmp_path):
        outcome.count(trouble)
    assert outcome.tried >= row.quick
    assert outcome.failures == []


def test_every_row_has_its_own_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.number for row in ROWS} <= set(range(1, 16))


def test_trials_add_up_over_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def trials(count: int, rng: np.random.Generator, folder: Path) -> Iterator[str | None]:
        for _ in range(count):
            drawn.append(int(rng.integers(1 << 30)))
            yield "broken" if fails else None

    def call(share: str) -> dict[str, Any]:
        monkeypatch.setattr("sys.argv", ["faults", "--share", share, "--out", str(tmp_path / "faults.json")])
        with pytest.raises(SystemExit) as ended:
            faults.__main__.main()
        assert ended.value.code == fails
        return dict(json.loads((tmp_path / "faults.json").read_text())["some"])

    fails = False
    monkeypatch.setattr(faults.__main__, "ROWS", [Row(1, "some", 10, 0, trials)])
    assert call("0.4")["tried"] == 4
    assert call("0.4")["tried"] == 4
    assert len(drawn) == 4
    assert (call("1")["tried"], call("1")["seeds"]) == (10, 2)
    assert len(set(drawn)) == 10
    fails = True
    monkeypatch.setattr(faults.__main__, "ROWS", [Row(1, "some", 12, 0, trials)])
    assert (call("1")["tried"], call("1")["passed"]) == (12, 0)  # after a failure it begins anew


def test_unnoticed_damage_would_be_told(tmp_path: Path) -> None:
    """The judge itself: other content, an error that is not ours, and a file that is not named are failures."""
    thing = next(thing for thing in THINGS if thing.name == "label maps")
    path, files, sound = made(thing, tmp_path)
    assert judge(thing, path, files[0], sound) is None
    assert judge(thing, path, files[0], "something else") == "another content, unnoticed"

    def broken(path: Path) -> Iterator[int]:
        raise KeyError("x")

    other = type(thing)(thing.name, thing.make, broken)
    assert judge(other, path, files[0], sound) == "KeyError: 'x'"


def some_parser(read: Callable[[Path], object]) -> Parser:
    def write(folder: Path, rng: Random) -> None:
        (folder / rng.choice(["x", "y"])).write_bytes(rng.randbytes(3))

    return Parser("some", lambda folder: (folder / "x").write_bytes(b"sound"), write, read)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (InputError("it is odd", "mend it"), None),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_how_senseless_files_are_judged(broken: Exception, told: str | None, tmp_path: Path) -> None:
    def read(folder: Path) -> None:
        if (folder / "x").read_bytes() != b"sound" or (folder / "y").exists():
            raise broken

    for trouble in drawn(some_parser(read), 20, np.random.default_rng(0), tmp_path):
        assert trouble is None if told is None else str(trouble).endswith(told)


def test_memory_counts_in_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak of a process never falls: a second file that takes as much as the first was not seen."""
    monkeypatch.setattr("faults.fuzz.MEMORY", 32 << 20)
    keep_freed_memory()  # as commands do
    np.ones(200 << 20, np.uint8).sum()
    assert judged(lambda: bytes(1)) is None
    for megabytes in (80, 60, 70):
        told = judged(lambda size=megabytes << 20: np.ones(size, np.uint8).sum())
        assert told is not None
        assert abs(int(told.removesuffix(" MB")) - megabytes) < 20
    assert judged(lambda: bytes(1)) is None


def test_files_are_sound_before_every_trial(tmp_path: Path) -> None:
    trial = Trial(some_parser(lambda folder: None), tmp_path)
    for number in range(20):
        assert trial(Random(number)) is None
        assert [path.name for path in tmp_path.iterdir()] == ["x"]
        assert (tmp_path / "x").read_bytes() == b"sound"


def test_choices_follow_their_bytes() -> None:
    chosen = Choices(bytes([3, 0, 255, 1, 128]))
    assert [chosen.randrange(10), chosen.choice("ab"), chosen.randrange(256), chosen.randrange(2)] == [3, "a", 255, 1]
    more = [[used.randrange(10**6) for _ in range(9)] for used in (chosen, Choices(b""))]
    assert len(set(more[0])) == 9, "used up: they still differ, so that searches for another one end"
    assert Choices(b"").sample(range(1000), 900) == Choices(b"").sample(range(1000), 900)
    assert Choices(bytes([5, 0, 0])).randbytes(40) == Choices(bytes([5, 0, 0])).randbytes(40)
    assert Choices(bytes([5, 0, 0])).randbytes(40) != Choices(bytes([6, 0, 0])).randbytes(40)


@pytest.mark.skipif(not GUIDED, reason="needs the extra fuzz")
def test_coverage_guides_a_parser(tmp_path: Path) -> None:
    found = list(guided(next(one for one in PARSERS if one.name == "label file"), 2.0, 0, tmp_path))
    assert len(found) > 20
    assert set(found) == {None}
