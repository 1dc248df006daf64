"""Learnt vectors of codes under every label rule: the rule itself on the same vectors is the oracle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from small_mixtures import CLASSES, COUNT, network
from tilework.augment import PatchCutMix, apply_all
from tilework.core.batch import Batch, Column, Target
from tilework.core.codebook import Codebook
from tilework.core.config import decode, encode
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.score_map import ScoreMap
from tilework.layers.stems import TokenPatchStemConfig
from tilework.models import Vit
from tilework.objectives import (
    ClassifyCodesConfig,
    ClassifyConfig,
    MaskedConfig,
    ObjectiveConfig,
    TlAlignConfig,
    TlAlignTokenLabelConfig,
    TokenLabelConfig,
    TransMixConfig,
)

CODES, DIM, GRID = 30, 5, 8
CODEBOOK = Codebook.of(np.random.default_rng(0).normal(size=(CODES, DIM)).astype(np.float32))
RULES: dict[str, ClassifyConfig] = {
    "area": ClassifyConfig(),
    "tokens": TlAlignConfig(),
    "attention": TransMixConfig(),
    "maps": TokenLabelConfig(),
    "tokens and maps": TlAlignTokenLabelConfig(),
}


def classifier() -> Vit:
    torch.manual_seed(0)
    model = replace(network().config, stem=TokenPatchStemConfig(), dense=True).build(DIM, (GRID, GRID), CLASSES)
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(10)
    return model.eval()


def batch_of_codes() -> Batch:
    """Codes whose boxes of two by two come from another sample."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(CODES, (COUNT, 1, GRID, GRID), generator=draw).float()
    scores, named = torch.rand(COUNT, 4, 4, 1, generator=draw), torch.randint(CLASSES, (COUNT, 4, 4, 1), generator=draw)
    columns: dict[str, Column] = {"label_map": ScoreMap.of_scores(named, scores, CLASSES)}
    batch = Batch(ids, Target.hard(torch.arange(COUNT)), torch.arange(COUNT), columns)
    mixed = apply_all([PatchCutMix(2)], batch, Draws(3, 0, batch.index, step=5))
    return mixed.changed(x=mixed.x[:, 0].long())


@pytest.mark.parametrize("name", RULES)
def test_a_rule_on_learnt_vectors_is_the_rule_on_those_vectors(name: str) -> None:
    model, batch = classifier(), batch_of_codes()
    objective = ClassifyCodesConfig(inner=RULES[name]).build(model, CODEBOOK).eval()
    draws = Draws(0, 0, batch.index)
    wanted = RULES[name].build(model, CODEBOOK)(batch.changed(x=objective.table(batch.x)), draws)
    found = objective(batch, draws)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value)
    found["loss"].backward()
    assert objective.table.weight.grad is not None
    assert objective.table.weight.grad.abs().max() > 0, "the vectors learn"


def test_rules_differ() -> None:
    batch, draws = batch_of_codes(), Draws(0, 0, torch.arange(COUNT))
    losses = {
        name: ClassifyCodesConfig(inner=rule).build(classifier(), CODEBOOK).eval()(batch, draws)["loss"].item()
        for name, rule in RULES.items()
    }
    assert len({round(value, 5) for value in losses.values()}) == len(RULES), losses


def test_without_a_rule_it_goes_by_area_and_keeps_its_tensors() -> None:
    """Checkpoints hold the model and the table, whatever the rule."""
    plain, ruled = (
        ClassifyCodesConfig(inner=inner).build(classifier(), CODEBOOK).eval() for inner in (None, TlAlignConfig())
    )
    batch, draws = batch_of_codes(), Draws(0, 0, torch.arange(COUNT))
    area = ClassifyCodesConfig(inner=ClassifyConfig()).build(classifier(), CODEBOOK).eval()
    assert plain(batch, draws)["loss"] == area(batch, draws)["loss"]
    assert plain.state_dict().keys() == ruled.state_dict().keys()
    assert sum(key.startswith("table.") for key in ruled.state_dict()) == 1


def test_settings_round_trip_and_name_the_columns() -> None:
    config = ClassifyCodesConfig(inner=TokenLabelConfig(dense_weight=0.25))
    assert decode(ObjectiveConfig, encode(config)) == config
    assert [part.task.columns for part in config.parts] == [(), ("label_map",)]


@pytest.mark.parametrize("inner", [MaskedConfig(), ClassifyCodesConfig()])
def test_other_objectives_are_refused(inner: ObjectiveConfig) -> None:
    with pytest.raises(ConfigError, match="no objective that classifies vectors"):
        decode(ObjectiveConfig, {"name": "classify_codes", "inner": encode(inner)})


def test_two_figures_of_smoothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"smoothing is 0\.1 here and 0\.2 in inner"):
        ClassifyCodesConfig(inner=TlAlignConfig(smoothing=0.2))


def test_a_rule_refuses_a_network_that_it_cannot_use() -> None:
    model = replace(network().config, stem=TokenPatchStemConfig(), pool="mean").build(DIM, (GRID, GRID), CLASSES)
    with pytest.raises(ConfigError, match="class token"):
        ClassifyCodesConfig(inner=TransMixConfig()).build(model, CODEBOOK)
