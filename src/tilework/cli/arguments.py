"""Arguments that commands share, with their --help texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from tilework.core.location import HubName, Location, PathOrHub, Url, location, path_or_hub

if TYPE_CHECKING:
    from tilework import runs


def fetched(text: str) -> Path:
    """A path on this machine; a name on the hub is fetched."""
    from tilework.core.hub import local

    return local(path_or_hub(text))


# a path or a URL; a plain Path would turn https:// into https:/
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
# a path, or a name on the hub, which is fetched; LocalOrHub stays as it is until it is needed
Local = Annotated[
    Path,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH|hf://...",
        instance_from_str=lambda words: fetched(words[0]),
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda value: [str(value)],
    ),
]
LocalOrHub = Annotated[
    PathOrHub,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="PATH|hf://...",
        instance_from_str=lambda words: path_or_hub(words[0]),
        is_instance=lambda value: isinstance(value, Path | HubName),
        str_from_instance=lambda value: [str(value)],
    ),
]
OptionalLocal = Annotated[Local | None, arg(metavar="PATH|hf://...", help_behavior_hint="(optional)")]
OptionalHub = Annotated[LocalOrHub | None, arg(metavar="PATH|hf://...", help_behavior_hint="(optional)")]
OptionalData = Annotated[Data | None, arg(metavar="PATH|URL", help_behavior_hint="(optional)")]
Images = Annotated[
    Positional[Path], arg(metavar="IMAGES", help="Folder with one sub-folder of images per class, or a label file.")
]
StorePath = Annotated[Positional[Data], arg(metavar="STORE", help="Directory or URL of a token store.")]
Settings = Annotated[
    Positional[tuple[str, ...]],
    arg(
        metavar="[KEY=VALUE ...]",
        help="Override settings of the recipe, such as fit.batch=32; see docs/settings.md.",
        help_behavior_hint="(any number)",
    ),
]
OptionalPath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(optional)")]
Classes = Annotated[
    Literal["leaf", "top"] | None,
    arg(
        metavar="leaf|top",
        help="Classes of nested folders: the folders that hold images (leaf, the default), or the first level (top).",
        help_behavior_hint="(optional)",
    ),
]
Names = Annotated[
    Path | None,
    arg(
        metavar="FILE",
        help="File with lines CLASS,NAME: names to show instead of WordNet ids or numbers.",
        help_behavior_hint="(optional)",
    ),
]
Photographs = Annotated[
    Path | None,
    arg(
        metavar="FOLDER",
        help="Folder that the token store was made from, to show its photographs, if it is not where it was.",
        help_behavior_hint="(optional)",
    ),
]
Best = Annotated[
    bool, arg(help="Use the checkpoint with the best validation figure, not the last.", help_behavior_hint="")
]
Device = Annotated[str, arg(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, ...")]
Json = Annotated[bool, arg(help="Print the result as JSON and no progress.", help_behavior_hint="")]
KeepOrder = Annotated[
    bool,
    arg(
        help="Keep images in the order of the source; they are shuffled otherwise, so that training can read shard "
        "after shard from a bucket. Keys say which image is which.",
        help_behavior_hint="",
    ),
]
DryRun = Annotated[
    bool, arg(help="Check the arguments, print plan and estimated cost, and exit.", help_behavior_hint="")
]


@dataclass(frozen=True)
class Artefacts:
    """Trained or prepared inputs that some recipes need beside their data."""

    tokenizer: OptionalHub = None
    """Directory of the tokenizer or hf://OWNER/NAME, for recipes that train a TokenAdapt or decode tokens."""
    adapter: OptionalPath = None
    """Directory of a trained TokenAdapt (OUT/token_adapt of its run), or SeiT++'s published file of its weights, for
    recipes that augment with it."""
    maps: OptionalPath = None
    """Directory of label maps from 'tilework annotate', for token labelling on images."""

    def found(self) -> runs.Artefacts:
        """The same as `tilework.runs` takes it; not imported before it is needed."""
        from tilework import runs

        return runs.Artefacts(self.tokenizer, self.adapter, self.maps)


Given = OmitArgPrefixes[Artefacts]
NONE = Artefacts()
