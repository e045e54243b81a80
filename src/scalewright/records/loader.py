"""The one strict loader: TOML, JSON and JSON lines into frozen pydantic models, or one clear sentence."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from scalewright.errors import DocumentError, nearest, shortened
from scalewright.records.documents import check_schema, parse_json, read_text

Prepared = tuple[dict[str, Any], list[str]]
"""A table that was rewritten, and what is wrong with it."""
M = TypeVar("M", bound=BaseModel)
D = TypeVar("D")


def load_toml(
    path: Path, model: type[M], *, kind: str, prepare: Callable[[dict[str, Any]], Prepared] | None = None
) -> M:
    """The file as a `model`. `prepare` may rewrite the raw table first; its problems are reported with the others.

    Files with the same text give the same object: models are frozen, and parsing takes longer than most predictions.
    """
    text = read_text(path)
    key = (text, model, kind, prepare)
    known = _loaded.get(key)
    if known is None:
        known = _load(text, path, model, kind=kind, prepare=prepare)
        if len(_loaded) >= MAX_KEPT:
            _loaded.clear()
        _loaded[key] = known
    assert isinstance(known, model)
    return known


MAX_KEPT = 1024
_loaded: dict[tuple[object, ...], BaseModel] = {}


def _load(
    text: str, path: Path, model: type[M], *, kind: str, prepare: Callable[[dict[str, Any]], Prepared] | None
) -> M:
    raw = parse_toml(text, where=str(path))
    check_schema(raw.get("schema"), kind, where=str(path))
    table, problems = (raw, []) if prepare is None else prepare(raw)
    try:
        loaded = model.model_validate(table)
    except ValidationError as error:
        raise DocumentError(f"{path}: {'; '.join([explain_validation(error, model), *problems])}") from error
    if problems:
        raise DocumentError(f"{path}: {'; '.join(problems)}")
    return loaded


def parse_toml(text: str, *, where: str) -> dict[str, Any]:
    """The table of a text. It is shared by all who ask, so that nobody may change it."""
    try:
        return _parsed(text)
    except ValueError as error:  # TOMLDecodeError, or a number that is too long
        raise DocumentError(f"{where}: is not valid TOML: {error}") from error
    except RecursionError as error:
        raise DocumentError(f"{where}: is nested too deeply; no file of ours is") from error


LARGEST_INT = 2**63 - 1
"""TOML's own limit: whole numbers have 64 bits."""


@lru_cache(maxsize=MAX_KEPT)
def _parsed(text: str) -> dict[str, Any]:
    table = tomllib.loads(text)
    _check_numbers(table, "")
    return table


def _check_numbers(node: object, key: str) -> None:
    """TOML allows inf and nan, and Python reads whole numbers of any length. No file of ours needs either."""
    if isinstance(node, dict):
        for name, inner in node.items():
            _check_numbers(inner, f"{key}.{name}" if key else name)
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            _check_numbers(inner, f"{key}.{number}")
    elif isinstance(node, float) and not math.isfinite(node):
        raise ValueError(f"key {shortened(key)!r} is {node}, not a finite number")
    elif isinstance(node, int) and abs(node) > LARGEST_INT:
        raise ValueError(f"key {shortened(key)!r} is above {LARGEST_INT}, the largest whole number of TOML")


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and objects of a JSON-lines file; blank lines are skipped."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = parse_json(line, where=where, is_line=True)
        if not isinstance(row, dict):
            raise DocumentError(f"{where}: holds a {type(row).__name__}; each line must be one JSON object")
        yield number, row


def validate(raw: object, model: type[M], *, where: str) -> M:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise DocumentError(f"{where}: {explain_validation(error, model)}") from error


def stored(value: object) -> dict[str, Any]:
    """A frozen dataclass of ours as the body of a document; `restore` reads it back."""
    body: dict[str, Any] = _adapters[type(value)].dump_python(value, mode="json")
    return body


class _Adapters(dict[type[Any], TypeAdapter[Any]]):
    """One adapter per type: making one costs more than writing a file."""

    def __missing__(self, kind: type[Any]) -> TypeAdapter[Any]:
        self[kind] = TypeAdapter(kind)
        return self[kind]


_adapters = _Adapters()


def restore(doc: dict[str, Any], kind: type[D], *, where: str) -> D:
    """The dataclass that `stored` wrote. A document that was changed since is refused."""
    try:
        restored: D = _adapters[kind].validate_python(doc)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "the document"
        raise DocumentError(f"{where}: key {key!r}: {first['msg'].lower()}; it is not as it was written") from error
    return restored


MAX_PROBLEMS = 8


def explain_validation(error: ValidationError, model: type[BaseModel]) -> str:
    """All problems in one sentence: unknown keys with the nearest valid names, missing keys, and wrong values."""
    problems = error.errors(include_url=False)
    inside = {one["loc"][:depth] for one in problems for depth in range(len(one["loc"]))}
    problems = [one for one in problems if one["loc"] not in inside or len(problems) == 1]
    unknown = [one for one in problems if one["type"] == "extra_forbidden"]
    hints = {_key(one): _nearest_keys(one, model) for one in unknown}
    misspelt = {(*one["loc"][:-1], near[0]) for one in unknown if (near := hints[_key(one)][0])}
    missing = [_key(one) for one in problems if one["type"] == "missing" and one["loc"] not in misspelt]
    sentences = [f"unknown key {key!r}: {_hint(*names)}" for key, names in hints.items()]
    if len(missing) == 1:
        sentences.append(f"key {missing[0]!r} is missing; add it")
    elif missing:
        sentences.append(f"keys {', '.join(map(repr, missing))} are missing; add them")
    sentences += [_wrong_value(one, model) for one in problems if one["type"] not in ("extra_forbidden", "missing")]
    more = len(sentences) - MAX_PROBLEMS
    return "; ".join(sentences[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")


def _key(problem: ErrorDetails) -> str:
    return ".".join(str(part) for part in problem["loc"]) or "the document"


def _nearest_keys(problem: ErrorDetails, model: type[BaseModel]) -> tuple[list[str], list[str]]:
    """The nearest valid names to an unknown key, and all of them."""
    location = tuple(str(part) for part in problem["loc"])
    known = _fields_at(model, location[:-1])
    return nearest(location[-1], known), known


def _hint(near: list[str], known: list[str]) -> str:
    return f"did you mean {', '.join(near)}?" if near else f"known keys: {', '.join(sorted(known))}"


def _wrong_value(problem: ErrorDetails, model: type[BaseModel]) -> str:
    message, value = problem["msg"].removeprefix("Value error, "), problem.get("input")
    named = isinstance(value, str) and repr(value) in message
    shown = f" (found {shortened(repr(value))})" if isinstance(value, str | int | float) and not named else ""
    if problem["type"] in ("model_type", "model_attributes_type"):  # its message names our classes
        known = _fields_at(model, tuple(str(part) for part in problem["loc"]))
        message = f"expected an object with the keys {', '.join(known)}"
    return f"key {_key(problem)!r}: {message[0].lower()}{message[1:]}{shown}"


def first_problem(error: ValidationError, *, unknown: str) -> Any:
    """The problem to report. If a key is missing and another one is unknown, the unknown one is probably misspelt."""
    problems = error.errors(include_url=False)
    first = problems[0]
    unknown_keys = [one for one in problems if one["type"] == unknown and one["loc"][:-1] == first["loc"][:-1]]
    return unknown_keys[0] if first["type"] in ("missing", "missing_argument") and unknown_keys else first


def _fields_at(model: type[BaseModel], location: tuple[str, ...]) -> list[str]:
    """Names allowed at a place inside a model, following nested models, lists and dictionaries."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None:
            return []
        field = current.model_fields.get(part)
        if field is not None:
            current = _model_inside(field.annotation)
    return [f.alias or name for name, f in current.model_fields.items()] if current else []


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        nested = _model_inside(argument)
        if nested is not None:
            return nested
    return None
