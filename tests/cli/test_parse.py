"""Command lines that cannot be read: one line each, exit code 2."""

from __future__ import annotations

import pytest

from tilework.cli.main import main

LINES = {
    "start": "IMAGES is missing: see 'tilework start --help'",
    "robustness": "--data PATH, --out PATH are missing: see",
    "start . --max 3": "--max 3 is not known (did you mean --max-broken?): see",
    "doctor --jsno": "--jsno is not known (did you mean --json?): see",
    "doctor --zzz": "--zzz is not known: see",
    "doctor --json yes": "yes is not known: see",
    "probe . --dat x": "no run or exported model",  # a wrong path is told before
    "frontier . --val . --out x --seeds one": "error parsing --seeds: invalid literal",
    "tokenize . --codes foo --out x": "invalid choice 'foo' for argument '--codes'",
    "annotate . --out": "missing value for argument '--out'. Expected 1 values: see",
    "trian": "unknown command 'trian': did you mean 'train'?",
}


@pytest.mark.parametrize("line", LINES)
def test_one_line_says_what_is_wrong(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    said = capsys.readouterr()
    assert ended.value.code == (3 if line.startswith("probe") else 2)
    assert said.err.startswith(f"tilework: error: {LINES[line]}")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_help_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["frontier", "--help"])
    said = capsys.readouterr()
    assert ended.value.code == 0
    assert "usage: tilework frontier" in said.out
    assert "--teacher PATH" in said.out
    assert "Directory of 'tilework tokenizer teacher', or box." in said.out
    assert said.err == ""
