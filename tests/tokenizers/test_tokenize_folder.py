"""From a folder of images to a store: the codes, labels and keys of every good image, or nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tilework.core.errors import OutputError
from tilework.data import ImageSource, decode_image, images
from tilework.store import Store
from tilework.tokenizers import Tokenizer, VitVq, VitVqConfig
from tilework.tokenizers.tokenize import tokenize
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


@pytest.fixture
def source(folder: Path) -> ImageSource:
    return ImageSource.load(folder, SIZE, max_broken=0.5)


def codes_one_by_one(folder: Path, tokenizer: Tokenizer) -> np.ndarray:
    """Codes of every good image, each encoded alone, (7, 4, 6)."""
    singles = [torch.from_numpy(decode_image(folder / key, SIZE))[None] / 255 for key in KEYS]
    return torch.cat([tokenizer.encode(single) for single in singles]).numpy()


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_codes_equal_those_of_each_image_alone(
    folder: Path, source: ImageSource, tokenizer: VitVq, tmp_path: Path, batch: int
) -> None:
    tokenize(source, tokenizer, CARD, tmp_path / "a.tok", CPU, batch=batch)
    store = Store(tmp_path / "a.tok")
    ids = store.batch(np.arange(len(store)))
    assert np.array_equal(store.used[ids], codes_one_by_one(folder, tokenizer))
    assert len(np.unique(ids)) > 5


def test_labels_and_keys_follow(source: ImageSource, tokenizer: VitVq, tmp_path: Path) -> None:
    tokenize(source, tokenizer, CARD, tmp_path / "a.tok", CPU, batch=2)
    store = Store(tmp_path / "a.tok")
    assert list(store.column("key")) == KEYS
    assert store.column("label").tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert store.classes == ("cat", "dog", "eel")


def test_store_says_how_it_was_made(source: ImageSource, tokenizer: VitVq, tmp_path: Path) -> None:
    tokenize(source, tokenizer, CARD, tmp_path / "a.tok", CPU, licence="CC0")
    store = Store(tmp_path / "a.tok")
    assert store.manifest.tokenizer == {"name": "small", "sha256": "ab" * 32}
    assert store.manifest.preprocessing == CARD.preprocessing
    assert store.manifest.licence == "CC0"
    assert (store.grid, store.manifest.tokenizer_codes, len(store)) == ((4, 6), 64, 7)
    assert store.histogram().min() > 0  # codes that do not occur are not kept
    assert np.allclose(store.codebook, tokenizer.codebook.detach().numpy()[store.used])
    assert store.verify() == []


def test_images_decoded_again_give_the_same_store(
    folder: Path, source: ImageSource, tokenizer: VitVq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize(source, tokenizer, CARD, tmp_path / "kept.tok", CPU)
    monkeypatch.setattr(images, "KEEP_BYTES", 0)
    again = ImageSource.load(folder, SIZE, max_broken=0.5)
    tokenize(again, tokenizer, CARD, tmp_path / "again.tok", CPU)
    names = {path.relative_to(tmp_path / "kept.tok") for path in (tmp_path / "kept.tok").rglob("*") if path.is_file()}
    assert len(names) >= 4
    for name in names:
        assert (tmp_path / "kept.tok" / name).read_bytes() == (tmp_path / "again.tok" / name).read_bytes()


def test_progress_reaches_the_end(source: ImageSource, tokenizer: VitVq, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    tokenize(source, tokenizer, CARD, tmp_path / "a.tok", CPU, batch=3, progress=lambda *step: seen.append(step))
    assert seen == [(3, 7), (6, 7), (7, 7)]


def test_training_mode_does_not_matter(source: ImageSource, tokenizer: VitVq, tmp_path: Path) -> None:
    for block in tokenizer.encoder:
        block.drop_path = 0.9
    tokenize(source, tokenizer.train(), CARD, tmp_path / "train.tok", CPU)
    tokenize(source, tokenizer.eval(), CARD, tmp_path / "eval.tok", CPU)
    everything = np.arange(7)
    assert np.array_equal(
        Store(tmp_path / "train.tok").batch(everything), Store(tmp_path / "eval.tok").batch(everything)
    )


def test_failure_in_the_middle_leaves_nothing(
    source: ImageSource, tokenizer: VitVq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fail_at_the_second(pixels: Tensor) -> Tensor:
        calls.append(len(pixels))
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return torch.zeros(len(pixels), 4, 6, dtype=torch.int64)

    monkeypatch.setattr(tokenizer, "encode", fail_at_the_second)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(RuntimeError, match="out of memory"):
        tokenize(source, tokenizer, CARD, out / "a.tok", CPU, batch=3)
    assert calls == [3, 3]
    assert list(out.iterdir()) == []


def test_existing_store_is_left_alone(source: ImageSource, tokenizer: VitVq, tmp_path: Path) -> None:
    tokenize(source, tokenizer, CARD, tmp_path / "a.tok", CPU)
    before = (tmp_path / "a.tok/manifest.json").read_bytes()
    with pytest.raises(OutputError, match="exists"):
        tokenize(source, tokenizer, CARD, tmp_path / "a.tok", CPU)
    assert (tmp_path / "a.tok/manifest.json").read_bytes() == before
