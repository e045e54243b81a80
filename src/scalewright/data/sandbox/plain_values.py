"""Plain values as text between two processes that do not trust each other. Nothing that is read can run code.

Numbers, texts, None, lists, tuples, sets, dictionaries, bytes and complex numbers go over as they are. Any other object
stays where it is, and the other side gets a handle.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

MOST_DEPTH = 50
SCALARS = (bool, int, float, str)


def encoded(value: Any, handle_of: Callable[[Any], Any], depth: int = 0) -> Any:
    """A value for JSON. Subclasses become their plain type: none of their methods reaches the reader."""
    if depth > MOST_DEPTH:
        raise ValueError(f"a value is nested deeper than {MOST_DEPTH}")
    if value is None or type(value) in SCALARS:
        return value
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return [kind.__name__, [encoded(one, handle_of, depth + 1) for one in value]]
    if isinstance(value, dict):
        pairs = [[encoded(k, handle_of, depth + 1), encoded(v, handle_of, depth + 1)] for k, v in value.items()]
        return ["dict", pairs]
    if isinstance(value, bytes | bytearray):
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    for plain in SCALARS:
        if isinstance(value, plain):
            return plain(value)
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return encoded(value.tolist(), handle_of, depth + 1)
    return ["handle", handle_of(value)]


def decoded(body: Any, object_of: Callable[[Any], Any]) -> Any:
    """The value that `encoded` wrote. Anything else is a ValueError."""
    if body is None or isinstance(body, SCALARS):
        return body
    if not isinstance(body, list) or len(body) != 2:
        raise ValueError("not an encoded value")
    kind, inner = body
    match kind:
        case "list" | "tuple" | "set" | "frozenset":
            values = [decoded(one, object_of) for one in inner]
            return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](values)
        case "dict":
            return {decoded(key, object_of): decoded(value, object_of) for key, value in inner}
        case "bytes":
            return base64.b64decode(inner)
        case "complex":
            return complex(*inner)
        case "handle":
            return object_of(inner)
    raise ValueError("not an encoded value")
