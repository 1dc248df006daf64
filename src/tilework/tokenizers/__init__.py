"""Pixels to codes and back: `create_tokenizer(name_or_path)`."""

from tilework.tokenizers.dct import Dct, DctConfig
from tilework.tokenizers.dct_flip import DctFlip
from tilework.tokenizers.decode_encode import DecodeEncode
from tilework.tokenizers.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from tilework.tokenizers.vit_vq import VitVq, VitVqConfig
from tilework.tokenizers.vit_vqgan import VitVqgan, VitVqganConfig
from tilework.tokenizers.vq_vae import VqVae, VqVaeConfig
from tilework.tokenizers.vqgan import Vqgan, VqganConfig
from tilework.tokenizers.zoo import create_tokenizer

__all__ = [
    "Dct",
    "DctConfig",
    "DctFlip",
    "DecodeEncode",
    "Tokenizer",
    "VitVq",
    "VitVqConfig",
    "VitVqgan",
    "VitVqganConfig",
    "VqVae",
    "VqVaeConfig",
    "Vqgan",
    "VqganConfig",
    "create_tokenizer",
    "load_tokenizer",
    "save_tokenizer",
]
