"""Files of prompts and traces: JSON lines, or plain text with one prompt a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError
from scalewright.records.documents import read_text
from scalewright.records.loader import read_jsonl

JSON_LINES = (".jsonl", ".ndjson", ".json")
EXAMPLE_PROMPT = '{"prompt": "2 + 3 =", "answer": "5"}'
EXAMPLE_TRACE = '{"prompt": "2 + 3 =", "response": " 5"}'
SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """One line of a file of prompts."""

    where: str
    """File and line, for messages."""
    number: int
    text: str
    fields: Mapping[str, Any]
    """Everything that the line says."""


def read_prompts(path: Path) -> list[PromptLine]:
    """The prompts of a file. A line without a prompt is refused, and so is a file without lines."""
    if path.suffix in JSON_LINES:
        rows = [(number, row) for number, row in read_jsonl(path)]
    else:
        lines = enumerate(read_text(path).split("\n"), start=1)
        rows = [(number, {"prompt": line}) for number, line in lines if line.strip()]
    prompts = []
    for number, row in rows:
        where = f"{path}, line {number}"
        if "prompt" not in row:
            raise ConfigError(f"{where}: has no prompt: write {EXAMPLE_PROMPT}")
        text = prompt_text(row["prompt"], where=where)
        prompts.append(PromptLine(where=where, number=number, text=text, fields=row))
    if not prompts:
        raise ConfigError(f"{path}: holds no prompts: write one JSON object a line, such as {EXAMPLE_PROMPT}")
    return prompts


def read_traces(path: Path) -> list[tuple[PromptLine, str]]:
    """Prompts with the response that a model shall learn to give."""
    traces = []
    for number, row in read_jsonl(path):
        where = f"{path}, line {number}"
        for key in ("prompt", "response"):
            if not isinstance(row.get(key), str) or not row[key]:
                raise ConfigError(f"{where}: {key} is {shown(row.get(key))}: write {EXAMPLE_TRACE}")
        traces.append((PromptLine(where=where, number=number, text=row["prompt"], fields=row), row["response"]))
    if not traces:
        raise ConfigError(f"{path}: holds no traces: write one JSON object a line, such as {EXAMPLE_TRACE}")
    return traces


def prompt_text(value: object, *, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where}: prompt is {shown(value)}: give a text that is not empty")
    return value


def shown(value: object) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."
