"""Corruptions against imagecorruptions-imaug, one core, in one run, in turn: milliseconds of processor
time per image, medians and quartiles of 15 rounds.

python benchmarks/corruptions.py [SIDE] [SEVERITY] [ROUNDS]   (needs imagecorruptions-imaug and scikit-image)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from time import process_time

del sys.path[0]  # this folder: its tokenize.py would hide Python's own
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts

import cv2
import numpy as np
import torch
from imagecorruptions import corrupt as theirs
from PIL import Image
from skimage import data

from tilework.core.compiled import in_use
from tilework.core.rng import Draws
from tilework.evaluation.corruptions import CORRUPTIONS, corrupt, frost_folder

torch.set_num_threads(1)
cv2.setNumThreads(1)
side, severity, rounds = (int(word) for word in [*sys.argv[1:4], *("224", "3", "15")[len(sys.argv) - 1 :]])
names = ("astronaut", "coffee", "chelsea", "rocket")
whole = [Image.fromarray(getattr(data, name)()) for name in names]
images = [np.asarray(p.resize((side, side), box=(s, s, s + 280, s + 280))) for p in whole for s in range(0, 20, 3)]
x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
draws, folder = Draws(0, 0, torch.arange(len(x))), frost_folder()


def seconds(do: Callable[[], object]) -> float:
    begun = process_time()
    do()
    return process_time() - begun


def shown(values: np.ndarray) -> str:
    low, middle, high = np.percentile(values, (25, 50, 75))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


few = images[::4]
ours = {name: partial(corrupt, x, name, severity, draws, True, folder) for name in CORRUPTIONS}
others = {name: lambda name=name: [theirs(i, corruption_name=name, severity=severity) for i in few] for name in ours}
times = np.zeros((rounds + 1, len(ours), 2))  # milliseconds per image; the first round warms up
for turn in times:
    for row, name in zip(turn, ours, strict=True):
        row[:] = seconds(ours[name]) / len(x) * 1e3, seconds(others[name]) / len(few) * 1e3
times = times[1:]
for name, own, other in zip(ours, *np.median(times, 0).T, strict=True):
    print(f"{name:18} {own:7.2f} {other:7.2f} ms  x{other / own:.1f}")
total = times.sum(1)  # of a round: both saw the same load
print(
    f"all {len(ours)} at severity {severity}, {side} px, {rounds} rounds: {shown(total[:, 0])} against "
    f"{shown(total[:, 1])} ms, x{shown(total[:, 1] / total[:, 0])}; kernels: {in_use('tilework.evaluation.kernels')}"
)
