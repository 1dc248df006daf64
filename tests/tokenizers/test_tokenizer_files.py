"""Tokenizers on disk: the round trip, and every kind of damage named by its path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from tilework.core.errors import DamageError, InputError, OutputError
from tilework.core.sealed import read_json
from tilework.tokenizers import Tokenizer, VitVqConfig, create_tokenizer, load_tokenizer, save_tokenizer

CONFIG = VitVqConfig(patch=4, codes=16, code_dim=4, width=16, depth=1, heads=2)
WEIGHTS, SETTINGS = "weights.safetensors", "tokenizer.json"


@pytest.fixture
def tokenizer() -> Tokenizer:
    torch.manual_seed(0)
    return CONFIG.build(3, (0, 0), 0).eval()


@pytest.fixture
def saved(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    path = tmp_path / "small.tokenizer"
    save_tokenizer(path, tokenizer, CONFIG, (16, 24))
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the settings as text."""
    settings = read_json(path / SETTINGS)
    change(settings)
    (path / SETTINGS).write_text(json.dumps(settings))


def put_weights(path: Path, data: bytes) -> None:
    """Other weights with the right hash."""
    (path / WEIGHTS).write_bytes(data)
    edit(path, lambda s: s.update(sha256=hashlib.sha256(data).hexdigest()))


def refused(path: Path, file: str = "") -> None:
    with pytest.raises((DamageError, InputError)) as caught:
        load_tokenizer(path)
    assert str(path / file) in str(caught.value)


# round trip


def test_round_trip_gives_identical_codes_and_pixels(tokenizer: Tokenizer, saved: Path) -> None:
    loaded, _ = load_tokenizer(saved)
    images = torch.rand(5, 3, 16, 24)
    ids = tokenizer.encode(images)
    assert torch.equal(loaded.encode(images), ids)
    assert torch.equal(loaded.decode(ids), tokenizer.decode(ids))
    assert torch.equal(loaded.codebook, tokenizer.codebook)
    assert not loaded.training
    assert len(ids.unique()) > 1


def test_card_says_where_it_comes_from(saved: Path) -> None:
    _, card = load_tokenizer(saved)
    assert card.name == "small"
    assert card.size == (16, 24)
    assert card.sha256 == hashlib.sha256((saved / WEIGHTS).read_bytes()).hexdigest()
    assert "16x24" in card.preprocessing


def test_only_weights_and_settings_are_written(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == [SETTINGS, WEIGHTS]
    settings = read_json(saved / SETTINGS)
    assert settings["model"] == {
        "name": "vit_vq",
        "patch": 4,
        "codes": 16,
        "code_dim": 4,
        "width": 16,
        "depth": 1,
        "heads": 2,
        "mixing": "convolution",
        "cosine": False,
        "quantiser": "nearest",
        "levels": [],
    }


def test_existing_directory_is_not_overwritten(tokenizer: Tokenizer, saved: Path) -> None:
    before = (saved / WEIGHTS).read_bytes()
    with pytest.raises(OutputError, match="exists"):
        save_tokenizer(saved, tokenizer, CONFIG, (8, 8))
    assert (saved / WEIGHTS).read_bytes() == before


# damage


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tokenizer in .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")


def test_missing_settings(saved: Path) -> None:
    (saved / SETTINGS).unlink()
    with pytest.raises(InputError, match="no tokenizer in"):
        load_tokenizer(saved)


def test_missing_weights(saved: Path) -> None:
    (saved / WEIGHTS).unlink()
    refused(saved, WEIGHTS)


@pytest.mark.parametrize("place", [0, 8, 200, -1])
def test_flipped_bit_in_the_weights(saved: Path, place: int) -> None:
    data = bytearray((saved / WEIGHTS).read_bytes())
    data[place] ^= 1
    (saved / WEIGHTS).write_bytes(bytes(data))
    refused(saved, WEIGHTS)


def test_truncated_weights(saved: Path) -> None:
    (saved / WEIGHTS).write_bytes((saved / WEIGHTS).read_bytes()[:-100])
    refused(saved, WEIGHTS)


@pytest.mark.parametrize("data", [b"", b"not weights at all", b"\xff" * 64])
def test_weights_that_are_no_safetensors(saved: Path, data: bytes) -> None:
    put_weights(saved, data)
    refused(saved, WEIGHTS)


def test_weights_with_a_tensor_missing(saved: Path) -> None:
    tensors = load((saved / WEIGHTS).read_bytes())
    put_weights(saved, save({name: value for name, value in tensors.items() if name != "quantiser.embedding.weight"}))
    refused(saved, WEIGHTS)


def test_weights_with_a_tensor_too_many(saved: Path) -> None:
    tensors = load((saved / WEIGHTS).read_bytes())
    put_weights(saved, save({**tensors, "extra": torch.zeros(1)}))
    refused(saved, WEIGHTS)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_other_version(saved: Path, version: object) -> None:
    edit(saved, lambda s: s.update(version=version))
    with pytest.raises(DamageError, match=f"{saved} has tokenizer version {version}, not 1"):
        load_tokenizer(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"text"', "{}", "\x00\x01"])
def test_settings_that_are_no_settings(saved: Path, text: str) -> None:
    (saved / SETTINGS).write_text(text)
    refused(saved, SETTINGS)


def test_settings_that_are_no_text(saved: Path) -> None:
    (saved / SETTINGS).write_bytes(b"\xff\xfe\x80")
    refused(saved, SETTINGS)


@pytest.mark.parametrize("key", ["version", "name", "size", "sha256", "model"])
def test_settings_with_a_key_missing(saved: Path, key: str) -> None:
    edit(saved, lambda s: s.pop(key))
    refused(saved)


@pytest.mark.parametrize("change", [{"codes": 32}, {"code_dim": 8}, {"width": 32}, {"depth": 2}, {"patch": 8}])
def test_settings_of_another_shape(saved: Path, change: dict[str, int]) -> None:
    edit(saved, lambda s: s["model"].update(change))
    refused(saved, WEIGHTS)


def test_settings_of_very_many_layers_are_not_built_to_their_end(saved: Path) -> None:
    edit(saved, lambda s: s["model"].update({"depth": 65_536}))
    with pytest.raises(DamageError, match="2,000 tensors is asked for"):
        load_tokenizer(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"patches": 8},  # a key that does not exist
        {"codes": "many"},  # a value of another kind
        {"name": "vit_qv"},  # a model that does not exist
        {"heads": 3},  # no divisor of the width
        {"name": "vit"},  # a model that is no tokenizer
    ],
)
def test_settings_that_make_no_model(saved: Path, change: dict[str, Any]) -> None:
    edit(saved, lambda s: s["model"].update(change))
    refused(saved)


@pytest.mark.parametrize("size", [[16], [16, 24, 3], "large", None, ["a", "b"]])
def test_settings_with_a_malformed_size(saved: Path, size: object) -> None:
    edit(saved, lambda s: s.update(size=size))
    refused(saved)


# by name or path


def test_created_from_its_path(tokenizer: Tokenizer, saved: Path) -> None:
    for path in (saved, str(saved)):
        assert torch.equal(create_tokenizer(path).codebook, tokenizer.codebook)
