"""What is minimised: objectives own the model and every part that only training needs."""

from tilework.objectives.adapt import Adapt, AdaptConfig
from tilework.objectives.adversarial import AdversarialConfig
from tilework.objectives.classify import Classify, ClassifyConfig
from tilework.objectives.classify_codes import ClassifyCodes, ClassifyCodesConfig
from tilework.objectives.classify_scored import ClassifyScored, ClassifyScoredConfig
from tilework.objectives.detect import Detect, DetectConfig
from tilework.objectives.distil import Distil, DistilConfig
from tilework.objectives.masked import Masked, MaskedConfig
from tilework.objectives.moco import Moco, MocoConfig
from tilework.objectives.objective import Combined, Objective, ObjectiveConfig, soft_cross_entropy
from tilework.objectives.rcnn import RcnnBoxesConfig, RcnnConfig, RegionLosses
from tilework.objectives.reconstruct import Reconstruct, ReconstructConfig
from tilework.objectives.relabel import Relabel, RelabelConfig
from tilework.objectives.segment import Segment, SegmentConfig
from tilework.objectives.task import Task
from tilework.objectives.tl_align import TlAlign, TlAlignConfig, TlAlignTokenLabel, TlAlignTokenLabelConfig
from tilework.objectives.token_label import TokenLabel, TokenLabelConfig
from tilework.objectives.token_prop import TokenProp, TokenPropConfig
from tilework.objectives.trans_mix import TransMix, TransMixConfig
