"""What every objective says of its data, held against what it does."""

from __future__ import annotations

import json

import pytest

from golden.losses import CASES, FILE
from tilework.objectives import ObjectiveConfig, Task

EVALUATED = {name: one["evaluation"] for name, one in json.loads(FILE.read_text()).items()}
AUXILIARY = {"token_prop"}  # beside another objective in its case, whose figures are judged


@pytest.mark.parametrize("name", sorted(set(ObjectiveConfig.choices) - AUXILIARY))
def test_the_headline_is_among_the_figures(name: str) -> None:
    task = ObjectiveConfig.choices[name].task
    assert task.metric in EVALUATED[name]
    assert CASES[name].maps == ("label_map" in task.columns)
    assert task.higher_is_better == (task.metric not in ("loss", "mse"))


def test_classifiers_have_an_output_per_class_and_others_none() -> None:
    assert Task().outputs(7) == 7
    assert Task(labels=False).outputs(7) == 0
    for name in ObjectiveConfig.choices:
        task = ObjectiveConfig.choices[name].task
        assert task.outputs(7) == (7 if task.metric in ("top1", "miou", "box_ap") else 0)
