"""Mutations of valid files: of their bytes, of values in JSON and TOML, and of the fields of arrays and archives."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

NUMBERS = (
    0, -1, 1, 2**31, 2**32, 2**63, 2**64, 10**30, -(10**30), 1e30, 1e300, -1e-300, 0.5, -0.5, 3.5, 10**400,
)  # fmt: skip
WORDS = (
    "",
    "x",
    "\x1b[2J\x1b[31m",
    "\u202e",
    "../../../etc/passwd",
    "a" * 5000,
    "'; --",
    "[bold]",
    "\0",
)
RAW_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "-0", "1" * 30, "1e-400")
TOML_VALUES = (
    "inf", "nan", "-inf", "9" * 5000, "[" * 3000, "{}", "[]", '""', "true", "1979-05-27", "-1", "3.5", "1e300", "[[]]",
    '"x"', "[1, 2, 3]", "{a = 1}", "0x7fffffffffffffff", '"' + "9" * 400 + ' GB/s"', '"1e308 s"',
    '"((((9**64)**64)**64)"',
    '"(a+)+$"',
)  # fmt: skip
PIECES = (
    b"\0",
    b"\xff",
    b"\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"=",
    b"\x80",
    b"9" * 400,
    b"\x1b[31m",
    b"-",
    b"e9",
)
Chance = random.Random


def mutated(content: bytes, chance: Chance, form: str) -> bytes:
    """One to three mutations of a file's content; `form` is json, lines, toml or bytes."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        content = chance.choice(MUTATIONS[form])(content, chance)
    return content


def _bytes(content: bytes, chance: Chance) -> bytes:
    at = chance.randrange(len(content) + 1)
    match chance.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + content[at + chance.randint(1, 30) :]
        case 2:
            return content[:at] + chance.choice(PIECES) + content[at:]
        case 3:
            return content[:at] + content[at : at + 60] * chance.randint(2, 50) + content[at + 60 :]
        case 4:
            changed = bytearray(content)
            for _ in range(chance.randint(1, 8)):
                if changed:
                    changed[chance.randrange(len(changed))] = chance.randrange(256)
            return bytes(changed)
        case _:
            width = chance.choice((1, 2, 4, 8))
            number = chance.choice((0, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1)) & (2 ** (8 * width) - 1)
            return content[:at] + number.to_bytes(width, "little") + content[at + width :]


def _json(content: bytes, chance: Chance) -> bytes:
    """Another value, another type, a missing key, an unknown key, or a value that JSON does not have."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return _bytes(content, chance)
    places: list[tuple[Any, Any]] = []
    _collect(document, places)
    if not places:
        return json.dumps(chance.choice((None, [], {}, 3, "x"))).encode()
    holder, key = chance.choice(places)
    marker = ""
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[chance.choice(("new", "schema", "step", "\x1b]0;x\x07"))] = chance.choice((1, "x", None))
        case 2:
            marker = chance.choice(RAW_NUMBERS)
            holder[key] = "@RAW@"
        case 3:
            holder[key] = chance.choice(({}, [], None, True, {"a": 1}, [1, [2]], [[[]]]))
        case 4:
            old = holder[key]
            holder[key] = -old if isinstance(old, int | float) else chance.choice(NUMBERS)
        case _:
            holder[key] = chance.choice((*NUMBERS, *WORDS))
    return json.dumps(document).replace('"@RAW@"', marker).encode() if marker else _dumped(document)


def _dumped(document: Any) -> bytes:
    try:
        return json.dumps(document).encode()
    except ValueError:  # a number too long for this Python
        return b"{}"


def _collect(node: Any, places: list[tuple[Any, Any]]) -> None:
    entries: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in entries:
        places.append((node, key))
        _collect(value, places)


def _line(content: bytes, chance: Chance) -> bytes:
    """One line of JSON lines, mutated as a document."""
    lines = content.split(b"\n")
    at = chance.randrange(len(lines))
    lines[at] = _json(lines[at], chance)
    return b"\n".join(lines)


def _nested(content: bytes, chance: Chance) -> bytes:
    depth = chance.choice((100, 3000, 100_000))
    return content[:-1] + b"[" * depth if chance.random() < 0.5 else b'{"a":' * depth + content


def _toml(content: bytes, chance: Chance) -> bytes:
    """One assignment with another value, under another name, or gone."""
    lines = content.split(b"\n")
    assigned = [number for number, line in enumerate(lines) if b" = " in line]
    if not assigned:
        return _bytes(content, chance)
    at = chance.choice(assigned)
    key, _, value = lines[at].partition(b" = ")
    match chance.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines[at] = chance.choice((b"unknown", key + b"x", b'"\x1b[31m"', b"schema")) + b" = " + value
        case 2:
            lines.insert(
                chance.randrange(len(lines)), chance.choice((b"[sources]", b"sources = 3.5", b"[a.b]", b"x = 1"))
            )
        case 3:
            words = value.split()
            lines[at] = key + b" = " + (words[0][:1] + b"-" + words[0][1:] if words else b"-1")
        case _:
            lines[at] = key + b" = " + chance.choice(TOML_VALUES).encode()
    return b"\n".join(lines)


Mutation = Callable[[bytes, Chance], bytes]
MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "bytes": (_bytes,),
    "json": (_json, _json, _json, _json, _json, _bytes, _nested),
    "lines": (_line, _line, _line, _line, _bytes),
    "toml": (_toml, _toml, _toml, _toml, _bytes),
}
