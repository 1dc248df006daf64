"""How much of each image is in a mixed token, layer by layer (TL-Align, supplement, eq. 1), beside what labels say.

B batch | T tokens of a block, the class token first where the head reads it | D width | L blocks | N mixtures
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.core.batch import Batch, Mix
from tilework.core.errors import ConfigError
from tilework.evaluation.evaluator import Evaluator
from tilework.layers.block import Block
from tilework.models import Model, Output
from tilework.models.model import stem_of
from tilework.objectives.trans_mix import looked_share, looking, reads_class_token


@dataclass(frozen=True)
class MixingRatios:
    """Share of a sample itself in its mixture with a partner."""

    similarity: list[Tensor]  # L of (B, T) by the tokens themselves
    aligned: list[Tensor]  # L of (B, T) by TL-Align
    own: Tensor  # (B, h, w) as mixed, on the grid of the stem
    trans_mix: Tensor | None  # (B,); None where no class token is read
    read: Tensor  # (B,) aligned, in what the head reads
    class_token: bool  # it is what the head reads, not the mean of the others

    @property
    def area(self) -> Tensor:
        """Share of the mixture's area, (B,)."""
        return self.own.mean((1, 2))

    def of_image(self, shares: list[Tensor]) -> Tensor:
        """Share in what a head would read after each block, (L, B)."""
        return torch.stack([share[:, 0] if self.class_token else share.mean(1) for share in shares])

    def last_map(self, grid: tuple[int, int]) -> Tensor:
        """Aligned shares of the positions after the last block, (B, h, w)."""
        return self.aligned[-1][:, -grid[0] * grid[1] :].unflatten(1, grid)


class MixingRatio(Evaluator[MixingRatios]):
    """How far label rules lie from the similarity of what the head reads, and go along with it, over mixtures."""

    def update(self, batch: Batch, output: MixingRatios) -> None:
        """See the ratios of a batch of mixtures."""
        rules = {"area": output.area[:, None], "tl_align": output.of_image(output.aligned).T}
        if output.trans_mix is not None:
            rules["trans_mix"] = output.trans_mix[:, None]
        self.keep(batch, similarity=output.of_image(output.similarity).T, **rules)  # (B, L), or (B, 1) for all blocks

    def rules(self) -> dict[str, Tensor]:
        """Shares by each rule that there is, (L, N)."""
        named = [name for name in ("area", "tl_align", "trans_mix") if name in self._rows]
        return {name: self.rows(name).T.expand_as(self.rows("similarity").T) for name in named}

    def distance(self) -> dict[str, Tensor]:
        """Mean distance of each rule from the similarity after each block, (L,)."""
        similarity = self.rows("similarity").T  # (L, N)
        return {name: (rule - similarity).abs().mean(1) for name, rule in self.rules().items()}

    def correlation(self) -> dict[str, Tensor]:
        """Correlation of each rule with the similarity after each block, (L,)."""
        similarity = self.rows("similarity").T  # (L, N)
        return {name: correlation(rule, similarity) for name, rule in self.rules().items()}

    def compute(self) -> dict[str, float]:
        """Of the last block; `moved`: how far TL-Align goes from the area."""
        moved = (self.rows("tl_align")[:, -1] - self.rows("area")[:, 0]).abs().mean()
        kinds = {"distance": self.distance(), "correlation": self.correlation()}
        last = {f"{kind}_{name}": float(x[-1]) for kind, found in kinds.items() for name, x in found.items()}
        return {"pairs": len(self.rows("area")), **last, "moved": float(moved)}


def correlation(one: Tensor, other: Tensor) -> Tensor:
    """Of each row with its counterpart, (L,); 0 where one does not vary. Each (L, B)."""
    one, other = (x - x.mean(1, keepdim=True) for x in (one, other))
    return (one * other).sum(1) / (one.norm(dim=1) * other.norm(dim=1)).clamp(min=1e-12)


def similarity_ratio(mixed: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Softmax of the largest cosines of a mixed token with those of either image. Each (B, T, D); returns (B, T)."""
    nearest = [
        (F.normalize(mixed, dim=-1) @ F.normalize(one, dim=-1).transpose(1, 2)).amax(-1) for one in (first, second)
    ]
    return torch.stack(nearest).softmax(0)[0]


@torch.no_grad()
def mixing_ratios(model: Model, x: Tensor, mix: Mix) -> MixingRatios:
    """Ratios of every token of every mixture. x: (B, C, H, W) before mixing."""
    model.eval()
    plain, _ = _blocks(model, x, None)
    mixed, out = _blocks(model, x if mix.after_stem else mix.apply(x), mix)
    similarity = [
        similarity_ratio(tokens, one, one[mix.partner]) for (tokens, _), (one, _) in zip(mixed, plain, strict=True)
    ]
    seen, class_token = None, reads_class_token(model)
    if class_token:
        with looking(model) as looks:
            model(x if mix.after_stem else mix.apply(x), mix=mix)
        seen = looked_share(looks[0], mix, out.grid)[:, 0]
    assert out.share is not None  # it was asked for
    aligned = [share[..., 0] for _, share in mixed]
    if not class_token:  # nobody reads it
        places = out.grid[0] * out.grid[1]
        similarity, aligned = ([s[:, s.shape[1] == 1 + places :] for s in shares] for shares in (similarity, aligned))
    return MixingRatios(similarity, aligned, mix.at(*stem_of(model).grid), seen, out.share[:, 0], class_token)


def _blocks(model: Model, x: Tensor, mix: Mix | None) -> tuple[list[tuple[Tensor, Tensor]], Output]:
    """Tokens and shares after every block, and the output."""
    found: list[tuple[Tensor, Tensor]] = []
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    if not blocks:
        raise ConfigError(
            f"a {type(model).__name__} has no blocks to follow tokens through", "give the run of a ViT or Swin"
        )
    hooks = [block.register_forward_hook(lambda module, given, gave: found.append(gave)) for block in blocks]
    try:
        return found, model(x, mix=mix, track=True)
    finally:
        for hook in hooks:
            hook.remove()
