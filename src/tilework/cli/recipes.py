"""`tilework recipes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from tilework.cli.arguments import Json
from tilework.cli.output import compact

WIDTH = 100
OWN = "Tilework"  # heading of recipes that are not from a paper


def recipes(
    name: Annotated[Positional[str | None], arg(metavar="NAME")] = None,
    /,
    *,
    paper: Annotated[str | None, arg(metavar="PAPER", help_behavior_hint="(optional)")] = None,
    input: Literal["any", "tokens", "pixels"] = "any",
    size: Literal["any", "cpu", "full"] = "any",
    search: Annotated[str | None, arg(metavar="WORD", help_behavior_hint="(optional)")] = None,
    small: Annotated[bool, arg(help_behavior_hint="")] = False,
    json: Json = False,
) -> None:
    """List recipes with published and measured accuracy, or print one as YAML.

    Try:
      tilework recipes
      tilework recipes --paper SeiT++ --size cpu
      tilework recipes --search cutmix --input tokens
      tilework recipes seit_vit_b --small
      tilework recipes demo_token > mine.yaml    (edit it, then: tilework train demo_token --config mine.yaml)

    Args:
        name: Recipe to print; without it all are listed.
        paper: Only recipes of one paper: SeiT, SeiT++, LV-ViT, TL-Align, 'Good tokenizers', VQGAN, or 'none'.
        input: Only recipes that train on token stores, or on images.
        size: Only recipes for two CPU cores (cpu), or at the size of the papers (full).
        search: Only recipes with this word in name, description, note or settings, such as cutmix or drop_path=0.1.
        small: Print the small form of NAME, for two cores.
    """
    from tilework.recipes.index import cards

    if name is not None:
        _show(name, small, json)
        return
    if small:
        from tilework.core.errors import ConfigError

        raise ConfigError("--small belongs to a recipe", "give its name, or list small ones with --size cpu")
    known = cards()
    papers = {card["paper"].casefold(): card["paper"] for card in known}
    if paper is not None and (paper := "" if paper == "none" else paper).casefold() not in papers:
        from tilework.core.errors import ConfigError
        from tilework.core.registry import nearest

        hint = nearest(paper, [one or "none" for one in papers.values()])
        raise ConfigError(f"no recipes of a paper '{paper}'", hint)
    found = [
        card
        for card in known
        if (paper is None or card["paper"].casefold() == paper.casefold())
        and input in ("any", card["takes"])
        and size in ("any", card["size"])
        and (search is None or search.casefold() in _text(card))
    ]
    shown = [{key: value for key, value in card.items() if key not in ("run", "listed")} for card in found]
    print(compact(shown) if json else _table(shown), end="\n" if json else "")


def _show(name: str, small: bool, json: bool) -> None:
    """One recipe as a YAML file for --config, with its figures as comments."""
    from tilework.core.config import encode, to_yaml
    from tilework.recipes.index import find_entry

    card = find_entry(name, small)
    if card is None:  # the recipes themselves know more, or say what is wrong
        from tilework.recipes import find

        recipe = find(name, small)
        card = {**recipe.card(), "run": encode(recipe.run)}
    if json:
        print(compact({key: value for key, value in card.items() if key != "listed"}))
        return
    found = card["measured"]
    measured = f"{_figures(found)} (docs/results.md, {found['section']})" if found else "not yet"
    lines = [
        card["about"],
        f"published: {_figures(card['published']) or 'no figure'}",
        f"measured: {measured}",
        *([f"also named {', '.join(card['also'])}"] if card["also"] else []),
        *([f"on two cores: {card['small']}, or --small"] if card["small"] else []),
        *([f"note: {card['note']}"] if card["note"] else []),
    ]
    for line in lines:
        print("\n".join(wrap(line, WIDTH, initial_indent="# ", subsequent_indent="#   ")))
    print(f"# {card['command']}")  # in one line, to copy
    print(to_yaml(card["run"]), end="")


def _table(cards: list[dict[str, Any]]) -> str:
    """Recipes by paper; our own last."""
    if not cards:
        return "No recipe matches.\n"
    lines = []
    for paper in sorted({card["paper"]: None for card in cards}, key=lambda one: not one):
        group = [card for card in cards if card["paper"] == paper]
        width = max(len(card["name"]) for card in group)
        lines.append(f"{paper or OWN:<{width + 2}}  paper   here input")
        for card in group:
            row = f" ({card['row']})" if card["row"] else ""
            also = f"; also {', '.join(card['also'])}" if card["also"] else ""
            network = "" if card["network"] == "small ViT" else card["network"]  # nearly all of those for two cores
            words = ", ".join(filter(None, (f"{card['method']}{row}", network))) + also
            head = f"  {card['name']:<{width}} {_first(card['published'])}{_first(card['measured'])} {card['takes']}  "
            lines += wrap(words, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
        lines.append("")
    lines.append("Top-1 accuracy in %: published (*: not ImageNet-1k top-1) and measured here on small data; -: none.")
    lines.append("Ours are of different lengths and data: to compare methods see docs/results.md, 'All effects'.")
    lines.append("'tilework recipes NAME' prints one with all figures, its command and its settings.")
    return "\n".join(lines) + "\n"


def _first(figures: Mapping[str, Any] | None) -> str:
    """The first accuracy, starred where it is not top-1 on ImageNet-1k."""
    name = next((name for name in figures or {} if "top1" in name), None)
    return f"{figures[name]:6.1f}{' ' if name == 'top1' else '*'}" if figures and name else "     - "


def _figures(figures: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in figures.items() if name != "section")


def _text(card: Mapping[str, Any]) -> str:
    words = [card["name"], *card["also"], card["about"], card["note"], *_settings(card["run"])]
    return " ".join(words).casefold()


def _settings(plain: Any) -> Iterator[str]:
    """Settings as they are written on the line: names of parts, and key=value."""
    for key, value in plain.items() if isinstance(plain, dict) else enumerate(plain):
        if isinstance(value, dict | list):
            yield from _settings(value)
        yield str(value) if key == "name" else f"{key}={value}".replace(" ", "")
