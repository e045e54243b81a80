"""Options of a point: the study's `point` table as a typed object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from scalewright.errors import ConfigError, nearest
from scalewright.records.loader import first_problem
from scalewright.study.expressions import Value

STRICT = ConfigDict(extra="forbid")
UNKNOWN_KEY = "unexpected_keyword_argument"
T = TypeVar("T")


def parse_options(adapter: TypeAdapter[T], options: Mapping[str, Value], *, where: str) -> T:
    """The options as the kind's own type; the first wrong key is named."""
    try:
        return adapter.validate_python(dict(options))
    except ValidationError as error:
        first = first_problem(error, unknown=UNKNOWN_KEY)
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: key 'point.{key}': {first['msg'].lower()}{_hint(adapter, first)}") from error


def _hint(adapter: TypeAdapter[T], problem: Any) -> str:
    if problem["type"] != UNKNOWN_KEY:
        return ""
    names = adapter.json_schema().get("properties", {})
    near = nearest(str(problem["loc"][-1]), names)
    return f"; did you mean {', '.join(near)}?" if near else f"; known: {', '.join(names)}"
