"""Chains: each link starts from the one before, a kill changes nothing, and bad input is refused at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from small_data import write_images, write_store
from tilework.augment import CentreCrop, Embed, EmbeddingNoise, Flip, Normalise, TokenCrop
from tilework.core.config import encode, read_yaml, resolve
from tilework.core.errors import ConfigError, InputError, OutputError, Stopped, TileworkError
from tilework.core.files import sha256
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig
from tilework.recipes import recipes
from tilework.runs import Chain, Link, Run, evaluate_run, job, train_chain
from tilework.runs.build import build_model
from tilework.runs.trained import Trained
from tilework.store import StoreWriter
from tilework.tokenizers import VitVqConfig
from tilework.train import FitConfig, Job, OptimConfig, Result
from tilework.train.checkpoint import latest_checkpoint

TOKENS = Run(
    model=VitConfig(width=16, depth=2, heads=2, drop_path=0.2, pool="mean", stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(TokenCrop((8, 8)), EmbeddingNoise()),
    evaluation=(Embed(), CentreCrop((8, 8))),
    fit=FitConfig(epochs=0, steps=3, batch=12, save_every=2, ema=0.5, optim=OptimConfig(lr=1e-2)),
)
PIXELS = replace(
    TOKENS,
    model=replace(TOKENS.model, stem=PatchStemConfig(8)),  # 4x4 tokens, as above
    augment=(Flip(), Normalise()),
    evaluation=(Normalise(),),
    size=(32, 32),
    fit=replace(TOKENS.fit, ema=0.0),
)
CHAIN = Chain((Link("tokens", TOKENS), Link("pixels", PIXELS)))
NAMES = ["1-tokens", "2-pixels"]


@dataclass(frozen=True)
class Made:
    """Data and a chain trained on them; no test changes them."""

    store: Path
    images: Path
    out: Path
    began: dict[str, dict[str, Tensor]]  # the weights of each link before its first step

    @property
    def data(self) -> list[Path]:
        return [self.store, self.images]

    def train(self, out: Path, chain: Chain = CHAIN) -> Result:
        return train_chain(chain, self.data, [None, self.images], out, "cpu", quiet=True)


class Kill(BaseException):
    """What a signal does, as far as Python can."""


class Watch:
    """Stands for `fit` in a chain, and kills it where told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: dict[str, dict[str, Tensor]] = {}
        self.calls = 0
        self.kill: tuple[int, int] | None = None  # which call, and how many steps it takes first
        self.fit = job.fit
        monkeypatch.setattr(job, "fit", self)

    def __call__(self, job: Job) -> Result:
        self.began[job.out.name] = {k: v.clone() for k, v in job.objective.model.state_dict().items()}
        self.calls += 1

        def after(step: int) -> None:
            if self.kill == (self.calls, step):
                raise Kill

        after(0)
        job.after_step = after
        return self.fit(job)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(patch)
        found = Made(write_store(root / "x.tok"), write_images(root / "images"), root / "out", watch.began)
        found.train(found.out)
    return found


def checkpoint(run: Path) -> Path:
    found = latest_checkpoint(run / "checkpoints")
    assert found is not None
    return found


def weights(out: Path) -> dict[str, str]:
    """Hashes of all that the newest checkpoints of a chain hold."""
    files = [file for name in NAMES for file in sorted(checkpoint(out / name).glob("*.safetensors"))]
    assert len(files) == 5  # one average
    return {str(file.relative_to(out)): sha256(file) for file in files}


def written(out: Path) -> list[str]:
    return sorted(str(path.relative_to(out)) for path in out.rglob("*"))


def test_every_link_starts_from_the_one_before(made: Made) -> None:
    first = Trained.open(made.out / NAMES[0]).network  # the averaged weights
    spec = Trained.open(made.out / NAMES[1]).spec
    fresh, before = build_model(PIXELS, spec).state_dict(), first.state_dict()
    begun = made.began[NAMES[1]]
    assert begun.keys() == fresh.keys() == before.keys()
    for name, value in begun.items():  # the head too: the classes are the same
        assert torch.equal(value, fresh[name] if name.startswith("patch_embed.") else before[name]), name
    last = Trained.open(made.out / NAMES[1]).network.state_dict()
    assert not any(torch.equal(value, last[name]) for name, value in begun.items())


def test_a_chain_says_what_it_did(made: Made) -> None:
    assert sorted(path.name for path in made.out.iterdir()) == [*NAMES, "chain.yaml", "results.json"]
    assert read_yaml(made.out / "chain.yaml") == encode(CHAIN)
    results = json.loads((made.out / "results.json").read_text())
    assert results == json.loads((made.out / NAMES[1] / "results.json").read_text())
    assert results["steps"] == 3
    assert 0 <= results["top1"] <= 1
    data = [json.loads((made.out / name / "data.json").read_text()) for name in NAMES]
    assert [Path(one["train"]) for one in data] == made.data
    assert data[0]["start"] is None
    assert Path(data[1]["start"]).name == NAMES[0]


@pytest.mark.parametrize("step", range(4))
@pytest.mark.parametrize("link", [1, 2])
def test_killed_in_any_step_and_run_again_is_bit_identical(
    link: int, step: int, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, out = Watch(monkeypatch), tmp_path / "out"
    watch.kill = (link, step)
    with pytest.raises(Kill):
        made.train(out)
    assert not (out / "results.json").exists()
    assert (out / NAMES[1]).exists() == (link == 2)
    watch.kill = None
    made.train(out)
    assert weights(out) == weights(made.out)
    assert written(out) == written(made.out)
    for name in (*NAMES, "."):
        assert (out / name / "results.json").read_bytes() == (made.out / name / "results.json").read_bytes()
    if link == 2 and step == 3:  # all was done but the last line: nothing more is trained
        watch.kill = (watch.calls + 1, 1)
        made.train(out)


def test_killed_before_any_file_takes_its_name(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, lives, left = tmp_path / "out", 0, 0

    def dying(rename: Callable[[Path, Path], Path]) -> Callable[[Path, Path], Path]:
        def call(path: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if not left:
                raise Kill
            return rename(path, target)

        return call

    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, dying(getattr(Path, name)))
    while not (out / "results.json").exists() and lives < 99:  # each life may name one file more than the one before
        left = lives = lives + 1
        with suppress(Kill):
            made.train(out)
    assert lives > 10
    assert weights(out) == weights(made.out)
    assert written(out) == written(made.out)


SMALL = [
    f"links.{i}.run.{setting}"
    for i in (0, 1)
    for setting in ("fit.steps=3", "fit.batch=12", "fit.save_every=1", "model.width=16", "model.depth=1")
]
SMALL += [
    "links.0.run.codes=[8,8]",
    "links.0.run.augment.0.size=[8,8]",
    "links.0.run.evaluation.1.size=[8,8]",
    "links.1.run.size=[32,32]",
]
SMALL += [
    "links.1.run.augment.0.size=[32,32]",
    "links.1.run.evaluation.0.size=[32,32]",
    "links.1.run.model.stem.patch=8",
]
DIE_SAVING = """
import os, signal, sys
from tilework.cli.main import main
from tilework.train import checkpoint
write_sealed = checkpoint.write_sealed
def write(path, value):
    if path.parts[-4] == "2-pixels" and value["step"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    write_sealed(path, value)
checkpoint.write_sealed = write
main(sys.argv[1:])
"""


def test_a_process_killed_while_it_saves_goes_on(made: Made, tmp_path: Path) -> None:
    arguments = ["train", "seit_to_pixels_cpu", *SMALL, "--data", *made.data, "--out", tmp_path / "out", "--device=cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    died = subprocess.run([sys.executable, "-c", DIE_SAVING, *arguments], env=environment, stderr=subprocess.DEVNULL)
    assert died.returncode == -signal.SIGKILL
    assert checkpoint(tmp_path / "out/2-pixels").name == "step-00000001"
    chain = resolve(recipes["seit_to_pixels_cpu"].run, None, SMALL)
    for out in ("out", "whole"):
        train_chain(chain, made.data, [None, None], tmp_path / out, "cpu", quiet=True)
    last = [checkpoint(tmp_path / out / "2-pixels") for out in ("out", "whole")]
    for part in ("objective", "optimiser"):
        assert len({sha256(path / f"{part}.safetensors") for path in last}) == 1


def test_a_signal_after_the_last_step_of_a_link_stops_the_chain(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(job, "_say_broken", lambda job, out: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Stopped, match=f"stopped when .*{NAMES[0]} was finished: repeat the command"):
            made.train(out)
    assert (out / NAMES[0] / "results.json").is_file()
    assert not (out / NAMES[1]).exists()
    made.train(out)
    assert weights(out) == weights(made.out)


def test_three_links_and_a_start(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain((Link("a", TOKENS), Link("b", TOKENS), Link("c", PIXELS)))
    watch = Watch(monkeypatch)
    other = write_store(tmp_path / "two.tok", classes=2)
    data = [made.store, other, made.images]
    start = made.out / NAMES[0]
    train_chain(chain, data, [None] * 3, tmp_path / "out", "cpu", quiet=True, start=start)
    before = [Trained.open(path).network.state_dict() for path in (start, tmp_path / "out/1-a", tmp_path / "out/2-b")]
    pairs = zip(watch.began.values(), before, strict=True)
    kept = [{name for name in began if torch.equal(began[name], old[name])} for began, old in pairs]
    names = set(before[0])
    assert kept == [
        names,
        names - {"head.weight", "head.bias"},  # three classes, then two, then three
        {name for name in names if not name.startswith(("patch_embed.", "head."))},
    ]


# what does not fit


def store_of(path: Path, grid: tuple[int, int] = (8, 8), code_dim: int = 8, classes: int = 3) -> Path:
    names = [f"class{i}" for i in range(classes)]
    with StoreWriter(path, np.random.default_rng(0).normal(size=(16, code_dim)), names) as writer:
        writer.add(np.zeros((24, *grid), int), np.arange(24) % classes, [str(i) for i in range(24)])
    return path


@dataclass
class Call:
    """A chain and its data, to be spoilt."""

    made: Made
    folder: Path  # for new data
    data: list[Path]
    val: list[Path | None]
    chain: Chain = CHAIN

    def second(self, run: Run, data: Path | None = None, val: Path | None = None) -> None:
        self.chain = Chain((CHAIN.links[0], Link("second", run)))
        self.data[1], self.val[1] = data or self.data[1], val


def wide(call: Call) -> None:
    call.second(replace(PIXELS, model=replace(PIXELS.model, width=32)))


def shallow(call: Call) -> None:
    call.second(replace(PIXELS, model=replace(PIXELS.model, depth=1)))


def for_tokens(call: Call) -> None:
    call.second(replace(PIXELS, model=TOKENS.model))


def tokenizer(call: Call) -> None:
    call.second(replace(PIXELS, model=VitVqConfig(patch=4, width=16, depth=1, heads=2)))


def small_grid(call: Call) -> None:
    call.second(TOKENS, store_of(call.folder / "new.tok", grid=(6, 6)))


def odd_grid(call: Call) -> None:
    call.second(replace(TOKENS, evaluation=(Embed(),)), store_of(call.folder / "new.tok", grid=(7, 7)))


def no_vectors(call: Call) -> None:
    call.second(TOKENS, store_of(call.folder / "new.tok", code_dim=0))


def more_classes(call: Call) -> None:
    call.val[1] = write_images(call.folder / "new", classes=4)


def unknown_class(call: Call) -> None:
    call.val[0] = store_of(call.folder / "new.tok", classes=4)


def val_of_tokens(call: Call) -> None:
    call.val[1] = call.made.store


def val_of_another_tokenizer(call: Call) -> None:
    call.second(TOKENS, call.made.store, store_of(call.folder / "new.tok"))


def one_class(call: Call) -> None:
    call.data[1] = write_images(call.folder / "new", classes=1, count=24)


ANOTHER_MODEL = "tokens: these weights are a checkpoint of another model, as '.*: set the model as it was trained"
BAD: list[tuple[Callable[[Call], Any], type[TileworkError], str]] = [
    (lambda call: call.data.pop(), ConfigError, "has 2 links, but 1 data sets and 2 .*: give .* as many paths"),
    (lambda call: call.data.append(call.made.images), ConfigError, "but 3 data sets .*: give .* as many paths"),
    (lambda call: call.val.pop(), ConfigError, r"1 to evaluate on: give .* \('none' for no evaluation\)"),
    (lambda call: call.data.__setitem__(1, call.folder / "no"), InputError, "no such data: .*no: give a token store"),
    (lambda call: call.val.__setitem__(1, call.folder / "no"), InputError, "no such data: .*no: give a token store"),
    (
        lambda call: call.data.__setitem__(1, call.made.store),
        ConfigError,
        "takes .*pixels but gets ids: give other data",
    ),
    (wide, ConfigError, ANOTHER_MODEL),
    (shallow, ConfigError, ANOTHER_MODEL),
    (for_tokens, ConfigError, "end in pixels but the model takes map: "),
    (tokenizer, ConfigError, "link 'second' trains a VitVq: chain classifiers only"),
    (small_grid, ConfigError, "a crop of 8x8 does not fit a grid of 6x6: choose a smaller size"),
    (odd_grid, ConfigError, "a code grid of 7x7 has no even sides, which this stem needs: crop it"),
    (no_vectors, ConfigError, "'token_crop' needs code vectors: convert the store again"),
    (more_classes, InputError, "a class 'class3' that training does not know: remove or rename"),
    (unknown_class, InputError, "other classes than training: .class3. is unknown: tokenize it like"),
    (val_of_tokens, InputError, "is not of the same kind as .*: use two stores, or two folders"),
    (val_of_another_tokenizer, InputError, "has another codebook than .*: tokenize it like that one"),
    (one_class, InputError, "one class only .*: add a folder"),
]


@pytest.mark.parametrize(("spoil", "kind", "words"), BAD)
def test_bad_input_is_refused_before_the_first_step(
    spoil: Callable[[Call], Any],
    kind: type[TileworkError],
    words: str,
    made: Made,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, call = Watch(monkeypatch), Call(made, tmp_path, made.data, [None, None])
    spoil(call)
    with pytest.raises(kind, match=words) as refused:
        train_chain(call.chain, call.data, call.val, tmp_path / "out", "cpu", quiet=True)
    assert refused.value.hint
    assert "\n" not in str(refused.value)
    assert not watch.began
    assert not (tmp_path / "out").exists()


def test_a_broken_first_image_does_not_stop_a_chain(made: Made, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images")
    (images / "class0/000.png").write_bytes(b"")
    chain = Chain((CHAIN.links[0], Link("second", replace(PIXELS, max_broken=0.1))))
    train_chain(chain, [made.store, images], [None] * 2, tmp_path / "out", "cpu", quiet=True)
    assert (tmp_path / "out/2-second/quarantine.json").is_file()


def test_places_that_hold_something_else_are_refused(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(made.out, out)
    before = {name: (out / name).read_bytes() for name in written(out) if (out / name).is_file()}
    other = Chain((CHAIN.links[0], Link("pixels", replace(PIXELS, fit=replace(PIXELS.fit, seed=1)))))
    with pytest.raises(
        OutputError,
        match=r"another chain: links.1.run.fit.seed is 0 there and 1 here: choose another --out",
    ):
        made.train(out, other)
    with pytest.raises(OutputError, match="holds other files: choose another --out"):
        made.train(out / NAMES[0])  # a run, but no chain
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    with pytest.raises(OutputError, match="holds other files: choose another --out"):
        made.train(tmp_path / "mine")
    with pytest.raises(OutputError, match=r"letter.txt is a file; choose another"):
        made.train(tmp_path / "mine/letter.txt")
    assert written(tmp_path / "mine") == ["letter.txt"]
    assert {name: (out / name).read_bytes() for name in written(out) if (out / name).is_file()} == before


@pytest.mark.parametrize("gone", ["", "results.json"])
def test_a_link_torn_out_is_missed(gone: str, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    shutil.copytree(made.out, out)
    shutil.rmtree(out / NAMES[0]) if not gone else (out / NAMES[0] / gone).unlink()
    left, watch = written(out), Watch(monkeypatch)
    with pytest.raises(
        InputError, match=r"goes on from .*1-tokens, which is missing or unfinished: restore .*1-tokens"
    ):
        made.train(out)
    assert not watch.began
    assert written(out) == left


def test_a_chain_may_be_called_by_another_path_or_moved(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(monkeypatch)
    watch.kill = (2, 2)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Kill):
        made.train(Path("out"))
    watch.kill = None
    made.train(tmp_path / "out")
    assert weights(tmp_path / "out") == weights(made.out)
    (tmp_path / "out").rename(tmp_path / "moved")
    made.train(Path("moved"))
    assert weights(tmp_path / "moved") == weights(made.out)


def test_a_chain_is_taken_where_a_run_is(tmp_path: Path) -> None:
    """Its last link speaks for it."""
    data = write_store(tmp_path / "x.tok")
    vit = VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig())
    fit = FitConfig(epochs=1, batch=12)
    run = Run(vit, ClassifyConfig(), (Embed(),), (Embed(),), fit=fit)
    train_chain(
        Chain((Link("first", run), Link("second", run))), [data, data], [None, None], tmp_path / "out", quiet=True
    )
    chained, alone = (evaluate_run(path, data) for path in (tmp_path / "out", tmp_path / "out/2-second"))
    assert np.array_equal(chained.probabilities, alone.probabilities)
