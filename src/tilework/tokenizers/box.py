"""The tokenizer in the box: EfficientNet-Lite0 up to its last block, whose codes are fitted to the images at hand.

The package holds the frozen network, a projection and codes of general photographs (packaged/box, made by
benchmarks/make_box.py). Codes of the user's own images keep more of what tells them apart, take seconds, and lie in the
store, so that the store and the package together can encode further images. They have one of three forms:

- pooled: the mean of the network's map over the image, each of its 320 channels rounded to steps of 0.85 of its
  deviation (rounded.py). Under 100 bytes an image; a linear classifier reads them as well as the mean itself.
- corners: the same of the mean over five views, the whole image and its four corners: as many bytes, five times
  the work, as good as one view or a point better (docs/results.md).
- grid: 7x7 codes of positions, by k-means and error diffusion: for crops, mixtures by area and dense labels.

K codes | C code dim
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from tilework.core.errors import InputError
from tilework.core.location import PACKAGED, PathOrHub
from tilework.data.image_files import Frame
from tilework.data.image_folder import Images
from tilework.store import Spool, spool_of
from tilework.tokenizers.teacher_codes import TeacherCodes, fit, some_pixels
from tilework.tokenizers.tokenizer import Card, Tokenizer, load_tokenizer

NAME = "box"
IMAGES = 1000  # that codes are fitted to
FEWEST = 2  # positions for each code of a grid, below which the codes of the package are kept (docs/choosing.md)
FEWEST_POOLED = 5  # images, the same of pooled codes, which need mean and deviation of each channel alone
ENCODER = "encoder"  # in the manifest of a store: SHA-256 of the package's weights
FORM = "form"  # in the manifest of a store, where it is not a grid of codes
LEVELS = 16  # values of a channel that is rounded: six deviations to either side
FITTED = 300  # images that give means and deviations of channels, where these are rounded
Form = Literal["pooled", "corners", "grid"]
FRAMES: dict[str, Frame] = {"pooled": "cover", "corners": "squash", "grid": "cover"}  # unless another is asked for
ABOUT = {  # of the network, the projection and the codes that the package holds
    "has_seen": "ImageNet-1k: its training images with their labels (the network), some of its validation images "
    "(projection and codes of the package; pooled codes need neither)",
    "licence": "Apache-2.0 (the network's weights); ImageNet's photographs are for research",
    "form_pooled": "the default: the mean map's 320 channels, each rounded to 16 values; about 97 B an image",
    "form_corners": "the same of five views of each image; about 97 B",
    "form_grid": "7x7 of 512 codes; about 55 B",
    "pictures": "none: it has no decoder, so there is no PSNR",
    # accuracy on images that it has not seen: `tilework frontier`, three seeds, docs/results.md
    "on_17_flowers": "1,088 training photographs: pooled 97.2 %, corners 97.7 %, float features 97.4 %, a small ViT on "
    "pixels 77.6 %",
    "on_blood_cells": "3 kinds, 120 training crops: pooled 99.6 %, corners 99.7 %, float features 99.4 %, a small ViT "
    "on pixels 96.9 %",
}


def load_box() -> tuple[TeacherCodes, Card]:
    """The tokenizer as the package holds it."""
    tokenizer, card = load_tokenizer(PACKAGED / NAME)
    assert isinstance(tokenizer, TeacherCodes)
    return tokenizer, card


def pooled_box(box: TeacherCodes, form: Form = "pooled") -> TeacherCodes:
    """The network of the package with codes of the mean of its map, which are still to be fitted."""
    side = box.grid(box.config.size)[0]
    config = replace(box.config, quantiser="rounded", pool=side, code_dim=box.channels, codes=LEVELS)
    config = replace(config, looks="corners") if form == "corners" else config
    return TeacherCodes(config, box.teacher).eval()


def with_codes(
    codebook: Tensor, loaded: tuple[TeacherCodes, Card] | None = None, form: Form = "grid"
) -> tuple[TeacherCodes, Card]:
    """The network of the package with other codes, (K, C). The hash is of both. loaded: the box, if it is at hand."""
    tokenizer, card = loaded or load_box()
    table = codebook.detach().cpu().float().contiguous()
    known = "" if form == "grid" else form
    digest = hashlib.sha256(f"{card.sha256}{known}".encode() + table.numpy().tobytes()).hexdigest()
    tokenizer = pooled_box(tokenizer, form) if known else tokenizer
    size = tokenizer.size or card.size
    return tokenizer.with_codes(table), Card(NAME, digest, size, card.origin, encoder=card.sha256, form=known)


def can_fit(images: int, form: Form) -> bool:
    """Whether codes of a form can be fitted to so many images; where not, the grid of codes in the package is used."""
    if form != "grid":
        return images >= FEWEST_POOLED
    tokenizer, card = load_box()
    return min(IMAGES, images) * prod(tokenizer.grid(card.size)) >= FEWEST * len(tokenizer.codebook)


def fitted_box(
    images: Images,
    device: torch.device,
    frame: Frame = "cover",
    say: Callable[[str], None] = lambda text: None,
    form: Form = "pooled",
) -> tuple[TeacherCodes, Card]:
    """The network with codes of some of these images; as the package holds it where they are too few.

    say: is told which, before anything is computed.
    """
    tokenizer, card = loaded = load_box()
    if not can_fit(len(images), form):
        say(f"too few images to fit codes to ({len(images)}): the 7x7 codes of the package are used")
        return with_codes(tokenizer.codebook, loaded)
    say("fitting codes to these images")
    fitted = tokenizer if form == "grid" else pooled_box(tokenizer, form)
    some = some_pixels(images, IMAGES if form == "grid" else FITTED, fitted.size or card.size, frame)
    fit(fitted, some, device, projection=False)
    return with_codes(fitted.codebook, loaded, form)


def box_like(name: str, made_by: Mapping[str, str], codebook: np.ndarray) -> tuple[TeacherCodes, Card]:
    """The tokenizer of a store, from its manifest and codes; refuses one of another version of the package."""
    if ENCODER not in made_by:
        raise InputError(f"{name} was not made with the tokenizer in the box", "give its own with --tokenizer")
    loaded = load_box()
    if made_by[ENCODER] != loaded[1].sha256:
        what = f"{name} was made with the tokenizer in the box of another version of Tilework"
        raise InputError(what, "tokenize its images again, or use that version")
    form, known = made_by.get(FORM, "grid"), dict[str, Form]({one: one for one in get_args(Form)})
    if form not in known:
        raise InputError(f"{name} has codes of the box in a form '{form}' that this version does not know", "update")
    return with_codes(torch.from_numpy(codebook), loaded, known[form])


def kept_box(out: Path) -> tuple[TeacherCodes, Card] | None:
    """The box with the codes that were fitted for a store whose making was stopped."""
    if not (spool_of(out) / "plan.json").is_file():
        return None
    spool = Spool.open(spool_of(out))
    made_by = spool.plan.tokenizer
    return box_like(str(spool.path), made_by, spool.codebook) if ENCODER in made_by else None


def open_tokenizer(
    given: PathOrHub | str, name: str = "", made_by: Mapping[str, str] | None = None, codebook: np.ndarray | None = None
) -> tuple[Tokenizer, Card]:
    """A tokenizer as --tokenizer names it: a directory, or `box`, with the codes of the data if it made them.

    name, made_by, codebook: of the store or run at hand, as for `box_like`.
    """
    if str(given) != NAME or Path(given).exists():
        return load_tokenizer(given)
    if codebook is not None and ENCODER in (made_by or {}):
        return box_like(name, made_by or {}, codebook)
    loaded = load_box()
    return with_codes(loaded[0].codebook, loaded)
