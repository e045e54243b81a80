"""Task settings as commands, studies and run directories write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from scalewright.data.reasoning.settings import TaskSettings
from scalewright.errors import ConfigError
from scalewright.workload.grammar import assignments, whole_number

__all__ = ["TaskSettings", "parse_countdown", "task_document", "task_from_document"]
KNOBS = ("numbers", "largest", "operators", "values", "attempts", "test_frac")


def parse_countdown(text: str) -> TaskSettings:
    """A countdown task from `numbers=4,largest=12,operators=+-*`; what is not given has its default."""
    given = assignments(text, allowed=KNOBS, what="task")
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key == "operators":
            values[key] = value
        elif key == "test_frac":
            values[key] = _share(value)
        else:
            values[key] = whole_number(value, key=key, what="task")
    return TaskSettings(**values)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"task has test_frac={text}, which is not a number: write test_frac=0.2") from error


def task_document(settings: TaskSettings) -> dict[str, Any]:
    return asdict(settings)


def task_from_document(body: Mapping[str, Any], *, where: str) -> TaskSettings:
    """The settings that `task_document` wrote."""
    odd = sorted(set(body) ^ {f.name for f in fields(TaskSettings)})
    if odd:
        raise ConfigError(f"{where}: key {odd[0]!r} is {'unknown' if odd[0] in body else 'missing'} in a task")
    return TaskSettings(**body)
