"""Boxes of Pascal VOC's XML files: edges count from 1 and are inclusive (Everingham et al., 2010)."""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

from tilework.core.files import read_plain

LARGEST = 1 << 24  # bytes of a file
DEEPEST = 16
Box = tuple[str, tuple[float, float, float, float], bool]  # name, edges, whether it is difficult


def read_voc(path: Path) -> tuple[list[Box], tuple[int, int] | None]:
    """Boxes of an image, edges from 0, exclusive, and its height and width where the file says them.

    A document type is refused, so no entity is ever resolved. Problems are ValueErrors and OSErrors: the image is set
    aside.
    """
    values = _values(read_plain(path, LARGEST), path.name)
    boxes: list[Box] = []
    for one in values.get("annotation/object", []):
        edges = [_number(one, f"bndbox/{name}", path) for name in ("xmin", "ymin", "xmax", "ymax")]
        if not one.get("name"):
            raise ValueError(f"an object of {path.name} has no name")
        corner = (edges[0] - 1, edges[1] - 1, edges[2], edges[3])
        boxes.append((one["name"], corner, one.get("difficult", "0") == "1"))
    size = values.get("annotation/size", [{}])[0]
    if not size.get("width", "").isdigit() or not size.get("height", "").isdigit():
        return boxes, None
    return boxes, (int(size["height"]), int(size["width"]))


def _number(values: dict[str, str], name: str, path: Path) -> float:
    try:
        return float(values[name])
    except (KeyError, ValueError) as error:
        raise ValueError(f"an object of {path.name} has no {name.rpartition('/')[2]}") from error


def _values(data: bytes, name: str) -> dict[str, list[dict[str, str]]]:
    """Texts below every object and size, by their paths; parts of an object (a person's head) are left out."""
    found: dict[str, list[dict[str, str]]] = {}
    at: list[str] = []
    text: list[str] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        at.append(tag)
        text.clear()
        if len(at) > DEEPEST:
            raise ValueError(f"{name} is nested too deep")
        if len(at) == 2:
            found.setdefault("/".join(at), []).append({})

    def end(tag: str) -> None:
        if len(at) > 2:
            found["/".join(at[:2])][-1].setdefault("/".join(at[2:]), "".join(text).strip())
        text.clear()
        at.pop()

    def refuse(*arguments: object) -> None:
        raise ValueError(f"{name} declares a document type")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text.append, refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError) as error:  # LookupError: no such encoding
        raise ValueError(f"{name} is no XML ({error})") from error
    return found
