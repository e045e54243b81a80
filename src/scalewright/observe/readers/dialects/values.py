"""Numbers as logs write them, and the report that they are gathered in.

Numbers come quoted, with thousands separators, units, as `np.float64(...)` and `tensor(...)`, and as pairs of a current
value and an average. Names of one thing differ between programs and change over the years: a table gives their meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scalewright import units
from scalewright.observe.evidence.facts import Spot, StepFact

NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WHOLE_NUMBER = re.compile(rf"\s*({NUMBER})\s*(.*?)\s*$", re.DOTALL)
_SPECIAL = {"nan": float("nan"), "inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf")}
_SPECIAL |= {"infinity": float("inf"), "-infinity": float("-inf")}
_WRAPPED = re.compile(
    r"^(?:(?:np|numpy|torch|jnp|jax)\.)?(?:float\d*|bfloat16|u?int\d*|tensor|array|Array)\(\s*(.*)$", re.S
)
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)\s*(d|h|ms|min|m|s|us)(?![a-z]))")
_CLOCK = re.compile(r"^(?:(\d+) days?, ?)?(?:(\d+):)?(\d{1,2}):(\d{2}(?:\.\d+)?)$")

COUNTS = {"K": units.KILO, "k": units.KILO, "M": units.MEGA, "B": units.GIGA, "G": units.GIGA, "T": units.TERA}
SIZES = {
    "B": 1.0, "bytes": 1.0, "KiB": float(units.KIB), "MiB": float(units.MIB), "GiB": float(units.GIB),
    "TiB": units.GIB * float(units.KIB),
    "KB": float(units.KIB), "MB": float(units.MIB), "GB": float(units.GIB), "M": float(units.MIB),
    "G": float(units.GIB),
}  # fmt: skip
"""PyTorch programs divide by powers of 1024 and print `GB`."""
TIMES = {"ms": units.MILLI, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": units.MICRO, "ns": units.NANO}
TIMES |= {"m": units.MINUTE_S, "min": units.MINUTE_S, "h": units.HOUR_S, "d": units.DAY_S}
RATES = {
    "TFLOPS": units.TERA,
    "TFLOP/s": units.TERA,
    "TFLOPs": units.TERA,
    "GFLOPS": units.GIGA,
    "PFLOPS": units.TERA * units.KILO,
}


MOST_STEP = 10**12


def number_and_unit(text: str) -> tuple[float | None, str]:
    """The value, and what follows it. None where the text does not begin with a number."""
    bare = text.strip().strip("'\"")
    try:
        return float(bare), ""
    except ValueError:
        pass
    wrapped = _WRAPPED.match(bare)
    if wrapped:
        bare = wrapped[1].split(",")[0].strip("[]() ")
    match = _WHOLE_NUMBER.match(bare)
    if match:
        return float(match[1].replace(",", "")), "" if wrapped else match[2]
    return _SPECIAL.get(bare.lower()), ""


def number(text: Any) -> float | None:
    """The value of a text or of a JSON value; None where it is none."""
    try:
        return float(text)
    except (ValueError, TypeError):
        return number_and_unit(text)[0] if isinstance(text, str) else None


def whole_number(text: Any) -> int | None:
    """Of a step: None where it is not finite, below 0, or more than any run makes."""
    value = number(text)
    return int(value) if value is not None and 0 <= value <= MOST_STEP else None


def duration_s(text: str) -> float | None:
    """`1.23s`, `850 ms`, `2m 3s`, `1:02:03` and `3 days, 1:02:03` in seconds."""
    bare = text.strip()
    clock = _CLOCK.match(bare)
    if clock:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return days * units.DAY_S + hours * units.HOUR_S + minutes * units.MINUTE_S + seconds
    parts = _DURATION.findall(bare)
    if not parts or _DURATION.sub("", bare).strip():
        return None
    return sum(float(value) * TIMES[unit] for value, unit in parts)


@dataclass(frozen=True, slots=True)
class Name:
    """What a name in a log means: a field of StepFact, or `part:NAME`, with the factor to SI."""

    field: str
    scale: float = 1.0
    is_per_device: bool = False


class Report:
    """What one report of a step says, while it is gathered."""

    __slots__ = ("fields", "parts", "values")

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.parts: dict[str, float] = {}
        self.values: dict[str, float] = {}

    def put(self, name: Name | None, key: str, value: float) -> None:
        """A value under its meaning, or under the log's own name. Parts of one meaning are added up."""
        if name is None:
            self.values[key] = value
        elif name.field.startswith("part:"):
            part = name.field[5:]
            self.parts[part] = self.parts.get(part, 0.0) + value * name.scale
        elif name.field not in self.fields:
            self.fields[name.field] = value * name.scale
            if name.field == "tokens_per_s":
                self.fields["is_per_device"] = name.is_per_device

    def put_all(self, pairs: Mapping[str, Any], names: Mapping[str, Name]) -> None:
        """Every number of a record."""
        for key, text in pairs.items():
            value = number(text)
            if value is not None:
                self.put(names.get(key), key, value)

    def __bool__(self) -> bool:
        return bool(self.fields or self.parts or self.values)

    def fact(self, step: int, spot: Spot, dialect: str, **more: Any) -> StepFact:
        if "memory_reserved_bytes" in self.fields and self.fields.get("memory_bytes") is None:
            self.fields["memory_bytes"] = self.fields["memory_reserved_bytes"]
        fields = {key: value for key, value in {**self.fields, **more}.items() if _is_possible(key, value)}
        parts_s = {name: seconds for name, seconds in self.parts.items() if math.isfinite(seconds)}
        return StepFact(step=step, spot=spot, dialect=dialect, parts_s=parts_s, values=self.values, **fields)


MAY_DIVERGE = ("loss", "grad_norm", "reward", "kl", "entropy")
"""Fields of a step that are not finite where training diverged. A time or a size that is not finite was misread."""


def _is_possible(field: str, value: Any) -> bool:
    return field in MAY_DIVERGE or not isinstance(value, float) or math.isfinite(value)


_PAIR = re.compile(
    r"""['"]([^'"]+)['"]\s*:\s*
    ( (?:[\w.]+\()?\s*\[?[-+]?(?:\d[\d.,]*(?:[eE][-+]?\d+)?|nan|inf|NaN|Infinity)\b [^,}]* | '[^']*' | "[^"]*" )""",
    re.VERBOSE,
)


def record_in(text: str, start: int = 0) -> dict[str, str]:
    """Pairs of a Python or JSON dict that stands in a line, whole or cut, without evaluating it; the first level only
    by name: a repeated key keeps its first value."""
    pairs: dict[str, str] = {}
    for key, value in _PAIR.findall(text, start):
        pairs.setdefault(key, value)
    return pairs


class Clock:
    """The time between reports, by the times that lines carry: for programs that print none."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[int | None, tuple[int, float | None]] = {}

    def since(self, rank: int | None, step: int, at_s: float | None) -> tuple[float | None, int]:
        """Mean seconds of a step since the rank's last report, and the number of those steps."""
        last = self._last.get(rank)
        self._last[rank] = (step, at_s)
        if last is None or step <= last[0]:
            return None, 1
        num_steps = step - last[0]
        if at_s is None or last[1] is None or at_s <= last[1]:
            return None, num_steps
        return (at_s - last[1]) / num_steps, num_steps
