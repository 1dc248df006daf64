"""`tilework push` and `tilework pull`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import DryRun, Json, OptionalPath
from tilework.cli.output import progress_bar, show
from tilework.core.location import HubName

Name = Annotated[Positional[str], arg(metavar="hf://OWNER/NAME")]


def push(
    path: Annotated[Positional[Path], arg(metavar="PATH")],
    name: Name,
    /,
    *,
    private: Annotated[bool, arg(help_behavior_hint="")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Put a store, tokenizer, run or exported model on the Hugging Face Hub.

    A card is written for it. The repository is made if it is not there; a store becomes a data set. Log in first with
    'hf auth login', or set HF_TOKEN. HF_ENDPOINT names another server.

    Try:
      tilework push train.tok hf://owner/flowers-tokens
      tilework push tokenizer hf://owner/tokenizer --private
      tilework push runs/token hf://owner/flowers

    Args:
        path: Directory of a token store, a tokenizer, a run or an exported model.
        name: Repository, hf://OWNER/NAME, or hf://OWNER/NAME@BRANCH.
        private: Let only you see a repository that is made.
    """
    from tilework.core.hub import pushable

    pushable(path, HubName(name))  # what can be refused without torch
    from tilework.runs.share import push as run

    show(run(path, HubName(name), private, dry_run, quiet=json), json)


def pull(
    name: Name,
    /,
    *,
    out: OptionalPath = None,
    json: Json = False,
) -> None:
    """Fetch a store, tokenizer, run or exported model from the Hugging Face Hub.

    Every file is checked against its hash, and files that may run code are left behind. Repeat to resume.

    Try:
      tilework pull hf://owner/flowers-tokens --out train.tok
      tilework pull hf://owner/tokenizer@v1 --out tokenizer

    Args:
        name: hf://OWNER/NAME[@REVISION][/FOLDER].
        out: New directory; by default the last word of the name, in this folder.
    """
    from tilework.core.errors import OutputError
    from tilework.core.files import is_free
    from tilework.core.hub import look

    wanted = HubName(name)
    out = out or Path((wanted.file or wanted.repo).rpartition("/")[2])
    if not is_free(out):
        raise OutputError(f"{out} exists", "choose another --out or remove it")
    repository = look(wanted)
    from tilework.runs.share import pull as run  # and torch, when there is something to fetch

    with progress_bar("pull", quiet=json) as progress:
        found = run(repository, out, progress)
    show(found, json)
