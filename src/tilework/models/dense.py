"""A backbone with a head for every position: what networks of dense tasks have in common.

B batch | D_i, h_i, w_i width and grid of a stage | K classes | h, w grid of the head | s upscale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn import functional as F

from tilework.core.batch import Mix
from tilework.core.errors import ConfigError
from tilework.models.model import Model, ModelConfig, Output, Visible
from tilework.models.vit import VitConfig

OWN = (
    "decoder.",
    "neck.",
    "scales.",
    "stage_norms.",
    "rpn.",
    "box_heads.",
    "mask_heads.",
)  # how the names of what a classifier does not have start
LARGEST_UPSCALE = 32  # the coarsest stride of any backbone here
CLASSIFIER = ("norm.", "fc_norm.", "head.", "aux_head.")  # and of what is left of one


@dataclass(frozen=True)
class DenseConfig(ModelConfig):
    """Settings of a backbone with a dense head."""

    backbone: ModelConfig = field(default_factory=VitConfig)
    upscale: int = 1  # logits of every position of the head, along a side

    def __post_init__(self) -> None:
        if not 1 <= self.upscale <= LARGEST_UPSCALE:
            raise ConfigError(f"model.upscale={self.upscale}", f"give 1 to {LARGEST_UPSCALE}")

    def build_backbone(self, channels: int, grid: tuple[int, int]) -> Model:
        """The backbone without a classifier."""
        model = self.backbone.build(channels, grid, 0)
        if not isinstance(model, Model) or not model.stage_widths:
            name = self.choices.name_of(type(self.backbone))
            raise ConfigError(f"a '{name}' network gives no maps of its stages", "choose another model.backbone")
        return model


class ClassLayer(nn.Conv2d):
    """Logits of the parts of every position: a convolution of s s K channels, laid out (Shi et al., 2016)."""

    def __init__(self, width: int, classes: int, upscale: int = 1) -> None:
        super().__init__(width, classes * upscale**2, 1)
        self.upscale = upscale
        nn.init.normal_(self.weight, std=0.01)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, D, h, w); returns (B, K, s h, s w)."""
        return F.pixel_shuffle(super().forward(x), self.upscale)


class DenseModel(Model):
    """Reads the stages of a backbone; logits are a map, (B, K, s h, s w).

    Weights of a classifier start the backbone: its names are those of the backbone after `prefix`, and its head and
    last norm are left. Subclasses set `decoder` and say what it reads.
    """

    prefix = "backbone."

    def __init__(self, backbone: Model, classes: int) -> None:
        super().__init__()
        self.classes = classes
        for name in ("norm", "fc_norm"):  # of the classifier: unused parameters stop DistributedDataParallel
            if isinstance(getattr(backbone, name, None), nn.Module):
                setattr(backbone, name, nn.Identity())
        self.backbone = backbone
        self.takes, self.grid, self.tracks = backbone.takes, backbone.grid, False
        self.stage_widths, self.stage_strides = backbone.stage_widths, backbone.stage_strides
        self.stem_names = backbone.stem_names
        self.head_names = tuple(dict.fromkeys((*OWN, *CLASSIFIER, *backbone.head_names)))
        self.stage_norms = nn.ModuleList(
            nn.LayerNorm(width) if backbone.stages_want_norm else nn.Identity() for width in backbone.stage_widths
        )

    def decode(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Logits of every part of every position, (B, K, s h, s w)."""
        raise NotImplementedError

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; stages are given as the head reads them."""
        stem, tokens, grid, maps = self.read(x, mix, visible, track)
        return Output(self.decode(maps), tokens, stem, grid, stages=maps if stages else ())

    def read(
        self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool
    ) -> tuple[Tensor, Tensor, tuple[int, int], tuple[Tensor, ...]]:
        """Stem, last tokens, grid and normed stages of the backbone."""
        if visible is not None or track:
            raise ConfigError(
                f"a {type(self).__name__} reads whole maps", "leave out masked tokens and label alignment"
            )
        out = self.backbone(x, mix=mix, stages=True)
        maps = tuple(
            norm(one.movedim(1, -1)).movedim(-1, 1) if isinstance(norm, nn.LayerNorm) else one
            for norm, one in zip(self.stage_norms, out.stages, strict=True)
        )
        return out.stem, out.tokens, out.grid, maps

    def token_logits(self, out: Output) -> Tensor:
        """Of every position of the head's map, (B, N, K)."""
        return out.logits.flatten(2).transpose(1, 2)

    @property
    def position_grids(self) -> dict[str, tuple[int, int]]:
        """The backbone's."""
        return self.backbone.position_grids

    def translate(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of the backbone as it reads them; others stay."""
        own = {name: tensor for name, tensor in tensors.items() if name.startswith(OWN)}
        return self.backbone.translate({name: t for name, t in tensors.items() if name not in own}) | own

    def layer_of(self, name: str) -> int:
        """The backbone's; the head and the neck are last."""
        inner = name.removeprefix(self.prefix)
        return self.layers - 1 if inner == name else self.backbone.layer_of(inner)

    @property
    def layers(self) -> int:
        """The backbone's."""
        return self.backbone.layers
