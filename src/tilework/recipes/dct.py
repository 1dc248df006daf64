"""DCT coefficients instead of tokens (SeiT++, table 8): `tilework tokenizer dct`, `tokenize`, then these.

SeiT's pipeline but for Token-EDA: coefficients have no synonyms. TokenAdapt is trained by regression: recipes
`token_adapt` and `token_adapt_cpu` with `--tokenizer` of DCT coefficients. `dct_flip` may be added before the crop.
"""

from __future__ import annotations

from functools import partial

from tilework.augment import TokenAdapt
from tilework.recipes.recipe import add, add_small
from tilework.recipes.seit import vit
from tilework.recipes.seitpp import NOISE, PATCHES, classify_run
from tilework.recipes.small import small

dct = partial(add, "SeiT++")
small_row = partial(add_small, mixed=0.5, standardise=False)  # coefficients have units of their own

# fmt: off
plain = dct(
    "dct_vit_s", "SeiT on DCT coefficients", "ViT-S", classify_run(vit("vit_s"), colour=NOISE, eda=0.0), "table 8",
    {"top1_imagenet100": 69.5})
both = dct(
    "dctpp_vit_s", "SeiT++ on DCT coefficients", "ViT-S", classify_run(vit("vit_s"), eda=0.0, adapt=TokenAdapt()),
    "table 8", {"top1_imagenet100": 71.0})
small_row(plain, "dct_cpu", *PATCHES)
dct("dct_colour_cpu", "SeiT + ColorAdapt on DCT coefficients", "small ViT",
    small(classify_run(vit("vit_s"), eda=0.0), *PATCHES, mixed=0.5, standardise=False), size="cpu",
    note="table 7's second row on DCT coefficients")
small_row(both, "dctpp_cpu", *PATCHES)
# fmt: on
