"""Networks by name."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Literal

from tilework.core.errors import ConfigError
from tilework.core.registry import Registry, nearest
from tilework.layers.stem_zoo import stems
from tilework.layers.stems import ConvStemConfig, StemConfig
from tilework.models.convnext import ConvnextConfig
from tilework.models.mlp_mixer import MlpMixerConfig
from tilework.models.model import Model, ModelConfig
from tilework.models.pvt import PvtConfig
from tilework.models.pvt_v2 import PvtV2Config
from tilework.models.resnet import ResnetConfig
from tilework.models.swin import SwinConfig
from tilework.models.t2t_vit import T2tVitConfig
from tilework.models.timm_bridge import TimmConfig
from tilework.models.vit import VitConfig

presets: Registry[ModelConfig] = Registry("model")

for _name, _width, _depth, _heads in (
    ("ti", 192, 12, 3),
    ("s", 384, 12, 6),
    ("b", 768, 12, 12),
    ("l", 1024, 24, 16),
):
    presets.add(f"vit_{_name}")(VitConfig(width=_width, depth=_depth, heads=_heads))
    if _name != "l":
        presets.add(f"deit_{_name}")(VitConfig(width=_width, depth=_depth, heads=_heads, drop_path=0.1))
for _name, _width, _depth, _heads, _divisor, _drop, _filters in (
    ("t", 240, 12, 4, 1.0, 0.1, 64),
    ("s", 384, 16, 6, 2.0, 0.1, 64),
    ("m", 512, 20, 8, 2.0, 0.2, 64),
    ("l", 768, 24, 12, 3.0, 0.3, 128),
):
    presets.add(f"lv_vit_{_name}")(
        VitConfig(
            width=_width,
            depth=_depth,
            heads=_heads,
            mlp_ratio=3.0,
            qkv_bias=False,
            drop_path=_drop,
            eps=1e-5,
            divisor=_divisor,
            dense=True,
            stem=ConvStemConfig(filters=_filters),
        )
    )
presets.add("resnet18")(ResnetConfig(depth=18))
presets.add("resnet50")(ResnetConfig(depth=50))
presets.add("pvt_small")(PvtConfig(drop_path=0.1))
presets.add("pvt_medium")(PvtConfig(depths=(3, 4, 18, 3), drop_path=0.3))
presets.add("pvt_v2_b1")(PvtV2Config(depths=(2, 2, 2, 2), drop_path=0.1))
presets.add("pvt_v2_b2")(PvtV2Config(drop_path=0.1))
presets.add("swin_t")(SwinConfig(drop_path=0.2))
presets.add("swin_s")(SwinConfig(depths=(2, 2, 18, 2), drop_path=0.3))
presets.add("mixer_s16")(MlpMixerConfig())
presets.add("convnext_t")(ConvnextConfig(drop_path=0.1))
presets.add("t2t_vit_14")(T2tVitConfig(drop_path=0.1))
presets.add("t2t_vit_19")(T2tVitConfig(width=448, depth=19, heads=7, drop_path=0.1))


def preset(name: str, **changes: Any) -> ModelConfig:
    """The settings of a named network, with changes; `timm:NAME` is one of timm."""
    config = TimmConfig(name.removeprefix("timm:")) if name.startswith("timm:") else presets[name]
    known = [field.name for field in fields(config)]
    for key in changes:
        if key not in known:
            raise ConfigError(f"{name} has no setting '{key}'", nearest(key, known))
    return replace(config, **changes)


def create_model(
    name: str,
    *,
    input: Literal["pixels", "tokens"] = "pixels",
    grid: tuple[int, int] | int = (224, 224),
    code_dim: int | None = None,
    classes: int = 1000,
    stem: StemConfig | str | None = None,
    **changes: Any,
) -> Model:
    """A network by name. grid: image size in pixels, or code grid, one number for squares; stem: or its name.

    changes: other settings.
    """
    sides = (grid, grid) if isinstance(grid, int) else tuple(grid)
    if len(sides) != 2 or min(sides) < 1:
        raise ConfigError(f"grid is {grid!r}", "give rows and columns, or one number for both")
    if input not in ("pixels", "tokens"):
        raise ConfigError(f"input is {input!r}", "'pixels' or 'tokens' is needed")
    if input == "pixels" and code_dim is not None:
        raise ConfigError("code_dim belongs to a token model", "pass input='tokens'")
    if input == "tokens" and code_dim is None:
        raise ConfigError("a token model needs code_dim", "pass code_dim=store.codebook.code_dim")
    stem = stems[stem] if isinstance(stem, str) else stem
    config = preset(name, **changes, **({} if stem is None else {"stem": stem}))
    if input == "tokens" and stem is None:
        config = config.for_tokens()
    model = config.build(3 if code_dim is None else code_dim, (sides[0], sides[1]), classes)
    assert isinstance(model, Model)  # every preset is one
    return model
