"""Stems by name, as the rows of tables call them (Good tokenizers, table 1)."""

from __future__ import annotations

from tilework.core.registry import Registry
from tilework.layers.stem_early_conv import EarlyConvStemConfig, TokenEarlyConvStemConfig
from tilework.layers.stem_frozen import FrozenStemConfig
from tilework.layers.stem_moto import MotoStemConfig
from tilework.layers.stem_refined import RefinedStemConfig, TokenRefinedStemConfig
from tilework.layers.stem_t2t import TokensToTokenConfig
from tilework.layers.stems import ConvStemConfig, PatchStemConfig, StemConfig, TokenPatchStemConfig, TokenStemConfig

stems: Registry[StemConfig] = Registry("stem")

stems.add("plain")(PatchStemConfig())
stems.add("frozen")(FrozenStemConfig())
stems.add("intra")(RefinedStemConfig((4, 8, 16, 32), patch=16))
stems.add("local")(RefinedStemConfig(windows=(16,), local=True))
stems.add("inter")(RefinedStemConfig(windows=(16,), inter=True))
stems.add("intra+local")(RefinedStemConfig((4, 8, 16, 32), local=True, patch=16))
stems.add("intra+local+inter")(RefinedStemConfig((4, 8, 16, 32), local=True, inter=True, patch=16))
stems.add("early_conv")(EarlyConvStemConfig())
stems.add("lv_vit")(ConvStemConfig())
stems.add("t2t")(TokensToTokenConfig())
stems.add("moto")(MotoStemConfig())
stems.add("moto_token")(MotoStemConfig(place="token"))
stems.add("token_plain")(TokenPatchStemConfig())
stems.add("token_frozen")(FrozenStemConfig(TokenPatchStemConfig()))
stems.add("token_intra")(TokenRefinedStemConfig())
stems.add("token_inter")(TokenRefinedStemConfig(windows=(2,), inter=True))
stems.add("token_intra+local")(TokenRefinedStemConfig(local=True))
stems.add("token_intra+local+inter")(TokenRefinedStemConfig(local=True, inter=True))
stems.add("token_early_conv")(TokenEarlyConvStemConfig())
stems.add("stem_adapter")(TokenStemConfig())
stems.add("token_moto")(MotoStemConfig(TokenStemConfig(), place="token"))
