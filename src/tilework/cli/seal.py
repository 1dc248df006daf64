"""`tilework seal`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Json, OptionalData
from tilework.cli.output import progress_bar, show


def seal(
    out: Annotated[Positional[Path], arg(metavar="STORE")],
    /,
    like: OptionalData = None,
    codec: str = "auto",
    max_broken: float = 0.05,
    json: Json = False,
) -> None:
    """Make a token store of what several processes have spooled beside it (STORE.spool).

    Try:
      tilework seal train.tok

    Args:
        out: The store to write.
        like: A store whose codes this one takes over.
        max_broken: Share of unreadable images above which nothing is written.
        codec: packed, rans, rans-context, auto for the smallest of them, or pairwise for archives.
    """
    from tilework.store import Spool, Store, spool_of
    from tilework.tokenizers.tokenize import finish

    used = Store(like).used if like else None
    with progress_bar("seal", quiet=json) as progress:
        broken = finish(Spool.open(spool_of(out)), out, codec, used, max_broken, progress)
    store = Store(out)
    size = sum(store.sizes.values()) / len(store)
    shown = {"store": str(out), "images": len(store), "quarantined": len(broken), "codec": store.manifest.codec}
    show({**shown, "bytes_per_image": size}, json)
