"""Bytes of DCT coefficients in a store, beside JPEG files of the same size and quality and beside gzip.

`python benchmarks/dct.py --images IMAGES/val --json`
"""

from __future__ import annotations

import os
import sys

del sys.path[0]  # this folder: its tokenize.py would hide Python's own
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # one core, before numpy starts

import argparse
import gzip
import io
import json
from pathlib import Path
from time import process_time

import numpy as np
import torch
from PIL import Image

from tilework.data import ImageFolder
from tilework.data.image_files import decode_image
from tilework.store import Packed, RansStack
from tilework.tokenizers import DctConfig


def jpeg_bytes(pixels: np.ndarray, quality: int, subsampling: int) -> int:
    """Of an optimised file. pixels: (3, H, W)."""
    data = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0)).save(
        data, "JPEG", quality=quality, subsampling=subsampling, optimize=True
    )
    return len(data.getvalue())


@torch.inference_mode()
def measure(images: np.ndarray, quality: int) -> dict[str, float]:
    """Mean bytes per image; tables are fitted to one half of the images, records measured on the other."""
    tokenizer = DctConfig(quality).build(3, (0, 0), 0)
    ids = torch.cat([tokenizer.encode(torch.from_numpy(part) / 255) for part in np.array_split(images, 8)]).numpy()
    used, codes = np.unique(ids, return_inverse=True)
    codes = codes.reshape(len(images), -1).astype(np.int32)
    codec = RansStack.fit(codes[::2], len(used), ids.shape[-1])
    judged = codes[1::2]
    begun = process_time()
    records, sizes = codec.encode(judged)
    between = process_time()
    codec.decode(np.frombuffer(records, np.uint8), np.cumsum(sizes) - sizes, sizes)
    done = process_time()
    values = (ids[1::2] - tokenizer.reach).reshape(len(judged), -1, ids.shape[-1])
    values = values.astype(np.int8 if np.abs(values).max() < 128 else np.int16)
    return {
        "quality": quality,
        "rans_stack": float(sizes.mean()),
        "tables_in_all": sum(table.nbytes for table in codec.tables().values()),
        "packed": Packed(codes.shape[1], len(used)).size,
        "gzip": float(np.mean([len(gzip.compress(v.T.tobytes(), 9)) for v in values])),
        "jpeg_444": float(np.mean([jpeg_bytes(x, quality, 0) for x in images[1::2]])),
        "jpeg_420": float(np.mean([jpeg_bytes(x, quality, 2) for x in images[1::2]])),
        "encode_images_per_cpu_s": len(judged) / (between - begun),
        "decode_images_per_cpu_s": len(judged) / (done - between),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--qualities", type=int, nargs="+", default=[10, 50, 75])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    paths = ImageFolder.open(given.images).paths
    some = np.linspace(0, len(paths) - 1, min(given.count, len(paths))).astype(int)
    images = np.stack([np.asarray(decode_image(paths[i], (given.side, given.side))) for i in some])
    rows = [measure(images, quality) for quality in given.qualities]
    for row in rows:
        print(json.dumps(row) if given.json else "  ".join(f"{name} {value:,.0f}" for name, value in row.items()))


if __name__ == "__main__":
    main()
