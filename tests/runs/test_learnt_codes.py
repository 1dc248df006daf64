"""Learnt vectors of codes: kept with a run, and used wherever its model is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from small_data import CODE_DIM, CODES, write_images, write_store
from tilework.augment import CentreCrop, CodeCut, Embed, Normalise, TokenCrop, apply_all
from tilework.core.distributed import World
from tilework.core.errors import DamageError, InputError
from tilework.core.files import sha256
from tilework.core.rng import Draws
from tilework.core.sealed import read_json
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyCodesConfig, ClassifyConfig, MaskedConfig
from tilework.runs import (
    Chain,
    Link,
    Run,
    Trained,
    evaluate_run,
    export_run,
    load_exported,
    prepare,
    train,
    train_chain,
)
from tilework.store import Store, StoreWriter
from tilework.train import FitConfig, OptimConfig
from tilework.train.checkpoint import latest_checkpoint

CPU = World(0, 1, torch.device("cpu"))
FILE = "codebook.safetensors"
MASKED = Run(
    model=VitConfig(width=16, depth=1, heads=2, positions="sincos", stem=TokenPatchStemConfig()),
    objective=MaskedConfig(width=16, depth=1, heads=2),
    augment=(CodeCut((8, 8)),),
    evaluation=(CentreCrop((8, 8)),),
    fit=FitConfig(epochs=0, steps=3, batch=12, optim=OptimConfig(lr=0.1)),
)
TUNED = replace(
    MASKED,
    model=replace(MASKED.model, pool="mean"),
    objective=ClassifyConfig(),
    augment=(TokenCrop((8, 8), area=(1.0, 1.0), aspect=(1.0, 1.0)),),
    evaluation=(Embed(), CentreCrop((8, 8))),
)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# from masked token modelling to everything that follows


@dataclass(frozen=True)
class Made:
    """Data, masked token modelling on them, and fine-tuning from that; no test changes them."""

    store: Path
    val: Path
    pre: Path
    tuned: Path

    @property
    def codebook(self) -> Tensor:
        return torch.from_numpy(Store(self.store).codebook.vectors)

    @property
    def table(self) -> Tensor:
        """As the last checkpoint of the first run has it, normalised."""
        place = latest_checkpoint(self.pre / "checkpoints")
        assert place is not None
        weight = load_file(place / "objective.safetensors")["table.weight"]
        return F.layer_norm(weight, weight.shape[1:], eps=1e-6)

    def ids(self) -> Tensor:
        return torch.from_numpy(Store(self.val).batch(np.arange(18))).long()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("codes")
    store, val = write_store(root / "x.tok"), write_store(root / "v.tok", count=18, seed=1)
    train(MASKED, store, val, root / "pre", "cpu", quiet=True)
    train(TUNED, store, val, root / "tuned", "cpu", quiet=True, start=root / "pre")
    return Made(store, val, root / "pre", root / "tuned")


def logits_by_hand(run: Path, table: Tensor, ids: Tensor) -> Tensor:
    """Look-up and network, nothing else."""
    model = Trained.open(run).network.eval()
    with torch.inference_mode():
        return model(torch.stack([table[sample] for sample in ids]).permute(0, 3, 1, 2).contiguous()).logits


def spoil(**tensors: Tensor | None) -> Callable[[Path], None]:
    """Other tensors in the file of six codes of three numbers; None: gone."""

    def change(file: Path) -> None:
        changed = {**load_file(file), **tensors}
        save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, file)

    return change


def kept_table(run: Path) -> Tensor | None:
    return load_file(run / FILE).get("table")


def test_what_was_learnt_is_kept_and_inherited(made: Made) -> None:
    assert (made.table - made.codebook).abs().max() > 0.05
    for run in (made.pre, made.tuned):
        table = kept_table(run)
        assert table is not None
        assert torch.equal(table, made.table)
        assert torch.equal(load_file(run / FILE)["codebook"], made.codebook)


def test_a_finished_run_keeps_its_table_when_repeated(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.pre, tmp_path / "pre")
    train(MASKED, made.store, made.val, tmp_path / "pre", "cpu", quiet=True)
    assert (tmp_path / "pre" / FILE).read_bytes() == (made.pre / FILE).read_bytes()


@pytest.mark.parametrize("standardise", [False, True])
def test_training_and_evaluation_look_codes_up_in_the_table(standardise: bool, made: Made, tmp_path: Path) -> None:
    step, embed = replace(TUNED.augment[0], standardise=standardise), Embed(standardise)  # type: ignore[call-arg]
    run = replace(TUNED, augment=(step,), evaluation=(embed, CentreCrop((8, 8))))
    job = prepare(run, made.store, made.val, tmp_path / "run", CPU, "x", quiet=True, start=made.pre)
    batch = job.source.batch(np.arange(5))
    x = apply_all(job.augment, batch, Draws(0, 0, batch.index)).x
    torch.testing.assert_close(x, made.table[batch.x.long()].permute(0, 3, 1, 2), atol=1e-5, rtol=1e-5)
    plain = prepare(run, made.store, made.val, tmp_path / "plain", CPU, "x", quiet=True)
    assert not torch.allclose(apply_all(plain.augment, batch, Draws(0, 0, batch.index)).x, x, atol=0.01)
    assert job.evaluate is not None
    found, ids = job.evaluate(job.objective.model.eval()), made.ids()
    with torch.inference_mode():
        said = job.objective.model(made.table[ids].permute(0, 3, 1, 2)).logits.argmax(1)
    assert found["top1"] == pytest.approx((said == torch.arange(18) % 3).float().mean().item())


def test_evaluation_and_export_use_the_table(made: Made, tmp_path: Path) -> None:
    wanted = logits_by_hand(made.tuned, made.table, made.ids())
    assert not torch.allclose(wanted, logits_by_hand(made.tuned, made.codebook, made.ids()), atol=1e-2)
    np.testing.assert_allclose(evaluate_run(made.tuned, made.val).probabilities, wanted.softmax(1), atol=1e-5)
    export_run(made.tuned, tmp_path / "m")
    exported = load_exported(tmp_path / "m")
    torch.testing.assert_close(exported.logits(made.ids()), wanted, atol=1e-5, rtol=1e-5)
    assert exported.codebook is not None
    assert torch.equal(torch.from_numpy(exported.codebook.vectors), made.codebook), (
        "which the codes are is told by the tokenizer's vectors"
    )
    assert json.loads((made.tuned / "results.json").read_text())["top1"] == pytest.approx(
        (wanted.argmax(1) == torch.arange(18) % 3).float().mean().item()
    )


def test_the_weights_are_those_of_the_encoder(made: Made, tmp_path: Path) -> None:
    job = prepare(TUNED, made.store, None, tmp_path / "run", CPU, "x", quiet=True, start=made.pre)
    begun, old = job.objective.model.state_dict(), Trained.open(made.pre).network.state_dict()
    same = {name for name in begun if name in old and torch.equal(begun[name], old[name])}
    assert same == set(begun) - {"fc_norm.weight", "fc_norm.bias", "head.weight", "head.bias"}


def test_a_third_run_inherits_the_table_too(made: Made, tmp_path: Path) -> None:
    job = prepare(TUNED, made.store, None, tmp_path / "run", CPU, "x", quiet=True, start=made.tuned)
    table = kept_table(job.out)
    assert table is not None
    assert torch.equal(table, made.table)


@pytest.mark.parametrize(("kind", "learns"), [("frozen", False), ("random", True)])
def test_tables_that_are_the_codebook_are_not_kept(kind: str, learns: bool, made: Made, tmp_path: Path) -> None:
    run = replace(MASKED, objective=replace(MASKED.objective, table=kind))  # type: ignore[call-arg]
    train(run, made.store, None, tmp_path / "pre", "cpu", quiet=True)
    assert (kept_table(tmp_path / "pre") is not None) == learns
    train(TUNED, made.store, None, tmp_path / "tuned", "cpu", quiet=True, start=tmp_path / "pre")
    table = kept_table(tmp_path / "tuned")
    wanted = logits_by_hand(tmp_path / "tuned", made.codebook if table is None else table, made.ids())
    found = evaluate_run(tmp_path / "tuned", made.val).probabilities
    np.testing.assert_allclose(found, wanted.softmax(1), atol=1e-5)


def cut_store(made: Made, path: Path, order: Tensor, codebook: Tensor) -> Path:
    """Some of the codes, under other numbers."""
    rng, labels = np.random.default_rng(5), np.arange(24) % 3
    with StoreWriter(path, codebook[order].numpy(), [f"class{i}" for i in range(3)]) as writer:
        writer.add(rng.integers(0, len(order), (24, 8, 8)), labels, [str(i) for i in range(24)])
    return path


def test_another_cut_of_the_codebook_gets_its_rows(made: Made, tmp_path: Path) -> None:
    order = torch.randperm(CODES, generator=torch.Generator().manual_seed(1))[:9]
    data = cut_store(made, tmp_path / "cut.tok", order, made.codebook)
    train(TUNED, data, None, tmp_path / "run", "cpu", quiet=True, start=made.pre)
    table = kept_table(tmp_path / "run")
    assert table is not None
    assert torch.equal(table, made.table[order])
    ids = torch.from_numpy(Store(data).batch(np.arange(24))).long()
    wanted = logits_by_hand(tmp_path / "run", made.table[order], ids)
    np.testing.assert_allclose(evaluate_run(tmp_path / "run", data).probabilities, wanted.softmax(1), atol=1e-5)


def test_the_codebook_of_another_tokenizer_is_refused(made: Made, tmp_path: Path) -> None:
    data = cut_store(made, tmp_path / "other.tok", torch.arange(CODES), noise(CODES, CODE_DIM))
    with pytest.raises(InputError, match=r"pre learnt vectors for other codes than the data have"):
        train(TUNED, data, None, tmp_path / "run", "cpu", quiet=True, start=made.pre)
    assert not (tmp_path / "run").exists()


def test_pixels_have_no_table(made: Made, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", count=4)
    model = replace(TUNED.model, stem=PatchStemConfig(8))
    run = replace(TUNED, model=model, augment=(Normalise(),), evaluation=(Normalise(),), size=(32, 32))
    train(run, images, None, tmp_path / "run", "cpu", quiet=True, start=made.tuned)
    assert not (tmp_path / "run" / FILE).exists()
    assert len(evaluate_run(tmp_path / "run", images).probabilities) == 12


def test_masked_token_modelling_makes_no_classifier(made: Made, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="pre trained no classifier"):
        evaluate_run(made.pre, made.val)
    with pytest.raises(InputError, match="pre trained no classifier"):
        export_run(made.pre, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("table", [torch.zeros(CODES - 1, CODE_DIM), torch.full((CODES, CODE_DIM), torch.nan)])
def test_a_damaged_table_is_refused_everywhere(table: Tensor, made: Made, tmp_path: Path) -> None:
    words = r"codebook\.safetensors do not fit its codebook"
    shutil.copytree(made.tuned, tmp_path / "hurt")
    export_run(made.tuned, tmp_path / "m")
    for folder in ("hurt", "m"):
        spoil(table=table)(tmp_path / folder / FILE)
    with pytest.raises(DamageError, match=words):
        evaluate_run(tmp_path / "hurt", made.val)
    with pytest.raises(DamageError, match=words):
        export_run(tmp_path / "hurt", tmp_path / "out")
    with pytest.raises(DamageError, match=words):
        train(TUNED, made.store, None, tmp_path / "out", "cpu", quiet=True, start=tmp_path / "hurt")
    with pytest.raises(DamageError, match=r"codebook\.safetensors is missing or damaged"):
        load_exported(tmp_path / "m")
    about = read_json(tmp_path / "m/model.json")
    about["sha256"][FILE] = sha256(tmp_path / "m" / FILE)
    (tmp_path / "m/model.json").write_text(json.dumps(about))
    with pytest.raises(DamageError, match=words):
        load_exported(tmp_path / "m")
    assert not (tmp_path / "out").exists()


# chains


def test_a_chain_is_evaluated_and_exported_as_its_last_link(made: Made, tmp_path: Path) -> None:
    out, chain = tmp_path / "chain", Chain((Link("pretrain", MASKED), Link("tune", TUNED)))
    train_chain(chain, [made.store] * 2, [None, made.val], out, "cpu", quiet=True)
    table = kept_table(out / "2-tune")
    assert table is not None
    assert torch.equal(table, made.table), "the same seed, data and settings"
    wanted = logits_by_hand(out / "2-tune", table, made.ids())
    for place in (out, out / "2-tune"):
        np.testing.assert_allclose(evaluate_run(place, made.val).probabilities, wanted.softmax(1), atol=1e-5)
    export_run(out, tmp_path / "m")
    torch.testing.assert_close(load_exported(tmp_path / "m").logits(made.ids()), wanted, atol=1e-5, rtol=1e-5)
    export_run(out, tmp_path / "n", data=made.val)
    job = prepare(TUNED, made.store, None, tmp_path / "next", CPU, "x", quiet=True, start=out)
    begun, old = job.objective.model.state_dict(), Trained.open(out / "2-tune").network.state_dict()
    assert all(torch.equal(value, old[name]) for name, value in begun.items())
    assert torch.equal(kept_table(tmp_path / "next"), table)  # type: ignore[arg-type]


def test_a_chain_that_is_still_pre_training_is_no_classifier(made: Made, tmp_path: Path) -> None:
    out, chain = tmp_path / "chain", Chain((Link("pretrain", MASKED), Link("tune", TUNED)))
    train_chain(chain, [made.store] * 2, [None, None], out, "cpu", quiet=True)
    shutil.rmtree(out / "2-tune")
    with pytest.raises(InputError, match="1-pretrain trained no classifier"):
        evaluate_run(out, made.val)
    with pytest.raises(InputError, match="1-pretrain trained no classifier"):
        export_run(out, tmp_path / "m")
    shutil.rmtree(out / "1-pretrain")
    with pytest.raises(InputError, match="has not begun"):
        evaluate_run(out, made.val)


# vectors that fine-tuning trains further

CODES_TUNED = replace(
    TUNED, objective=ClassifyCodesConfig(), augment=(CodeCut((8, 8)),), evaluation=(CentreCrop((8, 8)),)
)


def test_fine_tuning_goes_on_with_the_table(made: Made, tmp_path: Path) -> None:
    """It begins with what was learnt, ends with something else, and all that follows uses that."""
    job = prepare(CODES_TUNED, made.store, None, tmp_path / "begin", CPU, "x", quiet=True, start=made.pre)
    begun = job.objective.learnt_table()
    assert begun is not None
    torch.testing.assert_close(begun, made.table, atol=1e-2, rtol=1e-2)
    result = train(CODES_TUNED, made.store, made.val, tmp_path / "run", "cpu", quiet=True, start=made.pre)
    table = kept_table(tmp_path / "run")
    assert table is not None
    assert (table - made.table).abs().max() > 0.05
    wanted = logits_by_hand(tmp_path / "run", table, made.ids())
    np.testing.assert_allclose(evaluate_run(tmp_path / "run", made.val).probabilities, wanted.softmax(1), atol=1e-5)
    right = (wanted.argmax(1) == torch.arange(18) % 3).float().mean().item()
    assert result.metrics["top1"] == pytest.approx(right), "dropout is off, and the table is the trained one"
    export_run(tmp_path / "run", tmp_path / "m")
    torch.testing.assert_close(load_exported(tmp_path / "m").logits(made.ids()), wanted, atol=1e-5, rtol=1e-5)
