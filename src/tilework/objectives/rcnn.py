"""Detection by regions: losses of proposals, of boxes and of outlines, in one step or a cascade.

He et al., 2017; Cai and Vasconcelos, 2018. B batch | A anchors | R regions | M objects | K classes | n regions of an
image that are looked at | N all of them
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Batch
from tilework.core.codebook import Codebook
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.data.boxes import Boxes
from tilework.data.detected import OUTLINES
from tilework.layers.boxes import decode, encode, giou
from tilework.models import Output
from tilework.models.rcnn import Proposals, Rcnn
from tilework.objectives.detect import Find, FindConfig, centres_inside, within
from tilework.objectives.matching import Matching, match, sample
from tilework.objectives.objective import ObjectiveConfig
from tilework.objectives.task import Task


@dataclass(frozen=True)
class Step:
    """A step of the cascade."""

    matching: Matching = field(default_factory=lambda: Matching(0.5, 0.5, best=True, best_from=0.5))
    weight: float = 1.0


@ObjectiveConfig.choices.add("rcnn_boxes")
@dataclass(frozen=True)
class RcnnBoxesConfig(FindConfig):
    """Settings of detection by regions."""

    anchors: Matching = field(default_factory=lambda: Matching(0.7, 0.3, best=True, best_from=0.3))
    anchors_inside: bool = False  # only those that lie wholly on the image are learnt
    anchors_sampled: int = 256  # half of them objects, at most
    beta: float = 0.0  # of the smooth L1 of anchors' boxes: quadratic below; 0: L1
    proposals: Proposals = field(default_factory=lambda: Proposals(of_level=2000))
    regions: int = 512  # looked at, a quarter of them objects at most
    steps: tuple[Step, ...] = (Step(),)
    box_loss: Literal["l1", "giou"] = "l1"
    box_weight: float = 1.0

    def build(self, model: nn.Module, codebook: Codebook | None = None) -> RegionLosses:
        """The objective around an R-CNN."""
        if not isinstance(model, Rcnn):
            what = f"a {type(model).__name__} proposes no regions"
            raise ConfigError(what, "set model={name: mask_rcnn, backbone: ...}, or objective={name: detect}")
        if len(self.steps) != len(model.box_heads):
            what = f"{len(self.steps)} steps of losses for {len(model.box_heads)} of the network"
            raise ConfigError(what, "give objective.steps as many as model.deviations")
        if self.box_loss not in ("l1", "giou"):
            raise ConfigError(f"no box loss '{self.box_loss}'", "give l1 or giou")
        if bool(model.mask_heads) != (OUTLINES in self.task.columns):
            hint = "choose objective rcnn with model.masks=true, rcnn_boxes with model.masks=false"
            raise ConfigError("outlines are learnt by one of network and objective only", hint)
        return RegionLosses(model, self)


@ObjectiveConfig.choices.add("rcnn")
@dataclass(frozen=True)
class RcnnConfig(RcnnBoxesConfig):
    """The same with outlines."""

    task: ClassVar[Task] = Task(
        labels=False, classes=True, columns=(OUTLINES,), validation_columns=(OUTLINES,), metric="box_ap"
    )


@dataclass(frozen=True)
class Looked:
    """Regions of a batch that are looked at."""

    regions: Tensor  # (B, n, 4)
    there: Tensor  # (B, n)
    owner: Tensor  # (B, n) number of the object
    positive: Tensor  # (B, n)
    added: Tensor  # (B, n): the objects themselves, which are no proposals


class RegionLosses(Find):
    """Losses of all parts of an R-CNN."""

    model: Rcnn
    config: RcnnBoxesConfig

    def __init__(self, model: Rcnn, config: RcnnBoxesConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def losses(self, out: Output, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Their sum and each of them; `accuracy` of the regions' classes."""
        column, edges, seen = self.targets(batch)
        grid = (batch.x.shape[-2], batch.x.shape[-1])
        extent = column.place.extent(*grid)
        found = self._anchors(out, column, edges, seen, extent)
        regions, known = self.model.propose(out, extent, self.config.proposals)
        for number, step in enumerate(self.config.steps):
            regions, known, each = self._step(out, column, edges, seen, extent, regions, known, number, grid)
            for name, value in each.items():
                scaled = value if name == "accuracy" else step.weight * value
                found[name] = found[name] + scaled if name in found else scaled
        found["accuracy"] = found["accuracy"] / len(self.config.steps)
        return {"loss": sum((v for k, v in found.items() if k != "accuracy"), torch.zeros(())), **found}

    def _anchors(self, out: Output, column: Boxes, edges: Tensor, seen: Tensor, extent: Tensor) -> dict[str, Tensor]:
        """Whether sampled anchors show objects, and where these are."""
        config, anchors = self.config, self.model.anchors(out.stages)
        assert out.offsets is not None
        shown = centres_inside(anchors, extent)
        if config.anchors_inside:
            shown = shown & within(anchors[:, :2], anchors[:, 2:], extent)
        whether, where = out.logits.new_zeros(()).float(), out.logits.new_zeros(()).float()
        count = torch.zeros((), device=edges.device)
        for i in range(len(edges)):
            with torch.no_grad():
                owner = match(anchors, edges[i], seen[i], column.ignored[i], config.anchors, shown[i])
                drawn = sample(owner, config.anchors_sampled, 0.5)
                wanted = encode(anchors[drawn.rows], _rows(edges[i], drawn.owner))
            logits = out.logits[i, drawn.rows, 0].float()
            each = F.binary_cross_entropy_with_logits(logits, drawn.positive.float(), reduction="none")
            whether = whether + (each * drawn.there).sum()
            wanted = torch.where(drawn.positive[:, None], wanted, 0)
            apart = smooth_l1(out.offsets[i, drawn.rows].float() - wanted, config.beta)
            where = where + (apart * drawn.positive[:, None]).sum()
            count = count + drawn.there.sum()
        total = count.clamp(min=1)
        return {"proposals": whether / total, "proposal_boxes": where / total}

    @torch.no_grad()
    def _look(self, column: Boxes, edges: Tensor, seen: Tensor, regions: Tensor, known: Tensor, step: int) -> Looked:
        """Regions matched with objects and drawn; the objects join the regions."""
        config, found = self.config, []
        learnt = seen & ~column.ignored
        for i in range(len(edges)):
            every, there = torch.cat([regions[i], edges[i]]), torch.cat([known[i], learnt[i]])
            owner = match(every, edges[i], seen[i], column.ignored[i], config.steps[step].matching, there)
            drawn = sample(owner, config.regions, 0.25)
            added = drawn.rows >= len(regions[i])
            found.append((every[drawn.rows], drawn.there, drawn.owner, drawn.positive, added))
        return Looked(*(torch.stack(part) for part in zip(*found, strict=True)))

    def _step(
        self,
        out: Output,
        column: Boxes,
        edges: Tensor,
        seen: Tensor,
        extent: Tensor,
        regions: Tensor,
        known: Tensor,
        number: int,
        grid: tuple[int, int],
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Regions for the next step, whether there are any, and the losses of this one."""
        config, model = self.config, self.model
        looked = self._look(column, edges, seen, regions, known, number)
        batch, each = looked.there.shape
        sample = torch.arange(batch, device=edges.device)[:, None].expand(batch, each).flatten()
        flat, there, positive = looked.regions.flatten(0, 1), looked.there.flatten(), looked.positive.flatten()
        owner = looked.owner.flatten()
        label = _own(column.labels, sample, owner).where(positive, model.classes)  # (N,)
        wanted = _own(edges, sample, owner)
        logits, offsets = model.look(out, flat, sample, number)
        count = there.sum().clamp(min=1)
        loss = (F.cross_entropy(logits.float(), label, reduction="none") * there).sum() / count
        right = ((logits.argmax(1) == label) & there).sum() / count
        where = self._boxes(flat, offsets.float(), label, wanted, positive, number).sum() / count
        found = {"classes": loss, "boxes": config.box_weight * where, "accuracy": right}
        if model.mask_heads:
            found["outlines"] = self._outlines(out, column, flat, sample, owner, label, positive, number, grid)
        with torch.no_grad():  # the next step sees what this one makes of its regions, not the objects among them
            named = torch.where(positive, label, logits[:, :-1].argmax(1))
            moved = model.refine(flat, offsets.detach(), named, number, extent[sample]).view_as(looked.regions)
        return moved, looked.there & ~looked.added, found

    def _boxes(
        self, regions: Tensor, offsets: Tensor, label: Tensor, wanted: Tensor, positive: Tensor, number: int
    ) -> Tensor:
        """Loss of every region's box by its own class, (N,); 0 where it shows no object."""
        deviations = self.model.config.deviations[number]
        own = offsets[torch.arange(len(label), device=label.device), label.clamp(max=self.model.classes - 1)]
        if self.config.box_loss == "giou":
            safe = torch.where(positive[:, None], regions, wanted.new_tensor([0.0, 0, 1, 1]))
            right = torch.where(positive[:, None], wanted, wanted.new_tensor([0.0, 0, 1, 1]))
            own = torch.where(positive[:, None], own, 0)
            return (1 - giou(decode(safe, own, deviations), right)) * positive
        target = torch.where(positive[:, None], encode(regions, wanted, deviations), 0)
        return (F.l1_loss(own, target, reduction="none") * positive[:, None]).sum(1)

    def _outlines(
        self,
        out: Output,
        column: Boxes,
        regions: Tensor,
        sample: Tensor,
        owner: Tensor,
        label: Tensor,
        positive: Tensor,
        number: int,
        grid: tuple[int, int],
    ) -> Tensor:
        """Mean over regions of objects, of the outline of their class."""
        row = positive.nonzero()[:, 0]
        regions, sample, owner, label = regions[row], sample[row], owner[row], label[row]
        logits = self.model.outline(out, regions, sample, number).float()  # of no region, too: all weights take part
        own = logits[torch.arange(len(row), device=row.device), label]
        with torch.no_grad():
            wanted = column.outlines_in(regions, sample, owner, own.shape[-1], grid).float()
        each = F.binary_cross_entropy_with_logits(own, wanted, reduction="sum")
        return each / max(1, wanted.numel())


def smooth_l1(apart: Tensor, beta: float) -> Tensor:
    """|x|, below beta x^2 / (2 beta) + beta / 2 less; beta 0: L1."""
    far = apart.abs()
    return far if not beta else torch.where(far < beta, far.square() / (2 * beta), far - beta / 2)


def _rows(values: Tensor, row: Tensor) -> Tensor:
    """Rows of values, zeros where there are none at all."""
    return values[row] if len(values) else values.new_zeros(len(row), *values.shape[1:])


def _own(values: Tensor, sample: Tensor, owner: Tensor) -> Tensor:
    """Values of regions' objects, (N, ...). values: (B, M, ...)."""
    return values[sample, owner] if values.shape[1] else values.new_zeros(len(owner), *values.shape[2:])
