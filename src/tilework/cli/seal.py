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
    """Combine the parts of 'tilework tokenize --shard I/N' into a token store.

    Try:
      tilework seal train.tok

    Args:
        out: Store to write.
        like: Store whose set of used codes to take over, for validation sets.
        max_broken: Largest share of unreadable images that is accepted.
        codec: packed, rans, rans-context, mix, auto (the smallest of these), or pairwise (slow).
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
