"""Push and pull against a stand-in hub, and names on the hub in runs: fixed to a commit, with hashes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save

import tilework
from hub_server import STRANGER, TOKEN, WRONG, HubServer, serve_hub, use_hub
from small_data import write_images, write_store
from tilework.augment import CentreCrop, Embed, Normalise
from tilework.cli.main import main
from tilework.core.errors import DamageError, InputError, OutputError
from tilework.core.files import sha256
from tilework.core.hub import local, look
from tilework.core.location import HubName
from tilework.layers.stems import PatchStemConfig, TokenStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, MaskedConfig
from tilework.runs import Run, export_run, pins, train
from tilework.runs.annotate import open_annotator
from tilework.runs.share import pull, push
from tilework.runs.start import Start
from tilework.runs.teacher import open_teacher, timm_weights
from tilework.store import Store
from tilework.tokenizers import DctConfig, TeacherCodesConfig, create_tokenizer, load_tokenizer, save_tokenizer
from tilework.tokenizers.find import keep_tokenizer
from tilework.train import FitConfig

FIT = FitConfig(epochs=0, steps=2, batch=12, save_every=1)
TOKENS = Run(
    model=VitConfig(width=16, depth=1, heads=2, stem=TokenStemConfig()),
    objective=ClassifyConfig(),
    augment=(Embed(),),
    evaluation=(Embed(), CentreCrop((8, 8))),
    fit=FIT,
)
PIXELS = replace(
    TOKENS,
    model=VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8)),
    augment=(Normalise(),),
    evaluation=(Normalise(),),
    size=(32, 32),
)


@dataclass(frozen=True)
class Made:
    store: Path
    images: Path
    tokenizer: Path
    run: Path
    model: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("share")
    found = Made(write_store(root / "x.tok"), write_images(root / "images"), root / "dct", root / "run", root / "model")
    save_tokenizer(found.tokenizer, DctConfig(50, 4).build(3, (32, 32), 0), DctConfig(50, 4), (32, 32))
    train(PIXELS, found.images, found.images, found.run, "cpu", quiet=True)
    export_run(found.run, found.model)
    return found


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve_hub() as hub:
        use_hub(hub, tmp_path / "cache", monkeypatch, TOKEN)
        yield hub


def silent(done: int, total: int) -> None:
    assert 0 < done <= total


def tree(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("kind", ["store", "tokenizer", "run", "model"])
def test_there_and_back(kind: str, made: Made, server: HubServer, tmp_path: Path) -> None:
    path = getattr(made, kind)
    told = push(path, HubName(f"hf://owner/{kind}"), quiet=True)
    name, out = HubName(told["to"]), tmp_path / "back"
    assert name == (f"hf://datasets/owner/{kind}" if kind == "store" else f"hf://owner/{kind}")
    found = pull(look(HubName(f"hf://owner/{kind}")), out, silent)
    assert found["from"] == name.at(told["commit"])
    here, there = tree(out), tree(path)
    if kind == "run":
        assert json.loads(here.pop("data.json"))["train"] == "images"  # not where it lay
        there.pop("data.json")
    assert here == {name: there[name] for name in here}
    assert {"store": len(there), "tokenizer": 2, "model": len(there)}.get(kind, len(here)) == len(here)
    assert not (tmp_path / "back.pull").exists()
    card = server.repos["dataset" if kind == "store" else "model", f"owner/{kind}"].commits[-1][1]["README.md"].decode()
    front, body = card.split("---\n")[1:3]
    assert yaml.safe_load(front)["library_name"] == "tilework"
    assert f"{name}" in body
    assert str(path.parent) not in card
    assert TOKEN not in card + json.dumps(told)
    with pytest.raises(OutputError, match="exists"):
        pull(look(name), out, silent)


def test_what_came_back_works(
    made: Made, server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (made.store, made.tokenizer, made.run, made.model):
        push(path, HubName(f"hf://owner/{path.stem}"), quiet=True)
    pull(look(HubName("hf://owner/x")), tmp_path / "x.tok", silent)
    assert np.array_equal(Store(tmp_path / "x.tok").batch(np.arange(5)), Store(made.store).batch(np.arange(5)))
    card = load_tokenizer("hf://owner/dct")[1]
    assert card.sha256 == load_tokenizer(made.tokenizer)[1].sha256
    assert torch.equal(create_tokenizer("hf://owner/dct").codebook, create_tokenizer(made.tokenizer).codebook)
    photo = next(made.images.rglob("*.png"))
    assert (
        tilework.load("hf://owner/model").predict(photo)[0].classes == tilework.load(made.run).predict(photo)[0].classes
    )
    answers = []
    for name in ("hf://owner/run", "hf://owner/model", str(made.model)):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(["predict", name, str(photo), "--device", "cpu", "--json"])
        assert caught.value.code == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1] == answers[2]


def test_a_chain(made: Made, server: HubServer, tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    shutil.copytree(made.run, chain / "1-only")
    (chain / "chain.yaml").write_text("links: []\n")
    (chain / "1-only/quarantine.json").write_text("[]")  # names of files: it stays here
    push(chain, HubName("hf://owner/chain"), quiet=True)
    pull(look(HubName("hf://owner/chain")), tmp_path / "back", silent)
    here = tree(tmp_path / "back").keys()
    assert {"chain.yaml", "1-only/run.yaml", "1-only/checkpoints/latest"} <= here
    assert here <= tree(chain).keys() - {"1-only/quarantine.json"}
    want = Start.read(made.run).tensors
    assert all(
        torch.equal(tensor, want[name]) for name, tensor in Start.read(HubName("hf://owner/chain")).tensors.items()
    )


def test_pushing_again(made: Made, server: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    name = HubName("hf://owner/dct")
    push(made.tokenizer, name, private=True, quiet=True)
    repo = server.repos["model", "owner/dct"]
    assert repo.private
    repo.commit({**repo.commits[-1][1], "card.json": b"{}", "notes.txt": b"mine", "README.md": b"by hand"})
    push(made.tokenizer, name, quiet=True)
    files = repo.commits[-1][1]
    assert "card.json" not in files  # of the kind, and no more there
    assert (files["notes.txt"], files["README.md"]) == (b"mine", b"by hand")
    assert "was written by hand and stays" in capsys.readouterr().err
    with pytest.raises(OutputError, match="holds other things"):
        push(made.model, name, quiet=True)


@pytest.mark.parametrize(
    ("token", "said"), [(None, "not logged in"), (WRONG, "does not know your token"), (STRANGER, "no right to that")]
)
def test_who_may_not_push(
    token: str | None, said: str, made: Made, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(InputError, match=said) as caught:
        push(made.tokenizer, HubName("hf://owner/dct"), quiet=True)
    assert "hf_" not in str(caught.value)
    assert not server.repos


def test_damaged_things_are_not_pushed(made: Made, server: HubServer, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    save_tokenizer(broken, DctConfig(50, 4).build(3, (32, 32), 0), DctConfig(50, 4), (32, 32))
    (broken / "weights.safetensors").write_bytes(b"other")
    with pytest.raises(DamageError, match="missing or damaged"):
        push(broken, HubName("hf://owner/x"), quiet=True)
    told = push(made.store, HubName("hf://owner/x"), dry_run=True)
    assert (told["to"], told["files"]) == ("hf://datasets/owner/x", len(tree(made.store)) + 1)
    assert not server.requests


def test_a_pull_that_was_cut_goes_on(made: Made, server: HubServer, tmp_path: Path) -> None:
    push(made.store, HubName("hf://owner/x"), quiet=True)
    out = tmp_path / "x.tok"
    server.faults["00001.tiles"] = "500"
    with pytest.raises(InputError) as caught:
        pull(look(HubName("hf://owner/x")), out, silent)
    assert "\n" not in str(caught.value)
    assert not out.exists()
    server.faults.clear()
    before = len(server.requests)
    pull(look(HubName("hf://owner/x")), out, silent)
    assert tree(out) == tree(made.store)
    assert not any("shards/00000.tiles" in line for line in server.requests[before:])  # it was there


def test_pulled_files_are_those_of_the_manifest(made: Made, server: HubServer, tmp_path: Path) -> None:
    files = tree(made.store)
    server.put("o/less", {name: data for name, data in files.items() if name != "shards/00001.tiles"}, "dataset")
    with pytest.raises(DamageError, match=r"not complete: it has no shards/00001\.tiles"):
        pull(look(HubName("hf://o/less")), tmp_path / "less", silent)
    server.put("o/other", {**files, "shards/00001.tiles": files["shards/00000.tiles"]}, "dataset")
    with pytest.raises(DamageError, match="missing or damaged"):
        pull(look(HubName("hf://o/other")), tmp_path / "other", silent)
    server.put("o/more", {**files, "run.sh": b"rm", "columns/../x": b""} | {"setup.py": b""}, "dataset")
    with pytest.raises(InputError, match="invalid file name"):
        pull(look(HubName("hf://o/more")), tmp_path / "more", silent)
    run = tree(made.run)
    server.put("o/run", {**run, "checkpoints/latest": b"../../../elsewhere\n"})
    with pytest.raises(DamageError, match="which is missing"):
        pull(look(HubName("hf://o/run")), tmp_path / "run", silent)
    assert not [path for path in tmp_path.iterdir() if path.name in ("less", "other", "more", "run")]


def test_a_start_is_pinned_and_a_changed_file_refused(made: Made, server: HubServer, tmp_path: Path) -> None:
    weights = made.model / "model.safetensors"
    first = server.put("o/w", {"model.safetensors": weights.read_bytes()})
    out, name = tmp_path / "run", "hf://o/w"
    longer = replace(PIXELS, fit=replace(FIT, steps=3))
    train(longer, made.images, None, out, "cpu", quiet=True, start=name)
    kept = json.loads((out / "data.json").read_text())
    assert kept["start"] == f"{name}@{first}"
    assert kept["hub"] == {f"{name}@{first}": {"model.safetensors": sha256(weights)}}
    train(longer, made.images, None, out, "cpu", quiet=True, start=name)  # the same again goes on
    server.put("o/w", {"model.safetensors": weights.read_bytes(), "README.md": b"new"})
    train(longer, made.images, None, out, "cpu", quiet=True, start=name)  # another commit, the same file
    changed = {key: tensor + 1 for key, tensor in load_file(weights).items()}
    server.put("o/w", {"model.safetensors": save(changed)})
    with pytest.raises(InputError, match=rf"model.safetensors of hf://o/w is not the file .* give {name}@{first} to"):
        train(longer, made.images, None, out, "cpu", quiet=True, start=name)
    train(longer, made.images, None, out, "cpu", quiet=True, start=f"{name}@{first}")
    place = local(HubName(f"{name}@{first}")).resolve()
    place.write_bytes(save(changed))
    with pytest.raises(DamageError, match=r"model\.safetensors of hf://o/w is not the file"):
        train(longer, made.images, None, out, "cpu", quiet=True, start=f"{name}@{first}")


def test_starts(made: Made, server: HubServer) -> None:
    for path in (made.run, made.model):
        push(path, HubName(f"hf://owner/{path.name}"), quiet=True)
    want = Start.read(made.run).tensors
    for name in ("hf://owner/run", "hf://owner/model", "hf://owner/model/model.safetensors"):
        found = Start.read(HubName(name)).tensors
        assert found.keys() >= want.keys()
        assert all(torch.equal(found[key], want[key]) for key in want)
    assert all(torch.equal(Start.read(made.model).tensors[key], want[key]) for key in want)


def test_settings_are_pinned(made: Made, server: HubServer, tmp_path: Path) -> None:
    files = tree(made.tokenizer)
    commit = server.put("o/dct", files)
    run = replace(TOKENS, objective=MaskedConfig(tokenizer="hf://o/dct"))
    pinned = pins.pin_settings(run, tmp_path)
    assert pinned.objective.tokenizer == f"hf://o/dct@{commit}"  # type: ignore[attr-defined]
    assert pins.pin_settings(TOKENS, tmp_path) is TOKENS
    (hashes,) = pins.hashes_of(pinned, None).values()
    assert hashes == {name: sha256(made.tokenizer / name) for name in files}


def test_teachers(made: Made, server: HubServer) -> None:
    push(made.model, HubName("hf://owner/model"), quiet=True)
    config = TeacherCodesConfig(size=(32, 32), codes=8, code_dim=4)
    tokenizer, _ = open_teacher("hf://owner/model", None, config)
    want, _ = open_teacher(str(made.run), None, config)
    assert all(
        torch.equal(a, b) for a, b in zip(tokenizer.teacher.parameters(), want.teacher.parameters(), strict=True)
    )
    annotator = open_annotator("hf://owner/model", None, None, ("class0", "class1", "class2"), 32, 2)
    assert annotator.size == 32
    cfg = {"architecture": "net", "pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}}
    server.put("timm/net.tag", {"model.safetensors": b"x", "config.json": json.dumps(cfg).encode()})
    found = timm_weights("timm:net.tag", None)
    assert (found.model, found.file.name) == ("timm:net", "model.safetensors")
    assert found.normalise == Normalise((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    server.put("timm/bad.tag", {"model.safetensors": b"x", "config.json": b'{"pretrained_cfg": {"mean": 3}}'})
    with pytest.raises(DamageError, match=r"config\.json of timm:bad\.tag cannot be right"):
        timm_weights("timm:bad.tag", None)


def test_a_run_keeps_a_copy_of_a_fetched_tokenizer(made: Made, server: HubServer, tmp_path: Path) -> None:
    server.put("o/dct", tree(made.tokenizer))
    (tmp_path / "run").mkdir()
    assert keep_tokenizer(local(HubName("hf://o/dct")), tmp_path / "run")
    assert not (tmp_path / "run/tokenizer/tokenizer.json").is_symlink()
    assert tree(tmp_path / "run/tokenizer") == tree(made.tokenizer)
