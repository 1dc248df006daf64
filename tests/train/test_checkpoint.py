"""Checkpoints are whole or absent, checked, and never run code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import nn

from tilework.core.errors import DamageError, OutputError
from tilework.core.files import sha256
from tilework.core.sealed import read_json, write_sealed
from tilework.train.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    load_optimiser,
    model_tensors,
    objective_tensors,
    optimiser_tensors,
    save_checkpoint,
    trained_model,
)


class Holder(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.model = nn.Linear(width, 2)
        self.extra = nn.Linear(2, 2)


def saved(root: Path) -> tuple[Holder, torch.optim.Optimizer]:
    holder = Holder()
    optimiser = torch.optim.AdamW(holder.parameters())
    holder.extra(holder.model(torch.ones(4, 3))).sum().backward()
    optimiser.step()
    save_checkpoint(root, 7, holder, optimiser_tensors(optimiser), None, keep=2)
    return holder, optimiser


def test_round_trip(tmp_path: Path) -> None:
    holder, optimiser = saved(tmp_path)
    other = Holder()
    other_optimiser = torch.optim.AdamW(other.parameters())
    path = latest_checkpoint(tmp_path)
    assert path is not None
    assert load_checkpoint(path, other, None) == 7
    load_optimiser(path, other_optimiser)
    for a, b in zip(holder.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        for key, value in optimiser.state[a].items():
            assert torch.equal(value, other_optimiser.state[b][key])


def test_model_weights_alone(tmp_path: Path) -> None:
    holder, _ = saved(tmp_path)
    model = trained_model(tmp_path / "step-00000007", lambda: nn.Linear(3, 2))
    assert torch.equal(model.weight, holder.model.weight)


@pytest.mark.parametrize("sides", [(10**6, 10**6), (-1, 2), (2**70, 1)])
def test_no_memory_is_taken_for_settings_that_do_not_fit(tmp_path: Path, sides: tuple[int, int]) -> None:
    saved(tmp_path)
    with pytest.raises(DamageError, match="settings do not fit"):
        trained_model(tmp_path / "step-00000007", lambda: nn.Linear(*sides))


def test_a_network_of_very_many_layers_is_not_built_to_its_end(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(DamageError, match="settings do not fit"):
        trained_model(tmp_path / "step-00000007", lambda: nn.Sequential(*(nn.Linear(3, 2) for _ in range(10**9))))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("file", ["objective.safetensors", "optimiser.safetensors"])
def test_a_flipped_bit_is_noticed(file: str, tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "step-00000007" / file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    holder = Holder()
    optimiser = torch.optim.AdamW(holder.parameters())
    with pytest.raises(DamageError, match=file):
        (load_optimiser(path.parent, optimiser), load_checkpoint(path.parent, holder, None))


def test_another_model_another_version_no_state(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "step-00000007"
    with pytest.raises(DamageError, match="another model"):
        load_checkpoint(path, Holder(5), None)
    write_sealed(path / "state.json", {**read_json(path / "state.json"), "version": 99})
    with pytest.raises(DamageError, match="version 99"):
        load_checkpoint(path, Holder(), None)
    (path / "state.json").unlink()
    with pytest.raises(DamageError, match=r"state\.json"):
        load_checkpoint(path, Holder(), None)


@pytest.mark.parametrize("hashes", [None, 5, ["objective.safetensors"], "x"])
def test_a_state_without_hashes_is_refused(tmp_path: Path, hashes: object) -> None:
    """Also under the right seal."""
    saved(tmp_path)
    path = tmp_path / "step-00000007"
    state = read_json(path / "state.json")
    for body in ({**state, "sha256": hashes}, {key: value for key, value in state.items() if key != "sha256"}):
        write_sealed(path / "state.json", body)
        for read in (model_tensors, objective_tensors):
            with pytest.raises(DamageError, match=r"state\.json cannot be read"):
                read(path)


def test_weights_that_are_no_safetensors_under_their_hash_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "step-00000007"
    (path / "objective.safetensors").write_bytes(b"no weights")
    hashes = {"objective.safetensors": sha256(path / "objective.safetensors")}
    write_sealed(path / "state.json", {**read_json(path / "state.json"), "sha256": hashes})
    with pytest.raises(DamageError, match=r"objective\.safetensors is malformed"):
        objective_tensors(path)


def forge(path: Path, part: str, tensors: dict[str, torch.Tensor]) -> None:
    """Other tensors under the right hash."""
    (path / f"{part}.safetensors").write_bytes(save(tensors))
    state = read_json(path / "state.json")
    hashes = {**state["sha256"], f"{part}.safetensors": sha256(path / f"{part}.safetensors")}
    write_sealed(path / "state.json", {**state, "sha256": hashes})


@pytest.mark.parametrize(
    "name", ["0.exp_avg", "x.exp_avg", "-1.step", "99.step", "0.", "0.surprise", "٣.step", "00.step"]
)
@pytest.mark.parametrize("value", [torch.zeros(2, 3).bfloat16(), torch.zeros(7), torch.zeros((), dtype=torch.int64)])
def test_a_state_that_the_optimiser_cannot_take_is_refused(tmp_path: Path, name: str, value: torch.Tensor) -> None:
    _, optimiser = saved(tmp_path)
    path = tmp_path / "step-00000007"
    forge(path, "optimiser", {**optimiser_tensors(optimiser), name: value})
    with pytest.raises(DamageError, match=f"another optimiser: '{name}' does not fit"):
        load_optimiser(path, torch.optim.AdamW(Holder().parameters()))


def test_a_parameter_of_very_many_digits_is_refused(tmp_path: Path) -> None:
    """Python refuses to read numbers of more than 4,300 digits."""
    _, optimiser = saved(tmp_path)
    path = tmp_path / "step-00000007"
    forge(path, "optimiser", {**optimiser_tensors(optimiser), "9" * 5000 + ".step": torch.zeros(())})
    with pytest.raises(DamageError, match=r"another optimiser: '9+' does not fit") as told:
        load_optimiser(path, torch.optim.AdamW(Holder().parameters()))
    assert len(str(told.value)) < 1000


def test_a_state_of_the_optimiser_that_lacks_numbers_is_refused(tmp_path: Path) -> None:
    _, optimiser = saved(tmp_path)
    path = tmp_path / "step-00000007"
    slots = optimiser_tensors(optimiser)
    forge(path, "optimiser", {name: value for name, value in slots.items() if name != "1.exp_avg_sq"})
    with pytest.raises(DamageError, match="it has no exp_avg_sq of parameter 1"):
        load_optimiser(path, torch.optim.AdamW(Holder().parameters()))
    forge(path, "optimiser", {name: value for name, value in slots.items() if not name.startswith("1.")})
    load_optimiser(path, torch.optim.AdamW(Holder().parameters()))  # a parameter that no gradient has reached


def test_weights_of_another_type_are_refused(tmp_path: Path) -> None:
    holder, _ = saved(tmp_path)
    path = tmp_path / "step-00000007"
    forge(path, "objective", {name: value.bool() for name, value in holder.state_dict().items()})
    with pytest.raises(DamageError, match="checkpoint of another model"):
        load_checkpoint(path, Holder(), None)


@pytest.mark.parametrize("step", [None, -1, "7", 7.0, True, 10**30])
def test_a_state_without_a_step_is_refused(tmp_path: Path, step: object) -> None:
    saved(tmp_path)
    file = tmp_path / "step-00000007/state.json"
    write_sealed(file, {**read_json(file), "step": step})
    with pytest.raises(DamageError, match=r"state\.json cannot be read"):
        load_checkpoint(file.parent, Holder(), None)


def test_a_pointer_that_names_another_checkpoint_by_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    holder, optimiser = saved(tmp_path)
    save_checkpoint(tmp_path, 6, holder, optimiser_tensors(optimiser), None, keep=2)  # 6 and 7 differ in one bit
    pointer = tmp_path / "latest"
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000006"
    for text in (pointer.read_text().replace("6 ", "7 "), "step-0000000\xff", "step-00000006 \n0", "\0"):
        pointer.write_bytes(text.encode("latin-1"))
        with pytest.raises(DamageError, match="latest"):
            latest_checkpoint(tmp_path)
    pointer.write_text("step-00000007\n")  # as older versions wrote it
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000007"


def test_pointer_to_nowhere(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / "latest").write_text("step-00000001\n")
    with pytest.raises(DamageError, match="step-00000001"):
        latest_checkpoint(tmp_path)


def test_a_failed_save_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, optimiser = saved(tmp_path)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OutputError, match="No space left"):
            save_checkpoint(tmp_path, 8, holder, optimiser_tensors(optimiser), None, keep=2)
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000007"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", "step-00000007"]
