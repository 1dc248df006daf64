"""The feature pyramid: mmdetection's numbers and parameters."""

from __future__ import annotations

import torch

from small_dense import MMDET, fill, wave
from tilework.layers.fpn import Fpn

WIDTHS, GRIDS = (6, 8, 10, 12), ((16, 24), (8, 12), (4, 6), (2, 3))


def stages() -> tuple[torch.Tensor, ...]:
    return tuple(wave((2, w, *g), i) for i, (w, g) in enumerate(zip(WIDTHS, GRIDS, strict=True)))


def read(levels: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([x.flatten()[::7] for x in levels])


def test_levels_are_those_of_mmdetection() -> None:
    retina, rcnn = Fpn(WIDTHS[1:], 8, 2, "conv"), Fpn(WIDTHS, 8, 1, "pool")
    fill(retina)
    fill(rcnn)
    assert torch.allclose(read(retina(stages()[1:])), torch.tensor(MMDET["fpn conv"]), atol=1e-4, rtol=1e-4)
    assert torch.allclose(read(rcnn(stages())), torch.tensor(MMDET["fpn pool"]), atol=1e-4, rtol=1e-4)


def test_parameters_are_those_of_mmdetection() -> None:
    def count(fpn: Fpn) -> int:
        return sum(p.numel() for p in fpn.parameters())

    assert count(Fpn((128, 320, 512), 256, 2, "conv")) == 3_786_752
    assert count(Fpn((96, 192, 384, 768), 256, 1, "pool")) == 2_729_984
    assert count(Fpn((64, 128, 320, 512), 256, 1, "pool")) == 2_623_488
