"""What torch tells of the processor, and what a user is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tilework.core.processor import has_bf16


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"architecture": "x86_64", "avx2": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_bf16": True}, True),
        ({"architecture": "x86_64", "amx_bf16": True}, True),
        ({"architecture": "aarch64"}, True),
        ({}, True),
    ],
)
def test_bf16_by_what_torch_tells(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], wanted: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told)
    assert has_bf16() is wanted


def test_an_older_torch_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert has_bf16()
