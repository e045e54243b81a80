"""Text from files, safe to print: without characters that a terminal obeys instead of showing."""

from __future__ import annotations

import re

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and marks that reverse the order of letters."""


def printable(text: str) -> str:
    """The text without control characters: what was a colour or a command stays as harmless letters."""
    return _OBEYED.sub("", text) if _OBEYED.search(text) else text


def escaped_in_json(text: str) -> str:
    """JSON text whose control characters are spelled out. json.dumps leaves those above 126 as they are."""
    return re.sub("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", lambda match: f"\\u{ord(match[0]):04x}", text)
