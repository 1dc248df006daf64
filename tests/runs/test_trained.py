"""One way to open a trained run on data: every command takes and refuses the same, with one message and one code."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from small_data import CODE_DIM, CODES, GRID, write_images
from tilework.augment import CentreCrop, Embed
from tilework.cli.main import main
from tilework.core.config import read_yaml, to_yaml
from tilework.core.errors import DamageError, InputError
from tilework.core.files import sha256
from tilework.core.sealed import read_json, write_sealed
from tilework.data import ImageFolder
from tilework.data.renumbered import Renumbered
from tilework.layers.stems import TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.runs import Run, Trained, evaluate_run, train
from tilework.store import Store, StoreWriter
from tilework.tokenizers import VitVqConfig, save_tokenizer
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import tokenize
from tilework.tokenizers.tokenizer import load_tokenizer
from tilework.train import FitConfig

CPU = torch.device("cpu")
BOOK = np.random.default_rng(7).normal(size=(CODES, CODE_DIM)).astype(np.float32)
RUN = Run(
    model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(Embed(standardise=True),),
    evaluation=(Embed(standardise=True), CentreCrop(GRID)),
    fit=FitConfig(epochs=0, steps=3, batch=12),
)


def store_of(path: Path, codes: np.ndarray, ids: np.ndarray, classes: int = 3) -> Path:
    with StoreWriter(path, codes, [f"class{i}" for i in range(classes)], codec="packed") as writer:
        writer.add(ids, np.arange(len(ids)) % classes, [f"{i}.png" for i in range(len(ids))])
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    ids = np.random.default_rng(0).integers(0, CODES, (24, *GRID))
    train(RUN, store_of(root / "same.tok", BOOK, ids), None, root / "run", "cpu", quiet=True)
    kept = np.array([11, 2, 3, 7, 14, 0])  # a part of the codes, under other numbers
    few = np.random.default_rng(1).integers(0, len(kept), (24, *GRID))
    store_of(root / "cut.tok", BOOK[kept], few)
    store_of(root / "whole.tok", BOOK, kept[few])  # the same images by the run's numbers
    more = np.concatenate([BOOK, np.ones((1, CODE_DIM), np.float32)])
    store_of(root / "superset.tok", more, ids)
    store_of(root / "other.tok", BOOK + 1, ids)
    store_of(root / "narrow.tok", BOOK[:, :4], ids)
    store_of(root / "grid.tok", BOOK, np.zeros((24, 10, 10), int))
    store_of(root / "classes.tok", BOOK, ids, classes=4)
    write_images(root / "images")
    return root


def command(name: str, run: Path, data: Path, out: Path) -> list[str]:
    return {
        "eval": ["eval", str(run), "--data", str(data)],
        "probe": ["probe", str(run), "--data", str(data), "--val", str(data)],
        "export": ["export", str(run), "--out", str(out), "--data", str(data)],
        "explain": ["explain", str(run), "--data", str(data), "--out", str(out / "x.png"), "--method", "rollout",
                    "--count", "2"],
        "analyze stems": ["analyze", "stems", "--runs", str(run), "--data", str(data), "--val", str(data),
                          "--epochs", "1", "--out", str(out)],
        "analyze align": ["analyze", "align", str(run), "--data", str(data), "--out", str(out)],
    }[name]  # fmt: skip


COMMANDS = ["eval", "probe", "export", "explain", "analyze stems", "analyze align"]
REFUSED = {
    "other.tok": "has another codebook than the run",
    "superset.tok": "has another codebook than the run",
    "narrow.tok": "has another codebook than the run",
    "grid.tok": "a grid of 10x10, not 8x8: give data of the same tokenizer and size",
    "images": "was trained on tokens, .* holds images: add --tokenizer",
    "nowhere": "no such data",
}


@pytest.mark.parametrize("data", REFUSED)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_refuses_the_same_with_one_code(
    name: str, data: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(command(name, made / "run", made / data, tmp_path / "out"))
    said = capsys.readouterr().err.strip()
    assert end.value.code == 3, said
    assert len(said.splitlines()) == 1
    with pytest.raises(InputError, match=REFUSED[data]) as raised:
        Trained.open(made / "run").on(made / data, CPU)
    assert said == f"tilework: error: {raised.value}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["eval", "export"])
def test_other_classes_are_refused_where_they_matter(
    name: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(command(name, made / "run", made / "classes.tok", tmp_path / "out"))
    assert (end.value.code, "other classes" in capsys.readouterr().err) == (3, True)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_a_part_of_the_codes(name: str, made: Path, tmp_path: Path) -> None:
    words = command(name, made / "run", made / "cut.tok", tmp_path / "out")
    with pytest.raises(SystemExit) as end:
        main([*words, "--json"] if name != "analyze align" else [*words, "--count", "2", "--json"])
    drawn = name in ("explain", "analyze align")  # which cannot show codes without their tokenizer
    assert end.value.code == (4 if drawn else 0)


def test_a_part_of_the_codes_gives_what_the_run_knows_them_as(made: Path) -> None:
    """Standardised by the run's codebook, not by the part; oracle: the same images under the run's own numbers."""
    part = Trained.open(made / "run").on(made / "cut.tok", CPU).source
    assert isinstance(part, Renumbered)
    whole = Trained.open(made / "run").on(made / "whole.tok", CPU).source
    index = np.arange(24)
    assert torch.equal(part.batch(index).x, whole.batch(index).x)
    found, wanted = (evaluate_run(made / "run", made / name).probabilities for name in ("cut.tok", "whole.tok"))
    np.testing.assert_array_equal(found, wanted)


def test_images_are_encoded_as_a_store_would_keep_them(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    torch.manual_seed(0)
    config = VitVqConfig(patch=4, codes=16, code_dim=4, width=16, depth=1, heads=2)
    save_tokenizer(tmp_path / "t", config.build(3, (32, 32), 0), config, (32, 32))
    tokenize(ImageFolder.open(images), Tokenizing(*load_tokenizer(tmp_path / "t"), CPU), tmp_path / "x.tok")
    assert len(Store(tmp_path / "x.tok").codebook) <= 16
    train(RUN, tmp_path / "x.tok", None, tmp_path / "run", "cpu", quiet=True)
    trained = Trained.open(tmp_path / "run")
    direct, stored = trained.on(images, CPU, tmp_path / "t").source, trained.on(tmp_path / "x.tok", CPU).source
    assert (direct.grid, direct.classes, len(direct), direct.stage) == (GRID, stored.classes, len(stored), "ids")
    index = np.arange(len(stored))
    assert torch.equal(direct.batch(index).x, stored.batch(index).x)
    assert np.array_equal(direct.labels, stored.labels)
    other = VitVqConfig(patch=4, codes=16, code_dim=4, width=16, depth=1, heads=2).build(3, (32, 32), 0)
    torch.nn.init.normal_(other.quantiser.table)
    save_tokenizer(tmp_path / "other", other, config, (32, 32))
    with pytest.raises(InputError, match="the tokenizer has other codes than the run was trained on"):
        trained.on(images, CPU, tmp_path / "other")


def test_images_are_squashed_where_the_store_was(tmp_path: Path) -> None:
    """Oblong images fill the tokenizer's input as they did in the store that the run was trained on."""
    for number in range(16):
        (tmp_path / f"images/{number % 2}").mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (4, 9, 3)).astype(np.uint8)
        Image.fromarray(pixels.repeat(10, 0).repeat(10, 1)).save(tmp_path / f"images/{number % 2}/{number}.png")
    torch.manual_seed(0)
    config = VitVqConfig(patch=4, codes=16, code_dim=4, width=16, depth=1, heads=2)
    save_tokenizer(tmp_path / "t", config.build(3, (32, 32), 0), config, (32, 32))
    for frame in ("cover", "squash"):
        job = Tokenizing(*load_tokenizer(tmp_path / "t"), CPU, frame=frame)  # type: ignore[arg-type]
        tokenize(ImageFolder.open(tmp_path / "images"), job, tmp_path / f"{frame}.tok")
        train(RUN, tmp_path / f"{frame}.tok", None, tmp_path / frame, "cpu", quiet=True)
        trained = Trained.open(tmp_path / frame)
        assert trained.spec.frame == frame
        direct = trained.on(tmp_path / "images", CPU, tmp_path / "t").source
        stored = trained.on(tmp_path / f"{frame}.tok", CPU).source
        assert torch.equal(direct.batch(np.arange(16)).x, stored.batch(np.arange(16)).x)
    cover, squash = (Store(tmp_path / f"{frame}.tok") for frame in ("cover", "squash"))
    assert (cover.used[cover.batch(np.arange(16))] != squash.used[squash.batch(np.arange(16))]).any(), "it matters"


def test_a_start_on_other_codes_is_said(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (("other.tok", True), ("cut.tok", False)):
        train(RUN, made / name, None, tmp_path / name, "cpu", start=made / "run")
        assert ("was trained on another codebook" in capsys.readouterr().err) == said


def test_settings_that_end_in_something_else_than_the_network_takes_are_refused(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    settings = tmp_path / "run/run.yaml"
    settings.write_text(to_yaml({**read_yaml(settings), "evaluation": []}))
    card = read_json(tmp_path / "run/data.json")
    write_sealed(tmp_path / "run/data.json", {**card, "settings": sha256(settings)})
    with pytest.raises(DamageError, match="evaluation ends in ids, and it takes map"):
        Trained.open(tmp_path / "run").on(made / "same.tok", CPU)
