"""Teachers by name, as tokenizers of their codes: EfficientNet-Lite0, a network of timm, a run of ours on pixels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tilework.augment import Normalise
from tilework.core.errors import ConfigError, InputError
from tilework.models import create_model, preset
from tilework.models.efficientnet_lite import published_weights
from tilework.models.weights import adopt, read_weights
from tilework.runs.trained import Trained
from tilework.tokenizers.teacher_codes import TeacherCodes, TeacherCodesConfig


def open_teacher(
    name: str, weights: Path | None, config: TeacherCodesConfig
) -> tuple[TeacherCodes, TeacherCodesConfig]:
    """A tokenizer whose teacher has its weights, and whose codes are still to be fitted; and its settings.

    name: efficientnet_lite0, timm:NAME with a file of weights, or the directory of a run on pixels.
    """
    if name == "efficientnet_lite0":
        if weights is not None:
            raise ConfigError("EfficientNet-Lite0 has its own weights", "leave --weights out")
        weights_of = published_weights()
    elif name.startswith("timm:"):
        if weights is None:
            raise ConfigError(f"{name} has no weights here", "give --weights FILE")
        mean, std = Normalise().mean, Normalise().std
        config = replace(config, teacher=preset(name), stage=None, mean=mean, std=std, fixed=True)
        source = create_model(name, grid=config.size, classes=1000)
        adopt(source, read_weights(weights))
        weights_of = source.state_dict()
    else:
        trained = Trained.open(name)
        if trained.spec.stage != "pixels":
            raise InputError(f"{name} is no run on pixels", "give a run on images, efficientnet_lite0 or timm:NAME")
        height, width = trained.spec.grid
        if config.size != (height, width):
            what = f"the teacher {name} takes images of {height}x{width}, not {config.size[0]}x{config.size[1]}"
            raise ConfigError(what, f"give --size {height} {width}")
        steps = [step for step in trained.run.evaluation if isinstance(step, Normalise)]
        found = steps[0] if steps else Normalise((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
        config = replace(config, teacher=trained.run.model, stage=None, mean=found.mean, std=found.std, fixed=True)
        weights_of = trained.encoder.state_dict()
    tokenizer = config.build(3, config.size, 0)
    network = tokenizer.teacher.network
    network.load_state_dict({key: weights_of[key] for key in network.state_dict()})  # without what is left out
    return tokenizer, config
