"""Locations of data: a local path or a URL."""

from __future__ import annotations

import re
from pathlib import Path

from tilework.core.errors import InputError

TOKENIZER = "tokenizer.json"  # the file that a directory is a tokenizer by
SCHEMES = ("http", "https", "s3", "gs", "memory")
KINDS = {  # what a directory is, by a file that it has
    "manifest.json": "a token store",
    TOKENIZER: "a tokenizer",
    "token_adapt.json": "a TokenAdapt",
    "model.json": "an exported model",
    "maps.json": "label maps",
    "run.yaml": "a run",
    "chain.yaml": "a chain of runs",
    "settings.json": "a table or comparison of runs",
    "plan.json": "an unfinished token store",
}
PACKAGED = Path(__file__).parents[1] / "tokenizers" / "packaged"  # tokenizers that come with Tilework
HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


class Url(str):
    """A URL that is safe to log: no password, key or query."""

    __slots__ = ()

    def __new__(cls, text: str) -> Url:
        """Refuses an unknown scheme, anything that may hold a secret, and ambiguous paths."""
        scheme, sign, rest = text.partition("://")
        if not sign or scheme.lower() not in SCHEMES:
            said = f"'{scheme}://'" if re.fullmatch(r"[\w.+:-]{1,32}", scheme) else "this kind of URL"
            raise InputError(f"{said} is not supported", f"give a path, or a URL of {', '.join(SCHEMES)}")
        # the text itself is not shown: it may be a secret
        hint = "remove it: URLs are written into logs and files"
        if "@" in rest:
            raise InputError(f"the {scheme} URL has a user name or password", hint)
        if "?" in rest or "#" in rest:
            raise InputError(f"the {scheme} URL has a query or fragment", hint)
        host, _, path = rest.partition("/")
        if not HOST.fullmatch(host) or re.search(r"[\\\x00-\x1f\x7f-\x9f]|::|://|(^|/)\.\.?(/|$)", path):
            raise InputError(f"the {scheme} URL has an invalid host or path", f"give {scheme}://HOST/DIRECTORY")
        return super().__new__(cls, text)

    @property
    def scheme(self) -> str:
        """The part before ://, in lower case."""
        return self.partition("://")[0].lower()


Location = Path | Url


def location(given: Path | str) -> Location:
    """A Url if the text contains ://, else a path."""
    text = str(given)
    if isinstance(given, Path):
        if text.startswith(tuple(f"{scheme}:/" for scheme in SCHEMES)):  # a Path has lost one of the two /
            raise InputError(
                f"'{text}' is neither a path nor a URL", "pass a URL as str: Path drops one of its slashes"
            )
        return given
    return Url(text) if "://" in text else Path(text)


def is_store(given: Location) -> bool:
    """Whether a path or URL names a token store rather than a folder of images."""
    return isinstance(given, Url) or (given / "manifest.json").exists() or given.suffix == ".tok"


def packaged() -> tuple[str, ...]:
    """Names of the tokenizers that come with Tilework."""
    return tuple(sorted(path.parent.name for path in PACKAGED.glob(f"*/{TOKENIZER}")))


def what_is(path: Path) -> str | None:
    """What of ours a directory is, in words; None for anything else."""
    return next((name for file, name in KINDS.items() if (path / file).is_file()), None)
