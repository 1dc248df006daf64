"""One of everything that Tilework writes, and all that can be read from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel

from faults.processes import ended, launch
from small_data import CODE_DIM, CODES, GRID, write_store
from small_runs import SETTINGS
from tilework.augment.adapter import load_adapter, save_adapter
from tilework.core.config import encode
from tilework.data.label_maps import LabelMaps, MapsCard, write_maps
from tilework.layers.token_adapt import TokenAdaptNetwork
from tilework.runs.build import build_model, build_objective
from tilework.runs.export import Exported, load_exported
from tilework.runs.trained import Trained
from tilework.store import Store, StoreWriter
from tilework.store.label_maps import encode_map
from tilework.tokenizers import VitVqConfig, load_tokenizer, save_tokenizer
from tilework.train.checkpoint import load_checkpoint, load_optimiser, optimiser_tensors
from tilework.train.optim import build_optimiser


@dataclass(frozen=True)
class Thing:
    """A file or directory of one kind. read: everything that a user can get out of it."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]


def tilework(*words: object) -> None:
    """A command that must succeed, in a process of its own."""
    with NamedTemporaryFile() as log:
        code = ended(launch([str(word) for word in words], Path(log.name)))
        assert code == 0, Path(log.name).read_text()


def make_store(path: Path, codec: str = "rans-context") -> None:
    """Several views, used codes, and columns of every kind."""
    rng = np.random.default_rng(5)
    ids = np.minimum(rng.geometric(0.2, (40, 2, 6, 8)), 30)
    ids[..., 1:] = np.where(rng.random(ids[..., 1:].shape) < 0.6, ids[..., :-1], ids[..., 1:])
    with StoreWriter(path, rng.normal(size=(40, 3)), ["a", "b"], codec=codec, views=2, cut=True, shard_images=15) as w:
        w.add(
            ids,
            np.arange(40) % 2,
            [f"{i}.png" for i in range(40)],
            score=rng.random(40),
            blob=[rng.bytes(i * 9) for i in range(40)],
            boxes=[rng.random((i % 4, 4)).astype(np.float32) for i in range(40)],
        )


def read_store(path: Path | str) -> Any:
    """All codes, columns, vectors and the card; `verify` must find nothing."""
    store = Store(path)
    codes = [store.batch(np.arange(len(store)), view).tobytes() for view in range(store.views)]
    columns = [
        [value if isinstance(value, str) else np.asarray(value).tobytes() for value in store.column(entry.name)[:]]
        for entry in store.manifest.columns
    ]
    return codes, columns, store.codebook.vectors.tobytes(), store.used.tobytes(), asdict(store.manifest)


def make_run(path: Path) -> None:
    """A short run with validation, beside its store."""
    data = write_store(path.with_suffix(".tok"))
    settings = [*SETTINGS.split(), "fit.steps=4", "fit.ema=0.9"]
    tilework("train", "demo_token", *settings, "--data", data, "--val", data, "--out", path)


def read_run(path: Path) -> Any:
    """Answers of both checkpoints, what a resumed run starts from, settings, classes and figures."""
    run = Trained.open(path)
    answers = [_answers(Exported(one)) for one in (run, Trained.open(path, best=True))]
    return answers, _resumed(run), encode(run.run), asdict(run.spec), run.figures


def _resumed(run: Trained) -> Any:
    """The step, weights and optimiser that training goes on from."""
    objective = build_objective(run.run, build_model(run.run, run.spec))
    ema, optimiser = AveragedModel(objective.model), build_optimiser(objective, run.run.fit.optim)
    checkpoint = run.directory.checkpoint()
    step = load_checkpoint(checkpoint, objective, ema)
    load_optimiser(checkpoint, optimiser)
    states = [objective.state_dict(), ema.state_dict(), optimiser_tensors(optimiser)]
    kept = [{name: value.numpy().tobytes() for name, value in state.items()} for state in states]
    sum(value.sum() for value in objective.parameters()).backward()
    optimiser.step()
    return step, kept


def make_export(path: Path) -> None:
    """An exported model."""
    make_run(path.with_name("exported-run"))
    tilework("export", path.with_name("exported-run"), "--out", path)


def read_export(path: Path) -> Any:
    """Its answers, classes, preprocessing and figures."""
    model = load_exported(path)
    return _answers(model), encode(model.trained.run), asdict(model.trained.spec), model.trained.figures


def make_tokenizer(path: Path) -> None:
    """A small ViT tokenizer."""
    config = VitVqConfig(patch=4, codes=16, code_dim=8, width=16, depth=1, heads=2)
    torch.manual_seed(0)
    save_tokenizer(path, config.build(3, (16, 16), 0), config, (16, 16))


@torch.inference_mode()
def read_tokenizer(path: Path) -> Any:
    """Codes of a picture, the picture of codes, and the card."""
    tokenizer, card = load_tokenizer(path)
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    ids = tokenizer.encode(x)
    return ids.numpy().tobytes(), tokenizer.decode(ids).numpy().tobytes(), card.name, card.size, card.origin


def make_adapter(path: Path) -> None:
    """A small TokenAdapt."""
    torch.manual_seed(0)
    codebook = torch.randn(CODES, CODE_DIM)
    save_adapter(path, TokenAdaptNetwork(CODE_DIM, width=16, heads=2), codebook, {"name": "small", "sha256": "0f"})


@torch.inference_mode()
def read_adapter(path: Path) -> Any:
    """Its weights as the network has them, its codes, and its sizes."""
    network, codebook = load_adapter(path)
    weights = {name: value.numpy().tobytes() for name, value in network.state_dict().items()}
    card = json.loads((path / "token_adapt.json").read_bytes()).get("tokenizer")
    return weights, network.regression, network.codes, network.forth.attn.heads, codebook.vectors.tobytes(), card


def make_maps(path: Path) -> None:
    """Label maps of a few images."""
    rng = np.random.default_rng(0)
    ids = [np.stack([np.full((4, 3), i % 3), np.full((4, 3), (i + 1) % 3)], -1) for i in range(9)]
    records = [encode_map(one, np.sort(rng.dirichlet([1, 1, 1], (4, 3))[..., :2])[..., ::-1]) for one in ids]
    write_maps(path, MapsCard(("a", "b", "c"), (4, 3), 2, "chance", 32), [f"{i}.png" for i in range(9)], [records])


def read_maps(path: Path) -> Any:
    """Every map, the keys and the card."""
    maps = LabelMaps.open(path)
    found = maps.take(np.arange(len(maps.keys)))
    return found.ids.numpy().tobytes(), found.weight.numpy().tobytes(), list(maps.keys), asdict(maps.card)


def _answers(model: Exported) -> bytes:
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, CODES, (2, *GRID)))
    return model.logits(ids).numpy().tobytes()


THINGS = (
    Thing("store, rans-context", make_store, read_store),
    Thing("store, packed", lambda path: make_store(path, "packed"), read_store),
    Thing("store, mix", lambda path: make_store(path, "mix"), read_store),
    Thing("run", make_run, read_run),
    Thing("exported model", make_export, read_export),
    Thing("tokenizer", make_tokenizer, read_tokenizer),
    Thing("TokenAdapt", make_adapter, read_adapter),
    Thing("label maps", make_maps, read_maps),
)
