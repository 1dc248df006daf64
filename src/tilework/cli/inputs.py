"""What is wrong with a command line at first sight, said before torch is imported: paths, recipe, order of words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, repeat, takewhile
from pathlib import Path

from tilework.core.errors import ConfigError, InputError
from tilework.core.location import HF, TABLE, location, packaged, path_or_hub, what_is

# the first word of a command and those after it, and what they must be; "data" may be a store, a folder, a label file
# or shards, "images" all of these but a store
FIRST = {
    "eval": ("run",),
    "export": ("run",),
    "predict": ("run", "photograph"),
    "probe": ("run",),
    "explain": ("run", "run"),
    "robustness": ("runs", "runs"),
    "analyze align": ("run",),
    "analyze tokenizers": ("tokenizer", "tokenizer"),
    "inspect": ("store",),
    "verify": ("store",),
    "column": ("store",),
    "subset": ("store",),
    "split": ("data",),
    "tokenize": ("images",),
    "tokenizer train": ("images",),
    "tokenizer teacher": ("images",),
    "tokenizer card": ("tokenizer", "images"),
    "start": ("images",),
    "compare": ("images",),
    "frontier": ("images",),
    "annotate": ("data",),
    "report": ("report", "report"),
}
FLAGS = {
    "--data": "data",
    "--val": "data",
    "--images": "data",
    "--tokenizer": "tokenizer",
    "--adapter": "adapter",
    "--maps": "maps",
    "--like": "store",
    "--store": "store",
    "--start": "file",
    "--config": "file",
    "--labels": "file",
    "--keys": "file",
    "--names": "file",
    "--weights": "file",
    "--transfer": "run",
    "--lpips": "file",
    "--frost": "file",
    "--shift": "shift",
}
FROM_HUB = ("--tokenizer", "--start", "--weights")
KINDS = {  # what is needed, and what to do about anything else
    "run": (("a run", "a chain of runs", "an exported model"), "give a directory that 'tilework train' wrote"),
    "runs": (
        ("a run", "a chain of runs", "an exported model", TABLE, "a row of a table"),
        "give a directory that 'tilework train' or 'tilework table' wrote",
    ),
    "report": (
        ("a run", "a chain of runs", "an exported model", "a token store", TABLE),
        "give a directory that 'tilework train', 'tokenize', 'table', 'robustness' or 'frontier' wrote",
    ),
    "tokenizer": (("a tokenizer",), "train one with 'tilework tokenizer train IMAGES', or give box"),
    "adapter": (("a TokenAdapt",), "give OUT/token_adapt of a run of token_adapt_cpu"),
    "maps": (("label maps",), "make them with 'tilework annotate IMAGES --out MAPS'"),
    "store": (("a token store",), "make one with 'tilework tokenize'"),
    "data": (("a token store", None), "give a token store or a folder of images"),
    "images": ((None,), "give a folder of images, or a label file"),
    "photograph": (("a token store", None), "give photographs, folders of them or a token store"),
    "shift": ((None,), "write NAME=DIR, such as R=imagenet-r"),
}
ABSENT = {  # what is said of a path with nothing, or nothing of the kind
    "run": "no run or exported model in",
    "runs": "no run or exported model in",
    "tokenizer": "no tokenizer in",
    "maps": "no label maps in",
    "photograph": "no such image:",
}
ASSIGNMENT = re.compile(r"[a-z_][\w.]*=.*", re.IGNORECASE)
TAKES_SETTINGS = ("train", "tokenizer train", "tokenizer import", "compare")
TAKES_MANY = ("--data", "--val", "--tokenizer", "--rows", "--shift")  # options of several words
RECIPES = ("train", "recipes")


def is_there(path: Path) -> bool:
    """Whether a path leads somewhere; a word that is too long for one, or not to be looked at, does not."""
    try:
        return path.exists()
    except OSError:
        return False


def in_order(command: str, words: Sequence[str]) -> list[str]:
    """Settings (KEY=VALUE) where the parser expects them: after the first word, wherever they were written."""
    if command not in TAKES_SETTINGS:
        return list(words)
    settings, rest, option = [], list[str](), ""
    for word in words:
        if word.startswith("-"):
            option = word
        elif ASSIGNMENT.fullmatch(word) and option in ("", *TAKES_MANY) and not is_there(Path(word)):
            settings.append(word)
            continue
        rest.append(word)
    first = 1 if rest and not rest[0].startswith("-") else 0
    return [*rest[:first], *settings, *rest[first:]]


def check_inputs(command: str, words: Sequence[str]) -> None:
    """Refuse paths that are missing or something else than they must be, and unknown recipes."""
    if {"-h", "--help"} & set(words):
        return
    for option, value in _values(words):
        if option in FLAGS and "://" in value:  # with a password it is refused before anything else is said
            path_or_hub(value) if option in FROM_HUB and value.startswith(HF) else location(value)
    if command in RECIPES and words and not words[0].startswith("-"):
        _check_recipe(words[0])
    kinds = FIRST.get(command, ())
    for kind, word in zip(chain(kinds, repeat(kinds[-1])) if kinds[1:] else kinds, _leading(words), strict=False):
        _check(kind, word, "")
    for option, value in _values(words):
        if option in FLAGS:
            _check(FLAGS[option], value, option)


def _leading(words: Sequence[str]) -> list[str]:
    """The words before the first option."""
    return list(takewhile(lambda word: not word.startswith("-"), words))


def _values(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options and each of their values."""
    option = ""
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            if equals:
                yield option, value
                option = ""
        elif option:
            yield option, word
            option = option if option in TAKES_MANY else ""


def _check(kind: str, text: str, option: str) -> None:
    if "://" in text or text == "none" or text.startswith("timm:") or any(sign in text for sign in "*?["):
        return  # looked at when it is opened
    text = text.partition("=")[2] if kind == "shift" else text
    path, shown = Path(text), f"{option} " if option else ""
    if not text or (kind == "tokenizer" and text in packaged()):
        return
    hint = KINDS[kind][1] if kind in KINDS else "check the path"
    if not is_there(path):
        spool = path.with_name(f"{path.name}.spool")
        if spool.is_dir():
            what = f"{shown}{path} is not finished: its parts lie in {spool}"
            raise InputError(what, "repeat the 'tilework tokenize' that was stopped, or run 'tilework seal'")
        hint = _alike(path) or hint
        what = f"{ABSENT.get(kind, 'no such data:')} {path}"
        raise InputError(what if kind != "file" else f"no such file: {path} ({option})", hint)
    if kind not in KINDS or not path.is_dir():
        return
    wanted, found = KINDS[kind][0], what_is(path)
    if found in wanted:
        return
    said = {
        "runs": "a run or a table",
        "data": "data",
        "photograph": "a photograph",
        "report": "a run, a token store or a table",
    }
    needed = said.get(kind, wanted[0] or "images")
    if found is None:
        raise InputError(f"{ABSENT[kind]} {path}" if kind in ABSENT else f"{path} is not {needed}", hint)
    if found == "an unfinished token store":
        hint = "repeat the 'tilework tokenize' that was stopped, or run 'tilework seal'"
    if found == "a token store" and kind == "images":
        hint = "its images are tokenized already; " + hint
    if kind in ("run", "runs") and what_is(path / "run") == "a run":  # what 'tilework start' wrote
        hint = f"give the run in it: {path / 'run'}"
    raise InputError(f"{path} is {found}, not {needed}", hint)


def _alike(path: Path) -> str:
    """A hint with the name beside a missing path that is most like it."""
    from difflib import get_close_matches

    try:
        names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return ""
    found = get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"did you mean {path.parent / found[0]}?" if found else ""


def is_folder(words: Sequence[str]) -> bool:
    """Whether the first word of `train` is a folder or label file, and no recipe has its name."""
    if not words or words[0].startswith("-") or not is_there(Path(words[0])):
        return False
    from tilework.recipes.index import names

    return words[0] not in (names() or ())


def _check_recipe(name: str) -> None:
    """An unknown name, by the list that needs no torch."""
    from tilework.core.registry import nearest
    from tilework.recipes.index import names

    known = names()
    if known is not None and name not in known:
        if "=" in name:
            raise ConfigError(f"no recipe before '{name}'", "give one first: tilework train RECIPE KEY=VALUE ...")
        raise ConfigError(f"unknown recipe '{name}'", nearest(name, known))
