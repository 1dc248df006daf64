"""Errors: one exit code each, all of them in the table."""

from __future__ import annotations

import pytest

from tilework.core import errors
from tilework.core.errors import EXIT_CODES, InputError, TileworkError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TileworkError)]


def test_every_error_of_the_module_is_found() -> None:
    assert {kind.__name__ for kind in KINDS} >= {"InputError", "ConfigError", "DamageError", "OutputError", "Stopped"}


@pytest.mark.parametrize("kind", KINDS)
def test_exit_code_is_in_the_table(kind: type[TileworkError]) -> None:
    assert EXIT_CODES[kind.exit_code]
    assert kind.exit_code != 0


def test_exit_codes_differ() -> None:
    """But for a kind of another one, which has its code."""
    codes = [kind.exit_code for kind in KINDS if TileworkError in (kind, *kind.__bases__)]
    assert len(codes) >= 9
    assert len(set(codes)) == len(codes)
    assert errors.InUseError.exit_code == errors.OutputError.exit_code
    assert errors.UnknownClassError.exit_code == errors.InputError.exit_code


def test_exit_codes_fit_a_shell() -> None:
    codes = {kind.exit_code for kind in KINDS}
    assert all(0 <= code < 126 for code in codes)  # 126 and above mean something else to a shell


def test_message_has_what_and_hint() -> None:
    error = errors.InputError("no images", "add some")
    assert str(error) == "no images: add some"
    assert (error.what, error.hint) == ("no images", "add some")


def test_message_without_hint() -> None:
    assert str(errors.InputError("no images")) == "no images"


def test_no_handler_of_builtin_errors_catches_ours() -> None:
    assert not any(issubclass(kind, KeyboardInterrupt | OSError | ValueError | KeyError) for kind in KINDS)


def test_names_with_line_breaks_and_escapes_stay_in_one_printable_line() -> None:
    error = InputError("cannot read 'a\nb\x1b[2J.png' of Zoë 🙂", "rename\u2028it")
    assert str(error) == "cannot read 'a\\nb\\x1b[2J.png' of Zoë 🙂: rename\\u2028it"
