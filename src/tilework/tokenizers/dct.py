"""Quantised DCT coefficients as codes: JPEG without its entropy coding (ITU-T T.81, Annexes A and K; SeiT++, table 8).

Nothing is learnt. A position is a block of 8x8 px and has an integer for each coefficient of each colour channel. They
reach networks dequantised, in units of the deviation that coefficients of photographs have: of a field whose neighbours
correlate by 0.95 (Jain, 1989), and of one step of the quantiser, whichever is larger.

B batch | H, W pixels | h, w blocks | Z coefficients kept of each channel | G = 3 Z codes of a position | K values
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tilework.models.model import ModelConfig
from tilework.tokenizers.tokenizer import Tokenizer

SIDE = 8
# quantisation tables of Annex K, by rows of rising vertical frequency
LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * SIDE for _ in range(4)),
)
ZIGZAG = tuple(  # (row, column) of each coefficient, by diagonals in turns up and down
    sorted(
        ((row, column) for row in range(SIDE) for column in range(SIDE)),
        key=lambda position: (sum(position), position[0] if sum(position) % 2 else position[1]),
    )
)
TO_YCC = ((0.299, 0.587, 0.114), (-0.168735892, -0.331264108, 0.5), (0.5, -0.418687589, -0.081312411))  # JFIF
TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136286, -0.714136286), (1.0, 1.772, 0.0))
LARGEST = 1024  # of a coefficient of values from -128 to 127
CORRELATION, DEVIATIONS = 0.95, (64.0, 20.0, 20.0)  # of neighbours; of luminance and chrominance in photographs


def quantisation(quality: int) -> Tensor:
    """Steps of both tables at a quality from 1 to 100, scaled as libjpeg does. Returns (2, 8, 8)."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return ((torch.tensor([LUMINANCE, CHROMINANCE]) * scale + 50) // 100).clamp(1, 255)


def cosines() -> Tensor:
    """The orthonormal DCT-II as a matrix, (8 frequencies, 8 positions)."""
    frequency, position = torch.arange(SIDE, dtype=torch.float64)[:, None], torch.arange(SIDE, dtype=torch.float64)
    rows = torch.cos((2 * position + 1) * frequency * torch.pi / (2 * SIDE)) * (2 / SIDE) ** 0.5
    rows[0] /= 2**0.5
    return rows


@ModelConfig.choices.add("dct")
@dataclass(frozen=True)
class DctConfig(ModelConfig):
    """Settings of DCT coefficients."""

    quality: int = 50  # as of JPEG files
    keep: int = 64  # coefficients of each channel, the lowest frequencies first (zigzag)

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100 or not 1 <= self.keep <= SIDE**2:
            raise ValueError(
                f"quality {self.quality}, {self.keep} coefficients: 1 to 100 and 1 to {SIDE**2} are possible"
            )

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Dct:
        """The coefficients; images may have any size that is a multiple of 8."""
        return Dct(self)


class Dct(Tokenizer):
    """Blocks to whole numbers and back. Code k of a position's coefficient g is the value k - (K - 1) / 2 of it."""

    stacked = True
    step: Tensor  # (G,) of the quantiser
    unit: Tensor  # (G,) that networks see as one
    basis: Tensor  # (8, 8)

    def __init__(self, config: DctConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = SIDE
        rows, columns = torch.tensor(ZIGZAG[: config.keep]).T
        self._order = rows * SIDE + columns  # (Z,)
        basis = cosines()
        places = torch.arange(SIDE)
        spectrum = (basis @ CORRELATION ** (places[:, None] - places).abs().double() @ basis.T).diagonal().sqrt()
        expected = torch.tensor(DEVIATIONS).double()[:, None, None] * spectrum[:, None] * spectrum  # (3, 8, 8)
        step = quantisation(config.quality)[[0, 1, 1]].double()
        unit = (expected.square() + step.square()).sqrt()
        for name, table in (("step", step), ("unit", unit)):
            self.register_buffer(name, table.flatten(1)[:, self._order].flatten().float())
        self.register_buffer("basis", basis.float(), persistent=False)

    @cached_property
    def reach(self) -> int:
        """Largest value of a code."""
        return round(LARGEST / float(self.step.min()))

    @property
    def codebook(self) -> Tensor:
        """What each value is in each coefficient, (K, G)."""
        values = torch.arange(-self.reach, self.reach + 1, device=self.step.device)
        return values[:, None] * (self.step / self.unit)

    def features(self, pixels: Tensor) -> Tensor:
        """pixels: (B, 3, H, W) in [0, 1]; returns (B, h, w, G)."""
        batch, _, height, width = pixels.shape
        ycc = torch.einsum("ij,bjhw->bihw", _matrix(TO_YCC, pixels), pixels * 255)
        ycc = ycc + (ycc.round() - ycc).detach()  # rounded as JPEG does, with the gradient of what is not
        ycc = ycc - torch.tensor([128.0, 0.0, 0.0], device=pixels.device)[:, None, None]
        blocks = ycc.view(batch, 3, height // SIDE, SIDE, width // SIDE, SIDE).permute(0, 2, 4, 1, 3, 5)
        found = self.basis @ blocks @ self.basis.T  # (B, h, w, 3, 8, 8)
        return found.flatten(4)[..., self._order].flatten(3) / self.unit

    def nearest(self, features: Tensor) -> Tensor:
        """Each coefficient by itself. features: (..., G); returns (..., G) int64."""
        value = (features * (self.unit / self.step)).round().long()
        return value.clamp(-self.reach, self.reach) + self.reach

    def vectors(self, ids: Tensor) -> Tensor:
        """Dequantised coefficients. ids: (..., G); returns (..., G)."""
        return (ids - self.reach) * (self.step / self.unit)

    def pixels(self, vectors: Tensor) -> Tensor:
        """vectors: (B, h, w, G); returns (B, 3, H, W)."""
        batch, height, width, _ = vectors.shape
        blocks = vectors.new_zeros(batch, height, width, 3, SIDE**2)
        blocks[..., self._order] = (vectors * self.unit).unflatten(3, (3, -1))
        values = self.basis.T @ blocks.unflatten(4, (SIDE, SIDE)) @ self.basis  # (B, h, w, 3, 8, 8)
        ycc = values.permute(0, 3, 1, 4, 2, 5).reshape(batch, 3, height * SIDE, width * SIDE)
        ycc = ycc + torch.tensor([128.0, 0.0, 0.0], device=vectors.device)[:, None, None]
        return torch.einsum("ij,bjhw->bihw", _matrix(TO_RGB, vectors), ycc) / 255


def _matrix(rows: tuple[tuple[float, ...], ...], like: Tensor) -> Tensor:
    return torch.tensor(rows, device=like.device, dtype=like.dtype)
