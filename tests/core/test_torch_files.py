"""Files of torch that are made to do harm, or that another program wrote."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
import torch

from tilework.core.errors import InputError
from tilework.core.torch_files import check_whole, load_tensors, read_torch


def test_lists_that_share_lists_are_looked_at_once(tmp_path: Path) -> None:
    shared: list[object] = []
    for _ in range(40):  # 2**40 lists, were each way to them another one
        shared = [shared, shared]
    torch.save({"table": torch.ones(4, 3), "more": shared}, tmp_path / "a.pt")
    found = read_torch(tmp_path / "a.pt")
    assert isinstance(found, dict)
    assert torch.equal(found["table"], torch.ones(4, 3))


def test_lists_that_hold_themselves_and_deep_ones_end() -> None:
    deep: list[object] = []
    deep.append(deep)
    for _ in range(5000):
        deep = [deep]
    check_whole(Path("a.pt"), {"a": deep})
    with pytest.raises(InputError, match=r"a\.pt has a tensor of \(900, 900\) in fewer bytes"):
        check_whole(Path("a.pt"), {"a": deep, "b": (torch.zeros(1).expand(900, 900),)})


def test_an_archive_of_a_later_version_is_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(4, 3), tmp_path / "a.pt")
    whole = bytearray((tmp_path / "a.pt").read_bytes())
    whole[whole.rfind(b"PK\x01\x02") + 6] = 99  # the version that is needed to unpack an entry
    (tmp_path / "a.pt").write_bytes(whole)
    with pytest.raises(InputError, match=r"a\.pt is damaged: restore it \(zip file version 9\.9\)"):
        read_torch(tmp_path / "a.pt")


def test_what_torch_thinks_old_is_read_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save(torch.quantize_per_tensor(torch.ones(4, 3), 0.1, 0, torch.qint8), tmp_path / "a.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(read_torch(tmp_path / "a.pt"), torch.Tensor)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt")
    with pytest.raises(InputError, match=r"a\.pt .*not a regular file"):
        read_torch(tmp_path / "a.pt")


@pytest.mark.parametrize(
    ("kind", "shape", "length"),
    [
        ("F32", [0, 2**63], 0),  # sides that torch cannot count
        ("F32", [2**40, 2**40, 0], 0),
        ("F32", [3], 4),
        ("X", [1], 1),
    ],
)
def test_tensors_that_torch_does_not_have_are_refused_in_a_line(
    tmp_path: Path, kind: str, shape: list[int], length: int
) -> None:
    head = json.dumps({"a": {"dtype": kind, "shape": shape, "data_offsets": [0, length]}}).encode()
    data = len(head).to_bytes(8, "little") + head + bytes(length)
    (tmp_path / "a.safetensors").write_bytes(data)
    odd = data.replace(b'"F32"', b'"F8_E8M0"') if length == 4 else data  # a type that one of its readers lacks
    for source in (data, odd, tmp_path / "a.safetensors"):
        with pytest.raises(ValueError, match="no tensors that torch has") as refused:
            load_tensors(source)
        assert "\n" not in str(refused.value)
