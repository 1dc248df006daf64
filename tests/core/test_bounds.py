"""Settings that cannot be are refused when a recipe is resolved, whichever part has them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tilework.augment import Augment
from tilework.core.config import decode, resolve
from tilework.core.errors import ConfigError
from tilework.recipes import find

CASES = [
    ("seit_cpu", "augment.cutmix.probability=3"),
    ("seit_cpu", "augment.cutmix.probability=-0.1"),
    ("seit_cpu", "augment.cutmix.alpha=0"),
    ("seit_cpu", "augment.cutmix.probability=.nan"),
    ("seit_cpu", "augment.token_eda.swap=0.9"),
    ("seit_cpu", "augment.token_crop.area=[0.5, 0.2]"),
    ("seit_cpu", "augment.token_crop.area=[0, 1]"),
    ("seit_cpu", "augment.token_crop.area=[0.5, 7]"),
    ("seit_cpu", "augment.token_crop.aspect=[-1, 1]"),
    ("seit_cpu", "objective.smoothing=1"),
    ("seit_cpu", "objective.smoothing=-0.1"),
    ("seit_cpu", "model.drop_path=1"),
    ("seit_cpu", "model.drop_path=-1"),
    ("seit_cpu", "fit.ema=1"),
    ("seit_cpu", "fit.early_stop=-1"),
    ("seit_cpu", "fit.optim.layer_decay=0"),
    ("seit_cpu", "max_broken=2"),
    ("seit_cpu", "samples=-1"),
    ("deit_s_cpu", "augment.erase.probability=1.5"),
    ("deit_s", "augment.rand_augment.probability=2"),
    ("deit_s", "augment.erase.area=[0, 0]"),
    ("deit_s", "size=[0, 0]"),
    ("tl_align_block_cpu", "augment.block_mix.least=2"),
    ("demo_tokenizer", "augment.flip.probability=2"),
    ("seit_cpu", "augment.embedding_noise.scale=-1"),
    ("seit_cpu", "augment.embedding_noise.scale=.inf"),
    ("seit_cpu", "augment.token_crop.size=[0, 8]"),
    ("seit_cpu", "model.width=0"),
    ("seit_cpu", "model.depth=-1"),
    ("seit_cpu", "model.heads=0"),
    ("seit_cpu", "model.mlp_ratio=-1"),
    ("seit_cpu", "model.mlp_ratio=.nan"),
    ("seit_cpu", "model.moto_blocks=-1"),
    ("seit_cpu", "fit.seed=-1"),
    ("seit_cpu", "fit.evaluate_every=-1"),
    ("seit_cpu", "fit.save_every=-1"),
    ("seit_cpu", "fit.schedule.floor=7"),
    ("seit_cpu", "fit.schedule.warmup_steps=-1"),
    ("seit_cpu", "fit.schedule.warmup_epochs=-1"),
    ("seit_cpu", "fit.schedule.power=0"),
    ("plain_pixel_cpu", "model.stem.patch=0"),
    ("good_swin_cpu", "model.depths=[2, -1, 2, 2]"),
]


@pytest.mark.parametrize(("recipe", "setting"), CASES)
def test_impossible_settings_are_refused(recipe: str, setting: str) -> None:
    run = find(recipe).run
    with pytest.raises(ConfigError, match=r"invalid settings|no '") as raised:
        resolve(run, None, [setting])
    assert "invalid settings" in str(raised.value), setting
    assert "\n" not in str(raised.value)


CHANCES = [
    (name, field.name)
    for name in Augment.choices
    for field in fields(Augment.choices[name])
    if "probability" in field.name
]


@pytest.mark.parametrize(("name", "key"), CHANCES)
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_no_augmentation_takes_an_impossible_probability(name: str, key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{key}.* is .*{value}.*between 0 and 1"):
        decode(Augment, {"name": name, key: value})


@pytest.mark.parametrize(("given", "length"), [("fit.steps=7", (0, 7)), ("fit.epochs=3", (3, 0))])
@pytest.mark.parametrize("recipe", ["deit_s", "demo_token"])
def test_one_length_unsets_the_other(recipe: str, given: str, length: tuple[int, int]) -> None:
    fit = resolve(find(recipe).run, None, [given]).fit  # type: ignore[union-attr]
    assert (fit.epochs, fit.steps) == length


def test_one_length_of_a_link_unsets_the_other() -> None:
    chain = resolve(find("seit_to_pixels_cpu").run, None, ["links.pretrain.run.fit.epochs=2"])
    assert (chain.links[0].run.fit.epochs, chain.links[0].run.fit.steps) == (2, 0)  # type: ignore[union-attr]


def test_a_key_in_the_wrong_place_names_its_own() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'steps': did you mean 'fit.steps'\?"):
        resolve(find("demo_token").run, None, ["steps=5"])
    with pytest.raises(ConfigError, match=r"did you mean 'fit.optim.lr'\?"):
        resolve(find("demo_token").run, None, ["lr=5"])
