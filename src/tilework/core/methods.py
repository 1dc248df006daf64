"""Methods of other packages: modules that register their parts when they are imported.

`TILEWORK_METHODS=package.module,other` names them; installed packages name theirs as entry points `tilework.methods`.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import entry_points

from tilework.core.errors import ConfigError

VARIABLE, GROUP = "TILEWORK_METHODS", "tilework.methods"
imported: list[str] = []  # modules of other packages


def import_methods() -> None:
    """Import what the environment and installed packages name."""
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for module in (*named, *(point.module for point in entry_points(group=GROUP))):
        try:
            import_module(module)
            imported.append(module)
        except ImportError as error:
            raise ConfigError(f"the method '{module}' cannot be imported", f"correct {VARIABLE} ({error})") from error
