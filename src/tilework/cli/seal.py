"""`tilework seal`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Json, KeepOrder, OptionalData
from tilework.cli.output import progress_bar, show


def seal(
    out: Annotated[Positional[Path], arg(metavar="STORE")],
    /,
    like: OptionalData = None,
    codec: str = "auto",
    max_broken: float = 0.05,
    keep_order: KeepOrder = False,
    shard: Annotated[str, arg(metavar="I/N", help_behavior_hint="(optional)")] = "",
    engine: Literal["here", "ray"] = "here",
    json: Json = False,
) -> None:
    """Combine the parts of 'tilework tokenize --shard I/N' into a token store.

    Try:
      tilework seal train.tok
      tilework seal train.tok --shard 3/8
      tilework seal train.tok --engine ray

    Args:
        out: Store to write.
        like: Store whose set of used codes to take over, for validation sets.
        max_broken: Largest share of unreadable images that is accepted.
        codec: packed, rans, rans-context, mix, auto (the smallest of these), or pairwise (slow).
        shard: Code only the I-th of N shares of the images (0/8 to 7/8), for job arrays; then run it once without.
        engine: Code in this process, or on a Ray cluster. All machines must see STORE under the same path.
    """
    from tilework.core.errors import ConfigError
    from tilework.store import Spool, Store, spool_of
    from tilework.store.finish import refuse_existing
    from tilework.store.seal import SealOptions, seal_share
    from tilework.tokenizers.ray_engine import code_on_ray
    from tilework.tokenizers.tokenize import finish, parse_share

    refuse_existing(out)
    used, spool = Store(like).used if like else None, Spool.open(spool_of(out))
    with progress_bar("seal", quiet=json) as progress:
        if shard:
            if engine != "here":
                raise ConfigError(
                    f"--shard does not work with --engine {engine}", "drop one: Ray splits the work itself"
                )
            options = SealOptions(codec, used=used, shuffle=not keep_order)
            ranges = seal_share(spool, options, *parse_share(shard), progress)
            show({"spool": str(spool.path), "share": shard, "ranges": ranges, "then": f"tilework seal {out}"}, json)
            return
        engine_of = code_on_ray if engine == "ray" else None
        broken = finish(spool, out, codec, used, max_broken, progress, not keep_order, engine_of)
    store = Store(out)
    size = sum(store.sizes.values()) / len(store)
    shown = {"store": str(out), "images": len(store), "quarantined": len(broken), "codec": store.manifest.codec}
    show({**shown, "bytes_per_image": size}, json)
