"""mIoU by a slow formula on random masks, at the size of each image, over processes; inference of any kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from small_dense import MMSEG, fill, wave
from tilework.core.affine import box_affine
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError
from tilework.data.class_mask import VOID, ClassMask
from tilework.evaluation import MeanIou
from tilework.evaluation.dense_inference import Inference, slide, starts, stride
from tilework.evaluation.segmentation import iou_figures
from tilework.models import Output

CLASSES = 4


def make_batch(masks: list[np.ndarray], first: int = 0) -> Batch:
    index = torch.arange(first, first + len(masks))
    return Batch(torch.zeros(len(masks), 1, 2, 2), Target.hard(index * 0), index, {"mask": ClassMask.of(masks)})


def output(logits: Tensor) -> Output:
    return Output(logits, logits, logits, (1, 1))


def one_hot(ids: np.ndarray) -> Tensor:
    return F.one_hot(torch.from_numpy(ids).long(), CLASSES).movedim(-1, 0)[None].float()


def random_masks(seed: int, sides: tuple[int, int] = (9, 13)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    true = rng.integers(0, CLASSES, sides).astype(np.uint8)
    true[rng.random(sides) < 0.2] = VOID
    return true, np.where(rng.random(sides) < 0.5, true % CLASSES, rng.integers(0, CLASSES - 1, sides)).astype(np.uint8)


def slow_figures(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """By sets of pixels, class by class."""
    ious, accuracies, frequent, right, total = [], [], [], 0, 0
    labelled = sum(int((true != VOID).sum()) for true, _ in pairs)
    for k in range(CLASSES):
        both = union = there = 0
        for true, said in pairs:
            for t, s in zip(true.reshape(-1).tolist(), said.reshape(-1).tolist(), strict=True):
                if t == VOID:
                    continue
                both += t == k and s == k
                union += t == k or s == k
                there += t == k
        if union:
            ious.append(both / union)
        if there:
            accuracies.append(both / there)
        if there > 0.04 * labelled:
            frequent.append(both / union)
        right, total = right + both, total + there
    return {
        "miou": float(np.mean(ious)),
        "macc": float(np.mean(accuracies)),
        "aacc": right / total,
        "miou_frequent": float(np.mean(frequent)),
    }


def test_figures_are_those_of_the_slow_formula() -> None:
    pairs = [random_masks(seed, (5 + seed, 11)) for seed in range(6)]
    evaluator = MeanIou(CLASSES)
    for number, (true, said) in enumerate(pairs):
        evaluator.update(make_batch([true], number), output(one_hot(said)))
    found = evaluator.compute()
    wanted = slow_figures(pairs)
    assert found == pytest.approx(wanted, abs=1e-9)
    by_image = evaluator.by_image
    assert by_image.shape == (6, 3, CLASSES)
    assert iou_figures(by_image.sum(0)) == pytest.approx(wanted, abs=1e-9)
    assert evaluator.by_class().shape == (CLASSES,)


def test_classes_that_never_occur_are_left_out() -> None:
    true = np.zeros((4, 4), np.uint8)
    evaluator = MeanIou(CLASSES)
    evaluator.update(make_batch([true]), output(one_hot(true)))
    assert evaluator.compute() == {"miou": 1.0, "macc": 1.0, "aacc": 1.0, "miou_frequent": 1.0}
    assert evaluator.by_class().isnan().tolist() == [False, True, True, True]


def test_coarse_logits_are_judged_at_the_size_of_the_image() -> None:
    logits = torch.randn(1, CLASSES, 3, 5, generator=torch.Generator().manual_seed(1))
    said = F.interpolate(logits, (12, 17), mode="bilinear", align_corners=False).argmax(1)[0].numpy()
    true, _ = random_masks(3, (12, 17))
    evaluator = MeanIou(CLASSES)
    evaluator.update(make_batch([true]), output(logits))
    assert evaluator.compute() == pytest.approx(slow_figures([(true, said)]), abs=1e-9)


def test_what_the_input_does_not_show_is_not_counted() -> None:
    true, _ = random_masks(4, (8, 16))
    half = box_affine(*(torch.tensor([v]) for v in (0.0, 0.0, 1.0, 0.5)))
    column = ClassMask.of([true]).warp(half, (8, 8))
    batch = make_batch([true]).changed(columns={"mask": column})
    evaluator = MeanIou(CLASSES)
    evaluator.update(batch, output(one_hot(true[:, :8] % CLASSES)))
    assert evaluator.counts.sum() == (true[:, :8] != VOID).sum()
    assert evaluator.compute()["aacc"] == 1
    with pytest.raises(ConfigError, match="no masks"):
        evaluator.update(batch.changed(columns={}), output(torch.zeros(1, CLASSES, 2, 2)))


def test_processes_are_merged_in_the_order_of_the_data() -> None:
    pairs = [random_masks(seed) for seed in range(4)]
    whole, first, second = (MeanIou(CLASSES) for _ in range(3))
    for number, (true, said) in enumerate(pairs):
        for one in (whole, (first, second)[number % 2]):
            one.update(make_batch([true], number), output(one_hot(said)))
    first.merge([second.state(), first.state()])
    assert first.compute() == whole.compute()
    assert torch.equal(first.by_image, whole.by_image)


# inference


def same(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize("sides", [(32, 32), (47, 65), (20, 90)])
@pytest.mark.parametrize("multiple", [1, 4])
def test_windows_of_a_network_that_returns_its_input_give_the_image_back(sides: tuple[int, int], multiple: int) -> None:
    x = torch.randn(2, 3, *sides)
    assert torch.allclose(slide(same, x, (32, 32), multiple), x, atol=1e-6)
    assert torch.allclose(Inference("slide", (1.0,), True)(same, x, (32, 32), multiple), x.softmax(1), atol=1e-6)


def test_windows_are_those_of_mmsegmentation() -> None:
    network = torch.nn.Conv2d(3, 4, 5, stride=4, padding=2)
    fill(network)
    found = slide(network, wave((1, 3, 47, 65), 2.0), (32, 32))
    assert torch.allclose(found[0, :, ::9, ::9].flatten()[:40], torch.tensor(MMSEG["slide"]), atol=1e-4)
    assert starts(683, 512, 341) == [0, 171]
    assert starts(512, 512, 341) == [0]
    assert stride(512, 1) == 341
    assert stride(64, 2) == 42


def test_sliding_equals_whole_where_a_window_covers_the_image() -> None:
    network = torch.nn.Conv2d(3, 4, 5, stride=4, padding=2)
    x = torch.randn(2, 3, 32, 32)
    whole, windows = (Inference(mode)(network, x, (32, 32), 1) for mode in ("whole", "slide"))  # type: ignore[arg-type]
    assert torch.equal(whole, windows)


def test_views_are_averaged_as_probabilities() -> None:
    network = torch.nn.Conv2d(3, 4, 4, stride=4)
    x = torch.randn(1, 3, 32, 48)
    found = Inference("whole", (0.5, 1.0), True)(network, x, (32, 48), 4, (40, 60))
    total = torch.zeros(1, 4, 40, 60)
    for scale in (0.5, 1.0):
        for mirrored in (False, True):
            view = F.interpolate(x, (int(32 * scale), int(48 * scale)), mode="bilinear", align_corners=False)
            view = view.flip(3) if mirrored else view
            logits = F.interpolate(network(view), view.shape[2:], mode="bilinear", align_corners=False)
            logits = logits.flip(3) if mirrored else logits
            total += F.interpolate(logits, (40, 60), mode="bilinear", align_corners=False).softmax(1)
    assert torch.allclose(found, total / 4, atol=1e-5)


def test_odd_sizes_are_padded_and_cut_again() -> None:
    sizes = []

    def network(x: Tensor) -> Tensor:
        sizes.append(tuple(x.shape[2:]))
        return x

    x = torch.randn(1, 2, 33, 50)
    assert torch.allclose(Inference()(network, x, (32, 32), 32), x)
    assert sizes == [(64, 64)]


@pytest.mark.parametrize("wrong", [("other", (1.0,)), ("whole", ()), ("whole", (0.0,)), ("slide", (99.0,))])
def test_senseless_inference_is_refused(wrong: tuple[str, tuple[float, ...]]) -> None:
    with pytest.raises(ConfigError):
        Inference(*wrong)  # type: ignore[arg-type]
