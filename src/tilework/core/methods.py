"""Plug-ins: modules of other packages that register models, augmentations or recipes when imported.

They are listed in `TILEWORK_METHODS=package.module,other`, or as entry points `tilework.methods` of installed packages.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import entry_points

from tilework.core.errors import ConfigError

VARIABLE, GROUP = "TILEWORK_METHODS", "tilework.methods"
imported: list[str] = []  # modules of other packages


def import_methods() -> None:
    """Import the plug-ins that the environment and installed packages list."""
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for module in (*named, *(point.module for point in entry_points(group=GROUP))):
        try:
            import_module(module)
            imported.append(module)
        except ImportError as error:
            raise ConfigError(f"plug-in '{module}' cannot be imported", f"correct {VARIABLE} ({error})") from error
