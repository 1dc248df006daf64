"""Learning rate schedules against their formulas."""

from __future__ import annotations

from math import cos, pi

import pytest

from tilework.core.config import resolve
from tilework.core.errors import ConfigError
from tilework.train import FitConfig, ScheduleConfig


@pytest.mark.parametrize("at", [0.0, 0.2, 0.55, 1.0])
def test_cosine(at: float) -> None:
    schedule = ScheduleConfig("cosine", floor=0.1)
    assert schedule.factor(at, 0.0) == pytest.approx(0.1 + 0.9 * (1 + cos(pi * at)) / 2)


def test_warmup_is_linear_and_meets_the_top() -> None:
    schedule = ScheduleConfig("cosine")
    assert [schedule.factor(at, 0.2) for at in (0.05, 0.1, 0.2)] == pytest.approx([0.25, 0.5, 1.0])


def test_constant_stays() -> None:
    assert {ScheduleConfig("constant").factor(at, 0.1) for at in (0.1, 0.5, 1.0)} == {1.0}


def test_polynomial() -> None:
    schedule = ScheduleConfig("polynomial", power=2.0)
    assert schedule.factor(0.5, 0.0) == pytest.approx(0.25)
    assert schedule.factor(1.0, 0.0) == 0.0


def test_steps_fall_after_8_and_11_of_12_epochs() -> None:
    schedule = ScheduleConfig("steps")
    found = [schedule.factor(at / 12, 0.01) for at in (1, 7.9, 8.1, 10.9, 11.1)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert schedule.factor(0.005, 0.01) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"epochs": 2, "steps": 9}, {"batch": 10, "accumulate": 3}, {"log_every": 0}]
)
def test_senseless_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|not divisible"):
        FitConfig(**wrong)


@pytest.mark.parametrize(
    "setting", ["lr=-1", "lr=.nan", "weight_decay=-1", "betas=[2,3]", "betas=[0.9,1.0]", "momentum=1.5", "clip=-1"]
)
def test_impossible_optimisers_are_refused_in_one_line(setting: str) -> None:
    with pytest.raises(ConfigError, match="must"):
        resolve(FitConfig(), None, [f"optim.{setting}"])
