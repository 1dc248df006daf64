"""Typed configuration: frozen dataclasses <-> plain values, strict, with YAML files and key=value overrides.

A field whose class has a `choices` registry is written as a mapping with a `name`, which picks the class.
"""

from __future__ import annotations

import dataclasses
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from tilework.core.errors import ConfigError
from tilework.core.files import read_plain
from tilework.core.registry import nearest

C = TypeVar("C")
Plain = dict[str, Any]
LENGTHS = {"steps": "epochs", "epochs": "steps"}  # of a run: setting one of them unsets the other
LARGEST_NUMBER = 2**63 - 1
LARGEST_FILE = 1 << 24  # bytes of a YAML file
LONGEST_VALUE = 300  # letters of a value in a message
# what YAML's own readers of values raise, such as of a 13th month or `!!bool word`
SENSELESS = (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError, RecursionError)
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 200, 200, 60


def encode(value: Any) -> Any:
    """A configuration as plain dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        choices = getattr(kind, "choices", None)
        plain: Plain = {} if choices is None else {"name": choices.name_of(kind)}
        for field in dataclasses.fields(value):
            if field.init:
                plain[field.name] = encode(getattr(value, field.name))
        return plain
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def decode(kind: Any, value: Any, where: str = "") -> Any:
    """A plain value as `kind`; `where` names the field in errors."""
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), value, where)
    if origin is Literal:
        if value not in get_args(kind):
            raise ConfigError(f"{where} is {_said(value)}", f"one of {', '.join(map(str, get_args(kind)))} is needed")
        return value
    if origin in (tuple, list):
        return _decode_sequence(kind, origin, value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is {_said(value)}", "a mapping is needed")
        return {str(key): decode(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and hasattr(kind, "choices"):
        return _decode_choice(kind, value, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    return _decode_scalar(kind, value, where)


def _said(value: Any) -> str:
    """A value in a message: its beginning, where it is large."""
    try:
        text = _SHORT.repr(value)
        return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."
    except ValueError:  # Python prints no number of thousands of digits
        return "a number of thousands of digits"


def _decode_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    for kind in kinds[:-1]:
        try:
            return decode(kind, value, where)
        except ConfigError:
            continue
    return decode(kinds[-1], value, where)


def _decode_sequence(kind: Any, origin: Any, value: Any, where: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where} is {_said(value)}", "a list is needed")
    inner = get_args(kind)
    if origin is list or inner[-1] is Ellipsis:
        return origin(decode(inner[0], item, f"{where}.{i}") for i, item in enumerate(value))
    if len(value) != len(inner):
        raise ConfigError(f"{where} has {len(value)} values", f"{len(inner)} are needed")
    return tuple(decode(k, item, f"{where}.{i}") for i, (k, item) in enumerate(zip(inner, value, strict=True)))


def _decode_choice(kind: Any, value: Any, where: str) -> Any:
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or "name" not in value:
        raise ConfigError(
            f"{where} is {_said(value)}", f"a mapping with a 'name' is needed ({', '.join(kind.choices)})"
        )
    rest = {key: item for key, item in value.items() if key != "name"}
    return _decode_dataclass(kind.choices[decode(str, value["name"], f"{where}.name")], rest, where)


def _elsewhere(key: str, plain: Any, above: str = "") -> str:
    """A hint where a key is known deeper inside a configuration, as `steps` is of `fit`."""
    for name, inner in plain.items() if isinstance(plain, Mapping) else ():
        if isinstance(inner, Mapping):
            if key in inner:
                return f"did you mean '{above}{name}.{key}'?"
            if found := _elsewhere(key, inner, f"{above}{name}."):
                return found
    return ""


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where or 'configuration'} is {_said(value)}", "a mapping is needed")
    known = {field.name: field for field in dataclasses.fields(kind) if field.init}
    hints = _hints(kind)
    filled = {}
    for key, item in value.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in known:
            raise ConfigError(f"unknown key '{path}'", _elsewhere(str(key), value) or nearest(str(key), known))
        filled[key] = decode(hints[key], item, path)
    missing = [
        name
        for name, field in known.items()
        if name not in filled and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where or 'configuration'} lacks '{missing[0]}'", f"set it, such as {missing[0]}: VALUE")
    try:
        return kind(**filled)
    except ValueError as error:  # a dataclass that checks itself
        raise ConfigError(f"invalid settings of {where or 'the run'}", str(error)) from error


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)  # YAML reads 5e-4 as a word
        except (ValueError, OverflowError):
            number = None
        if number is not None and not isfinite(number):
            raise ConfigError(f"invalid settings: {where} is {number}", "it must be a finite number")
        if number is not None:
            return number
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > LARGEST_NUMBER:
            raise ConfigError(f"{where} is {_said(value)}", "give a number below 2^63")
        return value
    if kind in (bool, str) and isinstance(value, kind):
        return value
    raise ConfigError(f"{where} is {_said(value)}", f"a value of type {getattr(kind, '__name__', kind)} is needed")


def override(plain: Plain, assignments: Sequence[str]) -> Plain:
    """Apply `key.inner=value` assignments to a plain configuration; list items by name or index."""
    paths = [assignment.partition("=")[0] for assignment in assignments]
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"override '{assignment}' has no '='", "write key=value, such as fit.batch=32")
        if paths.count(path) > 1:
            raise ConfigError(f"'{path}' is given twice", "give it once")
        value = read_yaml_text(text, f"override '{assignment}'")
        plain = _assign(plain, path.split("."), value, path)
        above, _, last = path.rpartition(".")
        other = LENGTHS.get(last)
        if other and value and f"{above}.{other}" not in paths and _has(plain, f"{above}.{other}"):
            plain = _assign(plain, f"{above}.{other}".split("."), 0, path)
    return plain


def _has(plain: Any, path: str) -> bool:
    """Whether a plain configuration has a key already; list items by name or index."""
    for key in path.split("."):
        if isinstance(plain, list):
            try:
                plain = plain[_position(plain, key, path)]
                continue
            except ConfigError:
                return False
        if not isinstance(plain, dict) or key not in plain:
            return False
        plain = plain[key]
    return True


def _assign(node: Any, keys: Sequence[str], value: Any, path: str) -> Any:
    if not keys:
        return value
    if isinstance(node, list):
        i = _position(node, keys[0], path)
        return [*node[:i], _assign(node[i], keys[1:], value, path), *node[i + 1 :]]
    if node is not None and not isinstance(node, dict):
        raise ConfigError(f"'{path}' names a key inside a plain value", f"stop before '{keys[0]}'")
    return {**(node or {}), keys[0]: _assign((node or {}).get(keys[0]), keys[1:], value, path)}


def _position(items: list[Any], key: str, path: str) -> int:
    """Index of the list item that `key` selects: a number from 0, or the name of an item."""
    if key in (positions := [str(i) for i in range(len(items))]):
        return positions.index(key)
    names = [_name(item) for item in items]
    if not any(names) or key.lstrip("-").isdecimal():
        raise ConfigError(f"'{key}' in '{path}' is not an index of a list of {len(items)}", "count from 0")
    found = [i for i, name in enumerate(names) if name == key]
    if len(found) > 1:
        raise ConfigError(f"'{key}' in '{path}' is at {' and '.join(map(str, found))}", "give the index instead")
    if not found:
        raise ConfigError(f"no '{key}' in the list of '{path}'", nearest(key, filter(None, names)))
    return found[0]


def _name(item: Any) -> str | None:
    """Name of a list item: its own, or that of its first part with a name, as in `extra`."""
    if not isinstance(item, dict):
        return None
    parts = [item, *(part for part in item.values() if isinstance(part, dict))]
    return next((part["name"] for part in parts if isinstance(part.get("name"), str)), None)


def resolve(base: C, file: Path | None = None, assignments: Sequence[str] = ()) -> C:
    """Settings of a recipe, overridden by a YAML file, then by key=value assignments."""
    plain = encode(base)
    if file is not None:
        plain = merge(plain, read_yaml(file))
    return typing.cast(C, decode(type(base), override(plain, assignments)))


def merge(below: Plain, above: Any) -> Plain:
    """Override mappings key by key; a part with another `name` is replaced as a whole.

    A mapping over a list overrides the items that its keys select.
    """
    if not isinstance(above, Mapping):
        raise ConfigError(f"the configuration file holds {_said(above)}", "a mapping of keys to values is needed")
    return {**below, **{key: _merged(below.get(key), value, str(key)) for key, value in above.items()}}


def _merged(old: Any, new: Any, path: str) -> Any:
    if isinstance(old, list) and isinstance(new, Mapping):
        items = list(old)
        for key, value in new.items():
            i = _position(old, str(key), f"{path}.{key}")
            items[i] = _merged(items[i], value, f"{path}.{key}")
        return items
    if isinstance(old, dict) and isinstance(new, Mapping) and new.get("name") in (None, old.get("name")):
        unset = {other: 0 for one, other in LENGTHS.items() if new.get(one) and other in old and other not in new}
        new = {**unset, **new}
        return {**old, **{key: _merged(old.get(key), value, f"{path}.{key}") for key, value in new.items()}}
    return new


def read_yaml(path: Path) -> Any:
    """Values of a YAML file; nothing in it can run code."""
    try:
        return read_yaml_text(read_plain(path, LARGEST_FILE).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}", str(error)) from error


def read_yaml_text(text: str, where: str) -> Any:
    """Values of YAML text."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, *SENSELESS) as error:
        raise ConfigError(f"{where} is not YAML", " ".join(str(error).split())) from error


class _Loader(yaml.SafeLoader):
    """Plain values only. A key given twice is an error, and so are names for parts that are used again.

    No setting needs the latter, and a few hundred bytes become gigabytes by them.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"a part is used again by its name (line {self.line + 1}): write it out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.YAMLError(f"'{key.value}' is given twice (line {key.start_mark.line + 1})")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Every part is written out, however often it occurs."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(value: Any) -> str:
    """A configuration as YAML text, keys in the order of their definition."""
    return yaml.dump(encode(value), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100)


def first_difference(one: Any, other: Any, where: str = "") -> tuple[str, Any, Any]:
    """The first key whose plain values differ, and both values; ("", None, None) if none does."""
    if isinstance(one, dict) and isinstance(other, dict):
        pairs = [(str(key), one.get(key), other.get(key)) for key in (*one, *(key for key in other if key not in one))]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(str(i), a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return ("", None, None) if one == other else (where, one, other)
    found = (first_difference(a, b, f"{where}.{key}" if where else key) for key, a, b in pairs if a != b)
    return next(found, ("", None, None))
