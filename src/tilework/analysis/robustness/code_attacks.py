"""Attacks on codes of runs on tokens: the worst or random swaps of a few, any or near ones.

A images that are attacked
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tilework.analysis.robustness.cells import Means, Subject
from tilework.analysis.robustness.inputs import Inputs
from tilework.core.config import Plain
from tilework.core.errors import ConfigError
from tilework.core.rng import Draws
from tilework.evaluation.apgd import correct
from tilework.evaluation.code_attack import random_codes, swap_codes
from tilework.evaluation.reconstruction import psnr
from tilework.objectives.perceptual import Perceptual

NEAR = 5  # codes that count as synonyms of one, as in Token-EDA


@dataclass(frozen=True)
class CodeAttacks:
    """The swaps that a job asks for; cells that are known are not measured again."""

    job: Inputs

    def swap_all(self, subject: Subject) -> None:
        """Swaps of codes of one run: the worst that a greedy search finds, and random ones."""
        codes = subject.ask.codes
        if not self.job.codes or codes is None or codes.stage != "ids":
            return
        x, y, right = self.job.attacked_images(subject)
        near = torch.from_numpy(codes.codebook.nearest(NEAR)).to(self.job.torch_device)
        most = max(self.job.codes)
        for kind, allowed in (("any", None), ("near", near)):
            last = subject.cell(f"codes-{kind}-{most}")
            looked = self.job.lpips is None or (last is not None and last.figures.get("lpips") is not None)
            if looked and all(subject.cell(f"codes-{kind}-{n}") is not None for n in self.job.codes):
                continue
            needed, sharp = [], Means()
            perceived = None if self.job.lpips is None else Perceptual.load(self.job.lpips).to(self.job.torch_device)
            for part in torch.arange(len(x)).split(self.job.batch):
                ids = subject.ask.ids(x[part])
                changed, count = swap_codes(subject.ask.of_map, subject.ask.table, ids, y[part], most, allowed)
                needed.append(count)
                moved = (ids != changed).flatten(1).any(1)  # images that were wrong before are left as they are
                before, after = self._decoded(subject, ids[moved]), self._decoded(subject, changed[moved])
                if before is not None and after is not None:
                    sharp.add(psnr=psnr(after, before).double())
                    if perceived is not None:
                        with torch.no_grad():
                            sharp.add(lpips=perceived(after, before).double())
            for n in self.job.codes:
                more: Plain = {"swaps": n, "codes": kind}
                if n == most:  # at most so many: none after the answer is wrong
                    more |= {"psnr": sharp.mean("psnr"), "lpips": sharp.mean("lpips")}
                subject.keep(f"codes-{kind}-{n}", torch.cat(needed) > n, more)
            stands = float((torch.cat(needed) > most).double().mean())
            self.job.say(f"{subject.name}: {most} codes swapped ({kind}): {stands:.1%}")
        for kind, allowed in (("random", None), ("random near", near)):
            for n in self.job.codes:
                name = f"codes-{kind.replace(' ', '-')}-{n}"
                if subject.cell(name) is None:
                    hits = []
                    for part in torch.arange(len(x)).split(self.job.batch):
                        draws = Draws(self.job.seed, 0, self.job.index[self.job.attacked[part]])
                        swapped = random_codes(subject.ask.ids(x[part]), n, len(codes.codebook), draws, allowed)
                        with torch.no_grad():
                            hits.append(correct(subject.ask.of_ids(swapped), y[part]))
                    subject.keep(name, torch.cat(hits) & right, {"swaps": n, "codes": kind})

    def _decoded(self, subject: Subject, ids: Tensor) -> Tensor | None:
        """Images of a run's codes; None without a decoder, or without images."""
        codes = subject.ask.codes
        assert codes is not None
        if not len(ids):
            return None
        used = torch.from_numpy(codes.codebook.used).long().to(self.job.torch_device)
        try:
            return codes.tokenizer.decode(used[ids.long()])
        except ConfigError:
            return None

    def swapped_pictures(self, subject: Subject, count: int = 8) -> dict[str, np.ndarray]:
        """Images before and after the most swaps, decoded, by row."""
        codes = subject.ask.codes
        if not self.job.codes or codes is None or codes.stage != "ids":
            return {}
        x, y, right = self.job.attacked_images(subject)
        chosen = right.nonzero()[:count, 0]
        if not len(chosen):
            return {}
        ids = subject.ask.ids(x[chosen])
        near = torch.from_numpy(codes.codebook.nearest(NEAR)).to(self.job.torch_device)
        rows = {"decoded": self._decoded(subject, ids)}
        for kind, allowed in (("any", None), ("nearest", near)):
            changed, _ = swap_codes(subject.ask.of_map, subject.ask.table, ids, y[chosen], max(self.job.codes), allowed)
            rows[f"swapped ({kind})"] = self._decoded(subject, changed)
        return {k: v.permute(0, 2, 3, 1).cpu().numpy() for k, v in rows.items() if v is not None and len(v)}
