"""Task settings as commands, studies and run directories write them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from scalewright.data.reasoning.settings import TaskSettings
from scalewright.errors import ConfigError
from scalewright.workload.grammar import assignments, whole_number
from scalewright.workload.request_plan import file_digest

__all__ = ["TaskSettings", "file_task", "parse_countdown", "task_document", "task_from_document"]
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


def file_task(
    *, prompts: str, tokenizer: str, reward: str = "", traces: str = "", test_prompts: str = "", **options: Any
) -> TaskSettings:
    """A task of the user's own files: by full paths, and with a digest, so that a changed file is another run."""
    paths = {"prompts": prompts, "test_prompts": test_prompts, "traces": traces, "tokenizer": tokenizer}
    full = {name: str(Path(path).resolve()) if path else "" for name, path in paths.items()}
    for name, path in full.items():
        exists = Path(path).is_dir() if name == "tokenizer" else Path(path).is_file()
        if path and not exists:
            raise ConfigError(
                f"{name} {paths[name]!r}: no such {'folder' if name == 'tokenizer' else 'file'}: check the path"
            )
    place, colon, function = reward.rpartition(":")
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise ConfigError(f"reward {reward!r}: no such file: give file.py:function")
        full_place = str(Path(place).resolve())
        reward = f"{full_place}{colon}{function}"
    else:
        full_place = ""
    read = [full["prompts"], full["test_prompts"], full["traces"], f"{full['tokenizer']}/tokenizer.json", full_place]
    digests = [file_digest(Path(path)) if path and Path(path).is_file() else "" for path in read]
    digest = hashlib.sha256("-".join(digests).encode()).hexdigest()[:16]
    return TaskSettings(kind="files", reward=reward, files_digest=digest, **{**options, **full})


def task_document(settings: TaskSettings) -> dict[str, Any]:
    return asdict(settings)


def task_from_document(body: Mapping[str, Any], *, where: str) -> TaskSettings:
    """The settings that `task_document` wrote."""
    odd = sorted(set(body) ^ {f.name for f in fields(TaskSettings)})
    if odd:
        raise ConfigError(f"{where}: key {odd[0]!r} is {'unknown' if odd[0] in body else 'missing'} in a task")
    return TaskSettings(**body)
