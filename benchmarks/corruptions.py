"""Corruptions against imagecorruptions-imaug, one core, in one run: milliseconds of processor time per image.

python benchmarks/corruptions.py [SIDE] [SEVERITY]   (pip install imagecorruptions-imaug; photographs of scikit-image)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import process_time

del sys.path[0]  # this folder: its tokenize.py would hide Python's own
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts

import cv2
import numpy as np
import torch
from imagecorruptions import corrupt as theirs
from PIL import Image
from skimage import data

from tilework.core.rng import Draws
from tilework.evaluation.corruptions import CORRUPTIONS, corrupt, frost_folder

torch.set_num_threads(1)
cv2.setNumThreads(1)
side, severity = (int(word) for word in [*sys.argv[1:3], *("224", "3")[len(sys.argv) - 1 :]])
names = ("astronaut", "coffee", "chelsea", "rocket")
whole = [Image.fromarray(getattr(data, name)()) for name in names]
images = [np.asarray(p.resize((side, side), box=(s, s, s + 280, s + 280))) for p in whole for s in range(0, 20, 3)]
x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
draws, folder = Draws(0, 0, torch.arange(len(x))), frost_folder()


def best(do: Callable[[], object], count: int) -> float:
    do()
    times = []
    for _ in range(3):
        begun = process_time()
        do()
        times.append(process_time() - begun)
    return min(times) / count * 1e3


total = np.zeros(2)
for name in CORRUPTIONS:
    ours = best(lambda name=name: corrupt(x, name, severity, draws, True, folder), len(x))
    few = images[::4]
    other = best(lambda name=name, few=few: [theirs(i, corruption_name=name, severity=severity) for i in few], len(few))
    total += ours, other
    print(f"{name:18} {ours:7.2f} {other:7.2f} ms  x{other / ours:.1f}", flush=True)
print(
    f"all {len(CORRUPTIONS)} at severity {severity}, {side} px: {total[0]:.1f} against {total[1]:.1f} ms, "
    f"x{total[1] / total[0]:.2f}"
)
