"""What must not change unnoticed: the losses of every objective and the settings of every recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from golden import settings
from golden.losses import CASES, FILE, losses, write_data
from tilework.objectives import ObjectiveConfig

GOLDEN = json.loads(FILE.read_text())
ELSEWHERE = {  # where another processor than that of the file rounds otherwise by more than the bound
    ("AVX2", "token_prop", "token_prop_ratio"): [0.446704, 0.466431, 0.511054, 0.561648],
}
FOUND, KEPT = settings.settings(), settings.read()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_data(folder)
    return folder


def test_every_objective_has_golden_losses() -> None:
    assert set(ObjectiveConfig.choices) <= set(CASES) == set(GOLDEN)


@pytest.mark.parametrize("name", list(CASES))
def test_golden_losses(name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWORK_KERNELS", "0")  # which draw other numbers, see test_dense_numbers.py
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = losses(CASES[name], root, tmp_path / "run")
    finally:
        torch.set_num_threads(threads)
    for part in ("steps", "evaluation"):
        assert found[part].keys() == GOLDEN[name][part].keys()
        for key, value in GOLDEN[name][part].items():
            value = ELSEWHERE.get((torch.backends.cpu.get_cpu_capability(), name, key), value)
            assert found[part][key] == pytest.approx(value, rel=1e-4, abs=1e-5), f"{part} {key}"


@pytest.mark.parametrize("name", sorted(KEPT.keys() | FOUND.keys()))
def test_resolved_settings_of_every_recipe(name: str) -> None:
    assert FOUND.get(name) == KEPT.get(name)
