"""Segmentation loss: the slow formula, void pixels, the auxiliary head, mixtures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tilework.core.batch import Batch, Mix, Target
from tilework.core.errors import ConfigError, InputError
from tilework.core.rng import Draws
from tilework.data.class_mask import VOID, ClassMask
from tilework.models import LinearSegmenterConfig, UpernetConfig, VitConfig
from tilework.objectives import SegmentConfig

VIT = VitConfig(width=16, depth=4, heads=2)
DRAWS = Draws(0, 0, torch.arange(2))


def make_batch(void: bool = True) -> Batch:
    rng = np.random.default_rng(0)
    masks = [rng.integers(0, 3, (32, 48)).astype(np.uint8) for _ in range(2)]
    if void:
        masks[0][:10] = VOID
    index = torch.arange(2)
    x = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    return Batch(x, Target.hard(index * 0), index, {"mask": ClassMask.of(masks)})


def make(config: SegmentConfig, **model: object) -> nn.Module:
    torch.manual_seed(0)
    return config.build(UpernetConfig(VIT, channels=8, dropout=0.0, **model).build(3, (32, 48), 3)).eval()  # type: ignore[arg-type]


def slow(logits: torch.Tensor, masks: list[np.ndarray], over: str) -> float:
    """Pixel by pixel, from logits at the size of the mask."""
    total, count = 0.0, 0
    for image, mask in zip(logits.detach().double(), masks, strict=True):
        for row in range(mask.shape[0]):
            for column in range(mask.shape[1]):
                true = int(mask[row, column])
                if true == VOID:
                    count += over == "all"
                    continue
                values = image[:, row, column]
                total += float(torch.logsumexp(values, 0) - values[true])
                count += 1
    return total / count


@pytest.mark.parametrize("over", ["all", "labelled"])
def test_the_loss_is_the_mean_over_pixels(over: str) -> None:
    batch = make_batch()
    objective = make(SegmentConfig(over=over, auxiliary=0.0))  # type: ignore[arg-type]
    found = objective(batch, DRAWS)
    logits = F.interpolate(objective.model(batch.x).logits, (32, 48), mode="bilinear", align_corners=False)
    masks = list(batch.columns["mask"].ids.numpy())  # type: ignore[attr-defined]
    assert found["loss"].item() == pytest.approx(slow(logits, masks, over), rel=1e-5)
    assert set(found) == {"loss", "accuracy"}


def test_the_auxiliary_head_adds_its_part_and_is_not_of_the_model() -> None:
    batch = make_batch()
    objective = make(SegmentConfig(auxiliary=0.4, auxiliary_stage=1, auxiliary_channels=4))
    found = objective(batch, DRAWS)
    stage = objective.model(batch.x, stages=True).stages[1]
    second = F.interpolate(objective.head(stage), (32, 48), mode="bilinear", align_corners=False)
    masks = list(batch.columns["mask"].ids.numpy())  # type: ignore[attr-defined]
    assert found["auxiliary"].item() == pytest.approx(slow(second, masks, "all"), rel=1e-5)
    assert found["loss"].item() == pytest.approx(found["main"].item() + 0.4 * found["auxiliary"].item(), rel=1e-6)
    assert not any("head" in name and "decoder" not in name for name in objective.model.state_dict())


def test_masks_without_a_class_cost_nothing() -> None:
    batch = make_batch()
    empty = ClassMask.of([np.full((32, 48), VOID, np.uint8)] * 2)
    for over in ("all", "labelled"):
        found = make(SegmentConfig(over=over))(batch.changed(columns={"mask": empty}), DRAWS)  # type: ignore[arg-type]
        assert found["loss"].item() == 0
        assert found["accuracy"].item() == 0
        found["loss"].backward()


def test_labels_of_codes_are_finer_than_codes() -> None:
    batch = make_batch(void=False)
    objective = make(SegmentConfig(finer=2, auxiliary=0.0))
    logits = F.interpolate(objective.model(batch.x).logits, (64, 96), mode="bilinear", align_corners=False)
    masks = [np.repeat(np.repeat(one, 2, 0), 2, 1) for one in batch.columns["mask"].ids.numpy()]  # type: ignore[attr-defined]
    assert objective(batch, DRAWS)["loss"].item() == pytest.approx(slow(logits, masks, "all"), rel=1e-5)


def test_mixtures_are_refused_unless_wanted_and_then_right() -> None:
    batch = make_batch(void=False)
    own = torch.full((2, 32, 48), 0.7)
    mixed = batch.columns["mask"].mix(Mix(torch.tensor([1, 0]), own))
    mixed_batch = batch.changed(columns={"mask": mixed})
    with pytest.raises(ConfigError, match=r"masks of mixed samples: .* objective\.mixing=true"):
        make(SegmentConfig())(mixed_batch, DRAWS)
    objective = make(SegmentConfig(mixing=True, auxiliary=0.0))
    swapped = batch.changed(columns={"mask": batch.columns["mask"].rows(slice(None)).to(batch.x.device)})
    ids = swapped.columns["mask"].ids  # type: ignore[attr-defined]
    partner = batch.changed(columns={"mask": ClassMask.of(list(ids.flip(0).numpy()))})
    wanted = 0.7 * objective(batch, DRAWS)["loss"] + 0.3 * objective(partner, DRAWS)["loss"]
    assert torch.allclose(objective(mixed_batch, DRAWS)["loss"], wanted, atol=1e-5)


def test_what_cannot_segment_is_refused() -> None:
    with pytest.raises(ConfigError, match="a Vit classifies images, not their pixels: wrap it"):
        SegmentConfig().build(VIT.build(3, (32, 32), 3))
    model = LinearSegmenterConfig(VIT).build(3, (32, 48), 3)
    with pytest.raises(ConfigError, match="no stage 7 among 4"):
        SegmentConfig(auxiliary_stage=7).build(model)
    with pytest.raises(ConfigError, match="finer=0"):
        SegmentConfig(finer=0).build(model)
    with pytest.raises(InputError, match="one class only"):
        SegmentConfig().check(("sky",), 10)
    with pytest.raises(ConfigError, match="the data have no masks"):
        SegmentConfig().build(model)(make_batch().changed(columns={}), DRAWS)


def test_pictures_show_truth_and_prediction() -> None:
    batch, objective = make_batch(), make(SegmentConfig())
    shown = objective.pictures(objective.model, batch)
    assert {name: tuple(x.shape) for name, x in shown.items()} == {"true": (2, 3, 32, 48), "predicted": (2, 3, 32, 48)}
    assert (shown["true"][0, :, :10] == 0).all()  # void is black
