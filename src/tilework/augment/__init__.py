"""Augmentations: parameters are sampled per sample, then applied by a pure function, batched on the device."""

from tilework.augment.augment import AnyStep, Augment, Step, apply_all, build_all, output_shape
from tilework.augment.block_mix import BlockMix
from tilework.augment.blur import GaussianBlur
from tilework.augment.color_adapt import TokenColour
from tilework.augment.colour_jitter import ColourJitter
from tilework.augment.crop import CentreCrop, RandomResizedCrop, WholeCrop, sides_before
from tilework.augment.embed import Embed
from tilework.augment.erase import Erase
from tilework.augment.flip import Flip
from tilework.augment.greyscale import Greyscale
from tilework.augment.mix_token import MixToken
from tilework.augment.mixing import CutMix, CutMixOrMixup, Mixup
from tilework.augment.multi_scale import MultiScale
from tilework.augment.noise import EmbeddingNoise
from tilework.augment.normalise import Normalise
from tilework.augment.patch_mixing import PatchCutMix
from tilework.augment.photometric import Photometric
from tilework.augment.rand_augment import RandAugment
from tilework.augment.random_mix import RandomMix
from tilework.augment.requantise import Requantise
from tilework.augment.scale_crop import Resize, ScaleCrop
from tilework.augment.solarise import Solarise
from tilework.augment.token_adapt import LikePixels, TokenAdapt
from tilework.augment.token_crop import TokenCrop
from tilework.augment.token_eda import TokenEda
from tilework.augment.token_geometry import CodeCut, TokenGeometry
from tilework.augment.two_views import TwoViews
