"""FAB: projections against a linear program and a quadratic one, distances against the authors' code."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from small_attacks import small_images, small_net
from tilework.evaluation.fab import fab, to_plane

scipy_optimize = pytest.importorskip("scipy.optimize")
# distances that fra31/auto-attack a392200 finds in 20 iterations towards the second class
GOLDEN = {
    "linf": [0.00345, 0.00369, 0.02404, 0.00582, 0.04052, 0.02226, 0.02645, 0.06275, 0.06577, 0.0239, 0.04978, 0.07078],
    "l2": [0.03517, 0.03674, 0.25311, 0.06291, 0.39893, 0.22788, 0.26851, 0.64192, 0.64555, 0.24193, 0.51452, 0.69699],
}


def test_the_projection_is_the_linear_programs() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        t, w = rng.random(6), rng.normal(size=6)
        b = rng.normal() * 0.8
        best = scipy_optimize.linprog(
            [*np.zeros(6), 1.0],
            A_ub=np.block([[np.eye(6), -np.ones((6, 1))], [-np.eye(6), -np.ones((6, 1))]]), b_ub=np.zeros(12),
            A_eq=[[*w, 0.0]], b_eq=[b - w @ t], bounds=[*((-v, 1 - v) for v in t), (0, None)],
        )  # fmt: skip
        d = to_plane(*(torch.tensor(v)[None].float() for v in (t, w)), torch.tensor([b]).float(), "linf")[0].numpy()
        if best.success:
            assert np.abs(d).max() == pytest.approx(best.fun, abs=1e-5)
            assert w @ (t + d) == pytest.approx(b, abs=1e-5)
        assert (t + d >= -1e-6).all()
        assert (t + d <= 1 + 1e-6).all()


def test_the_projection_is_the_quadratic_programs() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        t, w = rng.random(5), rng.normal(size=5)
        b = float(w @ np.clip(t + rng.normal(size=5) * 0.3, 0, 1))  # can be reached
        best = scipy_optimize.minimize(
            lambda d: d @ d, np.zeros(5), jac=lambda d: 2 * d, bounds=[(-v, 1 - v) for v in t],
            constraints={"type": "eq", "fun": lambda d, w=w, t=t, b=b: w @ (t + d) - b}, tol=1e-10,
        )  # fmt: skip
        d = to_plane(*(torch.tensor(v)[None].float() for v in (t, w)), torch.tensor([b]).float(), "l2")[0].numpy()
        assert np.allclose(d, best.x, atol=2e-3)
        assert w @ (t + d) == pytest.approx(b, abs=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_distances_are_those_of_the_authors_code(norm: str) -> None:
    net, (x, _) = small_net(), small_images()
    y = net(x).argmax(1)
    found = fab(net, x, y, 10.0, 2, 20, norm, stop=False)  # type: ignore[arg-type]
    away = (found.images - x).flatten(1)
    size = away.abs().amax(1) if norm == "linf" else away.norm(dim=1)
    assert size.tolist() == pytest.approx(GOLDEN[norm], rel=1e-2, abs=2e-5)
    eps = sorted(GOLDEN[norm])[6] * 1.001  # an image that is broken within eps is left, with the same answer
    assert fab(net, x, y, eps, 2, 20, norm).stands.tolist() == [d > eps for d in GOLDEN[norm]]  # type: ignore[arg-type]
