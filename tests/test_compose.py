"""The interfaces fit together: a dummy of every part, for ids, code maps and pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tilework.augment import Augment, Embed, Flip, apply_all
from tilework.core.batch import Batch, Mix, Stage, Target
from tilework.core.codebook import Codebook
from tilework.core.rng import Draws
from tilework.layers.block import Block
from tilework.layers.stems import Stem
from tilework.models import Model, Output, Visible, VitConfig
from tilework.models.model import initial_share
from tilework.objectives import Classify, Combined, Objective, soft_cross_entropy

CODES, CODE_DIM, WIDTH, CLASSES, BATCH = 11, 5, 16, 4, 6


@dataclass(frozen=True)
class MapColumn:
    """A per-place value that really follows what happens to the input."""

    values: Tensor  # (B, H, W)

    def warp(self, affine: Tensor, grid: tuple[int, int], filled: bool = False) -> MapColumn:
        field = torch.nn.functional.affine_grid(affine, [len(self.values), 1, *grid], align_corners=False)
        warped = torch.nn.functional.grid_sample(self.values[:, None], field, mode="nearest", align_corners=False)
        return MapColumn(warped[:, 0])

    def permute(self, source: Tensor) -> MapColumn:
        return MapColumn(self.values.flatten(1).gather(1, source.flatten(1)).view_as(source))

    def mix(self, mix: Mix) -> MapColumn:
        return MapColumn(mix.apply(self.values[:, None])[:, 0])

    def to(self, device: torch.device) -> MapColumn:
        return MapColumn(self.values.to(device))

    def rows(self, which: slice) -> MapColumn:
        return MapColumn(self.values[which])


@dataclass(frozen=True)
class HalfMix(Augment):
    """The left half of every sample comes from its neighbour; mixed here or after the stem."""

    after_stem: bool = False
    stages: ClassVar[tuple[Stage, ...]] = ("ids", "map", "pixels")

    def sample(self, draws: Draws, batch: Batch) -> Mix:
        own = torch.ones(len(batch.x), *batch.x.shape[-2:])
        own[:, :, : own.shape[2] // 2] = 0
        return Mix(torch.arange(len(batch.x)).roll(1), own, self.after_stem)

    def apply(self, batch: Batch, p: Mix) -> Batch:
        x = batch.x if p.after_stem else p.apply(batch.x)
        target = batch.target.mix(p.partner, p.own.mean((1, 2)))
        columns = {name: column.mix(p) for name, column in batch.columns.items()}
        return batch.changed(x=x, target=target, columns=columns, mix=p)


class IdsStem(Stem):
    """A learnt table inside the stem."""

    takes = "ids"

    def __init__(self) -> None:
        super().__init__((4, 4), WIDTH)
        self.table = nn.Embedding(CODES, WIDTH)
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.table(x.long()).permute(0, 3, 1, 2))


class ConvStem(Stem):
    def __init__(self, takes: Stage, channels: int) -> None:
        super().__init__((4, 4), WIDTH)
        self.takes = takes
        self.proj = nn.Conv2d(channels, WIDTH, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class TinyModel(Model):
    """Two blocks without a class token."""

    def __init__(self, stem: Stem) -> None:
        super().__init__()
        self.stem, self.takes, self.grid = stem, stem.takes, stem.grid
        self.blocks = nn.ModuleList(Block(WIDTH, 2, drop_path=0.2) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(
        self, x: Tensor, *, mix: Mix | None = None, visible: Visible | None = None, track: bool = False
    ) -> Output:
        stem = self.stem(x)
        tokens = (mix.apply(stem) if mix and mix.after_stem else stem).flatten(2).transpose(1, 2)
        share = initial_share(mix, len(x), self.grid, x.device) if track else None
        if visible is not None:
            tokens = visible.pick(tokens)
            share = None if share is None else visible.pick(share)
        for block in self.blocks:
            tokens, share = block(tokens, share)
        share = None if share is None else share.mean(1)
        return Output(self.head(tokens.mean(1)), tokens, stem, self.grid, self.head(tokens), share)


class Aligned(Objective):
    """Labels follow the tokens; half of the patches are seen."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def answer(self, batch: Batch) -> tuple[Output, Target]:
        visible = Visible(torch.arange(0, 16, 2).expand(len(batch.x), -1))
        out = self.model(batch.x, mix=batch.mix, visible=visible, track=True)
        hard = Target(batch.target.ids[:, :1], torch.ones(len(batch.x), 1))
        return out, hard.mix(batch.mix.partner, out.share[:, 0])

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        return {"loss": soft_cross_entropy(out.logits, batch.target).mean()}

    def score(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"top1": (model(batch.x).logits.argmax(1) == batch.target.ids[:, 0]).float()}


class Reconstructor(Objective):
    """An auxiliary part with weights of its own."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.decoder = nn.Linear(WIDTH, 1)

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        tokens = out.stem.flatten(2).transpose(1, 2)
        wanted = nn.functional.avg_pool2d(batch.columns["depth"].values[:, None], 2).flatten(1)
        return {"loss": (self.decoder(tokens)[..., 0] - wanted).square().mean()}


def make(stage: str, after_stem: bool) -> tuple[Batch, list[Augment], Model]:
    generator = torch.Generator().manual_seed(0)
    target = Target.hard(torch.arange(BATCH) % CLASSES)
    columns: dict[str, Any] = {"depth": MapColumn(torch.rand(BATCH, 8, 8, generator=generator))}
    ids = torch.randint(CODES, (BATCH, 8, 8), generator=generator, dtype=torch.int32)
    codebook = torch.randn(CODES, CODE_DIM, generator=generator)
    mixing = HalfMix(after_stem=after_stem)
    if stage == "ids":
        return Batch(ids, target, torch.arange(BATCH), columns), [mixing], TinyModel(IdsStem())
    if stage == "map":
        chain = [Embed().build(Codebook.of(codebook)), Flip(), mixing]
        return Batch(ids, target, torch.arange(BATCH), columns), chain, TinyModel(ConvStem("map", CODE_DIM))
    pixels = torch.rand(BATCH, 3, 8, 8, generator=generator)
    return Batch(pixels, target, torch.arange(BATCH), columns), [Flip(), mixing], TinyModel(ConvStem("pixels", 3))


@pytest.mark.parametrize(
    ("stage", "after_stem"), [("ids", True), ("map", False), ("map", True), ("pixels", False), ("pixels", True)]
)
def test_every_part_composes(stage: str, after_stem: bool) -> None:
    torch.manual_seed(0)
    batch, chain, model = make(stage, after_stem)
    draws = Draws(seed=0, epoch=0, index=batch.index)
    mixed = apply_all(chain, batch, draws)
    assert mixed.target.weight.sum(1).allclose(torch.ones(BATCH))
    objective = Combined(Aligned(model), {"depth": (0.5, Reconstructor(model))})
    out = objective(mixed, draws)
    assert set(out) == {"loss", "depth"}
    out["loss"].backward()
    missing = [name for name, p in objective.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not missing

    plain = TinyModel(model.stem)
    assert set(objective.model.state_dict()) == set(plain.state_dict())  # the auxiliary part vanishes on export
    assert not any("decoder" in name for name in objective.model.state_dict())


def test_column_follows_flip_and_mix() -> None:
    batch, _, _ = make("pixels", after_stem=False)
    marked = batch.changed(columns={"depth": MapColumn(batch.x[:, 0])})
    draws = Draws(3, 0, batch.index)
    out = apply_all([Flip(), HalfMix()], marked, draws)
    torch.testing.assert_close(out.columns["depth"].values, out.x[:, 0])


def test_share_starts_as_the_mixture_and_stays_a_distribution() -> None:
    batch, chain, model = make("map", after_stem=False)
    mixed = apply_all(chain, batch, Draws(0, 0, batch.index))
    out = model.eval()(mixed.x, mix=mixed.mix, track=True)
    torch.testing.assert_close(out.share.sum(1), torch.ones(BATCH))
    assert ((out.share > 0) & (out.share < 1)).all()
    assert not out.share.requires_grad


def test_vit_is_a_drop_in_for_the_dummy() -> None:
    batch, chain, _ = make("map", after_stem=True)
    from tilework.layers.stems import TokenStemConfig

    vit = VitConfig(width=WIDTH, depth=2, heads=2, stem=TokenStemConfig()).build(CODE_DIM, (8, 8), CLASSES)
    mixed = apply_all(chain, batch, Draws(0, 0, batch.index))
    objective = Combined(Aligned(vit), {"depth": (1.0, Reconstructor(vit))})
    objective(mixed, Draws(0, 0, batch.index))["loss"].backward()
    assert Classify(vit)(mixed, Draws(0, 0, batch.index))["loss"].isfinite()
