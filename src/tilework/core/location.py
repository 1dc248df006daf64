"""Where data lie: in a directory of this machine, or behind a URL."""

from __future__ import annotations

import re
from pathlib import Path

from tilework.core.errors import InputError

SCHEMES = ("http", "https", "s3", "gs", "memory")
HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


class Url(str):
    """An address that may be written into messages and files: it holds no password, key or query."""

    __slots__ = ()

    def __new__(cls, text: str) -> Url:
        """Refuses another scheme, and what may hold a secret or mean more than one position."""
        scheme, sign, rest = text.partition("://")
        if not sign or scheme.lower() not in SCHEMES:
            said = f"'{scheme}://'" if re.fullmatch(r"[\w.+:-]{1,32}", scheme) else "that"
            raise InputError(f"{said} is no place of data", f"give a path, or a URL of {', '.join(SCHEMES)}")
        # nothing of these is shown: it may be a secret
        if "@" in rest:
            raise InputError(
                f"a {scheme} URL with a user name or password", "it would be written into files: remove it"
            )
        if "?" in rest or "#" in rest:
            raise InputError(f"a {scheme} URL with a query or fragment", "it would be written into files: remove it")
        host, _, path = rest.partition("/")
        if not HOST.fullmatch(host) or re.search(r"[\\\x00-\x1f\x7f-\x9f]|::|://|(^|/)\.\.?(/|$)", path):
            raise InputError(f"a {scheme} URL that cannot be", f"give {scheme}://HOST/DIRECTORY")
        return super().__new__(cls, text)

    @property
    def scheme(self) -> str:
        """What stands before ://."""
        return self.partition("://")[0].lower()


Location = Path | Url


def location(given: Path | str) -> Location:
    """A path, or a URL where it is written as one; refuses a URL that cannot be used."""
    text = str(given)
    if isinstance(given, Path):
        if text.startswith(tuple(f"{scheme}:/" for scheme in SCHEMES)):  # a Path has lost one of the two /
            raise InputError(f"'{text}' is neither a path nor a URL", "a URL has two slashes: give it as text")
        return given
    return Url(text) if "://" in text else Path(text)


def is_store(given: Location) -> bool:
    """Whether a path or URL is meant as a token store rather than as a folder of images."""
    return isinstance(given, Url) or (given / "manifest.json").exists() or given.suffix == ".tok"
