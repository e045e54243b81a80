"""The one way shapes and layouts are written: `key=value,key=value`."""

from __future__ import annotations

from scalewright import units
from scalewright.catalog.facts import MAX_SIZE as MAX_SIZE  # noqa: PLC0414
from scalewright.errors import ConfigError, QuantityError, nearest


def assignments(text: str, *, allowed: tuple[str, ...], what: str, value_separator: str = "") -> dict[str, str]:
    """The parts of `a=1,b=2`; unknown, repeated and valueless parts are refused by name.

    A value that has parts of its own separates them by `value_separator`, and may assign in them.
    """
    values: dict[str, str] = {}
    for part in (p.strip() for p in text.split(",") if p.strip()):
        key, equals, value = (s.strip() for s in part.partition("="))
        if key not in allowed and not equals:
            raise ConfigError(f"{what} {text!r} has a part {key!r} without a name: {_named(key, allowed)}")
        if key not in allowed:
            near = nearest(key, allowed)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(allowed)}"
            raise ConfigError(f"{what} {text!r} has unknown part {key!r}: {hint}")
        if key in values:
            raise ConfigError(f"{what} {text!r} gives {key} twice: keep one")
        if not equals or not value:
            raise ConfigError(f"{what} {text!r} gives {key} no value: write {key}=VALUE")
        if "=" in value and not (value_separator and ":" in value):
            commas = ",".join(part for piece in text.split(",") for part in piece.replace(";", " ").split())
            raise ConfigError(f"{what} {text!r}: separate its parts with commas: {commas}")
        values[key] = value
    return values


def _named(part: str, allowed: tuple[str, ...]) -> str:
    """How to write a part that is no assignment: `tp4` is tp=4."""
    name, value = part.rstrip("0123456789"), part.lstrip("abcdefghijklmnopqrstuvwxyz_-")
    if name.lower() in allowed and value:
        return f"write {name.lower()}={value}"
    if part[:1].isdigit():
        return f"write NAME=VALUE, such as {allowed[0]}={part}; names: {', '.join(allowed)}"
    near = nearest(part, allowed, limit=2)
    return f"did you mean {' or '.join(f'{one}=' for one in near)}?" if near else f"names: {', '.join(allowed)}"


def whole_number(text: str, *, key: str, what: str, least: int = 1) -> int:
    try:
        value = units.whole(text)
    except QuantityError as error:
        raise ConfigError(
            f"{what} has {key}={text}, which is not a whole number: write {key}=8 or {key}=4Ki"
        ) from error
    if value > MAX_SIZE:
        raise ConfigError(f"{what} has {key}={value}: no {key} above {MAX_SIZE} makes sense")
    if value < least:
        raise ConfigError(f"{what} has {key}={value}: {key} must be {least} or more")
    return value
