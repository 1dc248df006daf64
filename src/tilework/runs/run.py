"""What a recipe returns: the parts of a run, each an independent choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilework.augment import Augment
from tilework.core.errors import ConfigError
from tilework.core.registry import Registry
from tilework.models import ModelConfig
from tilework.objectives import ObjectiveConfig
from tilework.tokenizers import load_tokenizer
from tilework.train import FitConfig


@dataclass(frozen=True)
class Extra:
    """An auxiliary objective and its weight; gone when the model is exported."""

    objective: ObjectiveConfig
    weight: float = 1.0


@dataclass(frozen=True)
class Run:
    """A whole training run but for its data."""

    model: ModelConfig
    objective: ObjectiveConfig
    augment: tuple[Augment, ...]
    evaluation: tuple[Augment, ...]
    extra: tuple[Extra, ...] = ()
    size: tuple[int, int] = (96, 96)  # of images, in pixels
    codes: tuple[int, int] | None = None  # grid of the token stores it is made for; None: any that the crops fit
    samples: int = 0  # of the training data, drawn at random; 0: all
    maps: str = ""  # directory of label maps beside images, for objectives that need them; stores keep their own
    max_broken: float = 0.05  # share of unreadable images above which a folder is refused
    fit: FitConfig = field(default_factory=FitConfig)


@dataclass(frozen=True)
class Link:
    """A run of a chain; its data are given on the line."""

    name: str  # of its directory
    run: Run


@dataclass(frozen=True)
class Chain:
    """Runs one after another, each from the weights of the one before; only the stem changes with the input."""

    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        names = [link.name for link in self.links]
        if not names or len(set(names)) < len(names) or not all(n.isidentifier() for n in names):
            raise ValueError("the links of a chain need different names of letters and digits")


def equip(run: Run, tokenizer: Path | None = None, adapter: Path | None = None, strict: bool = True) -> Run:
    """The same run with the directories of a tokenizer and a TokenAdapt where its parts have settings for them.

    A network that is trained for a tokenizer takes its code dimension and the size of its images from it.
    strict: refuse a directory that no part takes.
    """
    paths = {"tokenizer": tokenizer, "adapter": adapter}

    def has(part: Any, name: str) -> bool:
        return getattr(part, name, None) is not None

    def fill(part: Any) -> Any:
        known = {name: str(path) for name, path in paths.items() if path is not None and has(part, name)}
        return replace(part, **known) if known else part

    parts = (run.objective, *run.augment)
    for name, path in paths.items():
        if strict and path is not None and not any(has(part, name) for part in parts):
            raise ConfigError(f"no part of this recipe has a setting '{name}'", f"leave --{name} out")
    if tokenizer is not None and has(run.objective, "tokenizer") and has(run.model, "code_dim"):
        known, card = load_tokenizer(tokenizer)
        model: Any = run.model
        run = replace(run, model=replace(model, code_dim=known.codebook.shape[1]), size=card.size)
    return replace(run, objective=fill(run.objective), augment=tuple(map(fill, run.augment)))


def equip_chain(chain: Chain, tokenizer: Path | None = None, adapter: Path | None = None, strict: bool = True) -> Chain:
    """The same for every link of a chain; strict: refuse a directory that no link takes."""
    paths = {"tokenizer": tokenizer, "adapter": adapter}
    parts = [part for link in chain.links for part in (link.run.objective, *link.run.augment)]
    for name, path in paths.items():
        if strict and path is not None and not any(hasattr(part, name) for part in parts):
            raise ConfigError(f"no part of this chain has a setting '{name}'", f"leave --{name} out")
    return Chain(tuple(replace(link, run=equip(link.run, tokenizer, adapter, strict=False)) for link in chain.links))
