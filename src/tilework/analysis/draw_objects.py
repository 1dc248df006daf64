"""Pictures of boxes and outlines.

h, w pixels | n objects
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tilework.data.pairs import palette
from tilework.evaluation.average_precision import Found, paste

BLEND = 0.45  # of the colour over an outline
LEAST = 480  # pixels of the short side of a picture: smaller photographs are enlarged, so that names can be read


def draw_objects(photograph: np.ndarray, found: Found, classes: Sequence[str], least: float = 0.0) -> np.ndarray:
    """A photograph with the objects that are sure enough, the surest on top, (h, w, 3) uint8."""
    height, width = photograph.shape[:2]
    scale = max(1, -(-LEAST // min(height, width)))
    colours = palette(len(classes))
    picture = photograph.astype(np.float32)
    order = [i for i in np.argsort(found.scores, kind="stable") if found.scores[i] >= least]
    for i in order if found.masks is not None else []:
        assert found.masks is not None
        mask = paste(found.masks[i], found.edges[i], (height, width))
        picture[mask] = (1 - BLEND) * picture[mask] + BLEND * colours[found.labels[i]]
    image = Image.fromarray(picture.round().astype(np.uint8)).resize((width * scale, height * scale))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=max(11, min(height, width) * scale // 40))
    line = max(2, min(height, width) * scale // 240)
    for i in order:
        x0, y0, x1, y1 = (float(edge) * scale for edge in found.edges[i])
        colour = tuple(int(v) for v in colours[found.labels[i]])
        draw.rectangle((x0, y0, max(x0, x1 - 1), max(y0, y1 - 1)), outline=colour, width=line)
        words = f"{classes[found.labels[i]]} {found.scores[i]:.2f}" if found.scores[i] < 1 else classes[found.labels[i]]
        left, top, right, bottom = draw.textbbox((0, 0), words, font=font)
        y = max(0.0, y0 - (bottom - top) - 4)
        x = min(max(0.0, x0), max(0.0, width * scale - (right - left) - 4))
        draw.rectangle((x, y, x + right - left + 4, y + bottom - top + 4), fill=colour)
        light = sum(colour) > 380
        draw.text((x + 2 - left, y + 2 - top), words, font=font, fill=(0, 0, 0) if light else (255, 255, 255))
    return np.asarray(image)
