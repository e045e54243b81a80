"""What was typed, before a command reads it: counts in plain digits, and needed options that are missing.

Every option that counts takes 4096, 4Ki and 20k, as --tokens takes 300B.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from typer.models import OptionInfo

from scalewright import units
from scalewright.errors import ConfigError, QuantityError, shortened

_PLAIN = re.compile(r"^[+-]?\d+$")
_THOUSANDS = re.compile(r"^[+-]?[\d._]+ *k$")


def plain_numbers(app: typer.Typer, arguments: Sequence[str]) -> list[str]:
    """The arguments with the counts of this command in plain digits; what is no number is refused by its option."""
    ours = list(arguments)
    ours = ours[: ours.index("--")] if "--" in ours else ours  # what follows is a command of the user's
    callback = _callback(app, ours)
    kinds = {} if callback is None else dict(_numbers(callback))
    written: list[str] = []
    for argument in ours:
        flag, equals, value = argument.partition("=")
        if equals and flag in kinds:
            written.append(f"{flag}={_plain(flag, value, kinds[flag])}")
        elif written and written[-1] in kinds:
            written.append(_plain(written[-1], argument, kinds[written[-1]]))
        else:
            written.append(argument)
    return [*written, *arguments[len(ours) :]]


def missing_options(app: typer.Typer, arguments: Sequence[str]) -> str:
    """All needed options that were not given, in one sentence; empty: none is missing."""
    callback = _callback(app, arguments)
    given = {argument.partition("=")[0] for argument in arguments}
    missing = [
        flags[0] for parameter, flags, _ in ([] if callback is None else _options(callback))
        if parameter.default is inspect.Parameter.empty and not given & set(flags)
    ]  # fmt: skip
    if not missing:
        return ""
    words = itertools.takewhile(lambda word: not word.startswith("-"), arguments)
    command = f"scalewright {' '.join(words)}"
    listed = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    return f"{listed} {'is' if len(missing) == 1 else 'are'} missing: see {command} --help"


def _plain(flag: str, text: str, kind: type) -> str:
    if _PLAIN.match(text):
        return text
    try:
        if kind is int:
            number = str(units.whole(text))
        else:
            number = text if _is_float(text) else repr(units.parse(text, units.COUNT))
    except QuantityError as error:
        what, such = ("whole number", "128, 4Ki or 20k") if kind is int else ("number", "0.5 or 20k")
        raise ConfigError(f"{flag} {shortened(text)!r} is not a {what}: write one such as {such}") from error
    if _THOUSANDS.match(text) and float(number) % units.KILO == 0:
        in_binary = units.parse(f"{text[:-1]}Ki", units.COUNT)
        typer.echo(f"note: {flag} {text} is {float(number):,.0f}; write {text[:-1]}Ki for {in_binary:,.0f}", err=True)
    return number


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _callback(app: typer.Typer, words: Sequence[str]) -> Callable[..., Any] | None:
    """The function of the command that the words name."""
    for word in words:
        if word.startswith("-"):
            continue
        group = next((g.typer_instance for g in app.registered_groups if g.name == word), None)
        if group is None:
            return next((c.callback for c in app.registered_commands if c.callback and _name(c) == word), None)
        app = group
    return None


def _name(command: Any) -> str:
    return command.name or str(command.callback.__name__).replace("_", "-")


def _options(callback: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, list[str], Any]]:
    """The options of a command: the parameter, its flags and the type of its value."""
    for name, parameter in inspect.signature(callback, eval_str=True).parameters.items():
        if get_origin(parameter.annotation) is not Annotated:
            continue
        base, *details = get_args(parameter.annotation)
        option = next((detail for detail in details if isinstance(detail, OptionInfo)), None)
        if option is not None:
            flags = [flag for flag in option.param_decls or () if flag.startswith("-")]
            yield parameter, flags or [f"--{name.replace('_', '-')}"], base


def _numbers(callback: Callable[..., Any]) -> Iterator[tuple[str, type]]:
    """The options of a command that take a number, and whether it is whole."""
    for _, flags, base in _options(callback):
        kinds = (set(get_args(base)) if get_origin(base) in (Union, UnionType) else {base}) - {NoneType}
        if len(kinds) == 1 and (kind := kinds.pop()) in (int, float):
            yield from ((flag, kind) for flag in flags)
