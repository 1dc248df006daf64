"""One error type with an exit code and a hint; the table below is what `tilework` exits with."""

from __future__ import annotations

EXIT_CODES = {
    0: "success",
    1: "a bug in Tilework: please report the trace",
    2: "the command line could not be understood",
    3: "input missing, empty or unusable (folders, images, labels)",
    4: "configuration wrong (recipe, key, value, combination)",
    5: "a store or checkpoint is damaged or of another version",
    6: "the machine lacks something (device, package)",
    7: "the output is taken or cannot be written",
    8: "training stopped by itself (loss not finite)",
    75: "stopped by a signal: run the same command to go on",
    130: "interrupted from the keyboard",
}


class TileworkError(Exception):
    """What went wrong and where, then what to do about it, in one line."""

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what}: {hint}" if hint else what)
        self.what = what
        self.hint = hint


class InputError(TileworkError):
    """A folder, image or label that cannot be used."""

    exit_code = 3


class ConfigError(TileworkError):
    """A recipe, key, value or combination that makes no sense."""

    exit_code = 4


class DamageError(TileworkError):
    """A store or checkpoint that is damaged or of another version."""

    exit_code = 5


class MachineError(TileworkError):
    """A device or package that is not here."""

    exit_code = 6


class OutputError(TileworkError):
    """An output position that is taken or cannot be written."""

    exit_code = 7


class InUseError(OutputError):
    """Another process is at work there."""


class TrainingError(TileworkError):
    """Training that cannot go on."""

    exit_code = 8


class Stopped(TileworkError):
    """A run that was told to stop and has saved its state."""

    exit_code = 75
