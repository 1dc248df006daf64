"""The log of a run and its progress lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilework.train.log import Bar, RunLog


def test_resuming_cuts_later_and_broken_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [json.dumps({"step": step}) for step in (1, 2, 3)]
    path.write_text("\n".join([*lines, '{"step": 4, "lo']))
    log = RunLog(path, resume_from=2)
    log.write(step=3, loss=0.5)
    log.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2},
        {"step": 3, "loss": 0.5},
    ]


def test_a_quiet_log_writes_nothing(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log.jsonl", 0, quiet=True)
    log.write(step=1)
    log.close()
    assert not (tmp_path / "log.jsonl").exists()


def test_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("train", 3, every=0.0)
    for done in (1, 2, 3):
        bar.update(done, note=f"loss {done}")
    bar.close()
    assert capsys.readouterr().err.splitlines() == ["train 1/3 loss 1", "train 2/3 loss 2", "train 3/3 loss 3"]


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    bar = Bar("train", 2)
    bar.update(1, note="loss 0.5")
    bar.update(2)
    bar.close()
    shown = capsys.readouterr().err
    assert "train" in shown
    assert "2/2" in shown


def test_quiet_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("train", 2, quiet=True)
    bar.update(2)
    bar.close()
    assert capsys.readouterr().err == ""
