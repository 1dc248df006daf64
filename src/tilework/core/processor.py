"""What this machine's processor can do."""

from __future__ import annotations

from typing import Any

BF16 = ("avx512_bf16", "amx_bf16", "avx10_2")


def has_bf16() -> bool:
    """Whether the processor has instructions for bfloat16; without, torch takes about ten times as long as in fp32.

    True where torch does not tell: older versions, processors that are not x86-64.
    """
    import torch

    told: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return told.get("architecture") != "x86_64" or any(told.get(name) for name in BF16)
