"""Whole networks: `create_model(name, ...)`, and weights for them: `adopt(model, read_weights(path))`."""

from tilework.models.convnext import Convnext, ConvnextConfig
from tilework.models.dense import DenseConfig, DenseModel
from tilework.models.detector import Detector, DetectorConfig
from tilework.models.efficientnet_lite import EfficientnetLite0, EfficientnetLite0Config
from tilework.models.linear import Linear, LinearConfig
from tilework.models.linear_segmenter import LinearSegmenter, LinearSegmenterConfig
from tilework.models.mlp_mixer import MlpMixer, MlpMixerConfig
from tilework.models.model import Detections, Model, ModelConfig, Network, Output, Visible
from tilework.models.pvt import Pvt, PvtConfig
from tilework.models.pvt_v2 import PvtV2, PvtV2Config
from tilework.models.rcnn import CascadeMaskRcnnConfig, MaskRcnnConfig, Rcnn
from tilework.models.resnet import Resnet, ResnetConfig
from tilework.models.retinanet import Retinanet, RetinanetConfig
from tilework.models.swin import Swin, SwinConfig
from tilework.models.t2t_vit import T2tVit, T2tVitConfig
from tilework.models.timm_bridge import TimmConfig, TimmModel
from tilework.models.token_adapt import TokenAdaptModel, TokenAdaptModelConfig
from tilework.models.upernet import Upernet, UpernetConfig
from tilework.models.vit import Vit, VitConfig
from tilework.models.weights import Adopted, adopt, read_weights
from tilework.models.zoo import create_model, preset, presets
