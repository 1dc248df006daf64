"""The import rule: rooms import only rooms below them."""

from __future__ import annotations

import ast
from pathlib import Path

import tilework

ROWS = [
    {"cli"},
    {"experiments", "analysis"},
    {"recipes"},
    {"runs"},
    {"train", "evaluation", "report"},
    {"objectives"},
    {"tokenizers"},
    {"models", "augment", "data"},
    {"layers", "store"},
    {"core"},
]
ROOT = Path(tilework.__file__).parent


def row_of(room: str) -> int:
    return next(i for i, row in enumerate(ROWS) if room in row)


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("tilework.")}
    return rooms - {"version"}


def test_every_folder_has_a_row() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set().union(*ROWS)


def test_rooms_import_only_downwards() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).parts
        if len(parts) == 1:
            continue  # the package's own surface
        for other in imported_rooms(path) & set().union(*ROWS):
            if other != parts[0] and row_of(other) <= row_of(parts[0]):
                wrong.append(f"{path.relative_to(ROOT)} imports {other}")
    assert not wrong


def test_core_and_store_leave_torch_to_batch_and_distributed() -> None:
    for room in ("core", "store"):
        for path in (ROOT / room).glob("*.py"):
            tops = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)]
            names = {a.name for n in tops if isinstance(n, ast.Import) for a in n.names}
            names |= {n.module or "" for n in tops if isinstance(n, ast.ImportFrom)}
            if path.name not in ("affine.py", "batch.py", "distributed.py", "torch_files.py"):
                assert not any(name.split(".")[0] == "torch" for name in names), path
