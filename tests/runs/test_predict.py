"""Answers about photographs: the same from a run, its export, a store of the photographs, and one ONNX graph."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tilework
from small_data import write_images
from tilework.augment import CentreCrop, Embed, Normalise
from tilework.cli.main import main
from tilework.core.errors import ConfigError, InputError
from tilework.data import ImageFolder, decode_image
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Run, evaluate_run, export_run, train
from tilework.store import Store
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.train import FitConfig

CPU = torch.device("cpu")
TOKENS = Run(
    model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(Embed(standardise=True),),
    evaluation=(Embed(standardise=True), CentreCrop((8, 8))),
    fit=FitConfig(epochs=0, steps=4, batch=12),
)
PIXELS = Run(
    model=VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8)),
    objective=ClassifyConfig(),
    augment=(Normalise(),),
    evaluation=(Normalise(),),
    size=(24, 24),
    fit=FitConfig(epochs=0, steps=2, batch=12),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("predict")
    write_images(root / "images")
    config = VitVqConfig(patch=4, codes=16, code_dim=8, width=16, depth=1, heads=2)
    torch.manual_seed(0)
    save_tokenizer(root / "own tokenizer", config.build(3, (32, 32), 0), config, (32, 32))
    model, card = load_tokenizer(root / "own tokenizer")
    folder = ImageFolder.open(root / "images")
    for name, frame in (("x.tok", "cover"), ("squashed.tok", "squash")):
        tokenize(folder, Tokenizing(model, card, CPU, licence="mine", frame=frame), root / name)  # type: ignore[arg-type]
    train(TOKENS, root / "x.tok", root / "x.tok", root / "run", "cpu", quiet=True)
    train(PIXELS, root / "images", None, root / "pixels", "cpu", quiet=True)
    return root


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_a_run_keeps_its_tokenizer_and_answers_as_on_its_store(made: Path) -> None:
    assert sorted(p.name for p in (made / "run/tokenizer").iterdir()) == ["tokenizer.json", "weights.safetensors"]
    model = tilework.load(made / "run")
    stored = {one.image: one for one in model.predict(made / "x.tok", top=3)}
    loose = model.predict(made / "images", top=3)
    assert [one.image for one in loose] == [str(path) for path in ImageFolder.open(made / "images").paths]
    loose = [replace(one, image=Path(one.image).relative_to(made / "images").as_posix()) for one in loose]
    for one in loose:
        assert one.classes == stored[one.image].classes
        np.testing.assert_allclose(one.probabilities, stored[one.image].probabilities, atol=1e-5)
        assert stored[one.image].truth == one.image.split("/")[0]
        assert one.truth is None
        assert sum(one.probabilities) == pytest.approx(1, abs=1e-5)
    right = np.mean([stored[one.image].truth == one.classes[0] for one in loose])
    assert right == pytest.approx(evaluate_run(made / "run", made / "x.tok").top(1))
    alone = model.predict(made / "images/class1/003.png", top=2)
    assert (len(alone), len(alone[0].classes), alone[0].image) == (1, 2, str(made / "images/class1/003.png"))


def test_answers_name_photographs_as_they_were_given(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made / "images")
    model = tilework.load(made / "run")
    names = [one.image for one in model.predict(["class1", "class0/003.png", "../images/class2/001.png"])]
    assert names[0] == "class1/000.png"
    assert names[-2:] == ["class0/003.png", "class2/001.png"]
    assert all(Path(name).is_file() for name in names)


def test_a_moved_run_still_answers_and_eval_needs_no_tokenizer(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "elsewhere")
    told = evaluate_run(made / "run", made / "images").probabilities
    np.testing.assert_array_equal(evaluate_run(tmp_path / "elsewhere", made / "images").probabilities, told)
    shutil.rmtree(tmp_path / "elsewhere/tokenizer")
    with pytest.raises(InputError, match=r"add --tokenizer with its tokenizer 'own tokenizer' \(SHA-256 "):
        tilework.load(tmp_path / "elsewhere").predict(made / "images")
    answers = tilework.load(tmp_path / "elsewhere").predict(made / "images", tokenizer=made / "own tokenizer")
    assert len(answers) == 24


def test_squashed_codes_come_from_squashed_photographs(made: Path, tmp_path: Path) -> None:
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 96, 3), np.uint8))
    (tmp_path / "c/class0").mkdir(parents=True)
    wide.save(tmp_path / "c/class0/wide.png")
    train(TOKENS, made / "squashed.tok", None, tmp_path / "run", "cpu", quiet=True)
    model, card = load_tokenizer(made / "own tokenizer")
    folder, used = ImageFolder.open(tmp_path / "c", ("class0", "class1", "class2")), Store(made / "squashed.tok").used
    tokenize(folder, Tokenizing(model, card, CPU, frame="squash"), tmp_path / "wide.tok", used=used)
    loaded = tilework.load(tmp_path / "run")
    np.testing.assert_allclose(
        loaded.predict(tmp_path / "c")[0].probabilities,
        loaded.predict(tmp_path / "wide.tok")[0].probabilities,
        atol=1e-6,
    )


def test_an_export_is_self_contained(made: Path, tmp_path: Path) -> None:
    about = export_run(made / "run", tmp_path / "model")
    assert (tmp_path / "model/tokenizer/weights.safetensors").is_file()
    assert (about.licence, about.tokenizer["name"]) == ("mine", "own tokenizer")
    assert about.figures["top1"] == pytest.approx(evaluate_run(made / "run", made / "x.tok").top(1))
    assert (
        about.preprocessing == "upright RGB, the largest square in the middle resized (bicubic) to 32x32 px, "
        "values from 0 to 255"
    )
    shutil.move(tmp_path / "model", tmp_path / "moved")
    found, wanted = (tilework.load(path).predict(made / "images") for path in (tmp_path / "moved", made / "run"))
    assert found == wanted
    np.testing.assert_array_equal(
        evaluate_run(tmp_path / "moved", made / "x.tok").probabilities,
        evaluate_run(made / "run", made / "x.tok").probabilities,
    )
    with pytest.raises(ConfigError, match="leave --best out"):
        evaluate_run(tmp_path / "moved", made / "x.tok", best=True)


def test_one_graph_from_pixels_to_classes(made: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    with pytest.raises(ConfigError, match="add --onnx"):
        export_run(made / "run", tmp_path / "model", pixels=True)
    about = export_run(made / "run", tmp_path / "model", onnx=True, pixels=True)
    assert about.onnx is not None
    assert about.onnx.input.startswith("pixels (B, 3, 32, 32) uint8")
    session = runtime.InferenceSession(str(tmp_path / "model/model.onnx"))
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["classes"]) == ["class0", "class1", "class2"]
    assert (known["licence"], json.loads(known["tokenizer"])["name"]) == ("mine", "own tokenizer")
    assert "32x32" in known["preprocessing"]
    assert json.loads(known["figures"])["top1"] == about.figures["top1"]
    paths = sorted((made / "images").rglob("*.png"))[:5]
    pixels = np.stack([decode_image(path, (32, 32)) for path in paths])
    logits = torch.from_numpy(session.run(None, {"pixels": pixels})[0])
    wanted = tilework.load(made / "run").predict(paths, top=3)
    for row, one in zip(logits.softmax(1), wanted, strict=True):
        np.testing.assert_allclose(row.sort(descending=True).values, one.probabilities, atol=1e-4)


def test_the_command(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p").mkdir()
    shutil.copy(made / "images/class0/000.png", tmp_path / "p/good.png")
    (tmp_path / "p/bad.jpg").write_bytes(b"<html>")
    (tmp_path / "p/notes.txt").write_text("x")
    assert command("predict", made / "pixels", tmp_path / "p", "--top", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].partition("  ")[0].endswith("/p/bad.jpg")
    assert lines[0].partition("  ")[2].lstrip().startswith("cannot be read")
    assert lines[1].partition("  ")[0].endswith("/p/good.png")
    assert max(len(line.partition("  ")[0]) for line in lines) <= 60
    assert lines[1].count("%") == 2
    assert command("predict", made / "pixels", tmp_path / "p", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told[1]["classes"]) == {"class0", "class1", "class2"}
    assert "error" in told[0]
    out, sheet = tmp_path / "answers.csv", tmp_path / "sheet.png"
    assert command("predict", made / "run", made / "images", "--format", "csv", "--out", out, "--picture", sheet) == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert len(rows) == 24
    assert float(rows[0]["probability_1"]) >= float(rows[0]["probability_2"])
    assert sheet.read_bytes().startswith(b"\x89PNG")
    assert command("predict", made / "run", made / "x.tok", "--picture", sheet) == 0
    assert command("predict", made / "run", made / "images", "--best") == 0


def test_ids_that_cannot_be_are_refused_in_our_words(made: Path) -> None:
    model = tilework.load(made / "run")
    with pytest.raises(InputError, match=r"codes 0..99: 0 to \d+ are known"):
        model.logits(torch.tensor([[[99] + [0] * 7] + [[0] * 8] * 7]))
    with pytest.raises(InputError, match=r"codes of shape \(1, 3, 3\)"):
        model.logits(torch.zeros(1, 3, 3, dtype=torch.long))
    with pytest.raises(InputError, match="whole numbers"):
        model.logits(torch.zeros(1, 8, 8))
    with pytest.raises(InputError, match=r"pixels of shape \(1, 1, 24, 24\)"):
        tilework.load(made / "pixels").logits(torch.zeros(1, 1, 24, 24))
