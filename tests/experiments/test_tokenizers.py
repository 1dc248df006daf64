"""`tilework analyze tokenizers`: every number from its own source, and nothing is made twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from small_data import write_images
from tilework.cli.main import main
from tilework.core.errors import ConfigError, DamageError, OutputError
from tilework.experiments.tokenizers import TokenizerViews
from tilework.recipes.judging import judge_codes, judge_pixels
from tilework.report.tokenizer_figures import accuracy_per_byte
from tilework.store import Store
from tilework.tokenizers import DctConfig, VitVqConfig, load_tokenizer, save_tokenizer

SMALL = ("model.width=16", "model.heads=2", "model.depth=1", "fit.batch=8", "fit.schedule.warmup_steps=1")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("views")
    write_images(root / "train", count=6, side=64)
    write_images(root / "val", count=3, side=64, seed=1)
    torch.manual_seed(0)
    vq = VitVqConfig(patch=8, codes=16, code_dim=4, width=16, depth=1, heads=2)
    dct = DctConfig(quality=50, keep=4)
    for name, config in (("vq", vq), ("dct", dct)):
        save_tokenizer(root / name, config.build(3, (64, 64), 0), config, (64, 64))
    return root


def views(root: Path, **changed: object) -> TokenizerViews:
    known = {"steps": 2, "pixels": True, "settings": SMALL, "quiet": True, **changed}
    return TokenizerViews((root / "vq", root / "dct"), root / "train", root / "val", root / "out", **known)  # type: ignore[arg-type]


def test_rows_are_what_stores_and_images_say_and_the_second_time_reads_them(root: Path) -> None:
    results = views(root).run()
    rows = {row["row"]: row for row in results["rows"]}
    assert list(rows) == ["vq", "dct", "pixels"]
    for name in ("vq", "dct"):
        store, (tokenizer, _) = Store(root / f"out/data/{name}/train.tok"), load_tokenizer(root / name)
        assert rows[name]["bytes_per_image"] == pytest.approx(
            sum(f.stat().st_size for f in store.path.rglob("*") if f.is_file()) / 18
        )
        assert rows[name]["code_usage"] == len(np.unique(store.used[store.batch(np.arange(18))])) / len(
            tokenizer.codebook
        )
        errors = []
        for file in sorted((root / "val").rglob("*.png")):
            image = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)[None] / 255
            errors.append(-10 * (tokenizer.decode(tokenizer.encode(image)) - image).square().mean().log10().item())
        assert rows[name]["psnr"] == pytest.approx(np.mean(errors), abs=1e-3)
        found = json.loads((root / f"out/runs/{name}/seed-0/run/results.json").read_text())
        assert rows[name]["top1"] == [found["top1"]]
    assert (rows["vq"]["bits_per_image"], rows["dct"]["bits_per_image"]) == (64 * 4, 64 * 12 * 8)
    files = [file.stat().st_size for file in (root / "train").rglob("*.png")]
    assert rows["pixels"]["bytes_per_image"] == np.mean(files)
    table = (root / "out/table.md").read_text()
    assert "| dct | 8x8x12 | 187 |" in table
    assert Image.open(root / "out/accuracy-per-byte.png").size[0] > 600
    before = {path: path.stat().st_mtime_ns for path in (root / "out").rglob("*.tok")}
    before |= {path: path.stat().st_mtime_ns for path in (root / "out").rglob("run/checkpoints/latest")}
    assert views(root).run() == results
    assert before == {path: path.stat().st_mtime_ns for path in before}
    with pytest.raises(OutputError, match="a comparison with other settings"):
        views(root, steps=3).run()
    measured = next((root / "out").rglob("measured.json"))
    whole = measured.read_text()
    measured.write_text(whole.replace('"psnr": ', '"psnr": 9'))
    with pytest.raises(DamageError, match=r"measured\.json was changed"):
        views(root).run()
    measured.write_text(whole)


def test_what_cannot_work_is_refused_before_anything_is_written(root: Path, tmp_path: Path) -> None:
    config = DctConfig()
    save_tokenizer(tmp_path / "odd", config.build(3, (56, 56), 0), config, (56, 56))
    for tokenizers in ((), (root / "vq", root / "vq"), (tmp_path / "odd",)):
        with pytest.raises(ConfigError):
            TokenizerViews(tokenizers, root / "train", root / "val", tmp_path / "out").run()
    with pytest.raises(ConfigError, match="must be at least 1"):
        TokenizerViews((root / "vq",), root / "train", root / "val", tmp_path / "out", seeds=0).run()
    assert not (tmp_path / "out").exists()


def test_the_classifier_is_the_same_for_every_input() -> None:
    """But for the stem: 7x7 tokens of the same blocks."""
    runs = [(judge_codes((side, side), False, 5), 4, side * 7 // 8) for side in (8, 16, 32)]
    runs += [(judge_pixels((128, 128), 5), 3, 112), (judge_codes((16, 16), True, 5), 192, 14)]
    models = [run.model.build(channels, (side, side), 10) for run, channels, side in runs]
    assert {model.grid for model in models} == {(7, 7)}
    shapes = [{k: v.shape for k, v in m.state_dict().items() if not k.startswith("patch_embed")} for m in models]
    assert all(one == shapes[0] for one in shapes)
    assert len({run.fit for run, *_ in runs}) == 1


def test_labels_of_the_plot_keep_clear_of_each_other() -> None:
    points = [("a long name of a tokenizer", 800.0, 0.71, 0.004), ("another", 820.0, 0.712, 0.0), ("c", 7000.0, 0.8, 0)]
    assert accuracy_per_byte(points, 1200).startswith(b"\x89PNG")
    assert accuracy_per_byte(points[:1], 1200).startswith(b"\x89PNG")


def test_the_command(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(root / "vq"), "--data", str(root / "train"), "--val", str(root / "val"), "--out", str(tmp_path / "o")]
    with pytest.raises(SystemExit) as ended:
        main(["analyze", "tokenizers", *words, "--steps", "1", "--seeds", "2", "--json", "--settings", *SMALL])
    assert ended.value.code == 0
    assert [(row["row"], row["seeds"]) for row in json.loads(capsys.readouterr().out)["rows"]] == [("vq", [0, 1])]
