"""Arguments that commands share, with the names that --help shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from tilework.core.location import Location, Url, location

if TYPE_CHECKING:
    from tilework import runs

# a path, or a URL that stays as it was written; a plain Path would lose one of its two slashes
Data = Annotated[
    Location,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH|URL",
        instance_from_str=lambda words: location(words[0]),
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


@dataclass(frozen=True)
class Artefacts:
    """Directories that some recipes need beside their data."""

    tokenizer: OptionalPath = None
    """Directory of the tokenizer, for recipes that learn about one (token_adapt) or decode."""
    adapter: OptionalPath = None
    """Directory of a trained TokenAdapt (OUT/token_adapt of such a run), for recipes that augment with it."""
    maps: OptionalPath = None
    """Directory of label maps ('tilework annotate'), for token labelling on images."""

    def found(self) -> runs.Artefacts:
        """As the engine takes them."""
        from tilework import runs

        return runs.Artefacts(self.tokenizer, self.adapter, self.maps)


Given = OmitArgPrefixes[Artefacts]
NONE = Artefacts()
