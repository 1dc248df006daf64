"""`tilework verify`."""

from __future__ import annotations

from tilework.cli.arguments import Json, StorePath
from tilework.cli.output import progress_bar, show


def verify(store: StorePath, /, deep: bool = False, json: Json = False) -> None:
    """Check files and records of a token store against their checksums.

    Try:
      tilework verify train.tok

    Args:
        deep: Decode every record too, not only a sample.
    """
    from tilework.core.errors import DamageError
    from tilework.store import Store

    tokens = Store(store)
    with progress_bar("verify", quiet=json) as progress:
        problems = tokens.verify(deep, progress=progress)
    if json:
        show({"store": str(store), "images": len(tokens), "problems": problems}, True)
    elif not problems:
        print(f"{store}: {len(tokens):,} images in {len(tokens.manifest.shards)} shards, no damage found")
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        for problem in problems if not json else []:
            print(problem)
        raise DamageError(f"{store} is damaged: {problems[0]}{more}", "restore the files from a copy or tokenize again")
