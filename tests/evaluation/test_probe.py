"""Probes of frozen features: against slow loops and known answers, and end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from small_data import CODE_DIM, write_images, write_store
from tilework.augment import Embed
from tilework.cli.main import main
from tilework.core.codebook import Codebook
from tilework.core.distributed import World
from tilework.core.errors import InputError
from tilework.data import TokenSource
from tilework.evaluation import Features, Probe, evaluate, knn_accuracy, linear_accuracy
from tilework.evaluation import probe as probes
from tilework.evaluation.probe import Solver
from tilework.layers.stems import PatchStemConfig, TokenPatchStemConfig
from tilework.models import VitConfig
from tilework.objectives import ClassifyConfig, MaskedConfig
from tilework.runs import Run, probe_run, train
from tilework.store import Store, StoreWriter
from tilework.train import FitConfig

CPU = World(0, 1, torch.device("cpu"))
MASKED = Run(
    model=VitConfig(width=16, depth=1, heads=2, positions="sincos", stem=TokenPatchStemConfig()),
    objective=MaskedConfig(width=16, depth=1, heads=2),
    augment=(),
    evaluation=(),
    fit=FitConfig(epochs=0, steps=2, batch=12),
)


def clouds(count: int, seed: int, classes: int = 3, width: int = 6) -> tuple[Tensor, Tensor]:
    """Points around the corners of a simplex."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    return torch.eye(classes, width)[labels] * 2 + torch.randn(count, width, generator=generator), labels


@pytest.mark.parametrize("k", [1, 3, 7, 500])
def test_neighbours_equal_a_loop(k: int) -> None:
    train_part, val = clouds(60, 0), clouds(40, 1)
    mean = train_part[0].mean(0)
    right = 0
    for point, label in zip(*val, strict=True):
        sims = [
            (float(torch.cosine_similarity(point - mean, x - mean, dim=0)), int(y))
            for x, y in zip(*train_part, strict=True)
        ]
        votes = [0.0, 0.0, 0.0]
        for similarity, name in sorted(sims, reverse=True)[:k]:
            votes[name] += float(np.exp(similarity / 0.07))
        right += int(np.argmax(votes)) == int(label)
    assert knn_accuracy(train_part, val, k) == pytest.approx(right / 40)
    assert 0.5 < right / 40 < 1, "neither trivial nor hopeless"


def test_no_neighbours_cannot_vote() -> None:
    with pytest.raises(InputError, match="0 neighbours"):
        knn_accuracy(clouds(9, 0), clouds(9, 1), 0)


def noisy(count: int, seed: int, wrong: float) -> tuple[Tensor, Tensor]:
    """Clouds of four classes, some of them under the name of another one."""
    points, labels = clouds(count, seed, classes=4, width=10)
    swapped = torch.rand(count, generator=torch.Generator().manual_seed(seed + 9)) < wrong
    return points + 2 * torch.eye(4, 10)[labels], torch.where(swapped, (labels + 1) % 4, labels)


def test_the_decay_of_few_samples_with_wrong_labels() -> None:
    """A tenth of 80 samples cannot choose it: the weakest decay won by a tie, and the probe was 15 points too low."""
    train_part, val = noisy(80, 0, 0.2), noisy(2000, 1, 0.0)
    found, decay = linear_accuracy(train_part, val)
    mean, deviation = train_part[0].mean(0), train_part[0].std(0)
    each = {
        choice: probes._hits(
            probes._fit_lbfgs((train_part[0] - mean) / deviation, train_part[1], choice),
            (val[0] - mean) / deviation,
            val[1],
        )
        .float()
        .mean()
        for choice in probes.DECAYS
    }
    assert min(each.values()) < found - 0.1
    assert found > max(each.values()) - 0.03
    assert each[decay] == pytest.approx(found)


@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_of_equal_choices_the_first_is_taken(solver: Solver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strong decay, and a low rate."""
    monkeypatch.setattr(probes, "_hits", lambda layer, x, labels: torch.ones(len(x), dtype=torch.bool))
    _, chosen = linear_accuracy(clouds(30, 0), clouds(30, 1), solver)
    assert chosen == {"lbfgs": 1e-1, "sgd": 0.003}[solver]


@pytest.mark.parametrize(
    ("solver", "choices"), [("lbfgs", (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)), ("sgd", (0.003, 0.03, 0.3, 3.0))]
)
def test_linear_probe_comes_near_the_best_linear_rule(solver: Solver, choices: tuple[float, ...]) -> None:
    """For equal round clouds the nearest mean is the best rule there is; it is linear."""
    train_part, val = clouds(3000, 0), clouds(3000, 1)
    means = torch.stack([train_part[0][train_part[1] == c].mean(0) for c in range(3)])
    best = float((torch.cdist(val[0], means).argmin(1) == val[1]).float().mean())
    found, chosen = linear_accuracy(train_part, val, solver)
    assert found == pytest.approx(best, abs=0.01)
    assert chosen in choices
    assert linear_accuracy(train_part, val, solver) == (found, chosen), "the same again"


def test_sgd_is_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a loop over (x, y) with momentum by hand; 3 epochs of batches of 16."""
    monkeypatch.setattr(probes, "EPOCHS", 3)
    monkeypatch.setattr(probes, "BATCH", 16)
    x, labels = clouds(40, 0)
    generator = torch.Generator().manual_seed(0)
    weight, moved, step = torch.zeros(3, 7), torch.zeros(3, 7), 0
    ones = torch.cat([x, torch.ones(40, 1)], 1)
    for _ in range(3):
        order = torch.randperm(40, generator=generator)
        for part in (order[:16], order[16:32]):
            wrong = (ones[part] @ weight.T).softmax(1) - torch.eye(3)[labels[part]]
            moved = 0.9 * moved + wrong.T @ ones[part] / 16
            weight = weight - 0.3 * 16 / 256 * (1 + np.cos(np.pi * step / 6)) / 2 * moved
            step += 1
    layer = probes._fit_sgd(x, labels, 0.3)
    assert torch.allclose(torch.cat([layer.weight, layer.bias[:, None]], 1), weight, atol=1e-5)


def test_linear_probe_does_not_care_for_scale_and_shift() -> None:
    (x, labels), (y, truth) = clouds(300, 0), clouds(300, 1)
    scale, shift = torch.tensor([1e-3, 1, 10, 1e3, 1, 1]), torch.arange(6.0) * 50
    plain = linear_accuracy((x, labels), (y, truth))[0]
    assert linear_accuracy((x * scale + shift, labels), (y * scale + shift, truth))[0] == pytest.approx(plain, abs=0.02)


@pytest.mark.parametrize(
    ("x", "said"),
    [(torch.full((8, 3), torch.nan), "no numbers"), (torch.full((8, 3), torch.inf), "no numbers"),
     (torch.ones(1, 3), "1 training samples")],
)  # fmt: skip
def test_features_that_teach_nothing_are_refused(x: Tensor, said: str) -> None:
    """A run that had diverged ended in a RuntimeError of torch."""
    with pytest.raises(InputError, match=f"a linear classifier cannot learn from .*{said}"):
        linear_accuracy((x, torch.zeros(len(x), dtype=torch.int64)), (torch.ones(2, 3), torch.tensor([0, 0])))


def test_a_few_samples_are_enough_to_run() -> None:
    assert 0 <= linear_accuracy(clouds(6, 0), clouds(6, 1))[0] <= 1


@pytest.mark.parametrize("classes", [0, 5])
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_features_are_what_the_head_reads(tmp_path: Path, pool: Literal["class", "mean"], classes: int) -> None:
    source = TokenSource(Store(write_store(tmp_path / "x.tok", count=10)))
    model = replace(MASKED.model, pool=pool).build(CODE_DIM, (8, 8), classes)  # type: ignore[call-arg]
    read: list[Tensor] = []
    embed = Embed().build(source.codebook)
    evaluator = Features()
    figures = evaluate(lambda batch: model(batch.x), source, [embed], [evaluator], CPU, batch=4)
    found, labels = evaluator.pair()
    assert figures == {"samples": 10}
    assert not found.is_inference(), "a probe learns from them"
    with torch.inference_mode():
        hook = model.fc_norm.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
        tokens = model(embed.apply(source.batch(np.arange(10)), None).x).tokens
        hook.remove()
    assert torch.allclose(found, read[0], atol=1e-5)
    assert torch.allclose(found, tokens.mean(1), atol=1e-5) == (pool == "mean")
    assert torch.equal(labels, torch.from_numpy(source.labels.astype(np.int64)))


def test_a_probe_learns_from_one_set_and_judges_another(tmp_path: Path) -> None:
    sources = [TokenSource(Store(write_store(tmp_path / f"{seed}.tok", count=30, seed=seed))) for seed in (0, 1)]
    model, embed = MASKED.model.build(CODE_DIM, (8, 8), 0), Embed().build(sources[0].codebook)
    seen = Features()
    probe = Probe(seen, neighbours=3)
    for source, one in zip(sources, (seen, probe), strict=True):
        figures = evaluate(lambda batch: model(batch.x), source, [embed], [one], CPU, batch=7)
    linear, decay = linear_accuracy(seen.pair(), probe.pair())
    knn = knn_accuracy(seen.pair(), probe.pair(), 3)
    assert figures == {"linear": linear, "knn": knn, "weight_decay": decay, "neighbours": 3, "samples": 30}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("probe")
    write_store(root / "a.tok")
    write_store(root / "b.tok", seed=1)
    train(MASKED, root / "a.tok", None, root / "pre", quiet=True)
    return root


def test_a_run_without_labels_is_probed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["probe", str(made / "pre"), "--data", str(made / "a.tok"), "--val", str(made / "b.tok"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told == probe_run(made / "pre", made / "a.tok", made / "b.tok")
    assert told["samples"] == 48
    assert told["linear"] > 0.5, "half of the codes tell the class"
    by_sgd = probe_run(made / "pre", made / "a.tok", made / "b.tok", solver="sgd")
    assert by_sgd["linear"] > 0.5
    assert by_sgd.keys() - told.keys() == {"rate"}


def test_the_learnt_table_is_what_the_model_sees(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = probe_run(made / "pre", made / "a.tok", made / "b.tok")
    read, nothing = Codebook.read, np.zeros((16, CODE_DIM), np.float32)
    monkeypatch.setattr(Codebook, "read", lambda *a: replace(read(*a), learnt=nothing))
    blind = probe_run(made / "pre", made / "a.tok", made / "b.tok")
    assert blind["linear"] < plain["linear"] - 0.1, "all codes alike tell nothing"


def test_other_data_are_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"was trained on tokens, .* holds images"):
        probe_run(made / "pre", write_images(tmp_path / "images"), tmp_path / "images")
    with StoreWriter(tmp_path / "c.tok", np.ones((16, CODE_DIM), np.float32), ["class0"], codec="packed") as writer:
        writer.add(np.zeros((4, 8, 8), np.int64), np.zeros(4, np.int64), list("abcd"))
    with pytest.raises(InputError, match="another codebook than the run"):
        probe_run(made / "pre", tmp_path / "c.tok", tmp_path / "c.tok")


def test_a_pixel_classifier_is_probed_on_other_classes(tmp_path: Path) -> None:
    run = Run(
        model=VitConfig(width=16, depth=1, heads=2, stem=PatchStemConfig(8)),
        objective=ClassifyConfig(),
        augment=(),
        evaluation=(),
        size=(32, 32),
        fit=FitConfig(epochs=0, steps=1, batch=4),
    )
    from tilework.augment import Normalise

    run = replace(run, augment=(Normalise(),), evaluation=(Normalise(),))
    train(run, write_images(tmp_path / "a"), None, tmp_path / "run", quiet=True)
    other = write_images(tmp_path / "b", classes=4, seed=3)
    assert probe_run(tmp_path / "run", other, other)["knn"] == 1.0, "every image has itself as a neighbour"
