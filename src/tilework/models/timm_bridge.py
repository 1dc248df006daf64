"""Networks of timm, for pixels: `timm:NAME`. They start from fresh weights; nothing is downloaded.

B batch | D width | h, w token grid | N = h w | P class and register tokens
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tilework.core.batch import Mix
from tilework.core.bounds import check_below_one
from tilework.core.errors import ConfigError, MachineError
from tilework.models.model import Model, ModelConfig, Output, Visible


@ModelConfig.choices.add("timm")
@dataclass(frozen=True)
class TimmConfig(ModelConfig):
    """Settings of a network of timm."""

    model: str  # as timm calls it
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        check_below_one(self, "drop_path")

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> TimmModel:
        """The network for images of `channels` on `grid`."""
        timm = import_timm()
        if not timm.is_model(self.model):
            near = ", ".join(difflib.get_close_matches(self.model, timm.list_models()))
            raise ConfigError(f"timm has no model '{self.model}'", f"did you mean {near}?" if near else "see its list")
        settings: dict[str, Any] = {"drop_path_rate": self.drop_path} if self.drop_path else {}
        if timm.models.get_pretrained_cfg(self.model).fixed_input_size:
            settings["img_size"] = grid
        try:
            network = timm.create_model(
                self.model, pretrained=False, num_classes=classes, in_chans=channels, **settings
            )
            return TimmModel(network, channels, grid)
        except (
            TypeError,
            ValueError,
            AssertionError,
            AttributeError,
            RuntimeError,
        ) as error:  # as each network of timm likes
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(f"timm cannot build {self.model} for {grid[0]}x{grid[1]} px", reason) from error


def import_timm() -> Any:
    """The package, or what to do to have it."""
    try:
        return importlib.import_module("timm")
    except Exception as error:  # a torchvision of another torch fails in its own ways
        reason = " ".join(str(error).split())
        there = importlib.util.find_spec("timm") is not None
        hint = "install torch and torchvision from the same index" if there else "pip install 'tilework[timm]'"
        raise MachineError(f"timm cannot be imported ({reason})", hint) from error


class TimmModel(Model):
    """A network of timm; its tokens are those of the last map, without class and register tokens."""

    takes = "pixels"
    tracks = False
    prefix = "network."

    def __init__(self, network: Any, channels: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.network, self.size = network, grid
        names = network.pretrained_cfg
        self.stem_names, self.head_names = _starts(names["first_conv"]), _starts(names["classifier"])
        group = import_timm().models.group_parameters
        self._layer_of: dict[str, int] = group(network, network.group_matcher(coarse=False), reverse=True)
        training = network.training
        with torch.no_grad():
            features = network.eval().forward_features(torch.zeros(1, channels, *grid))
            tokens, self._maps = self._tokens(features), features.ndim == 4
        network.train(training)
        rows = round(math.sqrt(tokens.shape[1] * grid[0] / grid[1]))
        self.grid = (rows, tokens.shape[1] // rows)
        if math.prod(self.grid) != tokens.shape[1]:
            raise ValueError(f"its {tokens.shape[1]} tokens lie on no grid")

    def _tokens(self, features: Tensor) -> Tensor:
        """Returns (B, N, D)."""
        if features.ndim == 3:  # (B, P + N, D)
            return features[:, getattr(self.network, "num_prefix_tokens", 0) :]
        if features.ndim != 4:
            raise ValueError(f"its features have {features.ndim} dimensions")
        last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        return features.flatten(1, 2) if last else features.flatten(2).transpose(1, 2)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """Classify; `stem` is the last map too, as timm does not tell stems apart."""
        if mix is not None and mix.after_stem:
            raise ConfigError("timm: models cannot mix after the stem", "mix the input, or use a model of ours")
        if visible is not None:
            raise ConfigError("timm: models cannot leave tokens out", "use a ViT of ours")
        if track:
            raise ConfigError("timm: models cannot follow the sources of a mixture", "use a ViT of ours")
        if stages:
            raise ConfigError("timm: models do not give the maps of their stages", "use a model of ours")
        if x.shape[2:] != self.size:
            (height, width), (rows, columns) = self.size, x.shape[2:]
            raise ConfigError(f"a timm: model for {height}x{width} px gets {rows}x{columns}", "build it for that size")
        features = self.network.forward_features(x)
        tokens = self._tokens(features)
        stem = tokens.transpose(1, 2).unflatten(2, self.grid)  # (B, D, h, w)
        return Output(self.network.forward_head(features), tokens, stem, self.grid)

    def token_logits(self, out: Output) -> Tensor:
        """What a linear head says of each token, (B, N, K)."""
        head, norm = self.network.get_classifier(), getattr(self.network, "fc_norm", nn.Identity())
        if not isinstance(head, nn.Linear) or head.in_features != out.tokens.shape[2]:
            return super().token_logits(out)
        if not self._maps:
            return head(norm(out.tokens))
        each = out.tokens.flatten(0, 1)  # (B N, D): a map of one position each, for heads with a norm (ConvNeXt)
        last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        one = each[:, None, None] if last else each[..., None, None]
        return self.network.forward_head(one).unflatten(0, out.tokens.shape[:2])

    def layer_of(self, name: str) -> int:
        """As timm groups them: 0 for the stem, last for the head."""
        return self._layer_of[name.removeprefix(self.prefix)]

    @property
    def layers(self) -> int:
        """Groups of timm."""
        return max(self._layer_of.values()) + 1


def _starts(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))
