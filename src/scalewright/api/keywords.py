"""Keywords of the Python interface: one that is unknown, missing or of another kind is one sentence."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from scalewright import units
from scalewright.errors import ConfigError, QuantityError, nearest, shortened

P = ParamSpec("P")
R = TypeVar("R")
VERBS = {
    "predict": "scalewright.api.predict", "predict_many": "scalewright.api.many", "plan": "scalewright.api.plan",
    "lint": "scalewright.api.lint", "validate": "scalewright.api.validate", "study": "scalewright.api.study",
}  # fmt: skip
"""Functions of the interface, and the module that has each."""
_KINDS: dict[Any, tuple[type, str]] = {
    str: (str, "a text"), int: (numbers.Integral, "a whole number"), float: (numbers.Real, "a number"),
    bool: (bool, "True or False"), Path: (Path, "a path"), Mapping: (Mapping, "a dictionary"),
    Sequence: (Iterable, "a list"), NoneType: (NoneType, "None"),
}  # fmt: skip
"""What a value of an annotation is an instance of, and its words."""


def checked(*, beside: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function of the interface that names what is wrong with its keywords; `beside`: a function whose keywords it
    passes on."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            _check(function, args, kwargs, beside)
            return function(*args, **kwargs)

        return call

    return decorate


def count(name: str, value: float | str | None) -> int | None:
    """A count as people write it in Python: 4096, 1e6, "4Ki" or "20k"."""
    try:
        return None if value is None else units.whole(value)
    except QuantityError as error:
        raise ConfigError(f"{name}= is {_shown(value)}: write a whole number such as 128, '4Ki' or '20k'") from error


def quantity_text(value: float | str | None) -> str | None:
    """A count that may be too large to write out: 100e9 as well as "100B"."""
    return value if value is None or isinstance(value, str) else repr(float(value))


def listed(value: str | Sequence[str]) -> list[str]:
    """Names as a list; a text may hold several, as on the command line: "lumi,leonardo"."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else list(value)


def _check(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], beside: str) -> None:
    verb, parameters = function.__name__, inspect.signature(function).parameters
    by_place = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    own = [name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD]
    if len(args) > len(by_place):
        key = own[0] if not by_place else own[len(by_place)]
        raise ConfigError(
            f"sw.{verb} takes its options by name: write sw.{verb}({key}={_shown(args[len(by_place)])}, ...)"
        )
    allowed = [*own, *(_keywords(beside) if beside else ())]
    for name in kwargs:
        if name not in allowed:
            raise ConfigError(f"sw.{verb} has no {name}=: {_meant(name, verb, allowed)}")
    given = {*kwargs, *by_place[: len(args)]}
    missing = [f"{n}=" for n in own if parameters[n].default is inspect.Parameter.empty and n not in given]
    if missing:
        raise ConfigError(f"sw.{verb} needs {' and '.join(missing)}: see help(sw.{verb})")
    hints = (get_type_hints(_function(beside)) if beside else {}) | get_type_hints(function)
    for name, value in (*zip(by_place, args, strict=False), *kwargs.items()):
        expected = _mismatch(value, hints[name])
        if expected:
            raise ConfigError(f"sw.{verb}: {name}= is {_shown(value)}: give {expected}")


def _function(verb: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(VERBS[verb]), verb)
    return function


def _keywords(verb: str) -> list[str]:
    parameters = inspect.signature(_function(verb)).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]


def _meant(name: str, verb: str, allowed: Sequence[str]) -> str:
    """Where a keyword belongs, or the nearest ones of this function."""
    others = [f"sw.{other}" for other in VERBS if other != verb and name in _keywords(other)]
    near = nearest(name, allowed, limit=2)
    close = f"did you mean {' or '.join(f'{one}=' for one in near)}?" if near else ""
    if others:
        return f"it is an option of {' and '.join(others)}" + (f"; {close}" if close else "")
    return close or f"known: {', '.join(allowed)}"


def _mismatch(value: object, hint: Any) -> str:
    """What to give instead of a value that is of no kind of the annotation; empty: it is of one."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = []
    for kind in kinds:
        plain = get_origin(kind) or kind
        if plain is Any or plain is object:
            return ""
        accepted, name = _KINDS.get(plain, (plain, f"a {getattr(plain, '__name__', plain)}"))
        if plain is Sequence:
            is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
            items = list(value) if isinstance(value, Collection) else []  # reading a generator would use it up
            inside = next(iter(get_args(kind)), Any)
            of_kind = is_list and not any(_mismatch(one, inside) for one in items)
            name = f"{name} of {_mismatch(object(), inside).removeprefix('a ')}s"
        else:
            of_kind = isinstance(value, accepted) and not (isinstance(value, bool) and plain in (int, float))
        if of_kind:
            return ""
        words.append(name)
    return " or ".join(dict.fromkeys(word for word in words if word != "None"))


def _shown(value: object) -> str:
    return shortened(repr(value))
