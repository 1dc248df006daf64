"""Published weights of masked token modelling: logits as a plain reading of their layout gives them."""

from __future__ import annotations

import pytest
import torch

from published_seitpp import CODES, DIM, INNER, SIDE, WIDTH, published, slow_logits
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.layers.stems import TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import Masked, MaskedConfig
from tilework.objectives.masked_published import load_published


def objective(**settings: object) -> Masked:
    config = VitConfig(width=WIDTH, depth=1, heads=2, positions="sincos", stem=TokenPatchStemConfig())
    masked = MaskedConfig(**{"fill": "class", **settings}, width=INNER, depth=1, heads=2)  # type: ignore[arg-type]
    return masked.build(config.build(DIM, (6, 6), 0), Codebook.of(torch.randn(CODES, DIM))).eval()


@pytest.mark.parametrize("hidden", ["dropped", "partly"])
@pytest.mark.parametrize("count", [3, 5, 9])
def test_logits(count: int, hidden: str) -> None:
    """Published: a third of the patches, the least ratio, is dropped; the others that are hidden enter as a vector."""
    one, tensors = objective(hidden=hidden, ratio=(1 / 3, 1.0)), published()
    generator = torch.Generator().manual_seed(1)
    load_published(one, tensors)
    ids = torch.randint(CODES, (4, 6, 6), generator=generator)
    order = torch.rand(4, SIDE**2, generator=generator).argsort(1)
    with torch.no_grad():
        found = one.predict(one.model, ids, order, count)  # (B, N, 4, K)
    found = found.view(4, SIDE, SIDE, 2, 2, CODES).transpose(2, 3).reshape(4, 6, 6, CODES)
    for sample in range(4):
        places, seen = order[sample].tolist(), SIDE**2 - count
        wanted = slow_logits(tensors, ids[sample], places[:seen], places[seen:6] if hidden == "partly" else [])
        torch.testing.assert_close(found[sample], wanted, atol=1e-4, rtol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no mask vector.*set objective\.fill=class objective\.table=learnt"):
        load_published(objective(fill="mask"), published())
    with pytest.raises(ConfigError, match=r"'head\.weight' is no part"):
        load_published(objective(), {**published(), "head.weight": torch.zeros(1)})
    with pytest.raises(ConfigError, match="do not fit"):
        load_published(objective(), {k: v for k, v in published().items() if not k.startswith("norm.")})
    with pytest.raises(ConfigError, match="do not fit"):
        load_published(objective(), {**published(), "cls_token": torch.zeros(1, 1, 5)})
