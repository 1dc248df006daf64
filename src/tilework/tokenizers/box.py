"""The tokenizer in the box: EfficientNet-Lite0 up to its last block, whose codes are fitted to the images at hand.

The package holds the frozen network, a projection and codes of general photographs (packaged/box, made by
benchmarks/make_box.py). Codes of the user's own images keep more of what tells them apart, take seconds, and lie in the
store, so that the store and the package together can encode further images.

K codes | C code dim
"""

from __future__ import annotations

import hashlib
from math import prod

import numpy as np
import torch
from torch import Tensor

from tilework.core.errors import InputError
from tilework.data.images import Frame
from tilework.data.open_images import Images
from tilework.tokenizers.teacher_codes import TeacherCodes, fit, some_pixels
from tilework.tokenizers.tokenizer import PACKAGED, Card, load_tokenizer

NAME = "box"
IMAGES = 1000  # that codes are fitted to
FEWEST = 40  # positions for each code, below which the codes of the package are kept
ENCODER = "encoder"  # in the manifest of a store: SHA-256 of the package's weights


def load_box() -> tuple[TeacherCodes, Card]:
    """The tokenizer as the package holds it."""
    tokenizer, card = load_tokenizer(PACKAGED / NAME)
    assert isinstance(tokenizer, TeacherCodes)
    return tokenizer, card


def with_codes(codebook: Tensor) -> tuple[TeacherCodes, Card]:
    """The network of the package with other codes, (K, C). The hash is of both."""
    tokenizer, card = load_box()
    table = codebook.detach().cpu().float().contiguous()
    digest = hashlib.sha256(card.sha256.encode() + table.numpy().tobytes()).hexdigest()
    return tokenizer.with_codes(table), Card(NAME, digest, card.size, card.origin, encoder=card.sha256)


def is_fitted(images: int) -> bool:
    """Whether so many images are enough to fit codes to."""
    tokenizer, card = load_box()
    return min(IMAGES, images) * prod(tokenizer.grid(card.size)) >= FEWEST * len(tokenizer.codebook)


def fitted_box(images: Images, device: torch.device, frame: Frame = "cover") -> tuple[TeacherCodes, Card]:
    """The network with codes of some of these images; as the package holds it where they are too few."""
    tokenizer, card = load_box()
    if is_fitted(len(images)):
        fit(tokenizer, some_pixels(images, IMAGES, card.size, frame), device, projection=False)
    return with_codes(tokenizer.codebook)


def box_like(name: str, made_by: dict[str, str], codebook: np.ndarray) -> tuple[TeacherCodes, Card]:
    """The tokenizer of a store, from its manifest and codes; refuses one of another version of the package."""
    _, card = load_box()
    if ENCODER not in made_by:
        raise InputError(f"{name} was not made with the tokenizer in the box", "give its own with --tokenizer")
    if made_by[ENCODER] != card.sha256:
        what = f"{name} was made with the tokenizer in the box of another version of Tilework"
        raise InputError(what, "tokenize its images again, or use that version")
    return with_codes(torch.from_numpy(codebook))
