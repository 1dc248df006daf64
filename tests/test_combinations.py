"""Every network with MoTo in either place, TokenProp and labels that follow tokens, on pixels and on codes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from small_models import small
from tilework.augment import PatchCutMix, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.layers.stem_moto import MotoStemConfig
from tilework.layers.stems import StemConfig
from tilework.models import presets
from tilework.objectives import Combined, TlAlignConfig, TokenPropConfig

WITH_STEM = [name for name in presets if isinstance(getattr(presets[name], "stem", None), StemConfig)]
CHANNELS, CODES = 6, 11


@pytest.mark.parametrize("name", WITH_STEM)
@pytest.mark.parametrize("place", ["", "pixel", "token"])
@pytest.mark.parametrize("stage", ["pixels", "codes"])
def test_every_network_with_everything(name: str, place: str, stage: str) -> None:
    torch.manual_seed(0)
    config: Any = small(name) if stage == "pixels" else small(name).for_tokens()
    if place:
        config = replace(config, stem=MotoStemConfig(config.stem, place=place))
    channels, side = (3, 64) if stage == "pixels" else (CHANNELS, 8)
    model = config.build(channels, (side, side), 5)
    codebook = None if stage == "pixels" else Codebook.of(torch.randn(CODES, CHANNELS))
    objective = Combined(
        TlAlignConfig().build(model), {"token_prop": (0.001, TokenPropConfig().build(model, codebook))}
    )
    plain = Batch(torch.randn(4, channels, side, side), Target.hard(torch.arange(4)), torch.arange(4))
    draws = Draws(1, 0, plain.index)
    batch = apply_all([PatchCutMix(side // 4)], plain, draws)
    assert batch.mix is not None
    target = objective.main.answer(batch)[1]
    assert torch.allclose(target.weight.sum(-1), torch.ones(4), atol=1e-5)
    found = objective(batch, draws)
    assert found["loss"].isfinite()
    found["loss"].backward()
    still = [n for n, p in objective.named_parameters() if p.requires_grad and p.grad is None and "aux_head" not in n]
    assert still == []
    assert any(".moto." in n for n, _ in model.named_parameters()) == bool(place)


@pytest.mark.parametrize("name", [name for name in presets if name not in WITH_STEM])
def test_networks_whose_stem_is_no_setting_are_refused(name: str) -> None:
    model = small(name).build(3, (64, 64), 5)
    with pytest.raises(ConfigError, match="no stem of its own"):
        TokenPropConfig().build(model)
    with pytest.raises(ConfigError, match="cannot follow"):
        TlAlignConfig().build(model)
