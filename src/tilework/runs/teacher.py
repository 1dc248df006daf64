"""Teachers by name, as tokenizers of their codes: EfficientNet-Lite0, a network of timm, a model of ours on pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tilework.augment import Normalise
from tilework.core.errors import ConfigError, DamageError, InputError
from tilework.core.hub import CONFIG, local
from tilework.core.location import PathOrHub, path_or_hub
from tilework.core.sealed import read_json
from tilework.models import create_model, preset
from tilework.models.efficientnet_lite import published_weights
from tilework.models.weights import adopt, read_weights
from tilework.runs.export import open_model
from tilework.tokenizers.teacher_codes import TeacherCodes, TeacherCodesConfig


@dataclass(frozen=True)
class TimmWeights:
    """Published weights of a network of timm."""

    model: str  # timm:NAME
    file: Path
    normalise: Normalise  # of its images, as the hub says, else ImageNet's


def timm_weights(name: str, weights: PathOrHub | None) -> TimmWeights:
    """Of a file, or those that timm:NAME.WEIGHTS has on the hub."""
    model = name.partition(".")[0]
    if weights is None and "." not in name:
        hint = "give --weights FILE, or timm:NAME.WEIGHTS as on huggingface.co/timm"
        raise ConfigError(f"{name} has no weights here", hint)
    file = local(path_or_hub(name) if weights is None else weights)
    beside, found = file.with_name(CONFIG), Normalise()
    if weights is None and beside.is_file():
        try:
            known = read_json(beside).get("pretrained_cfg", {})
            mean, std = (tuple(map(float, known.get(key, getattr(found, key)))) for key in ("mean", "std"))
            if len(mean) != 3 or len(std) != 3:
                raise ValueError("three channels are needed")
            found = Normalise(mean, std)
        except (AttributeError, TypeError, ValueError) as error:
            raise DamageError(f"{CONFIG} of {name} cannot be right", f"give --weights FILE ({error})") from error
    return TimmWeights(model, file, found)


def open_teacher(
    name: str, weights: PathOrHub | None, config: TeacherCodesConfig
) -> tuple[TeacherCodes, TeacherCodesConfig]:
    """A tokenizer whose teacher has its weights, and whose codes are still to be fitted; and its settings.

    name: efficientnet_lite0, timm:NAME with a file of weights, timm:NAME.WEIGHTS of the hub, or a run or an exported
    model on pixels, in a directory or on the hub.
    """
    if name == "efficientnet_lite0":
        if weights is not None:
            raise ConfigError("EfficientNet-Lite0 has its own weights", "leave --weights out")
        weights_of = published_weights()
    elif name.startswith("timm:"):
        known = timm_weights(name, weights)
        mean, std = known.normalise.mean, known.normalise.std
        config = replace(config, teacher=preset(known.model), stage=None, mean=mean, std=std, fixed=True)
        source = create_model(known.model, grid=config.size, classes=1000)
        adopt(source, read_weights(known.file))
        weights_of = source.state_dict()
    else:
        trained = open_model(name)
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
