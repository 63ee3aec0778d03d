"""Untrusted JSON as typed values: a dataclass says what may be in a file."""

import re
import reprlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bype.data.files import FileError, read_json

_INT_BOUND = 2**62
_FLOAT_BOUND = 1e100
"""More than float32 data can give, with room for arithmetic."""
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""JSON can hold half of a surrogate pair, which cannot be written or printed."""
_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}

Kind = TypeVar("Kind")
Place = tuple[str | tuple[Any], ...]
"""The path to a value: names of fields, and in brackets places in lists and keys. It becomes text only in an error."""


def decode(kind: type[Kind], value: Any) -> Kind:
    """Return parsed JSON as an instance of ``kind``, or raise a ValueError that says where and what the fault is.

    A kind is a dataclass, ``bool``, ``int``, ``float``, ``str``, ``Literal``, or is built from these: ``list[T]``,
    ``tuple[T, ...]``, ``tuple[S, T]``, ``dict[str, T]``, ``T | None``, and a union of dataclasses that a field
    ``name: Literal[...]`` tells apart. A dataclass must have all its fields, and no others. Its ``__post_init__``
    refuses values that make no sense, by a ValueError.

    Examples
    --------
    >>> decode(dict[str, list[int]], {"counts": [1, 2, "many"]})
    Traceback (most recent call last):
    ValueError: ['counts'][2]: 'many' is not a whole number
    """
    return _decode(kind, value, ())


def decode_file(kind: type[Kind], path: Path, newest: Callable[[Any], Any] = lambda value: value) -> Kind:
    """Read a JSON file of bounded size as an instance of ``kind``; ``newest`` brings an older format to the newest."""
    value = read_json(path)
    try:
        return decode(kind, newest(value))
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error


def check_fields(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as :func:`decode` would give them, and refuse those that it would refuse."""
    hints = _hints(instance.__class__)
    return {name: _decode(hint, getattr(instance, name), (name,)) for name, hint in hints.items()}


def _decode(hint: Any, value: Any, where: Place) -> Any:
    if hint in _SCALARS:
        return _scalar(hint, value, where)
    if is_dataclass(hint):
        return _instance(hint, value, where)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _one_of(arguments, value, where)
    if origin is Literal:
        fits = any(type(value) is type(choice) and value == choice for choice in arguments)
        choices = ", ".join(map(str, arguments))
        _require(fits, value, choices if len(arguments) == 1 else f"one of {choices}", where)
        return value
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        _require(isinstance(value, (list, tuple)), value, "a list", where)
        return origin(_decode(arguments[0], item, (*where, (place,))) for place, item in enumerate(value))
    if origin is tuple:
        fits = isinstance(value, (list, tuple)) and len(value) == len(arguments)
        _require(fits, value, f"a list of {len(arguments)}", where)
        return tuple(_decode(arguments[place], item, (*where, (place,))) for place, item in enumerate(value))
    if origin is dict:
        _require(isinstance(value, dict), value, "an object", where)
        return {_scalar(str, key, where): _decode(arguments[1], item, (*where, (key,))) for key, item in value.items()}
    raise TypeError(f"{hint} cannot be decoded")


def _scalar(hint: Any, value: Any, where: Place) -> Any:
    if hint in (int, float):
        fits = isinstance(value, (int, hint)) and not isinstance(value, bool)
        if fits and abs(value) >= (_INT_BOUND if hint is int else _FLOAT_BOUND):
            raise _fault(where, f"{_shown(value)} is out of range")
        _require(fits and value == value, value, _SCALARS[hint], where)  # only nan differs from itself
        return hint(value)
    fits = type(value) is hint and (hint is bool or not _HALF_CHARACTER.search(value))
    _require(fits, value, _SCALARS[hint], where)
    return value


def _instance(kind: Any, value: Any, where: Place) -> Any:
    if isinstance(value, kind):  # not from JSON: a field that check_fields checks
        return value
    _require(isinstance(value, dict), value, "an object", where)
    hints, found = _hints(kind), {}
    for name, hint in hints.items():  # in order, so that another version is reported first
        if name not in value:
            raise _fault(where, f"the field {name} is missing")
        found[name] = _decode(hint, value[name], (*where, name))
    if unknown := [name for name in value if name not in hints]:
        raise _fault(where, f"the field {_shown(unknown[0])} is unknown")
    try:
        return kind(**found)
    except ValueError as error:
        raise _fault(where, str(error)) from error


def _one_of(options: tuple[Any, ...], value: Any, where: Place) -> Any:
    """Return a value of a union: None, the one other kind, or the dataclass that the field ``name`` chooses."""
    if value is None and NoneType in options:
        return None
    kinds = [option for option in options if option is not NoneType]
    if len(kinds) == 1:
        return _decode(kinds[0], value, where)
    if not all(map(is_dataclass, kinds)):
        raise TypeError(f"{options} cannot be decoded")
    if type(value) in kinds:
        return value
    _require(isinstance(value, dict), value, "an object", where)
    named = {name: kind for kind in kinds for name in get_args(_hints(kind)["name"])}
    if "name" in value:
        _decode(Literal[tuple(named)], value["name"], (*where, "name"))
    return _decode(named.get(value.get("name"), kinds[0]), value, where)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _require(condition: bool, value: Any, expected: str, where: Place) -> None:
    if not condition:
        raise _fault(where, f"{_shown(value)} is not {expected}")


def _fault(where: Place, message: str) -> ValueError:
    steps = (f".{step}" if isinstance(step, str) else f"[{_shown(step[0])}]" for step in where)
    return ValueError(f"{''.join(steps).removeprefix('.')}: {message}" if where else message)


def _shown(value: Any) -> str:
    """Return a value, however large, in a few characters on one line."""
    text = reprlib.repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
