"""The perceptual distance LPIPS: weighted differences of VGG-16 features (Zhang et al., 2018).

B batch | H, W pixels | D channels of a stage
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.errors import DamageError, InputError
from tilework.core.torch_files import load_tensors

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, which VGG expects taken out
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # channels; halved between stages


class Perceptual(nn.Module):
    """Distance of pairs of images; frozen, and not saved with what it helps to train."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name.replace(".", "_"), tensor.float(), persistent=False)

    @staticmethod
    def load(path: str | Path) -> Perceptual:
        """The network of a safetensors file: VGG16_0.Conv_{0..12}.{kernel,bias}, NetLinLayer_{0..4}.Conv_0.kernel."""
        if not Path(path).is_file():
            raise InputError(f"no file {path}", "give the LPIPS weights of VGG-16 as safetensors")
        try:
            tensors = load_tensors(Path(path))
        except (ValueError, OSError) as error:
            raise DamageError(f"{path} is not a safetensors file", str(error)) from error
        for name, shape in _shapes().items():
            if name not in tensors or tuple(tensors[name].shape) != shape:
                found = tuple(tensors[name].shape) if name in tensors else "nothing"
                raise InputError(f"{path} has {found} for '{name}'", f"{shape} is needed")
        return Perceptual({name: tensors[name] for name in _shapes()})

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Distance of each pair. a, b: (B, 3, H, W) in [0, 1]; returns (B,)."""
        distance = torch.zeros(len(a), device=a.device)
        for stage, (x, y) in enumerate(zip(self.features(a), self.features(b), strict=True)):
            weight = self.get_buffer(f"NetLinLayer_{stage}_Conv_0_kernel")
            distance = distance + F.conv2d((_unit(x) - _unit(y)).square(), weight).mean((1, 2, 3))
        return distance

    def features(self, x: Tensor) -> list[Tensor]:
        """Channels after each of the five stages."""
        mean, spread = (torch.tensor(v, device=x.device).view(3, 1, 1) for v in (MEAN, SPREAD))
        x, found, layer = (x - mean) / spread, [], 0
        for stage, widths in enumerate(STAGES):
            x = F.max_pool2d(x, 2) if stage else x
            for _ in widths:
                kernel, bias = (self.get_buffer(f"VGG16_0_Conv_{layer}_{part}") for part in ("kernel", "bias"))
                x, layer = F.relu(F.conv2d(x, kernel, bias, padding=1)), layer + 1
            found.append(x)
        return found


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10)


def _shapes() -> dict[str, tuple[int, ...]]:
    """Tensors of the network, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    below, layer = 3, 0
    for stage, widths in enumerate(STAGES):
        for width in widths:
            shapes[f"VGG16_0.Conv_{layer}.kernel"] = (width, below, 3, 3)
            shapes[f"VGG16_0.Conv_{layer}.bias"] = (width,)
            below, layer = width, layer + 1
        shapes[f"NetLinLayer_{stage}.Conv_0.kernel"] = (1, widths[-1], 1, 1)
    return shapes
