"""Segmentation end to end: images and tokens, the same commands, masks and overlays, tables, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from small_data import write_images, write_pairs
from tilework.analysis.segment import overlay, segment_photographs, shares
from tilework.augment import CutMix, Embed, Flip, Normalise, ScaleCrop, TokenEda
from tilework.cli.main import main
from tilework.core.config import resolve
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, InputError
from tilework.data.class_mask import VOID
from tilework.data.pairs import open_pairs
from tilework.evaluation.dense_inference import Inference
from tilework.experiments.table import Table, markdown
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.models import LinearSegmenterConfig, UpernetConfig, VitConfig
from tilework.objectives import ClassifyConfig, MaskedConfig, SegmentConfig
from tilework.recipes import recipes
from tilework.recipes.recipe import add
from tilework.runs import Run, export_run, load_exported, prepare, train
from tilework.runs.segment import Segmenter
from tilework.store import Store
from tilework.tokenizers import VitVqConfig, save_tokenizer
from tilework.tokenizers.tokenize import parse_size
from tilework.train import FitConfig, OptimConfig

VIT = VitConfig(width=32, depth=4, heads=2, stem=PatchStemConfig(8))
CPU = World(0, 1, torch.device("cpu"))


def pixels(steps: int = 3) -> Run:
    return Run(
        model=UpernetConfig(VIT, channels=16),
        objective=SegmentConfig(auxiliary_channels=8),
        augment=(ScaleCrop((40, 56), short=40, long=200), Flip(), Normalise()),
        evaluation=(Normalise(),),
        size=(40, 56),
        frame="squash",
        fit=FitConfig(epochs=0, steps=steps, batch=4, optim=OptimConfig(lr=3e-3)),
    )


def tokens(steps: int = 3) -> Run:
    return replace(
        pixels(steps),
        model=UpernetConfig(replace(VIT, stem=TokenPatchStemConfig()), channels=16),
        objective=SegmentConfig(auxiliary_channels=8, finer=4),
        augment=(Embed(),),
        evaluation=(Embed(),),
        codes=(10, 14),
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders train and val, a tokenizer, and their stores."""
    root = tmp_path_factory.mktemp("segment")
    write_pairs(root / "train", 12)
    write_pairs(root / "val", 5, seed=1)
    torch.manual_seed(0)
    config = VitVqConfig(patch=4, codes=32, code_dim=8, width=16, depth=1, heads=2)
    save_tokenizer(root / "tokenizer", config.build(3, (40, 56), 0), config, (40, 56))
    for part, like in (("train", []), ("val", ["--like", str(root / "train.tok")])):
        line = ["tokenize", str(root / part), "--tokenizer", str(root / "tokenizer"), "--frame", "squash", "--masks"]
        assert run([*line, "--out", str(root / f"{part}.tok"), *like, "--json"]) == 0
    return root


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """A run on pixels that has learnt something."""
    train(pixels(120), data / "train", data / "val", data / "pixels", quiet=True)
    return data / "pixels"


def run(line: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(line)
    return int(ended.value.code or 0)


def results(path: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((path / "results.json").read_text())
    return found


def test_a_small_network_learns_colours(trained: Path) -> None:
    found = results(trained)
    assert found["miou"] > 0.5
    assert found["aacc"] > 0.8


def test_eval_gives_what_training_said(trained: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", str(trained), "--data", str(data / "val"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["miou"] == pytest.approx(results(trained)["miou"])
    assert set(shown["per_class"]) == {"ground", "disc", "box"}
    assert shown["images"] == 5


def test_windows_scales_and_mirror_images(trained: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", str(trained), "--data", str(data / "val"), "--mode", "slide", "--scales", "0.75", "1", "--flip"]
    assert run([*line, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["miou"] > 0.4
    assert (shown["mode"], shown["scales"], shown["flip"]) == ("slide", [0.75, 1.0], True)


def test_masks_overlays_counts_and_a_page(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["eval", str(trained), "--data", str(data / "val"), "--out", str(out), "--pictures", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    folder = open_pairs(data / "val")
    assert folder is not None
    right = total = 0
    for number in range(5):
        mask = np.asarray(Image.open(out / f"masks/images-{number:03d}.png"))
        true = folder.read_mask(number)
        assert mask.shape == true.shape
        right += int((mask == true).sum())
        total += int((true != VOID).sum())
        assert Image.open(out / f"overlays/images-{number:03d}.png").size == (56, 40)
    assert right / total == pytest.approx(figures["aacc"])
    counts = load_file(out / "by_image.safetensors")["counts"]
    assert counts.shape == (5, 3, 3)
    assert counts[:, 0].sum() / counts[:, 1].sum() == pytest.approx(figures["aacc"])
    page = (out / "report.html").read_text()
    assert "mIoU" in page
    assert "data:image/png" in page
    assert run(["eval", str(trained), "--data", str(data / "val"), "--out", str(out)]) != 0  # it exists


def test_photographs_of_any_size(trained: Path, data: Path, tmp_path: Path) -> None:
    photograph = data / "val/images/001.png"
    wide = tmp_path / "wide.png"
    Image.open(photograph).resize((150, 90)).save(wide)
    found = segment_photographs(Segmenter.open(trained, "cpu"), [photograph, wide], tmp_path / "out")
    assert Image.open(found[1]["mask"]).size == (150, 90)
    assert sum(found[1]["classes"].values()) == pytest.approx(1)
    small, large = (np.asarray(Image.open(one["mask"])) for one in found)
    again = np.asarray(Image.fromarray(large).resize((56, 40), Image.Resampling.NEAREST))
    assert (small == again).mean() > 0.85
    with pytest.raises(InputError, match="two images are called '001'"):
        segment_photographs(Segmenter.open(trained, "cpu"), [photograph, photograph], tmp_path / "twice")
    (tmp_path / "no.png").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        segment_photographs(Segmenter.open(trained, "cpu"), [tmp_path / "no.png"], tmp_path / "broken")


def test_tokens_by_the_same_commands(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(tokens(6), data / "train.tok", data / "val.tok", tmp_path / "run", quiet=True)
    assert run(["eval", str(tmp_path / "run"), "--data", str(data / "val.tok"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["miou"] == pytest.approx(result.metrics["miou"])
    tokenizer = ["--tokenizer", str(data / "tokenizer")]
    assert run(["eval", str(tmp_path / "run"), "--data", str(data / "val"), *tokenizer, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["miou"] == pytest.approx(result.metrics["miou"])  # encoded on the way
    assert run(["eval", str(tmp_path / "run"), "--data", str(data / "val.tok"), "--mode", "slide", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["miou"] == pytest.approx(result.metrics["miou"])  # one window is all
    segmenter = Segmenter.open(tmp_path / "run", "cpu", tokenizer=data / "tokenizer")
    found = segment_photographs(segmenter, [data / "val/images/000.png"], tmp_path / "masks")
    whole = next(iter(segmenter.samples(data / "val.tok", 1)))
    assert np.array_equal(np.asarray(Image.open(found[0]["mask"])), whole[3])
    with pytest.raises(ConfigError, match="codes of a scaled or mirrored image are others"):
        Segmenter.open(tmp_path / "run", "cpu", Inference("whole", (0.5,))).evaluate(data / "val.tok")
    line = ["predict", str(tmp_path / "run"), str(data / "val/images/000.png"), "--out", str(tmp_path / "predicted")]
    assert run([*line, "--json"]) == 0  # the run holds its tokenizer
    said = json.loads(capsys.readouterr().out)["photographs"][0]
    assert np.array_equal(np.asarray(Image.open(said["mask"])), whole[3])
    assert run(line[:3]) == 4
    assert "add --out DIRECTORY for masks and overlays" in capsys.readouterr().err


def test_stores_tell_what_their_masks_cost(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(data / "train.tok")
    assert store.classes == ("ground", "disc", "box")
    picture = tmp_path / "samples.png"
    line = ["inspect", str(data / "train.tok"), "--tokenizer", str(data / "tokenizer"), "--picture", str(picture)]
    assert run([*line, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["column_bytes_per_image"]["mask"] == store.column_bytes("mask") / 12
    assert "images_per_class" not in shown
    assert Image.open(picture).height > 300  # codes, decoded, masks, overlay


def test_masks_at_half_size_and_codes_in_tiles(data: Path, tmp_path: Path) -> None:
    tokenizer = ["--tokenizer", str(data / "tokenizer"), "--frame", "squash", "--masks", "--json"]
    line = ["tokenize", str(data / "val"), *tokenizer, "--mask-step", "2", "--size", "80x112", "--tiles"]
    assert run([*line, "--out", str(tmp_path / "half.tok")]) == 0
    store, whole = Store(tmp_path / "half.tok"), Store(data / "val.tok")
    assert store.grid == (20, 28)
    assert "encoded in tiles of 40x56 px" in store.manifest.preprocessing
    assert store.column_bytes("mask") < whole.column_bytes("mask")
    assert (
        run(["tokenize", str(data / "val"), *tokenizer, "--size", "60x112", "--tiles", "--out", str(tmp_path / "x")])
        == 3
    )
    with pytest.raises(ConfigError, match="HEIGHTxWIDTH"):
        parse_size("80")


@pytest.mark.parametrize("more", [["--views", "3"], ["--mask-step", "0"]])
def test_masks_of_views_are_refused(data: Path, tmp_path: Path, more: list[str]) -> None:
    line = [
        "tokenize",
        str(data / "val"),
        "--tokenizer",
        str(data / "tokenizer"),
        "--masks",
        "--out",
        str(tmp_path / "x"),
    ]
    assert run([*line, *more]) == 4


def test_images_without_masks_and_masks_without_the_option_are_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["tokenize", "--tokenizer", str(data / "tokenizer"), "--out", str(tmp_path / "x.tok")]
    assert run([*line, str(write_images(tmp_path / "images")), "--masks"]) == 3
    assert "these images have no masks" in capsys.readouterr().err
    assert run([*line, str(data / "val")]) == 3
    assert "add --masks to keep them" in capsys.readouterr().err


def test_broken_masks_are_quarantined_while_tokenizing(data: Path, tmp_path: Path) -> None:
    root = write_pairs(tmp_path / "hurt", 8)
    (root / "masks/003.png").unlink()
    line = ["tokenize", str(root), "--tokenizer", str(data / "tokenizer"), "--frame", "squash", "--masks"]
    assert run([*line, "--max-broken", "0.2", "--out", str(tmp_path / "hurt.tok")]) == 0
    assert len(Store(tmp_path / "hurt.tok")) == 7
    (listed,) = json.loads((tmp_path / "hurt.tok.quarantine.json").read_text())
    assert "no mask" in listed["reason"]


def test_broken_masks_are_listed_beside_a_run(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_pairs(tmp_path / "hurt", 8)
    Image.new("RGB", (56, 40)).save(root / "masks/001.png")
    Image.fromarray(np.full((40, 56), 3, np.uint8)).save(root / "masks/002.png")
    train(replace(pixels(1), max_broken=0.2), root, None, tmp_path / "run")
    (listed,) = json.loads((tmp_path / "run/quarantine.json").read_text())
    assert "mode RGB" in listed["reason"]
    assert "1 mask of training without a class anywhere" in capsys.readouterr().err


def test_data_that_do_not_fit_are_refused_before_training(data: Path, tmp_path: Path) -> None:
    def refuse(one: Run, train: Path, val: Path | None = None) -> None:
        prepare(one, train, val, tmp_path / "run", CPU, "x", quiet=True)

    plain = replace(pixels(), model=VIT, objective=ClassifyConfig(), augment=(Flip(), Normalise()))
    with pytest.raises(ConfigError, match=r"learns labels of images, .* has masks: use a segmentation recipe"):
        refuse(plain, data / "train")
    with pytest.raises(ConfigError, match=r"learns labels of images, .* has masks"):
        refuse(replace(tokens(), objective=ClassifyConfig()), data / "train.tok")
    with pytest.raises(ConfigError, match=r"the objective needs masks, and .* has none"):
        refuse(pixels(), write_images(tmp_path / "images"))
    other = write_pairs(tmp_path / "other", 4)
    (other / "classes.txt").write_text("ground\nbox\ndisc\n")
    with pytest.raises(InputError, match=r"other classes than training \('box'\)"):
        refuse(pixels(), data / "train", other)
    with pytest.raises(ConfigError, match="classifies images, not their pixels"):
        refuse(replace(pixels(), model=VIT), data / "train")
    assert not (tmp_path / "run").exists()


def test_mixing_and_swaps_of_masks(data: Path, tmp_path: Path) -> None:
    mixed = replace(pixels(1), augment=(*pixels().augment, CutMix()))
    with pytest.raises(ConfigError, match="the papers of segmentation mix none"):
        train(mixed, data / "train", None, tmp_path / "a", quiet=True)
    train(resolve(mixed, None, ["objective.mixing=true"]), data / "train", None, tmp_path / "b", quiet=True)
    swapped = replace(tokens(1), augment=(TokenEda(0.0, 1.0), Embed()))
    train(swapped, data / "train.tok", data / "val.tok", tmp_path / "c", quiet=True)


def test_a_classifier_and_masked_modelling_start_it(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_images(tmp_path / "images", side=40)
    plain = replace(pixels(2), model=VIT, objective=ClassifyConfig(), augment=(Normalise(),), size=(40, 40))
    train(plain, images, None, tmp_path / "classifier", quiet=True)
    train(pixels(2), data / "train", None, tmp_path / "run", start=tmp_path / "classifier")
    said = capsys.readouterr().err
    assert "fresh: decoder; resized: backbone" in said
    stem = replace(VIT, stem=TokenPatchStemConfig(), positions="sincos_learnt")
    masked = replace(
        tokens(2), model=stem, objective=MaskedConfig(width=16, depth=1, heads=2), augment=(), evaluation=()
    )
    train(masked, data / "train.tok", None, tmp_path / "masked", quiet=True)
    second = replace(tokens(2), model=replace(tokens().model, backbone=stem))  # type: ignore[type-var]
    train(second, data / "train.tok", None, tmp_path / "tuned", start=tmp_path / "masked", quiet=True)


def test_a_table_of_segmentation(data: Path, tmp_path: Path) -> None:
    tiny = {"tiny_upernet": pixels(2), "tiny_linear": replace(pixels(2), model=LinearSegmenterConfig(VIT))}
    for name, one in {**tiny, "tiny_tokens": tokens(2)}.items():
        add("", name, "x", "small", one, size="cpu")
    try:
        own = f"tiny_tokens data={data / 'train.tok'} val={data / 'val.tok'}"  # beside pixels of the same images
        rows = ("tiny_upernet@2", "tiny_linear", own)
        table = Table(rows, data / "train", data / "val", tmp_path / "table", quiet=True)
        found = table.run()
    finally:
        for name in ("tiny_upernet", "tiny_linear", "tiny_tokens"):
            recipes._entries.pop(name)
            from tilework.recipes import catalogue

            catalogue[:] = [one for one in catalogue if one.name != name]
    assert found["metric"] == "miou"
    assert "| row | seeds | mIoU (%) |" in markdown(found)
    assert [len(row["miou"]) for row in found["rows"]] == [2, 1, 1]


def test_a_run_that_segments_can_be_exported(trained: Path, data: Path, tmp_path: Path) -> None:
    export_run(trained, tmp_path / "model")
    exported = load_exported(tmp_path / "model")
    x = torch.randint(0, 256, (2, 3, 40, 56), dtype=torch.uint8)
    assert exported.logits(x).shape == (2, 3, 5, 7)
    assert not any(name.startswith("head.") for name in exported.model.state_dict())  # the auxiliary head stays behind


def test_classifiers_do_not_take_options_of_segmentation(
    trained: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_images(tmp_path / "images", side=40)
    plain = replace(pixels(1), model=VIT, objective=ClassifyConfig(), augment=(Normalise(),), size=(40, 40))
    train(plain, images, None, tmp_path / "run", quiet=True)
    assert run(["eval", str(tmp_path / "run"), "--data", str(images), "--flip"]) == 4
    assert "are for runs that segment" in capsys.readouterr().err
    with pytest.raises(InputError, match="was not trained to segment"):
        Segmenter.open(tmp_path / "run", "cpu")


def test_overlays_leave_void_alone() -> None:
    photograph = np.full((2, 2, 3), 100, np.uint8)
    ids = np.array([[0, VOID], [1, 1]], np.uint8)
    blended = overlay(photograph, ids, 2)
    assert (blended[0, 1] == 100).all()
    assert not (blended[1, 1] == 100).all()
    assert shares(ids, ("a", "b")) == {"b": 0.5, "a": 0.25}
