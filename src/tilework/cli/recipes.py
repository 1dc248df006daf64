"""`tilework recipes`."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Positional, arg

from tilework.cli.arguments import Json


def recipes(name: Annotated[Positional[str | None], arg(metavar="NAME")] = None, /, json: Json = False) -> None:
    """List the recipes, or show one as YAML.

    Try:
      tilework recipes
      tilework recipes demo_token > mine.yaml    (edit it, then: tilework train demo_token --config mine.yaml)

    Args:
        name: The recipe to show; all are listed without it.
    """
    import json as text
    from inspect import getdoc

    from tilework.core.config import encode, to_yaml
    from tilework.core.errors import ConfigError
    from tilework.core.registry import nearest
    from tilework.recipes import chains
    from tilework.recipes import recipes as runs

    known = {entry: runs[entry] for entry in runs} | {entry: chains[entry] for entry in chains}
    if name is not None:
        if name not in known:
            raise ConfigError(f"unknown recipe '{name}'", nearest(name, known))
        run = known[name]()
        print(text.dumps(encode(run), indent=2) if json else to_yaml(run), end="\n" if json else "")
        return
    lines = {entry: (getdoc(known[entry]) or "").splitlines()[0] for entry in known}
    if json:
        print(text.dumps(lines, indent=2))
        return
    width = max(map(len, lines)) + 2
    for entry, line in lines.items():
        print(f"{entry:<{width}}{line}")
