"""The demo's data: crops of the photographs inside the scikit-image wheel, one class per photograph.

Training and validation crops come from disjoint vertical stripes of each photograph.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from tilework.core.errors import InputError, MachineError
from tilework.core.files import new_directory, write_json
from tilework.core.rng import uniform
from tilework.data.image_files import to_rgb

PHOTOGRAPHS = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "retina.jpg",
    "rocket.jpg",
)


@dataclass(frozen=True)
class Crop:
    """A square of a photograph."""

    photograph: str
    part: str  # train or val
    left: int
    top: int
    side: int


def photograph_folder() -> Path:
    """Where the scikit-image wheel keeps its photographs."""
    try:
        import skimage.data
    except ImportError as error:
        raise MachineError("the demo needs the photographs of scikit-image", "pip install 'tilework[demo]'") from error
    return Path(skimage.data.__file__).parent


def plan_crops(name: str, width: int, height: int, side: int, train: int, val: int, seed: int = 0) -> list[Crop]:
    """Crops of one photograph: its width is cut into stripes, every second one for validation.

    A stripe is at least one crop wide, so that all of a crop lies in one stripe.
    """
    if width < 3 * side or height < side:
        raise InputError(f"{name} of {width}x{height} px is too small for crops of {side} px", "choose a smaller side")
    stripes = 2 * max(1, (width // side - 1) // 3) + 1  # train, val, train, ..., train
    narrow = side + (width - side * stripes) // (2 * stripes)  # validation stripes: little more than a crop
    wide = (width - narrow * (stripes // 2)) // (stripes // 2 + 1)
    places = {"train": [], "val": []}  # type: dict[str, list[tuple[int, int]]]
    left = 0
    for stripe in range(stripes):
        part, length = ("val", narrow) if stripe % 2 else ("train", wide)
        places[part].append((left, length))
        left += length
    crops = []
    for part, count in (("train", train), ("val", val)):
        u = uniform(seed, 0, np.arange(count), f"crop/{name}/{part}", 3)
        for i in range(count):
            start, length = places[part][int(u[i, 0] * len(places[part]))]
            x = start + int(u[i, 1] * (length - side + 1))
            crops.append(Crop(name, part, x, int(u[i, 2] * (height - side + 1)), side))
    return crops


def write_photographs(out: Path, side: int = 96, train: int = 400, val: int = 60, quality: int = 90) -> None:
    """Cut the crops and write them as an ordinary image folder: out/{train,val}/CLASS/NUMBER.jpg, and crops.json."""
    source = photograph_folder()
    listed = []
    with new_directory(out) as root:
        for name in PHOTOGRAPHS:
            with Image.open(source / name) as file:
                photograph = to_rgb(file)
            crops = plan_crops(Path(name).stem, photograph.width, photograph.height, side, train, val)
            for number, crop in enumerate(crops):
                folder = root / crop.part / crop.photograph
                folder.mkdir(parents=True, exist_ok=True)
                box = (crop.left, crop.top, crop.left + side, crop.top + side)
                photograph.crop(box).save(folder / f"{number:04d}.jpg", quality=quality)
            listed += [vars(crop) for crop in crops]
        write_json(root / "crops.json", listed)
