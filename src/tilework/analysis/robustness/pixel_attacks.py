"""Attacks on pixels of several runs, radius by radius, with the checks of masked gradients (SeiT B.6, figure B.1).

A images that are attacked
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from tilework.analysis.robustness.cells import Means, Subject, show_eps
from tilework.analysis.robustness.inputs import LOSSES, WITH_GRADIENT, Attack, Inputs
from tilework.core.config import Plain
from tilework.core.rng import Draws
from tilework.evaluation.apgd import Attacked, apgd, correct, random_start
from tilework.evaluation.fab import fab
from tilework.evaluation.from_pixels import TAUS, FromPixels, Gradient, in_parts
from tilework.evaluation.square import square

FEW = 64  # images that suffice for the checks of gradients


@dataclass(frozen=True)
class PixelAttacks:
    """The attacks that a job asks for; cells that are known are not measured again."""

    job: Inputs

    def rows_of(self, subject: Subject) -> list[tuple[str, Attack, Gradient | None]]:
        """Attacks of a run: name, kind, and gradient."""
        rows: list[tuple[str, Attack, Gradient | None]] = []
        for attack in self.job.attacks:
            if attack in WITH_GRADIENT:
                has = [
                    g
                    for g in (("exact",) if subject.ask.codes is None else self.job.gradients)
                    if g in subject.ask.gradients
                ]
                rows += [(f"{attack} {gradient}", attack, gradient) for gradient in has]
            elif attack != "transfer":
                rows.append((attack, attack, None))
        return rows

    def cell_name(self, row: str, attack: Attack, eps: float, steps: int = 0) -> str:
        """Of an attack with its settings."""
        effort = {
            "square": f"q{self.job.queries}",
            "random": "1",
            "fab-t": f"s{self.job.steps}-t{self.job.targets}",
        }.get(
            attack,
            f"s{steps or self.job.steps}-r{self.job.restarts}"
            + (f"-t{self.job.targets}" if attack == "apgd-t" else ""),
        )
        return f"attack-{row.replace(' ', '-')}-{effort}-{self.job.norm}-{eps * 255:.4g}"

    def attack_all(self, subject: Subject) -> None:
        """Radii from small to large: an image that is broken within a small one is broken within a large one."""
        x, y, right = self.job.attacked_images(subject)
        for row, attack, gradient in self.rows_of(subject):
            stands = right
            for eps in self.job.eps:
                stands = self._attack(subject, row, attack, gradient, eps, x, y, stands)
            if gradient is not None and gradient != "unquantised" and attack == "apgd-ce":
                self._check_gradient(subject, row, gradient, x, y, right)

    def _attack(
        self, subject: Subject, row: str, attack: Attack, gradient: Gradient | None, eps: float, x: Tensor, y: Tensor,
        stands: Tensor,
    ) -> Tensor:  # fmt: skip
        """One cell; returns which images still stand, (A,)."""
        name = self.cell_name(row, attack, eps)
        known = subject.cell(name)
        if known is None or (self.job.bytes and "accuracy_bytes" not in known.figures):
            begun, left = perf_counter(), stands.nonzero()[:, 0]
            after, itself, rounded, figures = stands.clone(), stands.clone(), stands.clone(), Means()
            for part in left.split(self.job.batch) if len(left) else ():
                index = self.job.index[self.job.attacked[part.cpu()]]
                found = self._search(subject.ask, attack, gradient, eps, x[part], y[part], index)
                after[part] = correct(subject.ask(found.images), y[part])
                itself[part] = found.stands
                figures.add(flat=found.flat.double(), moved=self._codes_changed(subject, x[part], found.images))
                if self.job.bytes:
                    rounded[part] = correct(subject.ask((found.images * 255).round() / 255), y[part])
            more: Plain = {"row": row, "attack": attack, "gradient": gradient, "eps": eps, "norm": self.job.norm}
            more |= self._effort(attack, gradient)
            more |= {"estimated": gradient in ("ste", "soft", "unquantised"), "seconds": perf_counter() - begun}
            more |= {"zero_gradient": figures.mean("flat"), "codes_changed": figures.mean("moved")}
            if gradient == "unquantised":
                more["itself"] = float(itself.double().mean())
            if self.job.bytes:
                more["accuracy_bytes"] = float(rounded.double().mean())
            known = subject.keep(name, after, more)
            self.job.say(f"{subject.name}: {row} at {show_eps(eps, self.job.norm)}: {known.accuracy:.1%}")
        return torch.from_numpy(known.hits).to(self.job.torch_device)

    def _effort(self, attack: Attack, gradient: Gradient | None) -> Plain:
        """What an attack may spend, by name."""
        if attack == "square":
            return {"queries": self.job.queries}
        if attack == "random":
            return {}
        effort: Plain = {"steps": self.job.steps, "restarts": 1 if attack == "fab-t" else self.job.restarts}
        effort |= {"targets": self.job.targets} if attack in ("apgd-t", "fab-t") else {}
        return effort | ({"temperatures": len(TAUS)} if gradient == "soft" else {})

    def _codes_changed(self, subject: Subject, x: Tensor, images: Tensor) -> Tensor | None:
        if subject.ask.codes is None:
            return None
        return (subject.ask.ids(x) != subject.ask.ids(images)).flatten(1).double().mean(1)

    def _search(
        self,
        ask: FromPixels,
        attack: Attack,
        gradient: Gradient | None,
        eps: float,
        x: Tensor,
        y: Tensor,
        index: Tensor,
        steps: int = 0,
    ) -> Attacked:
        """One attack on some images that are right."""
        draws = Draws(self.job.seed, 0, index)
        if attack == "square":
            return square(ask, x, y, eps, draws, self.job.queries, self.job.norm)
        if gradient is None:
            moved = random_start(x, eps, self.job.norm, draws, "attack/random")
            if self.job.norm == "linf":
                signs = random_start(torch.full_like(x, 0.5), 0.5, "linf", draws, "attack/random") - 0.5
                moved = (x + eps * torch.where(signs >= 0, 1.0, -1.0)).clamp(0, 1)
            return Attacked(moved, correct(ask(moved), y), torch.zeros_like(y, dtype=torch.bool))
        images, stands, flat = x.clone(), torch.ones_like(y, dtype=torch.bool), torch.zeros_like(y, dtype=torch.bool)
        ranks = (
            range(2, min(self.job.targets + 1, int(ask(x[:1]).shape[1])) + 1) if attack in ("apgd-t", "fab-t") else (0,)
        )
        for tau in TAUS if gradient == "soft" else TAUS[:1]:
            wanted = ask.with_gradient(gradient, tau)
            for rank in ranks:
                for restart in range(self.job.restarts if attack != "fab-t" else 1):
                    left = stands.nonzero()[:, 0]
                    if not len(left):
                        break
                    if attack == "fab-t":
                        found = fab(wanted, x[left], y[left], eps, rank, steps or self.job.steps, self.job.norm)
                    else:
                        target = ask(x[left]).sort(1).indices[:, -rank] if rank else None
                        own = Draws(self.job.seed, 0, index[left.cpu()])
                        purpose, stop = f"attack/{attack}/{rank}/{restart}", gradient != "unquantised"
                        start = random_start(x[left], eps, self.job.norm, own, purpose)
                        effort, loss = steps or self.job.steps, LOSSES[attack]
                        found = apgd(wanted, x[left], y[left], eps, start, effort, loss, self.job.norm, target, stop)
                    images[left], stands[left], flat[left] = found.images, found.stands, flat[left] | found.flat
        return Attacked(images, stands, flat)

    def _check_gradient(
        self, subject: Subject, row: str, gradient: Gradient, x: Tensor, y: Tensor, right: Tensor
    ) -> None:
        """Signs of masked gradients: the whole range must break every image, and fewer steps must not be stronger."""
        left = right.nonzero()[:, 0][:FEW]
        if not len(left):
            return
        middle, few = self.job.eps[len(self.job.eps) // 2], max(1, self.job.steps // 4)
        tasks = [("whole", 1.0, self.job.steps), ("fewer", middle, few), ("all", middle, self.job.steps)]
        for kind, eps, steps in tasks if self.job.norm == "linf" else tasks[1:]:
            name = f"check-{kind}-{gradient}-s{steps}-{self.job.norm}-{eps * 255:.4g}"
            if subject.cell(name) is None:
                stands = []
                for part in left.split(self.job.batch):
                    index = self.job.index[self.job.attacked[part.cpu()]]
                    found = self._search(subject.ask, "apgd-ce", gradient, eps, x[part], y[part], index, steps)
                    stands.append(correct(subject.ask(found.images), y[part]))
                more = {"check": kind, "gradient": gradient, "norm": self.job.norm, "eps": eps, "steps": steps}
                subject.keep(name, torch.cat(stands), more)

    def transfer_all(self) -> None:
        """Images made against a run on pixels, to the end, judged by all others."""
        source = self.job.source_of_transfer
        if source is None:
            return
        name, digest = f"transfer from {source.name}", source.folder.name
        x = self.job.pixels[self.job.attacked].to(self.job.torch_device) / 255
        y, index = self.job.labels(source)[self.job.attacked], self.job.index[self.job.attacked]
        for eps in self.job.eps:
            cell = self.cell_name(f"{name}-{digest}", "apgd-ce", eps)
            waiting = [subject for subject in self.job.subjects if subject.cell(cell) is None]
            if not waiting:
                continue
            made = []
            for part in torch.arange(len(x)).split(self.job.batch):
                draws = Draws(self.job.seed, 0, index[part])
                start = random_start(x[part], eps, self.job.norm, draws, "attack/transfer")
                wanted, effort = source.ask.with_gradient("exact"), self.job.steps
                made.append(apgd(wanted, x[part], y[part], eps, start, effort, norm=self.job.norm, stop=False).images)
            for subject in waiting:
                _, own, right = self.job.attacked_images(subject)
                logits = in_parts(subject.ask, torch.cat(made), self.job.batch)
                more = {"row": name, "attack": "transfer", "gradient": None, "eps": eps, "norm": self.job.norm}
                more |= {"steps": self.job.steps, "restarts": 1, "estimated": False}
                kept = subject.keep(cell, correct(logits, own) & right, more)
                self.job.say(f"{subject.name}: {name} at {show_eps(eps, self.job.norm)}: {kept.accuracy:.1%}")
