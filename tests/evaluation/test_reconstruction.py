"""PSNR and SSIM. Oracle: scikit-image's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from tilework.data import ImageSource
from tilework.evaluation.reconstruction import psnr, reconstruction, ssim
from tilework.tokenizers import VitVqConfig


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.nn.functional.interpolate(torch.rand(4, 3, 6, 7, generator=generator), (40, 48), mode="bicubic").clamp(
        0, 1
    )
    return a, (a + 0.1 * torch.randn(a.shape, generator=generator)).clamp(0, 1)


def test_psnr_is_that_of_scikit_image() -> None:
    a, b = pairs()
    for i, found in enumerate(psnr(a, b).tolist()):
        assert found == pytest.approx(peak_signal_noise_ratio(a[i].numpy(), b[i].numpy(), data_range=1), abs=1e-4)


def test_ssim_is_that_of_scikit_image() -> None:
    a, b = pairs()
    for i, found in enumerate(ssim(a, b).tolist()):
        expected = structural_similarity(
            a[i].double().numpy(), b[i].double().numpy(), data_range=1, channel_axis=0, gaussian_weights=True,
            sigma=1.5, use_sample_covariance=False,
        )  # fmt: skip
        assert found == pytest.approx(expected, abs=1e-4)
    assert ssim(a, a).tolist() == pytest.approx([1] * 4)


def test_reconstruction_counts_codes_and_bits(images: Path) -> None:
    torch.manual_seed(0)
    tokenizer = VitVqConfig(patch=8, codes=20, code_dim=4, width=16, depth=1, heads=2).build(3, (0, 0), 0)
    source = ImageSource.load(images, (32, 32))
    tokenizer.start(source.batch(np.arange(24)).x / 255)
    found = reconstruction(tokenizer, source, torch.device("cpu"), batch=7)
    x = source.batch(np.arange(24)).x / 255
    ids = tokenizer.encode(x)
    assert (found.images, found.grid, found.codes, found.bits_per_image) == (24, (4, 4), 20, 16 * 5)
    assert found.psnr == pytest.approx(psnr(tokenizer.decode(ids), x).mean().item(), abs=1e-4)
    p = np.bincount(ids.flatten()) / ids.numel()
    entropy = -(p[p > 0] * np.log2(p[p > 0])).sum()
    assert found.perplexity == pytest.approx(2**entropy)
    assert found.entropy_bytes_per_image == pytest.approx(2 * entropy)
    assert found.code_usage == len(ids.unique()) / 20
    assert found.parameters == sum(parameter.numel() for parameter in tokenizer.parameters())
