"""Robustness of small runs on pixels and tokens: the command end to end, resumed, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from small_data import write_images
from tilework.analysis.robustness import Robustness
from tilework.analysis.robustness.report import _over_seeds
from tilework.augment import CentreCrop, Embed, Normalise
from tilework.cli.main import main
from tilework.cli.robustness import _radius
from tilework.core.errors import ConfigError, DamageError, InputError, OutputError
from tilework.data import ImageFolder
from tilework.evaluation.from_pixels import FromPixels, calibration_error
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Run, Trained, evaluate_run, train
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train import FitConfig

CPU = torch.device("cpu")
VIT = VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig())
TOKENS = Run(
    model=VIT,
    objective=ClassifyConfig(),
    augment=(Embed(standardise=True), CentreCrop((6, 6))),
    evaluation=(Embed(standardise=True), CentreCrop((6, 6))),
    fit=FitConfig(epochs=0, steps=40, batch=16),
)
PIXELS = Run(
    model=VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(4)),
    objective=ClassifyConfig(),
    augment=(CentreCrop((24, 24)), Normalise()),
    evaluation=(CentreCrop((24, 24)), Normalise()),
    size=(32, 32),
    fit=FitConfig(epochs=0, steps=40, batch=16),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of 4 classes, a tokenizer and images that they have not seen."""
    root = tmp_path_factory.mktemp("robust")
    config = VitVqConfig(patch=4, codes=24, code_dim=6, width=16, depth=1, heads=2)
    torch.manual_seed(0)
    tokenizer = config.build(3, (32, 32), 0)
    write_images(root / "train", classes=4, count=12)
    write_images(root / "val", classes=4, count=4, seed=1)
    pixels = torch.rand(16, 3, 32, 32)
    tokenizer.start(pixels)
    features = tokenizer.features(pixels).detach().flatten(0, 2)
    with torch.no_grad():
        tokenizer.quantiser.table.copy_(features[torch.randperm(len(features))[:24]])
    save_tokenizer(root / "tokenizer", tokenizer, config, (32, 32))
    job = Tokenizing(*load_tokenizer(root / "tokenizer"), CPU)
    tokenize(ImageFolder.open(root / "train"), job, root / "train.tok")
    train(TOKENS, root / "train.tok", None, root / "token", "cpu", quiet=True)
    train(PIXELS, root / "train", None, root / "pixel", "cpu", quiet=True)
    return root


def opened(made: Path, name: str) -> FromPixels:
    trained = Trained.open(made / name)
    on = trained.on(made / "val", CPU, made / "tokenizer" if name == "token" else None)
    return FromPixels(trained.classifier, on.source, on.steps)


@pytest.mark.parametrize("name", ["token", "pixel"])
def test_pixels_reach_the_model_as_in_evaluation(made: Path, name: str) -> None:
    ask = opened(made, name)
    x = ask.images.batch(np.arange(16)).x / 255
    result = evaluate_run(made / name, made / "val", made / "tokenizer" if name == "token" else None, "cpu")
    assert np.allclose(ask(x).softmax(1).numpy(), result.probabilities, atol=1e-5)
    assert ask.check(x) == []
    for gradient in ask.gradients:
        if gradient != "unquantised":
            assert torch.allclose(ask.with_gradient(gradient)(x), ask(x), atol=1e-4)


def test_estimates_have_the_gradients_they_say(made: Path) -> None:
    ask = opened(made, "token")
    tokenizer, _ = load_tokenizer(made / "tokenizer")
    x = (ask.images.batch(np.arange(2)).x / 255).requires_grad_()
    used = torch.from_numpy(ask.codes.codebook.used).long()  # type: ignore[union-attr]
    code = tokenizer.codebook[used].detach()
    scale = 1 / code.std(0, correction=0)
    z = tokenizer.features(x)
    ids = ask.ids(x.detach())
    # by hand: the derivative of the answer by the map, carried to the features by each rule
    vectors = torch.nn.functional.embedding(ids.long(), ask.table).permute(0, 3, 1, 2).requires_grad_()
    (slope,) = torch.autograd.grad(ask.of_map(vectors)[:, 0].sum(), vectors)
    slope = slope.permute(0, 2, 3, 1)
    (ste,) = torch.autograd.grad(z, x, slope * scale, retain_graph=True)
    (got,) = torch.autograd.grad(ask.with_gradient("ste")(x)[:, 0].sum(), x)
    assert torch.allclose(got, ste, atol=1e-5)
    far = torch.cdist(code, code).fill_diagonal_(torch.inf).amin(1).square().mean()
    smooth = (-(z[..., None, :] - code).square().sum(-1) / (far / 4)).softmax(-1) @ ask.table
    (soft,) = torch.autograd.grad(smooth, x, slope)
    (got,) = torch.autograd.grad(ask.with_gradient("soft", 1 / 4)(x)[:, 0].sum(), x)
    assert torch.allclose(got, soft, atol=1e-4)


def test_the_command_measures_both_kinds_on_the_same_bytes(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["robustness", str(made / "pixel"), str(made / "token"), "--data", str(made / "val"), "--out", str(out)]
    words += ["--tokenizer", str(made / "tokenizer"), "--corruptions", "noise", "contrast", "--severities", "1", "3"]
    words += ["--proxies", "negative", "--shift", f"again={made / 'val'}", "--codes", "1", "3", "--count", "12"]
    words += [
        "--attack",
        "apgd-ce",
        "apgd-t",
        "fab-t",
        "square",
        "random",
        "transfer",
        "--transfer",
        str(made / "pixel"),
    ]
    words += [
        "--eps",
        "2/255",
        "0",
        "20/255",
        "--steps",
        "3",
        "--queries",
        "4",
        "--targets",
        "1",
        "--attack-count",
        "6",
    ]
    with pytest.raises(SystemExit) as end:
        main([*words, "--bytes"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    results = json.loads((out / "results.json").read_bytes())
    for name in ("pixel", "token"):
        run = results["runs"][name]
        kinds = ["exact"] if name == "pixel" else ["ste", "soft", "unquantised"]
        rows = [f"{a} {g}" for a in ("apgd-ce", "apgd-t", "fab-t") for g in kinds] + ["square", "random"]
        assert list(run["attacks"]) == [*rows, "transfer from pixel"]
        for cells in run["attacks"].values():
            falls = [cell["accuracy"] for cell in cells.values()]
            assert falls == sorted(falls, reverse=True)
            assert falls[0] == run["attacked_clean"]  # eps 0
        for eps in run["worst"]:
            assert run["worst"][eps] <= min(cells[eps]["accuracy"] for cells in run["attacks"].values())
        checks = {check["check"] for check in run["checks"]}
        assert {"gradients are not zero", "random signs are not stronger", "square is not stronger"} <= checks
        assert {"eps 255/255 leaves none", "more steps are not weaker"} <= checks
        assert ("it moves no fewer codes than random signs" in checks) == (name == "token")
        assert run["shifts"]["again"]["accuracy"] >= 0
        assert "mce" not in run
    assert set(results["runs"]["token"]["codes"]) == {"any", "near", "random", "random-near"}
    assert "codes" not in results["runs"]["pixel"]
    assert "Signs of masked gradients" in text
    assert "proxies, not ImageNet-R or Sketch" in text
    assert "mCE" not in text
    for file in ("table.md", "hits.safetensors", "attacks.png", "codes.png", "corruptions.png"):
        assert (out / file).stat().st_size > 0
    cells = {file: file.stat().st_mtime_ns for file in (out / "cells").rglob("*.json")}
    next(iter(cells)).unlink()  # a stopped command goes on: what is missing is made again, and is the same
    gone = next(iter(cells))
    with pytest.raises(SystemExit):
        main([*words, "--json", "--bytes"])
    assert (
        json.loads((out / "results.json").read_bytes())["runs"]["pixel"]["worst"] == results["runs"]["pixel"]["worst"]
    )
    assert all(file.stat().st_mtime_ns == at for file, at in cells.items() if file != gone)
    assert gone.is_file()
    with pytest.raises(SystemExit) as end:
        main([*words, "--seed", "1"])
    assert end.value.code == OutputError.exit_code


def job(made: Path, out: Path, **more: object) -> Robustness:
    runs, data = more.pop("runs", (made / "token",)), more.pop("data", made / "val")
    given = {"tokenizer": made / "tokenizer", "images": 8, "attack_images": 4, "device": "cpu", **more}
    return Robustness(runs, data, out, **given)  # type: ignore[arg-type]


def test_runs_of_one_tokenizer_encode_an_image_once(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made / "token", tmp_path / "again")
    encoded = []
    whole = FromPixels.raw_ids
    monkeypatch.setattr(FromPixels, "raw_ids", lambda ask, x: encoded.append(len(x)) or whole(ask, x))
    two = job(made, tmp_path / "two", runs=(made / "token", tmp_path / "again"), corruptions=("contrast",))
    results = two.run()["runs"]
    assert sum(encoded) == 8 * 6  # images, clean and at five severities
    assert results["token"]["corruptions"] == results["again"]["corruptions"]
    alone = job(made, tmp_path / "alone", runs=(tmp_path / "again",), corruptions=("contrast",)).run()["runs"]
    assert alone["again"]["corruptions"] == results["again"]["corruptions"]


def test_a_later_command_adds_to_what_is_known(made: Path, tmp_path: Path) -> None:
    """The worst is over all attacks ever made on these images, and no table is lost."""
    out = tmp_path / "o"
    first = job(made, out, corruptions=("contrast",), attacks=("apgd-ce",), steps=2, eps=(8 / 255,)).run()["runs"][
        "token"
    ]
    asked = job(made, out, attacks=("square", "apgd-ce"), steps=3, queries=2, eps=(0.0, 2 / 255, 8 / 255), codes=(3, 1))
    found = asked.run()
    both = found["runs"]["token"]
    assert both["corruptions"] == first["corruptions"]
    assert {"apgd-ce ste, 2 steps, 1 restart", "apgd-ce ste, 3 steps, 1 restart", "square"} <= set(both["attacks"])
    radius = f"{8 / 255:.8g}"
    assert both["worst"][radius] <= first["worst"][radius]
    assert list(both["worst"]) == ["0", f"{2 / 255:.8g}", radius]
    assert both["worst"]["0"] == both["attacked_clean"]
    names = {check["check"] for check in both["checks"] if check["row"].startswith("apgd-ce ste, 2")}
    assert "eps 255/255 leaves none" in names
    assert list(both["codes"]["any"]) == ["1", "3"]
    assert [key for key in both["codes"]["any"] if "psnr" in both["codes"]["any"][key]] == ["3"]
    hits = load_file(out / "hits.safetensors")
    assert {"token/clean", "token/codes-any-3", "token/corruption-contrast-5"} <= set(hits)
    assert len(hits["token/clean"]) == 8
    text = (out / "table.md").read_text()
    assert "## Corruptions" in text
    assert "mean of 1, severity 5" in text
    assert "nan" not in text + (out / "results.json").read_text().lower()


def test_another_folder_under_the_same_name_is_another_shift(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "val"
    shutil.copytree(made / "val", other)
    shutil.rmtree(other / "class3")
    first = job(made, tmp_path / "o", shifts=(("R", made / "val"),)).run()["runs"]["token"]["shifts"]
    both = job(made, tmp_path / "o", shifts=(("R", other),)).run()["runs"]["token"]["shifts"]
    assert list(first) == ["R"]
    assert first["R"]["ece"] >= 0
    assert sorted(one["images"] for one in both.values()) == [8, 8]
    assert ["class3"] in [one["missing_classes"] for one in both.values()]
    with pytest.raises(ConfigError, match="two shifts have one name"):
        job(made, tmp_path / "p", shifts=(("a b", other), ("a-b", made / "val")))


def test_draws_follow_the_image_whatever_others_there_are(made: Path, tmp_path: Path) -> None:
    def noisy(count: int) -> dict[str, torch.Tensor]:
        one = job(made, tmp_path / "o", images=count)
        keys = [one.subjects[0].ask.images.folder.key(i) for i in range(len(one.pixels))]
        return dict(zip(keys, one._corrupted("gaussian_noise", 3), strict=True))

    few, more = noisy(8), noisy(13)
    shared = few.keys() & more.keys()
    assert len(shared) >= 5
    for key in shared:
        assert torch.equal(few[key], more[key])


def test_random_signs_are_random_on_black_too(made: Path, tmp_path: Path) -> None:
    one = job(made, tmp_path / "o", attacks=("random",))
    black = torch.zeros(4, 3, 32, 32)
    y = one.labels(one.subjects[0])[:4]
    found = one.on_pixels._search(one.subjects[0].ask, "random", None, 0.1, black, y, torch.arange(4)).images
    assert 0.45 < (found > 0).float().mean() < 0.55


def test_images_that_no_attack_needs_to_break(made: Path, tmp_path: Path) -> None:
    """All answers are wrong before: nothing is attacked, and nothing is said of gradients."""
    one = job(made, tmp_path / "o", attacks=("apgd-ce",), steps=2, eps=(1 / 255,), codes=(2,))
    one.subjects[0].keep("clean", torch.zeros(8, dtype=torch.bool), {"ece": 0.0, "loss": 1.0, "not_finite": 0})
    write_settings(one)
    run = one.run()["runs"]["token"]
    assert run["worst"] == {f"{1 / 255:.8g}": 0.0}
    assert not any(check["check"] == "gradients are not zero" for check in run["checks"])
    assert "nan" not in (tmp_path / "o/table.md").read_text() + (tmp_path / "o/results.json").read_text().lower()


def write_settings(one: Robustness) -> None:
    """As if the figure of clean images had been measured."""
    cells = one.out / "cells"
    kept = {file: file.read_bytes() for file in cells.rglob("*.json")}
    shutil.rmtree(one.out)
    one._claim()
    for file, data in kept.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


@pytest.mark.parametrize(
    "damage", ["", "{", "null", "[]", "{}", '{"hits": "zz", "images": 8, "figures": {"accuracy": 0.5}}']
)
def test_damaged_figures_are_named(made: Path, tmp_path: Path, damage: str) -> None:
    job(made, tmp_path / "o").run()
    cell = next((tmp_path / "o/cells").rglob("clean.json"))
    whole = cell.read_bytes()
    cell.write_text(damage)
    with pytest.raises(DamageError, match=r"clean\.json"):
        job(made, tmp_path / "o").run()
    cell.write_bytes(whole.replace(b'"images": 8', b'"images": 7'))
    with pytest.raises(DamageError, match="was changed"):
        job(made, tmp_path / "o").run()
    cell.write_bytes(whole)
    (tmp_path / "o/settings.json").write_text(damage)
    with pytest.raises((DamageError, OutputError), match=r"settings|figures of"):
        job(made, tmp_path / "o").run()


def test_other_images_are_refused_and_another_path_to_the_same_is_not(made: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(made / "val", tmp_path / "val"))
    job(made, tmp_path / "o").run()
    job(made, tmp_path / "o", data=data).run()
    for file in data.rglob("*.*"):  # all of them become one
        file.write_bytes(sorted((made / "val/class1").iterdir())[0].read_bytes())
    with pytest.raises(OutputError, match="figures of other images"):
        job(made, tmp_path / "o", data=data).run()
    with pytest.raises(OutputError, match="figures of another number of images"):
        job(made, tmp_path / "o", data=data, images=9).run()


def test_what_cannot_be_is_refused_before_anything_is_computed(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eps 8 is not between 0 and 1: pixels are: write 8/255"):
        job(made, tmp_path / "o", eps=(8.0,))
    with pytest.raises(ConfigError, match="did you mean 'fog'"):
        job(made, tmp_path / "o", corruptions=("fogg",))
    with pytest.raises(ConfigError, match="give radii of 0 or more"):
        job(made, tmp_path / "o", eps=(-0.1,))
    with pytest.raises(ConfigError, match="add --transfer RUN"):
        job(made, tmp_path / "o", attacks=("transfer",))
    with pytest.raises(ConfigError, match="is a run on tokens"):
        job(made, tmp_path / "o", attacks=("transfer",), transfer=made / "token").run()
    with pytest.raises(ConfigError, match="without a severity"):
        job(made, tmp_path / "o", corruptions=("fog",), severities=())
    with pytest.raises(ConfigError, match="given twice"):
        job(made, tmp_path / "o", runs=(made / "token", made / "pixel" / ".." / "token"))
    with pytest.raises(ConfigError, match="400 codes cannot be swapped"):
        job(made, tmp_path / "o", codes=(400,)).run()
    with pytest.raises(ConfigError, match="add soft to --gradient"):
        job(made, tmp_path / "o", attacks=("apgd-ce",), gradients=("ste", "ste")).run()
    alone = Path(shutil.copytree(made / "token", tmp_path / "alone"))
    shutil.rmtree(alone / "tokenizer")
    with pytest.raises(InputError, match="add --tokenizer"):
        job(made, tmp_path / "o", tokenizer=None, runs=(alone,)).run()
    with pytest.raises(ConfigError, match="add soft to --gradient"):
        job(made, tmp_path / "o", attacks=("apgd-ce",), gradients=("ste",)).run()
    with pytest.raises(InputError, match=r"is what .* was trained on"):
        Robustness((made / "pixel",), made / "train", tmp_path / "o", device="cpu").run()
    with pytest.raises(InputError, match=r"is what .* was trained on"):
        Robustness((made / "token",), made / "train", tmp_path / "o", made / "tokenizer", device="cpu").run()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("{}")
    with pytest.raises(InputError, match="is an exported model, not a run"):
        job(made, tmp_path / "o", runs=(tmp_path / "model",)).run()
    other = tmp_path / "val"
    shutil.copytree(made / "val", other)
    (other / "class0").rename(other / "dragon")
    with pytest.raises(InputError, match="a class 'dragon' that training does not know"):
        Robustness((made / "pixel",), other, tmp_path / "o", device="cpu").run()
    with pytest.raises(InputError, match="'dragon' that is no class of the model"):
        job(made, tmp_path / "o", shifts=(("s", other),)).run()
    assert not (tmp_path / "o").exists()


def test_the_plan_costs_little(made: Path, tmp_path: Path) -> None:
    asked = job(made, tmp_path / "o", attacks=("apgd-ce", "square"), corruptions=("fog",))
    assert asked.attacks == ("apgd-ce", "square", "random")  # no table of gradient attacks without the floor
    plan = asked.plan()
    assert plan["minutes"] > 0
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("text", ["1e999", "1/2/3", "x", "", "1/0", "nan", "8/"])
def test_radii_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no number"):
        _radius(text)
    assert _radius("8/255") == 8 / 255


def test_calibration() -> None:
    logits = torch.log(torch.tensor([[0.9, 0.1]] * 10))
    y = torch.tensor([0] * 6 + [1] * 4)
    assert calibration_error(logits, y) == pytest.approx(0.3, abs=1e-6)  # sure by 0.9, right by 0.6


def test_figures_have_one_panel_for_the_seeds_of_a_row() -> None:
    runs = {
        "DeiT seed-0-rate-0.001": {"worst": [(0.0, 0.8), (1.0, 0.4)], "only_here": [(0.0, 0.8)]},
        "DeiT seed-1-rate-0.001": {"worst": [(0.0, 0.6), (1.0, 0.2)]},
        "alone": {"gaussian_noise": [(0.0, 0.5)]},
    }
    found = _over_seeds(runs)
    assert list(found) == ["DeiT (2 seeds)", "alone"]
    assert list(found["DeiT (2 seeds)"]) == ["worst"]
    assert found["DeiT (2 seeds)"]["worst"] == [(0.0, pytest.approx(0.7)), (1.0, pytest.approx(0.3))]
    assert found["alone"] == {"gaussian noise": [(0.0, 0.5)]}
