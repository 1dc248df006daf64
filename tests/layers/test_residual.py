"""Residual connections: all kept, some dropped, and the shares beside them."""

from __future__ import annotations

import pytest
import torch

from tilework.layers.residual import add_branch


def test_kept_branches_are_added_and_shares_averaged() -> None:
    x, y, share, mixed = torch.randn(2, 3, 4), torch.randn(2, 3, 4), torch.rand(2, 3, 2), torch.rand(2, 3, 2)
    out, averaged = add_branch(x, y, 0.0, share, mixed)
    assert torch.equal(out, x + y)
    assert averaged is not None
    assert torch.equal(averaged, (share + mixed) / 2)
    assert add_branch(x, y, 0.0)[1] is None
    assert add_branch(x, y, 0.0, share)[1] is share  # channels only


@pytest.mark.parametrize("shape", [(400, 6, 3), (400, 3, 2, 3)])
def test_dropped_branches_leave_tokens_and_shares_alone(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.ones(shape)
    share, mixed = torch.zeros(400, 6, 2), torch.ones(400, 6, 2)
    out, averaged = add_branch(x, y, 0.25, share, mixed)
    added = (out - x).flatten(1)
    kept = added[:, 0] > 0
    assert torch.allclose(added, kept[:, None] / 0.75, atol=1e-5)  # all of a sample, and the mean is right
    assert 0.65 < kept.float().mean() < 0.85
    assert averaged is not None
    assert torch.equal(averaged, kept.view(-1, 1, 1).expand_as(share) / 2)
