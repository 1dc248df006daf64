"""Label maps from a classifier that is run over whole images (ReLabel; LV-ViT, section 3.1).

B batch | h, w locations | N = h w | K classes of the annotator | C classes of the data | k kept
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tilework.augment import AnyStep, apply_all
from tilework.core.batch import Batch, Target
from tilework.core.errors import ConfigError, InputError
from tilework.core.memory import keep_freed_memory
from tilework.core.rng import Draws
from tilework.data.image_files import Broken, attempt, decode_image
from tilework.data.image_folder import ImageFolder
from tilework.models import Model
from tilework.store.label_maps import encode_map

PIXELS = 1 << 18  # at once, without a GPU
Among = Literal["all", "data"]  # classes whose probabilities sum to 1: the annotator's, or those of the data alone


@dataclass(frozen=True)
class Annotator:
    """A classifier of pixels, what its input must go through, and its class for each of the data's."""

    model: Model
    steps: tuple[AnyStep, ...]
    classes: tuple[int, ...]  # its number of each class of the data
    size: int  # pixels of the square it sees
    top: int  # classes kept for each location
    among: Among = "all"

    def __post_init__(self) -> None:
        if not 1 <= self.top <= len(self.classes):
            raise ConfigError(f"{self.top} classes cannot be kept of {len(self.classes)}", "change --top")
        self.model.eval()  # batch norms must not learn from what they look at

    @torch.inference_mode()
    def scores(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The data's classes and their probabilities, highest first.

        pixels: (B, 3, H, W); each (B, h, w, k). Classes of the data that are one to the annotator share alike. Where it
        knows others too and they count, one more entry, the last, has their common probability under number C.
        """
        index = torch.arange(len(pixels), device=pixels.device)
        batch = apply_all(self.steps, Batch(pixels, Target.hard(index), index), Draws(0, 0, index))
        out = self.model(batch.x)
        logits = self.model.token_logits(out)  # (B, N, K)
        if not 0 <= min(self.classes) <= max(self.classes) < logits.shape[2]:
            raise ConfigError(
                f"the annotator has {logits.shape[2]} classes, not {max(self.classes) + 1}", "map classes"
            )
        chosen = torch.tensor(self.classes, device=logits.device)
        sharing = (chosen[:, None] == chosen).sum(1)  # (C,)
        logits = logits.float()
        if self.among == "data":
            others = torch.ones(logits.shape[2], dtype=torch.bool, device=logits.device).index_fill(0, chosen, False)
            logits = logits.masked_fill(others, -torch.inf)
        chances = logits.softmax(-1)[..., chosen] / sharing  # (B, N, C)
        best = chances.topk(self.top, -1)
        ids, scores = best.indices, best.values
        if self.among == "all" and len(set(self.classes)) < logits.shape[2]:
            ids = F.pad(ids, (0, 1), value=len(chosen))
            scores = torch.cat([scores, (1 - chances.sum(-1, keepdim=True)).clamp(min=0)], -1)
        return ids.unflatten(1, out.grid), scores.unflatten(1, out.grid)


def annotate(
    annotator: Annotator,
    folder: ImageFolder,
    device: torch.device,
    batch: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[list[bytes | Broken]]:
    """Records of all images in their order, batch by batch; of one that cannot be read the reason.

    batch: 0 for 16 on a GPU, and elsewhere for small tensors whose memory is used again.
    """
    annotator.model.to(device).eval()
    size = (annotator.size, annotator.size)
    if device.type == "cpu":
        keep_freed_memory()
    batch = batch or (max(1, PIXELS // annotator.size**2) if device.type == "cpu" else 16)
    with ThreadPoolExecutor(cpu_count()) as pool:
        for start in range(0, len(folder), batch):
            paths = folder.paths[start : start + batch]
            found = list(pool.map(lambda path: attempt(path, lambda: decode_image(path, size)), paths))
            good = [image for image in found if not isinstance(image, str)]
            records: Iterator[bytes] = iter(())
            if good:
                pixels = torch.from_numpy(np.stack(good)).to(device)
                ids, scores = (part.cpu().numpy() for part in annotator.scores(pixels))
                records = map(encode_map, ids, scores)
            yield [
                Broken(folder.key(start + i), image) if isinstance(image, str) else next(records)
                for i, image in enumerate(found)
            ]
            progress(min(len(folder), start + batch))


def match_classes(names: Sequence[str], known: Sequence[str] | None, told: dict[str, int] | None) -> tuple[int, ...]:
    """The annotator's number of each class of the data: by name, or as told."""
    if told is not None:
        if missing := [name for name in names if name not in told]:
            raise InputError(f"class '{missing[0]}' is not in the list of classes", "add it")
        return tuple(told[name] for name in names)
    if known is None:
        raise ConfigError("the annotator's classes have no names here", "give --classes FILE with lines NAME,NUMBER")
    if missing := [name for name in names if name not in known]:
        raise InputError(f"the annotator does not know class '{missing[0]}'", "give --classes FILE")
    return tuple(list(known).index(name) for name in names)
