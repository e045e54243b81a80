"""Options of a point: the study's `point` table as a typed object."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from scalewright import units
from scalewright.errors import ConfigError, QuantityError, nearest
from scalewright.records.loader import first_problem
from scalewright.study.expressions import Value

STRICT = ConfigDict(extra="forbid")
UNKNOWN_KEY = "unexpected_keyword_argument"
T = TypeVar("T")


def parse_options(adapter: TypeAdapter[T], options: Mapping[str, Value], *, where: str) -> T:
    """The options as the kind's own type; the first wrong key is named."""
    try:
        return adapter.validate_python(_plain_counts(adapter, options))
    except ValidationError as error:
        first = first_problem(error, unknown=UNKNOWN_KEY)
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: key 'point.{key}': {first['msg'].lower()}{_hint(adapter, first)}") from error


def _plain_counts(adapter: TypeAdapter[T], options: Mapping[str, Value]) -> dict[str, Value]:
    """The options with `4Ki` and `20k` as numbers, where a key takes a whole number and nothing else."""
    written = {key: text for key, text in options.items() if isinstance(text, str) and text[:1].isdigit()}
    if not written:
        return dict(options)
    kinds = adapter.json_schema().get("properties", {})
    plain = dict(options)
    for key, text in written.items():
        kind = kinds.get(key, {})
        accepted = {one.get("type") for one in kind.get("anyOf", [kind])}
        if "integer" in accepted and accepted <= {"integer", "null"}:
            with contextlib.suppress(QuantityError):  # what is no count is refused by its key below
                plain[key] = units.whole(text)
    return plain


def _hint(adapter: TypeAdapter[T], problem: Any) -> str:
    if problem["type"] != UNKNOWN_KEY:
        return ""
    names = adapter.json_schema().get("properties", {})
    near = nearest(str(problem["loc"][-1]), names)
    return f"; did you mean {', '.join(near)}?" if near else f"; known: {', '.join(names)}"
