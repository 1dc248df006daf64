"""APGD against golden numbers of the authors' code, and on a linear model, where the strongest attack is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from small_attacks import EPS, small_images, small_net
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.evaluation.apgd import apgd, check_classes, correct, dlr, random_start

# best losses of fra31/auto-attack a392200, attack_single_run, 20 iterations, from the same starts
GOLDEN = {
    ("linf", "ce"): [
        1.66441,
        1.60154,
        0.55525,
        1.70105,
        0.17417,
        0.64141,
        0.46346,
        0.02946,
        0.03454,
        0.54427,
        0.06073,
        0.01457,
    ],
    ("linf", "dlr"): [
        0.29357,
        0.17542,
        -0.12509,
        1.0,
        -0.29729,
        -0.06003,
        -0.10392,
        -0.57145,
        -0.59598,
        -0.06496,
        -0.35447,
        -0.58616,
    ],
    ("linf", "dlr-targeted"): [
        0.28348,
        0.17109,
        -0.11494,
        0.57978,
        -0.27895,
        -0.04717,
        -0.08618,
        -0.56321,
        -0.57148,
        -0.05548,
        -0.34892,
        -0.55741,
    ],
    ("l2", "ce"): [
        1.97135,
        1.95403,
        0.72866,
        1.95235,
        0.25828,
        0.83428,
        0.62934,
        0.04086,
        0.05177,
        0.74072,
        0.08682,
        0.02227,
    ],
    ("l2", "dlr"): [
        0.36744,
        0.22109,
        -0.00632,
        1.0,
        -0.23255,
        0.06747,
        -0.02937,
        -0.52275,
        -0.54554,
        0.01659,
        -0.31226,
        -0.53597,
    ],
    ("l2", "dlr-targeted"): [
        0.3503,
        0.21571,
        -0.00585,
        0.70537,
        -0.21949,
        0.05293,
        -0.02393,
        -0.5151,
        -0.52916,
        0.01392,
        -0.30733,
        -0.51691,
    ],
}
STANDS = {"linf": [0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1], "l2": [0, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 1]}


def started(x: Tensor, t: Tensor, norm: str) -> Tensor:
    size = t.abs().flatten(1).amax(1) if norm == "linf" else t.flatten(1).norm(dim=1)
    return x + EPS[norm] * t / size.view(-1, 1, 1, 1)


@pytest.mark.parametrize(("norm", "loss"), GOLDEN)
def test_losses_are_those_of_the_authors_code(norm: str, loss: str) -> None:
    net, (x, t) = small_net(), small_images()
    y = net(x).argmax(1)
    target = net(x).sort(1).indices[:, -2] if loss == "dlr-targeted" else None
    start = started(x, t, norm)
    full = apgd(net, x, y, EPS[norm], start, 20, loss, norm, target, stop=False)  # type: ignore[arg-type]
    logits = net(full.images)
    found = nn.functional.cross_entropy(logits, y, reduction="none") if loss == "ce" else dlr(logits, y, target)
    assert found.tolist() == pytest.approx(GOLDEN[norm, loss], abs=2e-5)
    quick = apgd(net, x, y, EPS[norm], start, 20, loss, norm, target)  # type: ignore[arg-type]
    assert full.stands.int().tolist() == quick.stands.int().tolist() == STANDS[norm]
    assert torch.equal(correct(net(quick.images), y), quick.stands)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_images_stay_in_the_ball_and_do_not_depend_on_the_batch(norm: str) -> None:
    net, (x, _) = small_net(), small_images()
    y, index = net(x).argmax(1), torch.arange(12)
    start = random_start(x, EPS[norm], norm, Draws(1, 0, index), "test")  # type: ignore[arg-type]
    whole = apgd(net, x, y, EPS[norm], start, 10, norm=norm)  # type: ignore[arg-type]
    away = (whole.images - x).flatten(1)
    size = away.abs().amax(1) if norm == "linf" else away.norm(dim=1)
    assert size.max() <= EPS[norm] + 1e-6
    assert whole.images.min() >= 0
    assert whole.images.max() <= 1
    some = torch.tensor([7, 2, 3])
    start = random_start(x[some], EPS[norm], norm, Draws(1, 0, some), "test")  # type: ignore[arg-type]
    part = apgd(net, x[some], y[some], EPS[norm], start, 10, norm=norm)  # type: ignore[arg-type]
    assert torch.equal(part.stands, whole.stands[some])
    assert torch.allclose(part.images, whole.images[some], atol=1e-6)


def test_a_linear_model_falls_exactly_where_it_must() -> None:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(2, 3 * 16, generator=generator)
    x = torch.rand(40, 3, 4, 4, generator=generator) * 0.5 + 0.25  # the box is out of reach

    def net(a: Tensor) -> Tensor:
        return a.flatten(1) @ w.T

    y = net(x).argmax(1)
    margins = (net(x).gather(1, y[:, None]) - net(x).gather(1, 1 - y[:, None]))[:, 0]
    reach = (w[0] - w[1]).abs().sum()  # of one unit of eps
    for eps in (0.01, 0.05, 0.1):
        found = apgd(net, x, y, eps, random_start(x, eps, "linf", Draws(0, 0, torch.arange(40)), "t"), 20)
        assert torch.equal(found.stands, margins > eps * reach)


def test_no_radius_changes_nothing_and_flat_models_are_noticed() -> None:
    net, (x, _) = small_net(), small_images()
    y = net(x).argmax(1)
    assert apgd(net, x, y, 0.0, x, 5).stands.all()
    flat = apgd(lambda a: net(x[: len(a)]) + 0 * a.sum((1, 2, 3))[:, None], x, y, 0.1, x, 3)
    assert flat.flat.all()


def test_answers_that_are_not_finite_are_wrong() -> None:
    logits = torch.tensor([[1.0, 0.0], [torch.nan, 0.0], [torch.inf, 0.0]])
    assert correct(logits, torch.zeros(3, dtype=torch.int64)).tolist() == [True, False, False]


def test_losses_that_need_more_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match="it needs 3"):
        check_classes("dlr", 2)
    with pytest.raises(ConfigError, match="it needs 4"):
        check_classes("dlr-targeted", 3)
