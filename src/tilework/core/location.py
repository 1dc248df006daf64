"""Locations: a local path, a URL of data, or a name on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from tilework.core.errors import InputError

TOKENIZER = "tokenizer.json"  # the file that a directory is a tokenizer by
TABLE = "a table or comparison of runs"
SCHEMES = ("http", "https", "s3", "gs", "memory")
KINDS = {  # what a directory is, by a file that it has
    "manifest.json": "a token store",
    TOKENIZER: "a tokenizer",
    "token_adapt.json": "a TokenAdapt",
    "model.json": "an exported model",
    "maps.json": "label maps",
    "run.yaml": "a run",
    "chain.yaml": "a chain of runs",
    "settings.json": TABLE,
    "plan.json": "an unfinished token store",
}
PACKAGED = Path(__file__).parents[1] / "tokenizers" / "packaged"  # tokenizers that come with Tilework
HF, HUB_KINDS = "hf://", ("datasets", "models", "spaces", "kernels", "buckets")
HUB = re.compile(
    r"hf://(?:(?P<kind>datasets|models)/(?=[^/@]+/))?(?P<repo>[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95})"
    r"(?:@(?P<revision>refs/pr/[0-9]+|[A-Za-z0-9_][\w.-]{0,95}))?(?:/(?P<file>.{1,500}))?",
    re.ASCII,
)
COMMIT = re.compile(r"[0-9a-f]{40}")
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


class HubName(str):
    """Files on the Hugging Face Hub: hf://[datasets/]OWNER/NAME[@REVISION][/FILE]."""

    __slots__ = ()

    def __new__(cls, text: str) -> HubName:
        """Refuses anything else, and paths that lead elsewhere. The text itself is not shown: it may be a secret."""
        found = HUB.fullmatch(text)
        if found is None or found["repo"].split("/")[0] in HUB_KINDS or re.search(r"\.\.|--|\.git(/|$)", found["repo"]):
            raise InputError("this is no name on the Hugging Face Hub", "give hf://OWNER/NAME[@REVISION][/FILE]")
        if re.search(r"[\\\x00-\x1f\x7f-\x9f]|^/|//|(^|/)\.\.?(/|$)|/$", found["file"] or ""):
            raise InputError(f"hf://{found['repo']} has an invalid file name", "give hf://OWNER/NAME[@REVISION][/FILE]")
        return super().__new__(cls, text)

    def _part(self, name: str) -> str:
        found = HUB.fullmatch(self)
        assert found is not None
        return found[name] or ""

    @property
    def kind(self) -> str:
        """Of repository: 'model' or 'dataset'; empty where the name does not say it."""
        return self._part("kind").removesuffix("s")

    @property
    def repo(self) -> str:
        """OWNER/NAME."""
        return self._part("repo")

    @property
    def revision(self) -> str:
        """Branch, tag or commit; empty for the newest."""
        return self._part("revision")

    @property
    def file(self) -> str:
        """File or folder in the repository; empty for all of it."""
        return self._part("file")

    @property
    def pinned(self) -> bool:
        """Whether it names a commit, which never changes."""
        return bool(COMMIT.fullmatch(self.revision))

    def at(self, revision: str, kind: str = "") -> HubName:
        """The same at a revision."""
        kind = kind or self.kind
        prefix = "datasets/" if kind == "dataset" else ""
        return HubName(f"hf://{prefix}{self.repo}@{revision}" + (f"/{self.file}" if self.file else ""))


def hub_name(text: str) -> HubName | None:
    """A name on the hub if the text is one: hf://..., or timm:MODEL.WEIGHTS, which lie under hf://timm."""
    if text.startswith(HF):
        return HubName(text)
    if text.startswith("timm:"):
        if "." not in text:
            hint = f"add the name of its weights as on huggingface.co/timm, such as {text}.a1_in1k"
            raise InputError(f"{text} names no weights", hint)
        return HubName(f"hf://timm/{text.removeprefix('timm:')}")
    return None


Location = Path | Url
PathOrHub = Path | HubName


def location(given: Path | str) -> Location:
    """A Url if the text contains ://, else a path."""
    text = str(given)
    if isinstance(given, Path):
        if text.startswith(tuple(f"{scheme}:/" for scheme in (*SCHEMES, "hf"))):  # a Path has lost one of the two /
            raise InputError(
                f"'{text}' is neither a path nor a URL", "pass a URL as str: Path drops one of its slashes"
            )
        return given
    if text.startswith(HF):
        what = f"{HubName(text)} is not read in place"
        raise InputError(what, f"fetch it with 'tilework pull {text} --out DIRECTORY'")
    return Url(text) if "://" in text else Path(text)


def path_or_hub(given: Path | str) -> PathOrHub:
    """A name on the hub, or a path."""
    if isinstance(given, Path | HubName):
        return given
    return hub_name(given) or Path(given)


def is_store(given: Location) -> bool:
    """Whether a path or URL names a token store rather than a folder of images."""
    return isinstance(given, Url) or (given / "manifest.json").exists() or given.suffix == ".tok"


def packaged() -> tuple[str, ...]:
    """Names of the tokenizers that come with Tilework."""
    return tuple(sorted(path.parent.name for path in PACKAGED.glob(f"*/{TOKENIZER}")))


def what_is(path: Path) -> str | None:
    """What of ours a directory is, in words; None for anything else."""
    found = next((name for file, name in KINDS.items() if (path / file).is_file()), None)
    if found is None and path.parent.name == "runs" and what_is(path.parent.parent) == TABLE:
        return "a row of a table"
    return found
