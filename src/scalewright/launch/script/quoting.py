"""Quoting for shell scripts. Every text of a user or a profile passes through here before it is put into a script."""

from __future__ import annotations

import re
import shlex
from functools import lru_cache

from scalewright.errors import ConfigError

_kept = lru_cache(maxsize=4096)
"""Graphs of thousands of jobs quote the same words many times."""
_VARIABLE = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")
_PLACEHOLDER = re.compile(r"(\{[a-z_]+\})")
_IN_DOUBLE_QUOTES = re.compile(r'([\\"$`])')
_PLAIN = re.compile(r"^[A-Za-z0-9_@%+=:,./-]+$")


def writable(text: str, what: str) -> str:
    """The text, if a script can contain it: no NUL, and encodable as UTF-8."""
    if "\0" in text:
        raise ConfigError(f"{what} {text!r} contains a NUL, which a shell cannot pass on: remove it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} {text!r} is not UTF-8 text, and a script must be: rename it") from error
    return text


def one_line(text: str, what: str) -> str:
    """Printable text without line breaks, for headers and comments."""
    if not text.isprintable():
        raise ConfigError(f"{what} {text!r} must be printable and on one line: change it")
    return writable(text, what)


@_kept
def quote(text: str) -> str:
    """A shell word for exactly this text. Commas are quoted too, so that no reader takes them for a list."""
    word = shlex.quote(writable(text, "the argument"))
    return f"'{word}'" if "," in word and word == text else word


@_kept
def expanded(text: str) -> str:
    """A profile's text as one shell word. The shell fills in ${USER} and similar names; all else is literal."""
    pieces = _VARIABLE.split(text)
    if len(pieces) == 1:
        return quote(text)
    words = [_IN_DOUBLE_QUOTES.sub(r"\\\1", p) if i % 2 == 0 else f"${{{p}}}" for i, p in enumerate(pieces)]
    return f'"{"".join(words)}"'


def argument(text: str, placeholders: dict[str, str]) -> str:
    """A word of the user's command. `{item}` and other placeholders become shell variables."""
    words = []
    for piece in _PLACEHOLDER.split(writable(text, "the argument")):
        name = piece[1:-1] if piece.startswith("{") and piece.endswith("}") else ""
        if name in placeholders:
            words.append(f'"${{{placeholders[name]}}}"')
        elif piece:
            words.append(quote(piece))
    return "".join(words) or "''"


@_kept
def directive(flag: str) -> str:
    """One #SBATCH line. Slurm understands single quotes, but a backslash is an escape even inside them."""
    name, equals, value = flag.partition("=")
    one_line(flag, "the directive")
    if "'" in value or "\\" in value:
        raise ConfigError(f"{name} {value!r} has a quote or backslash, which cannot stand in a Slurm header: rename it")
    return f"#SBATCH {name}{equals}{value if not value or _PLAIN.match(value) else chr(39) + value + chr(39)}"


@_kept
def comment(text: str) -> str:
    """The text as one comment line."""
    words = " ".join(text.split())
    return "# " + (words if words.isprintable() else "".join(c if c.isprintable() else "?" for c in words))
