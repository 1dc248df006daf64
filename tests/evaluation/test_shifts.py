"""Shifted data sets in the layouts that they come in, drawn here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tilework.core.errors import InputError
from tilework.evaluation.shifts import match, open_shift

WNIDS = ("n01440764", "n02102040", "n02979186", "n03000684")


def draw(root: Path, folders: dict[str, int], side: int = 20) -> Path:
    for name, count in folders.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.random.default_rng(i).integers(0, 255, (side, side, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def test_some_wnids_restrict_the_answers(tmp_path: Path) -> None:
    shift = open_shift("R", draw(tmp_path / "r", {WNIDS[1]: 2, WNIDS[3]: 1}), WNIDS, (16, 16))
    assert shift.missing == (WNIDS[0], WNIDS[2])
    assert shift.images.batch(np.arange(3)).x.shape == (3, 3, 16, 16)
    logits = torch.tensor([[9.0, 2, 0, 1], [0, 1, 0, 2], [0, 0, 0, torch.nan]])
    among, overall = shift.hits(logits, torch.from_numpy(shift.images.labels))
    assert among.tolist() == [True, False, False]  # class 0 is none of the data set's
    assert overall.tolist() == [False, False, False]


def test_numbers_of_v2_are_numbers(tmp_path: Path) -> None:
    classes = tuple(f"n{i:08d}" for i in range(12))
    root = draw(tmp_path / "v2", {str(i): 1 for i in range(12)})
    shift = open_shift("V2", root, classes, (16, 16))
    names = shift.images.classes  # "10" comes before "2" in the folder
    assert [int(row.nonzero()) for row in shift.right] == [int(name) for name in names]


def test_one_folder_may_stand_for_several_classes(tmp_path: Path) -> None:
    root = draw(tmp_path / "objectnet", {"dog": 2, WNIDS[0]: 1})
    (root / "classes.csv").write_text(f"folder,class\ndog,{WNIDS[1]};{WNIDS[3]}\n")
    shift = open_shift("objects", root, WNIDS, (16, 16))
    among, _ = shift.hits(torch.eye(4)[[3, 1, 0]], torch.tensor([0, 0, 1]))
    assert shift.images.classes == ("dog", WNIDS[0])
    assert among.tolist() == [True, True, True]
    (root / "classes.csv").write_text("dog,cat\n")
    with pytest.raises(InputError, match="line 1 of"):
        open_shift("objects", root, WNIDS, (16, 16))


def test_the_border_of_objectnet_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "o" / WNIDS[0]).mkdir(parents=True)
    pixels = np.full((40, 40, 3), 90, np.uint8)
    pixels[:2], pixels[-2:], pixels[:, :2], pixels[:, -2:] = ((255, 0, 0),) * 4
    Image.fromarray(pixels).save(tmp_path / "o" / WNIDS[0] / "a.png")
    assert (open_shift("ObjectNet", tmp_path / "o", WNIDS, (36, 36)).images.batch(np.arange(1)).x == 90).all()
    assert (open_shift("other", tmp_path / "o", WNIDS, (36, 36)).images.batch(np.arange(1)).x != 90).any()


def test_unknown_folders_are_refused_with_both_lists() -> None:
    with pytest.raises(InputError, match=r"'cat' that is no class.*folders: cat, n01440764; classes: n01440764"):
        match(("cat", WNIDS[0]), WNIDS, Path("r"))
    with pytest.raises(InputError, match="that is no class of the model"):
        match(("1", "4"), WNIDS, Path("r"))
