"""`tilework merge`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Data, Json
from tilework.cli.output import progress_bar, show


def merge(
    stores: Annotated[Positional[tuple[Data, ...]], arg(metavar="STORE", help_behavior_hint="(required)")],
    /,
    out: Path,
    codec: str = "",
    columns: Annotated[tuple[str, ...] | None, arg(metavar="NAME", help_behavior_hint="(optional)")] = None,
    prefix: Annotated[tuple[str, ...] | None, arg(metavar="TEXT ...", help_behavior_hint="(optional)")] = None,
    json: Json = False,
) -> None:
    """Merge token stores of one tokenizer; classes are matched by name.

    Try:
      tilework merge monday.tok tuesday.tok --out week.tok
      tilework merge monday.tok tuesday.tok --prefix mon/ tue/ --out week.tok

    Args:
        stores: Directories or URLs of token stores.
        out: Store to write.
        codec: Codec of the new store; by default that of the inputs if they agree.
        prefix: One for each store, put before its keys, where images of different stores have the same key.
        columns: Columns to keep beside label and key; by default those of the first store.
    """
    from tilework.core.errors import ConfigError, InputError
    from tilework.store import Store
    from tilework.store import merge as run

    if not stores:
        raise InputError("no stores to merge", "give two or more")
    if prefix == ():
        hint = f"give one for each of the {len(stores)} stores, such as --prefix a/ b/"
        raise ConfigError("--prefix is given no text", hint)
    with progress_bar("merge", quiet=json) as progress:
        run(out, [Store(path) for path in stores], codec, columns, progress, prefix or ())
    made = Store(out)
    show({"store": str(out), "images": len(made), "classes": len(made.classes), "codes": made.vocabulary}, json)
