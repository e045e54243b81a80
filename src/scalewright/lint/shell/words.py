"""Words of a shell text: without quotes and escapes, and with the values of variables that the script sets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalewright.lint.shell.syntax import Command, Word

if TYPE_CHECKING:
    from tree_sitter import Node

_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_PLAIN = re.compile(r"[\w./:=,@%+-]*")
"""Characters that the shell leaves as they are."""
_LITERALS = ("word", "number", "variable_name", "string_content", "file_descriptor", "regex", "test_operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A text that is parsed on its own, and its place in the script."""

    text: str
    code: str
    shift: int = 0
    fixed: tuple[int, int] | None = None
    """Place of everything in it, if the text does not stand in the script as it is; else None."""
    parent: Command | None = None
    origin: str = ""
    """The sourced file that holds the text; empty: the script itself."""

    def origin_of(self, node: Node) -> str:
        return f"{self.origin}:{node.start_point[0] + 1}" if self.origin else ""

    def span(self, node: Node) -> tuple[int, int]:
        return self.fixed or (node.start_byte + self.shift, node.end_byte + self.shift)

    def source(self, node: Node) -> str:
        return self.text[node.start_byte : node.end_byte]

    def is_masked(self, node: Node) -> bool:
        if self.text is self.code:
            return False
        return self.text[node.start_byte : node.end_byte] != self.code[node.start_byte : node.end_byte]


_LOOKED_UP = re.compile(r"^(?:\$\(|`)\s*(?:which|command\s+-v|type\s+-[pP])\s+([\w./+-]+)\s*[)`]$")


def base_name(text: str) -> str:
    """Name of a program without its folder; of `$(which NAME)` the name that is looked up."""
    if text[:1] in "$`" and (looked_up := _LOOKED_UP.match(text)) is not None:
        text = looked_up.group(1)
    return text.rpartition("/")[2]


def plain(node: Node, unit: Unit) -> Word:
    first, last = node.start_byte, node.end_byte
    source = unit.text[first:last]
    if unit.text is unit.code and _PLAIN.fullmatch(source):  # most words, without asking for their node's kind
        start, end = unit.fixed or (first + unit.shift, last + unit.shift)
        return Word(text=source, start=start, end=end, is_static=True)
    text, is_static = resolved(node, unit)
    start, end = unit.span(node)
    return Word(text=text, start=start, end=end, is_static=is_static, is_quoted=node.type in ("string", "raw_string"))


def resolved(node: Node, unit: Unit) -> tuple[str, bool]:
    """A word without its quotes, and whether the shell expands nothing in it."""
    source = unit.source(node)
    is_static = not unit.is_masked(node)
    if _PLAIN.fullmatch(source):
        return source, is_static
    kind = node.type
    if kind == "raw_string":
        return source[1:-1], is_static
    if kind == "ansi_c_string":
        return source[2:-1], is_static and "\\" not in source
    if kind in ("string", "translated_string"):
        inner = source[source.find('"') + 1 : -1]
        dynamic = any(child.type not in ('"', "string_content") for child in node.children)
        return re.sub(r'\\([$`"\\\n])', _unescape, inner), is_static and not dynamic
    if kind == "concatenation":
        parts = [resolved(child, unit) for child in node.children]
        return "".join(text for text, _ in parts), is_static and all(fixed for _, fixed in parts)
    if kind in _LITERALS or not node.children:
        text = re.sub(r"\\(.|\n)", _unescape, source)
        return text, is_static and not source.startswith("~") and not re.search(r"[*?]|\{.*\}", source)
    return source, False


def _unescape(match: re.Match[str]) -> str:
    return "" if match.group(1) == "\n" else match.group(1)


def name_and_value(node: Node, unit: Unit) -> tuple[str, Word]:
    """Name and value of an assignment."""
    name = node.child_by_field_name("name")
    value = node.child_by_field_name("value")
    label = unit.source(name) if name is not None else ""
    if value is None:
        _, end = unit.span(node)
        return label, Word(text="", start=end, end=end, is_static=True)
    return label, plain(value, unit)


def leaves(node: Node) -> Iterator[Node]:
    """Operands of a test, inside expressions of any depth."""
    for child in node.named_children:
        if child.type.endswith("_expression"):
            yield from leaves(child)
        else:
            yield child


def resolve(text: str, variables: Mapping[str, tuple[Word, ...] | None]) -> str:
    """`text` with the values of variables that the script sets; other variables stay as written."""
    if "$" not in text:
        return text

    def value(match: re.Match[str]) -> str:
        words = variables.get(match.group(1) or match.group(2))
        return match.group() if words is None else " ".join(word.text for word in words)

    return _REFERENCE.sub(value, text)


def split_words(text: str) -> list[str]:
    """`text` split at blanks, as the shell splits a variable's value; `$(...)`, `${...}` and backquotes stay whole."""
    if "$(" not in text and "${" not in text and "`" not in text:
        return text.split()
    words: list[str] = []
    word: list[str] = []
    depth = 0
    is_quoted = False
    for place, char in enumerate(text):
        if char == "`":
            is_quoted = not is_quoted
        elif char in "({" and place and (depth or text[place - 1] == "$"):
            depth += 1
        elif char in ")}" and depth:
            depth -= 1
        if char.isspace() and not depth and not is_quoted:
            if word:
                words.append("".join(word))
                word = []
        else:
            word.append(char)
    return [*words, "".join(word)] if word else words
