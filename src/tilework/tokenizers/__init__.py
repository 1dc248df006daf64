"""Pixels to codes and back: `create_tokenizer(name_or_path)`."""

from tilework.tokenizers.dct import Dct, DctConfig
from tilework.tokenizers.dct_flip import DctFlip
from tilework.tokenizers.decode_encode import DecodeEncode
from tilework.tokenizers.fsq_vae import FsqVae, FsqVaeConfig
from tilework.tokenizers.magvit2 import Magvit2, Magvit2Config
from tilework.tokenizers.maskgit_vq import MaskgitVq, MaskgitVqConfig
from tilework.tokenizers.teacher_codes import TeacherCodes, TeacherCodesConfig
from tilework.tokenizers.titok import Titok, TitokConfig
from tilework.tokenizers.tokenizer import Tokenizer, load_tokenizer, save_tokenizer
from tilework.tokenizers.var import Var, VarConfig
from tilework.tokenizers.vit_vq import VitVq, VitVqConfig
from tilework.tokenizers.vit_vqgan import VitVqgan, VitVqganConfig
from tilework.tokenizers.vq_vae import VqVae, VqVaeConfig
from tilework.tokenizers.vqgan import Vqgan, VqganConfig
from tilework.tokenizers.zoo import create_tokenizer
