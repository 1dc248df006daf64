"""Errors with a hint and an exit code; EXIT_CODES lists what `tilework` exits with."""

from __future__ import annotations

from math import ceil

EXIT_CODES = {
    0: "success",
    1: "bug in Tilework: please report the traceback",
    2: "invalid command line",
    3: "input missing, empty or unusable (folder, image, label)",
    4: "invalid configuration (recipe, key, value, combination)",
    5: "store or checkpoint damaged, or of another version",
    6: "device or package not available",
    7: "output exists or cannot be written",
    8: "training failed (gradients not finite)",
    75: "stopped by a signal: repeat the command to resume",
    130: "interrupted from the keyboard (training saves, and ends with 75)",
}


def printable(text: str) -> str:
    """Line breaks and control characters, as names of files may hold them, as a terminal can show them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class TileworkError(Exception):
    """What went wrong and where, then what to do about it, in one line."""

    exit_code = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(printable(f"{what}: {hint}" if hint else what))
        self.what = what
        self.hint = hint


class UsageError(TileworkError):
    """A command line that cannot be read."""

    exit_code = 2


class InputError(TileworkError):
    """A folder, image or label that cannot be used."""

    exit_code = 3


class BrokenImagesError(InputError):
    """More unreadable images than are accepted."""

    def __init__(self, what: str, hint: str = "repair or remove them", broken: int = 0, total: int = 0) -> None:
        super().__init__(what, hint)
        self.broken, self.total = broken, total

    def accepted_by(self, option: str) -> BrokenImagesError:
        """The same with the option that accepts so many, such as '--max-broken '; none does if all are unreadable."""
        if self.broken == self.total:
            return self
        share = ceil(100 * self.broken / self.total) / 100
        return BrokenImagesError(self.what, f"{self.hint}, or accept them with {option}{share:g}")


class UnknownClassError(InputError):
    """Data with a class that those it must fit do not have."""

    def __init__(self, where: object, name: str) -> None:
        super().__init__(f"{where} has a class '{name}' that training does not know", "remove or rename it")


class ConfigError(TileworkError):
    """An invalid recipe, key, value or combination."""

    exit_code = 4


class DamageError(TileworkError):
    """A store or checkpoint that is damaged or of another version."""

    exit_code = 5


class MachineError(TileworkError):
    """A device or package that is not available."""

    exit_code = 6


class OutputError(TileworkError):
    """An output path that exists or cannot be written."""

    exit_code = 7


class InUseError(OutputError):
    """A directory that another process has locked."""


class TrainingError(TileworkError):
    """Training that cannot continue."""

    exit_code = 8


class Stopped(TileworkError):
    """A run that was stopped by a signal and has saved a checkpoint."""

    exit_code = 75
