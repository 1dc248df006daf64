"""A linear classifier of the mean of code vectors: enough where codes are features of a teacher.

B batch | C code dim | H, W code grid | N = H W | K classes
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tilework.core.batch import Mix, Stage
from tilework.core.errors import ConfigError
from tilework.models.model import Model, ModelConfig, Output, Visible


@ModelConfig.choices.add("linear")
@dataclass(frozen=True)
class LinearConfig(ModelConfig):
    """A linear classifier has no settings."""

    def build(self, channels: int, grid: tuple[int, int], classes: int) -> Linear:
        """The classifier of maps of `channels`; any grid fits it."""
        return Linear(self, channels, grid, classes)

    def for_tokens(self) -> LinearConfig:
        """Itself."""
        return self


class Linear(Model):
    """Each channel of the mean in units of its deviation over the images, then one layer that starts at zero."""

    takes: Stage = "map"
    tracks = False
    head_names = ("head.",)

    def __init__(self, config: LinearConfig, channels: int, grid: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.config, self.grid = config, grid
        self.norm = nn.BatchNorm1d(channels, affine=False)
        self.head = nn.Linear(channels, classes) if classes else nn.Identity()
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def _forward(self, x: Tensor, mix: Mix | None, visible: Visible | None, track: bool, stages: bool) -> Output:
        """See `Model.forward`; `tokens` are the code vectors themselves."""
        if visible is not None or track or stages:
            raise ConfigError("a linear classifier has no blocks and no tokens of its own", "use a ViT")
        if self.training and len(x) == 1:
            raise ConfigError("a linear classifier takes deviations over a batch, and here it is one image",
                              "set fit.batch=2 or more for each process")  # fmt: skip
        mixed = mix.apply(x) if mix is not None and mix.after_stem else x
        tokens = mixed.flatten(2).transpose(1, 2)  # (B, N, C)
        return Output(self.head(self.norm(tokens.mean(1))), tokens, x, (x.shape[2], x.shape[3]))

    def token_logits(self, out: Output) -> Tensor:
        """What the head says of each position, (B, N, K); their mean is what it says of the image."""
        each = self.norm(out.tokens.flatten(0, 1)).unflatten(0, out.tokens.shape[:2])
        return self.head(each)

    def layer_of(self, name: str) -> int:
        """There is one."""
        return 0

    @property
    def layers(self) -> int:
        """The head."""
        return 1
