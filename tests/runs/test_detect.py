"""Detection end to end: images and tokens, boxes and outlines, commands, refusals; ten images learnt by heart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from small_data import write_images, write_objects, write_voc
from tilework.augment import Embed, Flip, Normalise, apply_all
from tilework.cli.main import main
from tilework.core.batch import Batch, Target
from tilework.core.distributed import World
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.models import MaskRcnnConfig, Output, PvtV2Config, RetinanetConfig, VitConfig
from tilework.models.detector import DetectorConfig
from tilework.models.rcnn import Proposals, Rcnn
from tilework.objectives import ClassifyConfig, DetectConfig, ObjectiveConfig, RcnnConfig
from tilework.runs import Run, export_run, load_exported, prepare, train
from tilework.runs.detect import Finder
from tilework.store import Store
from tilework.tokenizers import VitVqConfig, save_tokenizer
from tilework.train import FitConfig, OptimConfig

pytest.importorskip("pycocotools")
BACKBONE = PvtV2Config((8, 8, 16, 16), (1, 1, 1, 1), (1, 1, 2, 2), (2, 2, 2, 2))
CPU = World(0, 1, torch.device("cpu"))


def pixels(steps: int = 2) -> Run:
    return Run(
        model=RetinanetConfig(BACKBONE, channels=16, convs=1, levels=3, size=2.0),
        objective=DetectConfig(),
        augment=(Flip(), Normalise()),
        evaluation=(Normalise(),),
        size=(64, 96),
        frame="letterbox",
        fit=FitConfig(epochs=0, steps=steps, batch=4, optim=OptimConfig(lr=3e-3, clip=1.0)),
    )


def outlines(steps: int = 2) -> Run:
    few = Proposals(60, most=30)
    model = MaskRcnnConfig(BACKBONE, channels=16, hidden=16, size=4.0, proposals=few)
    return replace(pixels(steps), model=model, objective=RcnnConfig(regions=16, proposals=few))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("detect")
    write_objects(root / "train", 8)
    write_objects(root / "val", 5, seed=1)
    return root


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    train(pixels(60), data / "train/instances.json", data / "val/instances.json", data / "run", quiet=True)
    return data / "run"


def run(line: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(line)
    return int(ended.value.code or 0)


def test_eval_gives_what_training_said(
    trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    line = ["eval", str(trained), "--data", str(data / "val/instances.json"), "--out", str(out), "--pictures", "2"]
    assert run([*line, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["box_ap"] == pytest.approx(json.loads((trained / "results.json").read_text())["box_ap"])
    assert set(shown["per_class"]) == {"disc", "square", "ring"}
    assert shown["images"] == 5
    assert len(list((out / "pictures").glob("*.png"))) == 2
    assert "Average precision" in (out / "report.html").read_text()
    every = json.loads((out / "detections.json").read_text())
    assert all(one["class"] in shown["per_class"] and len(one["bbox"]) == 4 for one in every)
    assert run(line) == 7  # it exists
    assert run(["eval", str(trained), "--data", str(data / "val/instances.json"), "--flip"]) == 4


def test_photographs_of_any_size(trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photograph = data / "val/images/001.png"
    large = tmp_path / "large.png"
    Image.open(photograph).resize((192, 128), Image.Resampling.NEAREST).save(large)
    line = ["predict", str(trained), str(photograph), str(large), "--out", str(tmp_path / "out"), "--score", "0.05"]
    assert run([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["photographs"]
    assert Image.open(found[1]["picture"]).size == (768, 512)
    assert sum(found[0]["counts"].values()) == len(found[0]["objects"])
    finder = Finder.open(trained, "cpu")
    with Image.open(photograph) as image:
        whole = finder.find(image.convert("RGB"))
    result = finder.evaluate(data / "val/instances.json").found[1]
    assert np.allclose(whole.edges, result.edges, atol=1e-3)
    assert run(line[:4]) == 4
    assert "add --out DIRECTORY" in capsys.readouterr().err
    assert run([*line[:-1], "7"]) == 4


def test_outlines_by_the_same_commands(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(outlines(), data / "train/instances.json", data / "val/instances.json", tmp_path / "run", quiet=True)
    assert {"box_ap", "mask_ap"} <= result.metrics.keys()
    line = ["eval", str(tmp_path / "run"), "--data", str(data / "val/instances.json"), "--out", str(tmp_path / "out")]
    assert run([*line, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["mask_ap"] == pytest.approx(result.metrics["mask_ap"])
    assert set(shown["per_class_mask"]) == {"disc", "square", "ring"}


def test_tokens_by_the_same_commands(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    config = VitVqConfig(patch=4, codes=32, code_dim=8, width=16, depth=1, heads=2)
    save_tokenizer(tmp_path / "tokenizer", config.build(3, (64, 96), 0), config, (64, 96))
    tokenizer = ["--tokenizer", str(tmp_path / "tokenizer"), "--frame", "squash"]
    for part, more in (("train", []), ("val", ["--like", str(tmp_path / "train.tok")])):
        line = ["tokenize", str(data / part / "instances.json"), *tokenizer, "--out", str(tmp_path / f"{part}.tok")]
        assert run([*line, "--boxes", *more, "--json"]) == 0
    assert run([*line[:-1], str(tmp_path / "x.tok")]) == 3
    assert "add --boxes to keep them" in capsys.readouterr().err
    store = Store(tmp_path / "train.tok")
    assert store.column("sides").tolist() == [[64, 96]] * 8
    assert store.classes == ("disc", "square", "ring")
    token = replace(
        pixels(), model=pixels().model.for_tokens(), augment=(Embed(),), evaluation=(Embed(),), frame="squash",
        objective=DetectConfig(smallest=0.25),
    )  # fmt: skip
    result = train(token, tmp_path / "train.tok", tmp_path / "val.tok", tmp_path / "run", quiet=True)
    capsys.readouterr()
    assert run(["eval", str(tmp_path / "run"), "--data", str(tmp_path / "val.tok"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["box_ap"] == pytest.approx(result.metrics["box_ap"])
    images = ["eval", str(tmp_path / "run"), "--data", str(data / "val/instances.json"), *tokenizer[:2]]
    assert run([*images, "--json"]) == 0  # encoded on the way
    assert json.loads(capsys.readouterr().out)["box_ap"] == pytest.approx(result.metrics["box_ap"])
    line = ["predict", str(tmp_path / "run"), str(data / "val/images/000.png"), "--out", str(tmp_path / "boxes")]
    assert run([*line, "--json"]) == 0


def test_data_that_do_not_fit_are_refused_before_training(data: Path, tmp_path: Path) -> None:
    def refuse(one: Run, train: Path, val: Path | None = None) -> None:
        prepare(one, train, val, tmp_path / "run", CPU, "x", quiet=True)

    file = data / "train/instances.json"
    plain = replace(pixels(), model=VitConfig(width=16, depth=1, heads=2), objective=ClassifyConfig())
    with pytest.raises(ConfigError, match=r"learns labels of images, .* has boxes: use a detection recipe"):
        refuse(plain, file)
    with pytest.raises(ConfigError, match=r"the objective needs boxes, and .* has none"):
        refuse(pixels(), write_images(tmp_path / "images"))
    voc = write_voc(tmp_path / "voc", {name: [("cell", 1, 1, 20, 20)] for name in "abcd"})
    with pytest.raises(InputError, match=r"4 of 4 objects .* have no outline"):
        refuse(outlines(), voc)
    with pytest.raises(InputError, match="a class 'cell' that training does not know"):
        refuse(pixels(), file, voc)
    assert not (tmp_path / "run").exists()


def test_what_is_set_aside_is_listed_beside_the_run(tmp_path: Path) -> None:
    boxes = {name: [("cell", 5, 5, 30, 30)] for name in "abcdefgh"}
    boxes["a"] += [("cell", 9, 9, 8, 20), ("cell", 40, 5, 90, 30)]  # one has no width, one reaches beyond
    path = write_voc(tmp_path, boxes)
    train(replace(pixels(1), size=(64, 96), max_broken=0.2), path, None, tmp_path / "run", quiet=True)
    (one,) = json.loads((tmp_path / "run/boxes_set_aside.json").read_text())
    assert one["path"] == "a.jpg"
    assert "has no area" in one["reason"]


def test_an_exported_detector_gives_logits_and_offsets(trained: Path, data: Path, tmp_path: Path) -> None:
    about = export_run(trained, tmp_path / "model", onnx=True)
    assert about.onnx is not None
    assert about.onnx.max_difference < 1e-4
    again = load_exported(tmp_path / "model")
    x = torch.randint(256, (2, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = again.logits(x)
    assert found.shape == (2, (8 * 12 + 4 * 6 + 2 * 3) * 9, 3 + 4)
    with pytest.raises(InputError, match="finds objects"):
        again.predict(data / "val/images/000.png")


class Graph(torch.nn.Module):
    """An ONNX file in the place of a network."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.session = pytest.importorskip("onnxruntime").InferenceSession(str(file))

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        (given,) = self.session.get_inputs()
        found = [torch.from_numpy(one) for one in self.session.run(None, {given.name: x.numpy()})]
        return tuple(found) if len(found) > 1 else found[0]


def test_objects_are_found_by_graphs_as_by_the_network(data: Path, tmp_path: Path) -> None:
    train(outlines(30), data / "train/instances.json", data / "val/instances.json", tmp_path / "run", quiet=True)
    about = export_run(tmp_path / "run", tmp_path / "model", onnx=True)
    assert sorted(about.heads) == ["boxes-0.onnx", "masks-0.onnx"]
    assert about.onnx is not None
    assert "level_4" in about.onnx.output
    exported = load_exported(tmp_path / "model")
    network = exported.model
    assert isinstance(network, Rcnn)
    network.config = replace(network.config, least=0.0)
    x = torch.randint(256, (2, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    whole = torch.tensor([[0.0, 0, 96, 64]]).expand(2, 4)
    index = torch.arange(2)
    batch = apply_all(exported.steps, Batch(x, Target.hard(index), index), Draws(0, 0, index))
    own = network.find(network(batch.x), whole)
    flat, *levels = Graph(tmp_path / "model/model.onnx")(x)
    network.box_heads[0] = Graph(tmp_path / "model/boxes-0.onnx")
    network.mask_heads[0] = Graph(tmp_path / "model/masks-0.onnx")
    out = Output(flat[..., :1], flat, flat, (4, 6), stages=tuple(levels), offsets=flat[..., 1:])
    found = network.find(out, whole)
    assert (own.scores > 0).sum() > 10
    assert own.masks is not None
    assert found.masks is not None
    for one, other in ((own.boxes, found.boxes), (own.scores, found.scores), (own.masks, found.masks)):
        torch.testing.assert_close(other, one, atol=1e-3, rtol=1e-3)


TEN = PvtV2Config((16, 32, 48, 64), (1, 1, 1, 1), (1, 2, 3, 4), (4, 4, 4, 4))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "objective", "kinds"),
    [
        (RetinanetConfig(TEN, channels=32, convs=2, levels=3, size=2.0), DetectConfig(), ("box",)),
        (MaskRcnnConfig(TEN, channels=32, hidden=64, size=4.0), RcnnConfig(regions=64), ("box", "mask")),
    ],
    ids=["retinanet", "mask_rcnn"],
)
def test_ten_images_are_learnt_by_heart(
    model: DetectorConfig, objective: ObjectiveConfig, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    file = write_objects(tmp_path / "ten", 10)
    fit = FitConfig(epochs=0, steps=300, batch=10, evaluate_every=0, optim=OptimConfig(lr=2e-3, clip=1.0))
    whole = replace(pixels(), model=model, objective=objective, augment=(Normalise(),), fit=fit)
    result = train(whole, file, file, tmp_path / "run", quiet=True)
    assert all(result.metrics[f"{kind}_ap"] > 0.9 for kind in kinds), result.metrics
