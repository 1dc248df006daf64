"""From a folder of images to a store: every good image, in any number of processes, stopped anywhere; or nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import tilework.tokenizers.tokenize as tokenize_module
from tilework.core.errors import ConfigError, InputError, OutputError
from tilework.data import Broken, ImageFolder, decode_image
from tilework.store import Spool, Store
from tilework.tokenizers import Tokenizer, VitVq, VitVqConfig, image_codes
from tilework.tokenizers.image_codes import Tokenizing
from tilework.tokenizers.tokenize import finish, open_spool, parse_share, spool_share, tokenize
from tilework.tokenizers.tokenizer import Card

SIZE = (16, 24)
CARD = Card("small", "ab" * 32, SIZE)
KEYS = ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/2.png", "eel/0.png", "eel/1.png"]
CPU = torch.device("cpu")


@pytest.fixture
def tokenizer() -> VitVq:
    torch.manual_seed(0)
    model = VitVqConfig(patch=4, codes=64, code_dim=6, width=16, depth=1, heads=2).build(3, SIZE, 0).eval()
    model.start(torch.rand(8, 3, *SIZE))
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Seven good images and a broken one in the middle."""
    rng = np.random.default_rng(0)
    root = tmp_path / "images"
    for key in KEYS:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(root / key)
    (root / "dog/1.png").write_bytes(b"broken")
    return root


def job(tokenizer: Tokenizer, **settings: object) -> Tokenizing:
    return Tokenizing(tokenizer, CARD, CPU, **settings)  # type: ignore[arg-type]


def run(folder: Path, tokenizer: Tokenizer, out: Path, **settings: object) -> list[Broken]:
    return tokenize(ImageFolder.open(folder), job(tokenizer, **settings), out, max_broken=0.5)


def bytes_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def codes_one_by_one(folder: Path, tokenizer: Tokenizer) -> np.ndarray:
    """Codes of every good image, each encoded alone, (7, 4, 6)."""
    singles = [torch.from_numpy(decode_image(folder / key, SIZE))[None] / 255 for key in KEYS]
    return torch.cat([tokenizer.encode(single) for single in singles]).numpy()


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_codes_equal_those_of_each_image_alone(folder: Path, tokenizer: VitVq, tmp_path: Path, batch: int) -> None:
    broken = run(folder, tokenizer, tmp_path / "a.tok", batch=batch)
    store = Store(tmp_path / "a.tok")
    ids = store.batch(np.arange(len(store)))
    assert np.array_equal(store.used[ids], codes_one_by_one(folder, tokenizer))
    assert len(np.unique(ids)) > 5
    assert [one.path for one in broken] == ["dog/1.png"]
    listed = json.loads((tmp_path / "a.tok.quarantine.json").read_text())
    assert [one["path"] for one in listed] == ["dog/1.png"]
    assert len(store) + len(broken) == 8


def test_labels_and_keys_follow(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    run(folder, tokenizer, tmp_path / "a.tok", batch=2)
    store = Store(tmp_path / "a.tok")
    assert list(store.column("key")) == KEYS
    assert store.column("label").tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert store.classes == ("cat", "dog", "eel")


def test_store_says_how_it_was_made(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    run(folder, tokenizer, tmp_path / "a.tok", licence="CC0")
    store = Store(tmp_path / "a.tok")
    assert store.manifest.tokenizer == {"name": "small", "sha256": "ab" * 32}
    assert store.manifest.preprocessing == CARD.preprocessing
    assert store.manifest.licence == "CC0"
    assert (store.grid, store.manifest.tokenizer_codes, len(store)) == ((4, 6), 64, 7)
    assert store.histogram().min() > 0  # codes that do not occur are not kept
    assert np.allclose(store.codebook.vectors, tokenizer.codebook.detach().numpy()[store.used])
    assert store.verify(deep=True) == []


def test_the_list_of_images_is_hashed_as_one_json_list(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spools of earlier versions go on. Oracle: the list in one piece."""
    monkeypatch.setattr(image_codes, "PART", 4)
    images, settings = ImageFolder.open(folder), [[], 64, 1024, None, "ü"]
    assert len(images) > 4
    whole = json.dumps([images.keys, images.labels.tolist(), *settings])
    assert image_codes.digest_of(images, settings) == hashlib.sha256(whole.encode()).hexdigest()


def test_squashed_images_are_whole(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    """Pillow's own resize of the whole image; the sentence says so, and the spool of the other frame is refused."""
    for key in KEYS:
        Image.open(folder / key).crop((0, 0, 30, 12)).save(folder / key)
    run(folder, tokenizer, tmp_path / "a.tok", frame="squash")
    store = Store(tmp_path / "a.tok")
    pixels = [np.asarray(Image.open(folder / key).resize(SIZE[::-1], Image.Resampling.BICUBIC)) for key in KEYS]
    ids = tokenizer.encode(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) / 255).numpy()
    assert np.array_equal(store.used[store.batch(np.arange(7))], ids)
    assert not np.array_equal(ids, codes_one_by_one(folder, tokenizer))
    assert store.manifest.preprocessing == "upright RGB, squashed (bicubic) to 16x24 px, values from 0 to 1"
    assert store.manifest.frame == "squash"
    open_spool(ImageFolder.open(folder), job(tokenizer), tmp_path / "b.tok")
    with pytest.raises(OutputError):
        run(folder, tokenizer, tmp_path / "b.tok", frame="squash")


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("views", [1, 3])
def test_job_array_and_single_process_give_the_same_bytes(
    folder: Path, tokenizer: VitVq, tmp_path: Path, world: int, views: int
) -> None:
    run(folder, tokenizer, tmp_path / "one.tok", views=views, part=2)  # four parts
    listed = ImageFolder.open(folder)
    for rank in reversed(range(world)):
        one = job(tokenizer, views=views, part=2)
        spool_share(listed, one, open_spool(listed, one, tmp_path / "many.tok"), rank, world, max_broken=0.5)
    finish(open_spool(listed, one, tmp_path / "many.tok"), tmp_path / "many.tok", max_broken=0.5)
    assert bytes_of(tmp_path / "one.tok") == bytes_of(tmp_path / "many.tok")
    assert (tmp_path / "one.tok.quarantine.json").read_bytes() == (tmp_path / "many.tok.quarantine.json").read_bytes()
    assert not list(tmp_path.glob("*.spool"))


@pytest.mark.parametrize("stop", range(4))
def test_stopped_anywhere_it_goes_on_to_the_same_bytes(
    folder: Path, tokenizer: VitVq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # one worker: parts are encoded in order
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    run(folder, tokenizer, tmp_path / "whole.tok", part=2)
    encode, calls = tokenizer.encode, []

    def fail(pixels: Tensor) -> Tensor:
        calls.append(len(pixels))
        if len(calls) > stop:
            raise RuntimeError("out of memory")
        return encode(pixels)

    monkeypatch.setattr(tokenizer, "encode", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(folder, tokenizer, tmp_path / "a.tok", part=2)
    assert not (tmp_path / "a.tok").exists()
    monkeypatch.setattr(tokenizer, "encode", lambda pixels: calls.append(-1) or encode(pixels))
    run(folder, tokenizer, tmp_path / "a.tok", part=2)
    assert bytes_of(tmp_path / "a.tok") == bytes_of(tmp_path / "whole.tok")
    assert calls.count(-1) == 4 - stop  # what was done is not done again
    assert not (tmp_path / "a.tok.spool").exists()


def test_views_are_crops_with_their_boxes(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    run(folder, tokenizer, tmp_path / "a.tok", views=3, area=(0.3, 0.6), seed=4)
    store = Store(tmp_path / "a.tok")
    boxes = store.column("box")
    assert (store.views, boxes.shape) == (3, (7, 3, 4))
    assert (boxes[..., :2] < boxes[..., 2:]).all()
    assert 0 <= boxes.min() <= boxes.max() <= 1
    areas = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    assert 0.25 < areas.min() < areas.max() < 0.61
    for i, key in enumerate(KEYS):
        with Image.open(folder / key) as image:
            for view in range(3):
                left, top, right, bottom = boxes[i, view].astype(np.float64) * np.array([30, 20, 30, 20])
                cut = image.resize((SIZE[1], SIZE[0]), Image.Resampling.BICUBIC, (left, top, right, bottom))
                pixels = torch.from_numpy(np.array(cut)).permute(2, 0, 1)[None] / 255
                same = tokenizer.encode(pixels)[0].numpy() == store.used[store.batch([i], view)[0]]
                assert same.mean() > 0.9  # boxes are kept in float32: a pixel may round the other way


def test_progress_reaches_the_end(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    tokenize(
        ImageFolder.open(folder), job(tokenizer, batch=3), tmp_path / "a.tok", max_broken=0.5,
        progress=lambda *step: seen.append(step),
    )  # fmt: skip
    assert seen == [(0, 8), (3, 8), (6, 8), (8, 8)]


def test_training_mode_and_threads_do_not_matter(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    for block in tokenizer.encoder:
        block.drop_path = 0.9
    before = torch.get_num_threads()
    run(folder, tokenizer.train(), tmp_path / "train.tok", batch=2)
    assert torch.get_num_threads() == before
    torch.set_num_threads(1)
    run(folder, tokenizer.eval(), tmp_path / "eval.tok", batch=2)
    torch.set_num_threads(before)
    assert bytes_of(tmp_path / "train.tok") == bytes_of(tmp_path / "eval.tok")


def test_too_many_broken_images_leave_nothing(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 of 8 images cannot be read \(first: dog/1.png"):
        tokenize(ImageFolder.open(folder), job(tokenizer), tmp_path / "a.tok")
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_existing_store_or_another_spool_is_left_alone(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    run(folder, tokenizer, tmp_path / "a.tok")
    before = bytes_of(tmp_path / "a.tok")
    with pytest.raises(OutputError, match="exists"):
        run(folder, tokenizer, tmp_path / "a.tok")
    assert bytes_of(tmp_path / "a.tok") == before
    listed = ImageFolder.open(folder)
    open_spool(listed, job(tokenizer), tmp_path / "b.tok")
    with pytest.raises(OutputError, match="holds codes of other images"):
        run(folder, tokenizer, tmp_path / "b.tok", views=2)


def test_images_by_a_table(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("path,label\neel/1.png,fish\ncat/0.png,pet\nnowhere.png,pet\n")
    listed = ImageFolder.listed(folder, table)
    assert any("nowhere.png" in note for note in listed.notes)
    broken = tokenize(listed, job(tokenizer), tmp_path / "a.tok", max_broken=0.5)
    store = Store(tmp_path / "a.tok")
    assert store.column("key") == ["eel/1.png", "cat/0.png"]
    assert [store.classes[i] for i in store.column("label")] == ["fish", "pet"]
    assert not broken


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("path,label\na.png,\n", "line 2 of .* has the label ''"),
        ("path,label\na.png,x\na.png,x\n", "line 3 of .* lists 'a.png' a second time"),
        ("path,label\n../a.png,x\n", "below the folder"),
        ("path,label\n/a.png,x\n", "below the folder"),
        ("file,class\na.png,x\n", "names no image below .* that exists: first: a.png"),
        ("", "'path' and 'label'"),
        ("path,label\na.png\n", "has the label ''"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=match):
        ImageFolder.listed(tmp_path, tmp_path / "labels.csv")
    (tmp_path / "labels.csv").write_text("path,label\na.png,y\n")
    with pytest.raises(InputError, match="has the label 'y'"):
        ImageFolder.listed(tmp_path, tmp_path / "labels.csv", ("x",))


@pytest.mark.parametrize("text", ["8/8", "1", "-1/3", "a/b", "1/0", ""])
def test_shares_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match="give i/n"):
        parse_share(text)
    assert parse_share("3/8") == (3, 8)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours takes it for its own failure."""


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("at", ["write_json", "remove", "rmtree"])
def test_killed_when_the_store_stands_and_run_again_nothing_is_missing(
    at: str, folder: Path, tokenizer: VitVq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before files beside the store, before the spool is removed, and while it is."""
    run(folder, tokenizer, tmp_path / "whole/a.tok")
    place = {"write_json": tokenize_module, "remove": Spool, "rmtree": shutil}[at]
    with monkeypatch.context() as patch:
        patch.setattr(place, at, killed)
        with pytest.raises(Killed):
            run(folder, tokenizer, tmp_path / "cut/a.tok")
    assert (tmp_path / "cut/a.tok").is_dir()
    if at != "rmtree":
        (tmp_path / "cut/.a.tok.images.json.0123abcd.tmp").write_bytes(b"half")
    if at == "rmtree":  # all but the rest of the spool is there
        with pytest.raises(OutputError, match="exists"):
            run(folder, tokenizer, tmp_path / "cut/a.tok")
    else:
        assert [one.path for one in run(folder, tokenizer, tmp_path / "cut/a.tok")] == ["dog/1.png"]
    assert bytes_of(tmp_path / "cut") == bytes_of(tmp_path / "whole")


def test_a_spool_of_another_store_stays(folder: Path, tokenizer: VitVq, tmp_path: Path) -> None:
    """Only the spool that a store was sealed from is taken for the rest of it."""
    run(folder, tokenizer, tmp_path / "a.tok")
    open_spool(ImageFolder.open(folder), job(tokenizer), tmp_path / "a.tok")
    before = bytes_of(tmp_path)
    with pytest.raises(OutputError, match="exists"):
        run(folder, tokenizer, tmp_path / "a.tok")
    assert bytes_of(tmp_path) == before
