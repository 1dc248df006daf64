"""RetinaNet, Mask R-CNN and Cascade: mmdetection's outputs, objects and losses with the same weights; parameters.

The stages of a backbone are given, so everything after it is compared: pyramid, heads, anchors, proposals, RoIs,
choice of objects, matching and losses. mmdetection sampled two points a bin, and every anchor and region.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from small_dense import MMDET, fill, wave
from small_models import small
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.boxes import Boxes
from tilework.data.objects import Objects
from tilework.evaluation.average_precision import paste
from tilework.layers.stems import PatchStemConfig
from tilework.models import (
    CascadeMaskRcnnConfig,
    MaskRcnnConfig,
    Output,
    RetinanetConfig,
    VitConfig,
    preset,
)
from tilework.models.detector import Detector
from tilework.models.rcnn import Proposals, Rcnn
from tilework.models.retinanet import Retinanet
from tilework.objectives import DetectConfig, RcnnConfig
from tilework.objectives.matching import Matching
from tilework.objectives.rcnn import Step

WIDTHS, GRIDS, CLASSES, SIDES = (6, 8, 10, 12), ((16, 24), (8, 12), (4, 6), (2, 3)), 3, (64, 96)
BOXES = (
    [[4.0, 6, 30, 40], [20, 10, 70, 60], [60, 30, 90, 50], [2, 50, 9, 60]],
    [[10.0, 10, 50, 50], [50, 5, 95, 63]],
)
LABELS = ([0, 2, 1, 2], [1, 0])
EXTENT = torch.tensor([[0.0, 0, 96, 64]] * 2)


class Given(nn.Module):
    """A backbone whose stages are known."""

    takes, grid, prefix = "pixels", (2, 3), ""
    stage_widths, stage_strides = WIDTHS, (4.0, 8.0, 16.0, 32.0)
    stages_want_norm, stem_names, head_names = False, (), ()

    def forward(self, x: Tensor, **asked: Any) -> Output:
        stages = tuple(wave((2, w, *g), i) for i, (w, g) in enumerate(zip(WIDTHS, GRIDS, strict=True)))
        return Output(x, x, x, (2, 3), stages=stages)


def weak(module: nn.Module) -> None:
    """Weights of `fill`, less of them."""
    fill(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.3)


class Halved(nn.Module):
    """A pyramid whose levels are halved, as mmdetection's heads were given them."""

    def __init__(self, neck: nn.Module) -> None:
        super().__init__()
        self.neck = neck
        fill(neck)

    def forward(self, stages: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(x * 0.5 for x in self.neck(stages))


def batch() -> Batch:
    """The objects that mmdetection was given: ellipses in their boxes."""
    objects, layers = [], []
    y, x = np.mgrid[: SIDES[0], : SIDES[1]] + 0.5
    for edges, labels in zip(BOXES, LABELS, strict=True):
        objects.append(Objects.of(edges, labels))
        own = np.zeros((len(edges), *SIDES), np.uint8)
        for i, (x0, y0, x1, y1) in enumerate(edges):
            inside = ((x - (x0 + x1) / 2) / (x1 - x0) * 2) ** 2 + ((y - (y0 + y1) / 2) / (y1 - y0) * 2) ** 2 <= 1
            own[i][inside] = i + 1
        layers.append((own, np.stack([np.arange(len(edges)), np.arange(len(edges)) + 1], 1)))
    column = Boxes.of(objects, torch.tensor([SIDES] * 2).float(), layers=layers)
    index = torch.arange(2)
    return Batch(torch.zeros(2, 3, *SIDES), Target.hard(index * 0), index, {"boxes": column})


def rows(found: Any, image: int, count: int) -> Tensor:
    there = found.scores[image] > 0
    parts = (found.boxes[image], found.scores[image][:, None], found.labels[image][:, None].float())
    return torch.cat(parts, 1)[there][:count]


def retina() -> Retinanet:
    model = Retinanet(RetinanetConfig(channels=8, convs=2), Given(), CLASSES)  # type: ignore[arg-type]
    weak(model.decoder)
    model.neck = Halved(model.neck)  # type: ignore[assignment]
    return model.eval()


def rcnn(config: MaskRcnnConfig) -> Rcnn:
    model = Rcnn(replace(config, channels=8, hidden=10), Given(), CLASSES)  # type: ignore[arg-type]
    for part in (model.rpn, *model.box_heads, *model.mask_heads):
        weak(part)
    model.neck = Halved(model.neck)  # type: ignore[assignment]
    return model.eval()


def near(found: Tensor, name: str, atol: float = 2e-4) -> bool:
    wanted = torch.tensor(MMDET[name])
    return found.numel() == wanted.numel() and torch.allclose(found.flatten(), wanted, atol=atol, rtol=1e-4)


def test_a_whole_retinanet() -> None:
    model = retina()
    out = model.answer(torch.zeros(2, 3, *SIDES), EXTENT)
    assert out.offsets is not None
    assert near(out.logits[:, ::5], "retina logits")
    assert near(out.offsets[:, ::11], "retina offsets")
    for image in range(2):
        assert near(rows(out.found, image, 40), f"retina found {image}")
    objective = DetectConfig(matching=Matching(ignored=0)).build(model)
    losses = objective(batch(), Draws(0, 0, torch.arange(2)))
    assert near(torch.stack([losses["classes"], losses["boxes"]]), "retina losses")


def proposed(model: Rcnn) -> tuple[Tensor, Tensor]:
    """mmdetection's proposals."""
    found = [torch.tensor(MMDET[f"proposals {i}"]).view(-1, 4) for i in range(2)]
    most = max(map(len, found))
    known = torch.stack([torch.arange(most) < len(one) for one in found])
    return torch.stack([nn.functional.pad(one, (0, 0, 0, most - len(one))) for one in found]), known


@pytest.mark.parametrize(("name", "inside", "beta"), [("rpn", False, 0.0), ("cascade rpn", True, 1 / 9)])
def test_losses_of_proposals(name: str, inside: bool, beta: float) -> None:
    model = rcnn(MaskRcnnConfig())
    matching = Matching(0.7, 0.3, best_from=0.3, ignored=0)
    config = RcnnConfig(anchors=matching, anchors_inside=inside, anchors_sampled=100_000, beta=beta)
    losses = config.build(model)(batch(), Draws(0, 0, torch.arange(2)))
    assert near(torch.stack([losses["proposals"], losses["proposal_boxes"]]), f"{name} losses")


def test_proposals() -> None:
    model = rcnn(MaskRcnnConfig())
    found, known = model.propose(model(torch.zeros(2, 3, *SIDES)), EXTENT, Proposals(60, 0.7, 50))
    for image in range(2):
        assert near(found[image][known[image]], f"proposals {image}")


def test_a_whole_mask_rcnn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = rcnn(MaskRcnnConfig(proposals=Proposals(60, 0.7, 50)))
    out = model.answer(torch.zeros(2, 3, *SIDES), EXTENT)
    assert out.found is not None
    assert out.found.masks is not None
    for image in range(2):
        found = rows(out.found, image, 30)
        assert near(found, f"mask rcnn found {image}")
        masks = (out.found.masks[image][: len(found)] * 255).round().byte().numpy()
        areas = [paste(mask, box, SIDES).sum() for mask, box in zip(masks, found[:, :4].numpy(), strict=True)]
        wanted = np.array(MMDET[f"mask rcnn areas {image}"])
        assert np.abs(np.array(areas) - wanted).max() <= np.maximum(3, 0.02 * wanted).max()  # masks have 8 bits here
    step = Step(Matching(0.5, 0.5, best_from=0.5, ignored=0))
    losses = region_losses(model, RcnnConfig(regions=100_000, steps=(step,)), monkeypatch)
    wanted = MMDET["mask rcnn losses"]
    assert losses["classes"].item() == pytest.approx(wanted[0], rel=1e-3)
    assert losses["boxes"].item() == pytest.approx(wanted[1], rel=1e-3)
    assert losses["outlines"].item() == pytest.approx(wanted[2], rel=2e-2)  # ours reads four points a cell


def region_losses(model: Rcnn, config: RcnnConfig, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Losses of all regions that mmdetection proposed."""
    monkeypatch.setattr(Rcnn, "propose", lambda self, out, extent, how: proposed(self))
    monkeypatch.setattr("tilework.objectives.rcnn.sample", every)
    return config.build(model)(batch(), Draws(0, 0, torch.arange(2)))


def every(owner: Tensor, count: int, share: float) -> Any:
    """All anchors, as a sampler without a limit gives them."""
    from tilework.objectives.matching import NOTHING, UNSURE, Sample

    order = torch.where(owner >= 0, 2, torch.where(owner == NOTHING, 1, 0)).argsort(descending=True, stable=True)
    return Sample(order, owner[order] != UNSURE, owner[order].clamp(min=0), owner[order] >= 0)


def test_a_whole_cascade(monkeypatch: pytest.MonkeyPatch) -> None:
    model = rcnn(CascadeMaskRcnnConfig(proposals=Proposals(60, 0.7, 50)))
    out = model.answer(torch.zeros(2, 3, *SIDES), EXTENT)
    for image in range(2):
        assert near(rows(out.found, image, 30), f"cascade found {image}")
    steps = tuple(
        Step(Matching(overlap, overlap, best=False, ignored=0), weight)
        for overlap, weight in ((0.5, 1.0), (0.6, 0.5), (0.7, 0.25))
    )
    config = RcnnConfig(regions=100_000, steps=steps, box_loss="giou", box_weight=10.0)
    losses = region_losses(model, config, monkeypatch)
    named = dict(zip(MMDET["cascade names"], MMDET["cascade losses"], strict=True))
    for ours, theirs, rel in (
        ("classes", "loss_cls", 1e-3),
        ("boxes", "loss_bbox", 1e-3),
        ("outlines", "loss_mask", 2e-2),
    ):
        wanted = sum(value for name, value in named.items() if name.endswith(theirs))
        assert losses[ours].item() == pytest.approx(wanted, rel=rel)


@pytest.mark.parametrize(
    ("config", "network", "count"),
    [
        (RetinanetConfig(), "pvt_v2_b1", 23_745_972),
        (MaskRcnnConfig(), "pvt_v2_b1", 33_663_408),
        (MaskRcnnConfig(), "swin_t", 47_794_602),
        (CascadeMaskRcnnConfig(), "swin_t", 85_629_804),
        (
            CascadeMaskRcnnConfig(head="2fc"),
            "swin_t",
            80_722_872 + 3 * 4 * 1025 * 79,
        ),  # the base head is class-agnostic
    ],
)
def test_parameters_are_the_published_ones(config: Any, network: str, count: int) -> None:
    with torch.device("meta"):
        model = replace(config, backbone=preset(network)).build(3, (224, 224), 80)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("config", [RetinanetConfig(channels=8, convs=1), MaskRcnnConfig(channels=8, hidden=8),
                                    CascadeMaskRcnnConfig(channels=8, hidden=8, norm="group")])  # fmt: skip
@pytest.mark.parametrize("objects", [True, False])
def test_every_parameter_learns_whether_there_are_objects_or_not(config: Any, objects: bool) -> None:
    backbone = small("pvt_v2_b1")
    torch.manual_seed(0)
    model = replace(config, backbone=backbone).build(3, SIDES, CLASSES)
    data = batch()
    if not objects:
        nothing = Boxes.of([Objects.of([], [])] * 2, torch.tensor([SIDES] * 2).float(),
                           layers=[(np.zeros((1, *SIDES), np.uint8), np.zeros((0, 2), np.int64))] * 2)  # fmt: skip
        data = data.changed(columns={"boxes": nothing})
    steps = (Step(),) * len(getattr(config, "deviations", (0,)))
    objective = (DetectConfig() if isinstance(config, RetinanetConfig) else RcnnConfig(steps=steps)).build(model)
    loss = objective(data, Draws(0, 0, torch.arange(2)))["loss"]
    loss.backward()
    assert torch.isfinite(loss)
    assert [name for name, p in model.named_parameters() if p.grad is None] == []  # DistributedDataParallel needs all


def test_a_plain_vit_needs_a_neck() -> None:
    vit = VitConfig(width=16, depth=4, heads=2, stem=PatchStemConfig(16))
    with pytest.raises(ConfigError, match=r"all maps of a Vit have one stride: set model.neck=multilevel"):
        MaskRcnnConfig(vit).build(3, (64, 64), 3)
    model = MaskRcnnConfig(vit, neck="multilevel", channels=8, hidden=8).build(3, (64, 64), 3).eval()
    assert model.strides == (4, 8, 16, 32, 64)
    assert model.answer(torch.zeros(1, 3, 64, 64)).found is not None


def test_codes_have_strides_of_their_own() -> None:
    config: Any = RetinanetConfig(small("pvt_v2_b1"), channels=8, convs=1).for_tokens()
    model: Detector = config.build(8, (16, 16), 3)
    assert model.strides == (1, 2, 4, 8, 16)
    assert model.answer(torch.zeros(1, 8, 16, 16)).found is not None


def test_objectives_refuse_other_networks() -> None:
    with pytest.raises(ConfigError, match="has no classes of dense anchors"):
        DetectConfig().build(rcnn(MaskRcnnConfig()))
    with pytest.raises(ConfigError, match="proposes no regions"):
        RcnnConfig().build(retina())
    with pytest.raises(ConfigError, match="1 steps of losses for 3"):
        RcnnConfig().build(rcnn(CascadeMaskRcnnConfig()))
    with pytest.raises(ConfigError, match="by one of network and objective only"):
        RcnnConfig().build(rcnn(MaskRcnnConfig(masks=False)))
