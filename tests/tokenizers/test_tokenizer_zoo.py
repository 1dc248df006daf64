"""Tokenizers by name."""

from __future__ import annotations

import pytest
import torch

from tilework.core.errors import ConfigError
from tilework.tokenizers import Tokenizer, VitVq, create_tokenizer


def test_by_name_with_settings() -> None:
    tokenizer = create_tokenizer("vit_vq", patch=4, codes=8, code_dim=3, width=16, depth=1, heads=2)
    assert isinstance(tokenizer, VitVq)
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.codebook.shape == (8, 3)
    assert tokenizer.encode(torch.rand(1, 3, 8, 12)).shape == (1, 2, 3)


def test_by_name_with_defaults() -> None:
    assert create_tokenizer("vit_vq").codebook.shape == (512, 32)


def test_unknown_name_is_refused_with_a_near_one() -> None:
    with pytest.raises(ConfigError, match=r"'vit_vk'.*did you mean 'vit_vq'"):
        create_tokenizer("vit_vk")


def test_missing_path_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'no/such/tokenizer'"):
        create_tokenizer("no/such/tokenizer")


def test_classifier_is_refused() -> None:
    with pytest.raises(ConfigError, match="'vit' is a Vit, not a tokenizer"):
        create_tokenizer("vit")
