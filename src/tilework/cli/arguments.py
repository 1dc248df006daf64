"""Arguments that commands share, with the names that --help shows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from tilework.core.place import Place, Url, place

# a path, or a URL that stays as it was written; a plain Path would lose one of its two slashes
Data = Annotated[
    Place,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH|URL",
        instance_from_str=lambda words: place(words[0]),
        is_instance=lambda value: isinstance(value, Path | Url),
        str_from_instance=lambda value: [str(value)],
    ),
]
OptionalData = Annotated[Data | None, arg(metavar="PATH|URL", help_behavior_hint="(optional)")]
Images = Annotated[Positional[Path], arg(metavar="IMAGES", help="Folder with one sub-folder of images per class.")]
StorePath = Annotated[Positional[Data], arg(metavar="STORE", help="Directory or URL of a token store.")]
Settings = Annotated[
    Positional[tuple[str, ...]],
    arg(metavar="KEY=VALUE", help="Settings over the recipe and the file.", help_behavior_hint="(any number)"),
]
OptionalPath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(optional)")]
Device = Annotated[str, arg(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")]
Json = Annotated[bool, arg(help="Print one JSON object, for programs.", help_behavior_hint="")]
DryRun = Annotated[bool, arg(help="Show the plan and an estimate, and stop.", help_behavior_hint="")]
