"""Pixels to codes and back: `create_tokenizer(name_or_path)`."""

from tilework.tokenizers.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from tilework.tokenizers.vit_vq import VitVq, VitVqConfig
from tilework.tokenizers.zoo import create_tokenizer

__all__ = ["Tokenizer", "VitVq", "VitVqConfig", "create_tokenizer", "load_tokenizer", "save_tokenizer"]
