"""Numbers as commands print them."""

from __future__ import annotations

import pytest

from tilework.cli.output import show


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.91234, "0.9123"), (1.0, "1"), (12.3456, "12.3"), (999.4, "999"), (999.6, "1,000"), (-999.6, "-1,000"),
        (1234567.8, "1,234,568"), (5, "5"), (12345, "12,345"), (True, "True"), ([1, 2], "1 x 2"), ([0.5, 2.0], "0.5 2"),
        ({"a": 0.5, "b": 3}, "a 0.5, b 3"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_accuracies_four(
    value: object, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    show({"figure": value}, as_json=False)
    assert capsys.readouterr().out.split(maxsplit=1)[1].strip() == printed
