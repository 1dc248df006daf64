"""A sixth method in three new files, an augmentation, an objective and a recipe, without a change to another file.

The worked example of docs/extending.md: labels of a batch are smoothed by how much of each image was hidden. The files
are written here, imported, and trained through the command line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from small_data import write_store
from tilework.augment import Augment
from tilework.cli.main import main
from tilework.objectives import ObjectiveConfig

GUIDE = Path(__file__).parents[1] / "docs/extending.md"


def example(name: str) -> str:
    """The file of that name as the guide shows it."""
    text = GUIDE.read_text("utf-8")
    start = text.index(f"`{name}`")
    start = text.index("```python\n", start) + len("```python\n")
    return text[start : text.index("```", start)]


@pytest.fixture
def method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "mymethod"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("hide_patches", "confidence", "recipe"):
        (package / f"{name}.py").write_text(example(f"{name}.py"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TILEWORK_METHODS", "mymethod.recipe")
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("mymethod")]:
        del sys.modules[name]
    for registry, name in ((Augment.choices, "hide_patches"), (ObjectiveConfig.choices, "confidence")):
        registry._entries.pop(name, None)
    import tilework.recipes.recipe as known

    known.recipes._entries.pop("hidden_cpu", None)
    known.catalogue[:] = [one for one in known.catalogue if one.name != "hidden_cpu"]


def test_the_guide_adds_a_method_in_three_files(method: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "hidden_cpu", "fit.steps=2", "fit.batch=8", "model.width=16", "model.depth=1", "codes=null"]
    words += ["augment.token_crop.size=[6,6]", "evaluation.centre_crop.size=[6,6]", "augment.hide_patches.share=0.25"]
    data = [str(write_store(method / f"{name}.tok", seed=i)) for i, name in enumerate(("train", "val"))]
    with pytest.raises(SystemExit) as end:
        main([*words, "--data", data[0], "--val", data[1], "--out", str(method / "run"), "--json"])
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    assert set(json.loads(said.out)) >= {"loss", "top1"}
    with pytest.raises(SystemExit) as end:
        main(["eval", str(method / "run"), "--data", data[1]])
    assert end.value.code == 0
    (settings,) = [line for line in (method / "run/run.yaml").read_text().splitlines() if "hide_patches" in line]
    assert "0.25" in settings


def test_a_method_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWORK_METHODS", "nowhere.at_all")
    with pytest.raises(SystemExit) as end:
        main(["recipes"])
    assert end.value.code == 4
    said = capsys.readouterr().err
    assert "plug-in 'nowhere.at_all' cannot be imported: correct TILEWORK_METHODS" in said
