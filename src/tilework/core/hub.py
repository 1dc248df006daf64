"""Files on the Hugging Face Hub: looked up, bounded, fetched, checked. huggingface_hub does the talking (extra `hub`).

Only what Tilework reads is fetched: files of its own stores, tokenizers, runs and exports, and safetensors with their
JSON. None of it can run code. A repository says sizes and hashes first; files that turn out otherwise are refused.
Tokens are read by huggingface_hub (HF_TOKEN, or `hf auth login`) and are never printed or kept here.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tilework.core.console import notice
from tilework.core.errors import ConfigError, DamageError, InputError, MachineError, OutputError
from tilework.core.files import sha256, write
from tilework.core.location import COMMIT, HF, HubName, PathOrHub, hub_name, what_is

TOKENIZER = r"tokenizer\.json|weights\.safetensors"
RUN = (
    r"run\.yaml|data\.json|codebook\.safetensors|results\.json|log\.jsonl|log\.csv|checkpoints/(latest|best)|"
    rf"checkpoints/step-\d+/(state\.json|(objective|optimiser|ema)\.safetensors)|tokenizer/({TOKENIZER})"
)
# a file that says what a folder is, and the files that belong to it
SHARED = {
    "manifest.json": r"manifest\.json|[a-z]+\.safetensors|shards/\d+\.tiles|columns/\w+(\.safetensors|/\d+\.tiles)",
    "model.json": rf"model\.(json|safetensors|onnx)|codebook\.safetensors|tokenizer/({TOKENIZER})",
    "run.yaml": RUN,
    "chain.yaml": rf"chain\.yaml|results\.json|[1-9]-[\w.-]+/({RUN})",
    "tokenizer.json": rf"{TOKENIZER}|card\.(json|png)",
}
WEIGHTS, CONFIG = "model.safetensors", "config.json"  # of other people's models
WRITTEN = "<!-- written by 'tilework push' -->"  # in a card that may be replaced
LARGEST_TEXT = 1 << 28  # bytes of a file that is no safetensors and no shard
LARGEST = 1 << 38
MOST_FILES = 100_000
PATIENCE = 30.0  # seconds without an answer


@dataclass(frozen=True)
class Entry:
    """A file of a repository, as the hub describes it."""

    bytes: int
    sha256: str  # of large files; else empty
    blob: str  # git's SHA-1 of small ones; else empty

    def fits(self, path: Path) -> bool:
        """Whether a file is this one."""
        if path.stat().st_size != self.bytes:
            return False
        if self.sha256:
            return sha256(path) == self.sha256
        data = path.read_bytes()
        return not self.blob or hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest() == self.blob


@dataclass(frozen=True)
class Repository:
    """What a repository holds at a commit."""

    name: HubName  # with its kind and commit
    files: Mapping[str, Entry]

    def below(self, folder: str) -> dict[str, Entry]:
        """Files of a folder, named from there."""
        start = f"{folder}/" if folder else ""
        return {name.removeprefix(start): entry for name, entry in self.files.items() if name.startswith(start)}

    def shared(self) -> tuple[str, list[str]]:
        """The file that says what the named folder is, and all that belongs to it; empty for anything else."""
        here = self.below(self.name.file)
        for marker, pattern in SHARED.items():
            belongs = [name for name in here if re.fullmatch(pattern, name)]
            if marker in here and (marker != "tokenizer.json" or "weights.safetensors" in here):  # also one of words
                return marker, sorted(belongs, key=lambda name: (name == marker, name))  # last: then it is complete
        return "", []


@dataclass(frozen=True)
class Fetched:
    """Files of a repository on this machine."""

    name: HubName  # with its kind and commit
    path: Path  # directory, or the one file
    sha256: dict[str, str]  # by file name in the repository


def local(given: PathOrHub | str) -> Path:
    """A path on this machine: a name on the hub is fetched first."""
    return fetch(given).path if isinstance(given, HubName) else Path(given)


def fetch(name: HubName) -> Fetched:
    """A tokenizer, run, exported model or file of weights, into the cache of huggingface_hub.

    What lies there is taken as it is if the name has a commit, or if the hub cannot be reached.
    """
    if name.pinned and (found := _cached(name)) is not None:
        return found
    try:
        repository = look(name)
    except _Unreachable as error:
        if (found := _cached(name)) is None:
            raise InputError(error.what, error.hint) from error
        notice(f"the hub cannot be reached: {found.name} is taken from the cache")
        return found
    prefix = f"{name.file}/" if name.file else ""
    marker, names = repository.shared()
    names = [prefix + one for one in names]
    if marker == "manifest.json":
        raise InputError(f"{name} is a token store", f"fetch it with 'tilework pull {name} --out DIRECTORY'")
    if not names:
        names = [_weights(repository)]
        if prefix == "" and CONFIG in repository.files:
            names.insert(0, CONFIG)  # of timm: what its images look like
    check_room(repository, names, Path(_hub().constants.HF_HUB_CACHE))
    paths = [download(repository, one) for one in names]
    last = paths[-1]
    _remember(name, repository.name)
    return Fetched(repository.name, last.parent if marker else last, _hashes(dict(zip(names, paths, strict=True))))


def exactly(name: str) -> str:
    """A name on the hub with its commit and the SHA-256 of its weights; any other name as it is."""
    if not name.startswith(HF) and not (name.startswith("timm:") and "." in name):
        return name
    given = hub_name(name)
    assert given is not None
    found = fetch(given)
    hashes = [f"{file} {digest}" for file, digest in found.sha256.items() if file.endswith(".safetensors")]
    return f"{found.name} (SHA-256: {', '.join(hashes)})"


def _weights(repository: Repository) -> str:
    """The file that a name without anything of ours stands for."""
    name, files = repository.name, repository.files
    wanted = name.file or WEIGHTS
    if wanted in files and wanted.endswith(".safetensors"):
        return wanted
    if wanted in files:
        raise InputError(f"{name} is no safetensors file", "files that may run code are not fetched; convert it first")
    there = sorted(file for file in files if file.endswith(".safetensors"))
    hint = f"name one of its files: {', '.join(there[:4])}" if there else "it has no safetensors file"
    raise InputError(f"hf://{name.repo} has no {wanted}, and nothing of Tilework", hint)


def look(name: HubName) -> Repository:
    """What a repository holds now, or at the revision of the name."""
    kinds, missing = [name.kind] if name.kind else ["model", "dataset"], None
    for kind in kinds:
        try:
            with _told(name):
                info = _api().repo_info(
                    name.repo, repo_type=kind, revision=name.revision or None, files_metadata=True, timeout=PATIENCE
                )
            break
        except _Absent as error:
            missing = missing or error
    else:
        assert missing is not None
        raise InputError(missing.what, missing.hint) from missing
    files = info.siblings or []
    if not COMMIT.fullmatch(info.sha or "") or len(files) > MOST_FILES:
        raise DamageError(f"the hub's answer about {name} cannot be right", "it has no commit, or too many files")
    entries = {}
    for file in files:
        large, size = file.lfs, file.size if file.lfs is None else file.lfs.size
        if not isinstance(size, int) or not 0 <= size <= LARGEST:
            raise DamageError(f"{name} has a file without a size that can be", str(file.rfilename)[:100])
        HubName(f"hf://{name.repo}/{file.rfilename}")  # refuses a way out of the folder
        entries[file.rfilename] = Entry(size, "" if large is None else str(large.sha256), str(file.blob_id or ""))
    return Repository(name.at(info.sha, kind), entries)


def download(repository: Repository, file: str, folder: Path | None = None) -> Path:
    """A file of a repository, into the cache or a folder; never more bytes than announced, and checked."""
    name, entry = repository.name, repository.files[file]
    if entry.bytes > LARGEST_TEXT and not file.endswith((".safetensors", ".tiles", ".onnx")):
        raise InputError(f"{file} of {name} has {entry.bytes:,} bytes", "it is larger than such a file can be")
    for force in (False, True):  # a damaged copy in the cache is replaced
        with _told(name):
            path = Path(
                _api().hf_hub_download(
                    name.repo,
                    file,
                    repo_type=name.kind or "model",
                    revision=name.revision,
                    local_dir=folder,
                    force_download=force,
                    etag_timeout=PATIENCE,
                    tqdm_class=_bounded(entry.bytes),
                )
            )
        if entry.fits(path):
            return path
    raise DamageError(
        f"{file} of {name} is not what the hub says it is", "its hash differs; try later, or tell its owner"
    )


def _bounded(most: int) -> type[Any]:
    """What huggingface_hub takes for a progress bar: it shows nothing, and stops a file that is too long."""
    from tqdm import tqdm

    class Bounded(tqdm):
        def __init__(self, *args: Any, **settings: Any) -> None:
            settings.pop("name", None)
            super().__init__(*args, **{**settings, "disable": True})
            self.count = int(settings.get("initial") or 0)

        def update(self, n: float | None = 1) -> bool | None:
            self.count += int(n or 0)
            if self.count > most:
                raise DamageError("a file on the hub is longer than the hub said", f"it has more than {most} bytes")
            return None

    return Bounded


def check_room(repository: Repository, files: list[str], folder: Path) -> None:
    """Refuse a download that the disk has no room for."""
    size = sum(repository.files[file].bytes for file in files)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if size > (free := shutil.disk_usage(there).free):
        raise OutputError(f"{repository.name} has {size:,} bytes, {there} has room for {free:,}", "make room")


def _cached(name: HubName) -> Fetched | None:
    """The same from the cache alone, if all of it is there."""
    from_cache = _hub().try_to_load_from_cache
    prefix = f"{name.file}/" if name.file else ""
    markers = [f"{prefix}{marker}" for marker in SHARED if marker != "manifest.json"]
    for file in (*markers, name.file or WEIGHTS):
        for kind in [name.kind] if name.kind else ["model", "dataset"]:
            found = from_cache(name.repo, file, revision=name.revision or "main", repo_type=kind)
            if not isinstance(found, str):
                continue
            path = Path(found)
            root = path.parents[file.count("/")]
            pinned = name.at(root.name, kind)
            if file not in markers:
                beside = {CONFIG: root / CONFIG} if not name.file and (root / CONFIG).is_file() else {}
                return Fetched(pinned, path, _hashes({**beside, file: path}))
            pattern = SHARED[path.name]
            inside = (one for one in path.parent.rglob("*") if one.is_file())
            files = {one.relative_to(root).as_posix(): one for one in inside}
            kept = {one: file for one, file in files.items() if re.fullmatch(pattern, one.removeprefix(prefix))}
            if what_is(path.parent) is not None:
                return Fetched(pinned, path.parent, _hashes(kept))
    return None


def _remember(name: HubName, pinned: HubName) -> None:
    """Which commit a branch was at, where huggingface_hub looks without a connection."""
    if not name.pinned:
        hub = _hub()
        folder = hub.file_download.repo_folder_name(repo_id=pinned.repo, repo_type=pinned.kind or "model")
        write(Path(hub.constants.HF_HUB_CACHE) / folder / "refs" / (name.revision or "main"), pinned.revision.encode())


def _hashes(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: sha256(path) for name, path in sorted(files.items())}


def _hub() -> Any:
    """huggingface_hub, which says nothing by itself."""
    try:
        hub: Any = import_module("huggingface_hub")
        for part in ("utils", "errors", "constants", "file_download"):
            import_module(f"huggingface_hub.{part}")
    except ImportError as error:
        raise MachineError("hf:// needs a package that is not installed", "pip install 'tilework[hub]'") from error
    hub.utils.logging.set_verbosity_error()
    hub.utils.disable_progress_bars()
    return hub


def _api() -> Any:
    """Its client. HF_ENDPOINT names another server."""
    from tilework.version import __version__

    endpoint = os.environ.get("HF_ENDPOINT") or None
    return _hub().HfApi(endpoint=endpoint, library_name="tilework", library_version=__version__)


class _Absent(InputError):
    """No such repository, or a private one."""


class _Unreachable(InputError):
    """No connection to the hub, or none wanted."""


@contextmanager
def _told(name: HubName, writes: bool = False) -> Iterator[None]:
    """Errors of huggingface_hub in one line of ours."""
    hub = _hub()
    errors, does = hub.errors, "written" if writes else "read"
    login = "log in with 'hf auth login', or set HF_TOKEN"
    try:
        yield
    except errors.GatedRepoError as error:
        raise InputError(
            f"{name} is open only to those whom its owner lets in", f"ask on its page, then {login}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        what = f"there is no hf://{name.repo} that you may have {does}"
        raise _Absent(what, f"check the name; if it is private, {login} with a token that may") from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"hf://{name.repo} has no revision '{name.revision}'", "check it") from error
    except errors.EntryNotFoundError as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _answered(name, does, login, error.__cause__) from error
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise _Unreachable(f"{name} cannot be {does}", "no connection to the hub; repeat to go on") from error
        raise InputError(f"{name} is not complete on the hub, nor in the cache", "check the name; try again") from error
    except errors.OfflineModeIsEnabled as error:
        raise _Unreachable(f"{name} is not in the cache", "HF_HUB_OFFLINE is set; unset it to fetch it") from error
    except errors.HfHubHTTPError as error:
        raise _answered(name, does, login, error) from error
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _answered(name, does, login, error.__cause__) from error
        raise InputError(f"{name} cannot be {does}", f"{_line(error)}; repeat to go on") from error
    except Exception as error:  # of its own HTTP client: no connection, time out, cut short
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "httpcore2", "hf_xet"):
            raise
        what = f"{name} cannot be {does}"
        raise _Unreachable(what, f"no connection to the hub ({_line(error)}); repeat to go on") from error


def _answered(name: HubName, does: str, login: str, error: Any) -> InputError:
    """What a status of the server means."""
    status = error.response.status_code
    if status == 401:
        return InputError(f"{name} may not be {does}", f"the hub does not know your token; {login}")
    if status == 403:
        return InputError(f"{name} may not be {does}", f"your token has no right to that; {login} with one that has")
    return InputError(f"{name} cannot be {does}", f"the hub answers {status}; try later")


def _line(error: BaseException) -> str:
    """The first line of an error of others, without tokens, and without addresses, which may be signed."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"Bearer.*|hf_\w+", "(a token)", re.sub(r"https?://\S+", "its address", text))[:160]


def pushable(path: Path, name: HubName) -> str:
    """The file that says what a directory holds; refuses one that cannot be pushed, and a name to push it to."""
    if name.file or name.pinned:
        raise ConfigError(f"{name} is no repository to push to", "give hf://OWNER/NAME, or hf://OWNER/NAME@BRANCH")
    hint = "give a token store, a tokenizer, a run or an exported model"
    if not path.is_dir():
        raise InputError(f"no such directory: {path}", hint)
    marker = next((marker for marker in SHARED if (path / marker).is_file()), None)
    if marker is None:
        raise InputError(f"{path} is {what_is(path) or 'nothing of Tilework'}", hint)
    return marker


def upload(name: HubName, marker: str, files: Mapping[str, Path | bytes], card: str, private: bool = False) -> HubName:
    """Put files and their card into a repository, made if it is not there, as one commit; returns the name with it.

    Files of the same kind that were there and are no more are removed; a card that was edited by hand stays.
    """
    hub, api, kind = _hub(), _api(), name.kind or "model"
    if hub.get_token() is None:
        raise InputError("you are not logged in to the hub", "log in with 'hf auth login', or set HF_TOKEN")
    with _told(name, writes=True):
        api.create_repo(name.repo, repo_type=kind, private=private, exist_ok=True)
    there = look(name.at(name.revision, kind) if name.revision else HubName(f"hf://{kind}s/{name.repo}"))
    if (other := there.shared()[0]) not in ("", marker):
        raise OutputError(f"{name} holds other things ({other})", "choose another name")
    stale = [file for file in there.files if re.fullmatch(SHARED[marker], file) and file not in files]
    if "README.md" in there.files and WRITTEN not in download(there, "README.md").read_text(errors="replace"):
        notice(f"the card of {name} was written by hand and stays")
    else:
        files = {**files, "README.md": card.encode()}
    with _told(name, writes=True):
        adds = [hub.CommitOperationAdd(path_in_repo=file, path_or_fileobj=data) for file, data in files.items()]
        cuts = [hub.CommitOperationDelete(path_in_repo=file) for file in stale]
        branch, message = name.revision or None, "Pushed by Tilework"
        made = api.create_commit(name.repo, [*adds, *cuts], commit_message=message, repo_type=kind, revision=branch)
    if not COMMIT.fullmatch(made.oid or ""):
        raise DamageError(f"the hub's answer about {name} cannot be right", "it has no commit")
    return name.at(made.oid, kind)
