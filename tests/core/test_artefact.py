"""Artefacts: parts declare the directories they need, and get them wherever they stand in a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tilework.core.artefact import artefact, declared, give, given
from tilework.core.errors import ConfigError
from tilework.recipes import run_of
from tilework.runs import Artefacts, equip


@dataclass(frozen=True)
class Part:
    adapter: str = artefact("adapter")
    strength: float = 1.0


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...] = (Part(), Part(strength=2.0))
    one: Part = field(default_factory=Part)
    tokenizer: str = artefact("tokenizer")
    name: str = "adapter"


def test_every_part_that_declares_one_gets_it() -> None:
    found = give(Whole(), {"adapter": Path("a")})
    assert [part.adapter for part in (*found.parts, found.one)] == ["a", "a", "a"]
    assert (found.tokenizer, found.name, found.parts[1].strength) == ("", "adapter", 2.0)
    assert declared(Whole()) == {"adapter", "tokenizer"}
    assert (given(found, "adapter"), given(found, "tokenizer")) == ("a", "")


def test_nothing_given_changes_nothing() -> None:
    whole = Whole()
    assert give(whole, {}) is whole
    assert give(whole, {"maps": Path("m")}) is whole


def test_label_maps_go_to_runs_that_learn_from_them_alone() -> None:
    maps = Artefacts(maps=Path("m"))
    assert equip(run_of("lv_labels_cpu"), maps).maps == "m"
    with pytest.raises(ConfigError, match="no part of this recipe takes --maps: leave --maps out"):
        equip(run_of("lv_class_cpu"), maps)
    assert equip(run_of("lv_class_cpu"), maps, strict=False) == run_of("lv_class_cpu")
