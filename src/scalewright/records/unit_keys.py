"""Values of a document checked by their keys: a key that names a unit or a count holds a finite number of it.

Documents carry the unit in the key (`step_time_s`, `memory_bytes`, `num_gpus`), so that a key says what its value may
be. A document that somebody changed is refused when it is read, before a negative time or a text in the place of a
number is printed or computed with.
"""

from __future__ import annotations

import math
import re
from typing import Any

from scalewright.errors import DocumentError, shortened

LARGEST = 1e40
"""Far above every quantity of a run in SI units."""
_UNITS = "s|bytes|flop|j|w|usd|eur|kgco2e|frac|hz|nats|tokens|steps|nodes|gpus|jobs|failures|units|hours|layouts|params"
_QUANTITY = re.compile(rf"(?:^num_\w+|_(?:{_UNITS}))(?:_per_\w+|_interval)*$")
_SIGNED = re.compile(r"(?:^|_)(?:change|changes|gain|loss|terms|difference|saved?|saves|costs|selection|slower|alpha)_")
_SWITCH = re.compile(r"^(?:is|has|uses|chooses|fits)(?:_|$)")
_TEXTS = frozenset({
    "accelerator", "assumption", "confidence", "formula", "knob", "layout_text", "message", "mode", "model", "name",
    "objective", "precision", "reason", "room", "rule", "sentence", "stack", "stack_origin", "storage",
    "system", "tokens_origin", "unit",
})  # fmt: skip
_SINGLE = frozenset({
    "step_time_s", "memory_bytes", "model_flop", "mfu_frac", "tokens_per_s_per_gpu", "images_per_s", "device_bytes",
    "reserved_bytes", "num_nodes",
})  # fmt: skip
"""Keys that never hold a list or a table. `num_gpus` does, in the request of a plan."""
_LENGTHS = frozenset({"young_interval_s"})
"""Keys with `interval` in the sense of a time between two events: one number."""
_COUNTED = frozenset({
    "considered", "feasible", "costed", "global_batch", "seq", "tp", "pp", "vpp", "cp", "ep", "dp", "mbs", "gbs",
})  # fmt: skip


def check_keys(doc: dict[str, Any], *, where: str) -> None:
    """Raise DocumentError for the first value that its key does not allow."""
    _check_table(doc, "", where)


def _check_table(table: dict[str, Any], path: str, where: str) -> None:
    for key, value in table.items():
        inside = f"{path}.{key}" if path else key
        problem = _problem(key, value)
        if problem:
            raise DocumentError(f"{where}: key {inside!r} {problem}; the file is not as it was written")
        _check_inside(value, inside, where)


def _check_inside(value: Any, path: str, where: str) -> None:
    if isinstance(value, dict):
        _check_table(value, path, where)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check_inside(inner, f"{path}.{number}", where)
    elif _is_number(value) and not abs(value) <= LARGEST:
        raise DocumentError(f"{where}: key {path!r} is {value:g}, which no quantity of a run is")


def _problem(key: str, value: Any) -> str:
    """What is wrong with a value, as the end of a sentence; empty if nothing is."""
    if value is None:
        return ""
    if _SWITCH.match(key):
        return "" if isinstance(value, bool) else f"is {_shown(value)}, not true or false"
    if key in _TEXTS:
        is_text = isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))
        return "" if is_text else f"is {_shown(value)}, not a text"
    if key.endswith(("_interval", "_interval_s")) and key not in _LENGTHS and not _is_interval(value):
        return f"is {_shown(value)}, not two numbers from low to high"
    if _QUANTITY.search(key) or key in _COUNTED:
        return _quantity_problem(key, value, is_signed=_SIGNED.search(f"_{key}") is not None)
    return ""


def _quantity_problem(key: str, value: Any, *, is_signed: bool) -> str:
    if isinstance(value, list | dict) and key in _SINGLE:
        return f"is {_shown(value)}, not a number"
    numbers = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
    for number in numbers:
        if isinstance(number, dict | list) or number is None:
            continue  # a table of tables is checked by its own keys
        if not _is_number(number):
            return f"is {_shown(number)}, not a number"
        if number < 0 and not is_signed:
            return f"is {number:g}, and cannot be negative"
    return ""


def whole_interval(value: Any) -> tuple[float, float] | None:
    """Both ends of a document's interval; None if there is no interval, or an end of it is not known."""
    if not isinstance(value, list) or len(value) != 2 or not all(map(_is_number, value)):
        return None
    return float(value[0]), float(value[1])


def _is_interval(value: Any) -> bool:
    """Low and high; None for an end that is not known."""
    if not isinstance(value, list) or len(value) != 2 or not all(end is None or _is_number(end) for end in value):
        return False
    return None in value or value[0] <= value[1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return shortened(repr(value))
