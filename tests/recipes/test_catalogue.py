"""What recipes say about themselves, their small forms, and the index that lists them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tilework
from tilework.augment import (
    CentreCrop,
    CutMix,
    CutMixOrMixup,
    Embed,
    MixToken,
    Mixup,
    RandomResizedCrop,
    TokenCrop,
    TokenEda,
)
from tilework.core.config import resolve
from tilework.core.errors import ConfigError
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes import Recipe, catalogue, find, recipes, run_of, small_forms
from tilework.recipes import index as recipe_index
from tilework.recipes.index import FILE, cards, collect, sources
from tilework.recipes.recipe import add, add_small
from tilework.recipes.small import input_of, small
from tilework.runs import Chain, Run

DOCS = Path(__file__).parents[2] / "docs/results.md"
PAPERS = {"", "SeiT", "SeiT++", "LV-ViT", "TL-Align", "Good tokenizers", "VQGAN"}


# what recipes say


@pytest.mark.parametrize("recipe", catalogue, ids=lambda recipe: recipe.name)
def test_recipe_says_what_it_is(recipe: Recipe) -> None:
    assert recipe.method
    assert recipe.paper in PAPERS
    assert recipe.about.startswith(recipe.method)
    assert "\n" not in recipe.about + recipe.note
    assert recipe.row in recipe.about
    assert f" {recipe.name} " in recipe.command
    assert recipe.size == (
        "cpu" if recipe.name.endswith("_cpu") or recipe.name.startswith(("demo_", "small_")) else "full"
    )
    for figures in (recipe.published, recipe.measured.figures if recipe.measured else {}):
        assert all(isinstance(value, int | float) and value > 0 for value in figures.values())
        assert all(value <= 100 for name, value in figures.items() if "top1" in name), "per cent"
        assert all(name.replace(".", "").isidentifier() for name in figures)
    assert recipe.size == "full" or not recipe.published, "papers have no small forms"


def test_small_vits_on_pixels_learn_their_stems_at_a_tenth_of_the_rate() -> None:
    """By AdamW, whose steps are as large for every weight; others, and networks of the papers' size, do not."""
    for recipe in catalogue:
        for run in (link.run for link in recipe.run.links) if isinstance(recipe.run, Chain) else (recipe.run,):
            slow = (
                recipe.size == "cpu"
                and isinstance(run.model, VitConfig)
                and input_of(run) == "pixels"
                and run.fit.optim.name == "adamw"
            )
            assert run.fit.optim.stem_scale == (0.1 if slow else 1.0), recipe.name
    assert run_of("plain_pixel_cpu").fit.optim.stem_scale == 0.1
    assert replace(run_of("plain_pixel_cpu").fit.optim, stem_scale=1.0) == run_of("seit_plain_cpu").fit.optim


def test_what_was_measured_stands_in_the_results() -> None:
    text = DOCS.read_text()
    sections = {line.removeprefix("## "): [] for line in text.splitlines() if line.startswith("## ")}
    for section in sections:
        sections[section] = text.split(f"## {section}\n")[1].split("\n## ")[0]
    found = [recipe for recipe in catalogue if recipe.measured is not None]
    assert len(found) > 30
    for recipe in found:
        assert recipe.measured is not None
        for value in recipe.measured.figures.values():
            known = sections[recipe.measured.section]
            assert str(value) in known or f"{value / 100:.3f}" in known, (recipe.name, value)


@pytest.mark.parametrize(
    ("name", "about", "command"),
    [
        (
            "color_adapt_cpu",
            "SeiT + ColorAdapt (SeiT++ table 7, row 2), small ViT, 16x16 tokens",
            "tilework train color_adapt_cpu --data STORE --val STORE --out OUT",
        ),
        (
            "seitpp_tuned_vit_b",
            "SeiT++ after masked token modelling (SeiT++ tables 1, 2), ViT-B, 32x32 tokens",
            "tilework train seitpp_tuned_vit_b --start RUN --adapter ADAPTER --data STORE --val STORE --out OUT",
        ),
        (
            "lv_vit_s",
            "token labels + MixToken (LV-ViT table 1), LV-ViT-S, 224 px",
            "tilework train lv_vit_s --maps MAPS --data IMAGES/train --val IMAGES/val --out OUT",
        ),
        (
            "token_adapt",
            "TokenAdapt, for one tokenizer (SeiT++ appendix C), 256 px",
            "tilework train token_adapt --tokenizer TOKENIZER --data IMAGES/train --val IMAGES/val --out OUT",
        ),
        (
            "seit_21k_to_pixels",
            "SeiT, 21k tokens, 1k pixels (SeiT table 3), ViT-B, 32x32 tokens then 224 px",
            "tilework train seit_21k_to_pixels --data STORE IMAGES/train --val none IMAGES/val --out OUT",
        ),
        (
            "demo_tokenizer",
            "the demo's tokenizer, small ViT-VQ, 96 px",
            "tilework tokenizer train IMAGES/train --recipe demo_tokenizer --val IMAGES/val --out TOKENIZER",
        ),
    ],
)
def test_about_and_command_follow_from_the_fields(name: str, about: str, command: str) -> None:
    assert (recipes[name].about, recipes[name].command) == (about, command)


def test_published_figures() -> None:
    """As printed in the papers."""
    for name, figures in {
        "seit_vit_b": {"top1": 74.0, "storage_gb": 1.36},
        "seit_three_stages": {"top1": 82.8, "storage_gb": 156},
        "mtm_to_seitpp": {"top1": 77.8, "storage_gb": 1.4},
        "lv_vit_s": {"top1": 83.3, "parameters": 26_151_824},
        "deit_s_tl_align": {"top1": 80.6},
        "good_swin_t_both": {"top1": 82.9},
        "dctpp_vit_s": {"top1_imagenet100": 71.0},
    }.items():
        assert recipes[name].published == figures


def test_equal_recipes_are_one_under_several_names() -> None:
    for name, other in (
        ("seit_cpu", "seit_views_cpu"),
        ("seit_plain_cpu", "token_class_cpu"),
        ("lv_class_cpu", "good_plain_cpu"),
    ):
        assert recipes[name] is recipes[other]
        assert recipes[name].also == (other,)
    runs = [recipe.run for recipe in catalogue]
    twice = [recipe.name for recipe in catalogue if runs.count(recipe.run) > 1]
    assert twice == ["deit_b", "fine_grained_pixels"], "whose small forms differ"


# names


def test_names_find_recipes_and_small_forms() -> None:
    assert find("seit_vit_b") is recipes["seit_vit_b"]
    assert find("seit_vit_b", small=True) is find("seit_vit_b_cpu") is recipes["seit_cpu"]
    assert find("seit_vit_s", small=True) is find("seit_vit_s_cpu")
    assert find("seit_vit_s_cpu").run == recipes["seit_cpu"].run
    assert run_of("seit_vit_s_cpu") == recipes["seit_cpu"].run
    assert tilework.recipes.seit_vit_b is recipes["seit_vit_b"]
    assert tilework.recipes.seit_vit_b() is recipes["seit_vit_b"].run
    assert tilework.recipes.seit_vit_s_cpu is find("seit_vit_s_cpu")
    assert {"seit_vit_b", "find"} <= set(dir(tilework.recipes))
    for name in ("good_pvt_small_cpu", "nothing"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(tilework.recipes, name)


@pytest.mark.parametrize(
    ("name", "small", "message"),
    [
        ("seit_vit_bb", False, "unknown recipe 'seit_vit_bb': did you mean 'seit_vit_b'?"),
        ("nothing_cpu", False, "unknown recipe 'nothing_cpu'"),
        ("seit_cpu", True, "recipe 'seit_cpu' is small already: leave --small out"),
        ("good_pvt_small", True, "recipe 'good_pvt_small' has no small form: leave --small out"),
        ("good_pvt_small_cpu", False, "recipe 'good_pvt_small' has no small form"),
    ],
)
def test_names_that_find_nothing(name: str, small: bool, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(name, small)
    assert str(caught.value).startswith(message)


def test_a_chain_is_no_run() -> None:
    with pytest.raises(ConfigError, match="'mtm_to_seit' is a chain of runs"):
        run_of("mtm_to_seit")


def test_every_full_size_recipe_has_a_small_form_or_a_reason() -> None:
    """Networks without a small one, tokenizers, parts of ImageNet, and steps of a path that differ in size alone."""
    none = {recipe.name for recipe in catalogue if recipe.size == "full" and recipe.name not in small_forms}
    assert none == {
        *(name for name in recipes if name.startswith(("good_t2t", "good_pvt", "lv_path_"))),
        "pvt_small_tl_align",
        "pvt_medium_tl_align",
        "good_swin_t_part",
        "good_swin_t_both_part",
        "vqgan_f16",
    }


# the small form


def test_small_halves_the_grid_and_keeps_the_method() -> None:
    run, form = run_of("seit_vit_b"), small(run_of("seit_vit_b"))
    assert form.codes == (16, 16)
    assert form.evaluation == (Embed(standardise=True), CentreCrop((14, 14)))
    assert form.augment[1] == TokenCrop((14, 14), (0.35, 1.0), standardise=True)
    assert (form.augment[0], form.augment[2:]) == (run.augment[0], run.augment[2:])
    assert form.model == VitConfig(width=128, depth=4, heads=4, pool="mean", stem=run.model.stem)  # type: ignore[attr-defined]
    assert form.objective == run.objective
    assert (form.fit.steps, form.fit.epochs, form.fit.batch, form.fit.precision) == (1200, 0, 64, "fp32")
    assert form.size == run.size, "of images, which a token run has none of"


def test_what_small_is_told() -> None:
    either = CutMixOrMixup(CutMix(1.0), Mixup(0.8), switch=0.5)
    steps = (RandomResizedCrop((224, 224)), either, MixToken((14, 14)), TokenEda(), CutMix(0.5))
    run = Run(VitConfig(), ClassifyConfig(), steps, (CentreCrop((224, 224)),), size=(256, 256))
    form = small(run, "fit.steps=7", "augment.mix_token.probability=0.25", without=(TokenEda,), mixed=0.5)
    assert form.augment == (
        RandomResizedCrop((112, 112), (0.35, 1.0)),
        CutMixOrMixup(CutMix(0.5), Mixup(0.4), switch=0.5),
        MixToken((7, 7), 0.25),
        CutMix(0.25),
    )
    assert (form.size, form.fit.steps) == ((128, 128), 7)
    raw = small(replace(run, augment=(TokenCrop((28, 28)),), evaluation=(Embed(),), codes=(32, 32)), standardise=False)
    assert (raw.augment, raw.evaluation) == ((TokenCrop((14, 14), (0.35, 1.0)),), (Embed(),))


def test_a_network_without_a_small_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="no small form of a 'pvt' network"):
        small(run_of("good_pvt_small"))


@pytest.mark.parametrize("full", sorted(small_forms))
def test_small_forms_keep_paper_and_row(full: str) -> None:
    one, form = recipes[full], small_forms[full]
    assert (form.size, form.paper, form.row, form.start) == ("cpu", one.paper, one.row, one.start)
    assert set(form.needs) == set(one.needs)
    assert [type(run.objective) for run in form.runs] == [type(run.objective) for run in one.runs]
    assert [type(run.model) for run in form.runs] == [type(run.model) for run in one.runs]


def test_a_recipe_is_filed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "_entries", dict(recipes._entries))
    length = len(catalogue)
    try:
        mine = add("", "mine", "nothing new", "ViT-S", run_of("seit_vit_s"), also=("mine_too",))
        form = add_small(mine, "mine_small", "fit.steps=3")
        assert recipes["mine"] is recipes["mine_too"] is mine
        assert find("mine", small=True) is recipes["mine_small"] is form
        assert isinstance(form.run, Run)
        assert form.run.fit.steps == 3
        with pytest.raises(ValueError, match="'mine_too' is registered twice"):
            add("", "mine_too", "again", "", run_of("seit_vit_s"))
    finally:
        del catalogue[length:], small_forms["mine"]


# settings by name


@pytest.mark.parametrize(
    ("name", "setting", "position"),
    [
        ("seit_vit_b", "augment.cutmix.probability=0", "augment.2.probability=0"),
        ("seit_vit_b", "evaluation.embed.standardise=true", "evaluation.0.standardise=true"),
        ("seitpp_cpu", "augment.token_adapt.colour.noise=0", "augment.1.colour.noise=0"),
        ("good_deit_s_token_prop", "extra.token_prop.weight=0.1", "extra.0.weight=0.1"),
        ("good_deit_s_token_prop", "extra.token_prop.objective.size=128", "extra.0.objective.size=128"),
        ("good_moco_cpu", "augment.two_views.views.flip.probability=0", "augment.0.views.4.probability=0"),
        ("mtm_to_seit_cpu", "links.pretrain.run.fit.steps=800", "links.0.run.fit.steps=800"),
        (
            "mtm_to_seit_cpu",
            "links.tune.run.augment.requantise.steps.cutmix.probability=0",
            "links.1.run.augment.0.steps.2.probability=0",
        ),
    ],
)
def test_settings_by_name_are_those_by_position(name: str, setting: str, position: str) -> None:
    run = recipes[name].run
    assert resolve(run, None, [setting]) == resolve(run, None, [position]) != run


# the index


def test_the_index_is_that_of_the_recipes() -> None:
    """If this fails: python -m tilework.recipes.index"""
    head, *lines = FILE.read_text().splitlines()
    assert json.loads(head) == sources()
    assert [json.loads(line) for line in lines] == json.loads(json.dumps(collect()))
    assert [card["name"] for card in cards()] == [recipe.name for recipe in catalogue]
    assert {name for card in cards() for name in (card["name"], *card["also"])} == set(recipes)
    hidden = {card["name"] for card in collect() if not card["listed"]}
    assert hidden
    assert all(find(name).name == name for name in hidden)


def test_a_stale_index_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_index, "FILE", tmp_path / "index.jsonl")
    monkeypatch.setattr(recipe_index, "_read", recipe_index._read.__wrapped__)
    assert len(cards()) == len(catalogue), "none"
    (tmp_path / "index.jsonl").write_text('"another"\n{"name": "gone", "listed": true}\n')
    assert len(cards()) == len(catalogue)
    (tmp_path / "index.jsonl").write_text(f'{json.dumps(sources())}\n{{"name": "kept", "listed": true}}\n')
    assert cards() == [{"name": "kept", "listed": True}]


@pytest.mark.parametrize(
    "command",
    [
        ["recipes"],
        ["recipes", "--paper", "SeiT++", "--json"],
        ["recipes", "--help"],
        ["recipes", "seit_vit_b", "--small"],
    ],
)
def test_listing_loads_no_torch(command: list[str]) -> None:
    code = (
        "import sys\nfrom tilework.cli.main import main\n"
        f"try:\n    main({command!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'numpy', 'tilework.recipes.recipe'} & set(sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "seit" in ended.stdout.casefold() or "--paper" in ended.stdout


def test_chains_are_chains() -> None:
    assert isinstance(recipes["mtm_to_seit"].run, Chain)
    assert [link.name for link in find("mtm_to_seit", small=True).run.links] == ["pretrain", "tune"]  # type: ignore[union-attr]
