"""How much of an image its codes keep: PSNR, SSIM, and how the codes are used.

B batch | H, W pixels | h, w code grid | K codes
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, prod
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.data import ImageSource, in_order
from tilework.tokenizers import Tokenizer


@dataclass(frozen=True)
class Reconstruction:
    """What a tokenizer does to a set of images."""

    images: int
    size: tuple[int, int]
    grid: tuple[int, ...]  # with the codes of a position where there are several; or the length of a sequence
    codes: int
    psnr: float | None  # dB, mean over images; None without a decoder
    ssim: float | None
    code_usage: float  # share of the codes that occur
    perplexity: float  # as many codes, all equally often, would be as varied
    bits_per_image: float  # at ceil(log2 K) bits per code
    entropy_bytes_per_image: float  # of the codes, each by itself
    encode_images_per_s: float
    decode_images_per_s: float | None
    parameters: int


@torch.inference_mode()
def reconstruction(tokenizer: Tokenizer, source: ImageSource, device: torch.device, batch: int = 32) -> Reconstruction:
    """Encode and decode all images of a source; only encode them where there is no decoder."""
    tokenizer = tokenizer.to(device).eval()
    scores: list[Tensor] = []
    counts = torch.zeros(len(tokenizer.codebook), dtype=torch.int64)
    seconds, grid = [0.0, 0.0], tokenizer.grid(source.grid)
    length = prod(grid)
    first = tokenizer.encode(torch.zeros(1, 3, *source.grid, device=device))  # the first call is slow
    if tokenizer.decodes:
        tokenizer.decode(first)
    for part in in_order(source, batch):
        x = part.x.to(device) / 255
        begun = perf_counter()
        ids = tokenizer.encode(x)
        counts += torch.bincount(ids.flatten(), minlength=len(counts)).cpu()  # waits for the device
        between = perf_counter()
        if tokenizer.decodes:
            restored = tokenizer.decode(ids)
            scores.append(torch.stack([psnr(restored, x), ssim(restored, x)], 1).cpu())
        seconds = [seconds[0] + between - begun, seconds[1] + perf_counter() - between]
    p = counts[counts > 0].double() / counts.sum()
    entropy = float(-(p * p.log2()).sum())
    means = torch.cat(scores).mean(0).tolist() if scores else (None, None)
    return Reconstruction(
        images=len(source),
        size=source.grid,
        grid=grid,
        codes=len(counts),
        psnr=means[0],
        ssim=means[1],
        code_usage=float((counts > 0).double().mean()),
        perplexity=2**entropy,
        bits_per_image=length * max(1, int(np.ceil(log2(len(counts))))),
        entropy_bytes_per_image=length * entropy / 8,
        encode_images_per_s=len(source) / seconds[0],
        decode_images_per_s=len(source) / seconds[1] if scores else None,
        parameters=sum(parameter.numel() for parameter in tokenizer.parameters()),
    )


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB. a, b: (B, 3, H, W) in [0, 1]; returns (B,)."""
    return -10 * (a - b).square().mean((1, 2, 3)).clamp(min=1e-10).log10()


def ssim(a: Tensor, b: Tensor, deviation: float = 1.5, radius: int = 5) -> Tensor:
    """Structural similarity, eq. 13, over Gaussian windows of 11 px (Wang et al., 2004). Returns (B,)."""
    places = torch.arange(-radius, radius + 1, device=a.device, dtype=a.dtype)
    weights = (-(places**2) / (2 * deviation**2)).exp()
    weights = (weights / weights.sum()).expand(3, 1, 1, -1)

    def blur(x: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, weights, groups=3), weights.transpose(2, 3), groups=3)  # inner positions only

    c1, c2 = 0.01**2, 0.03**2
    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b, both = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2, blur(a * b) - mean_a * mean_b
    light = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return (light * (2 * both + c2) / (var_a + var_b + c2)).mean((1, 2, 3))
