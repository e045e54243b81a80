"""The JSON schema of study files says what the loader says: shipped studies pass, what it refuses does not."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scalewright.study.file import shipped, shipped_folder
from scalewright.study.schema import json_schema

SCHEMA = json_schema()
TYPES: dict[str, Any] = {
    "string": str | datetime.date, "integer": int, "number": int | float, "boolean": bool, "array": list,
    "object": dict, "null": type(None),
}  # fmt: skip
KNOWN = {
    "$ref", "$schema", "$defs", "anyOf", "type", "properties", "patternProperties", "additionalProperties", "required",
    "items", "enum", "const", "pattern", "minimum", "maximum", "exclusiveMinimum", "minLength", "minItems",
    "minProperties", "format", "title", "description", "default", "propertyNames",
}  # fmt: skip


def problems(value: Any, rule: dict[str, Any], at: str = "") -> list[str]:
    """What a validator says of a value, for the keywords that the schema uses."""
    assert set(rule) <= KNOWN, set(rule) - KNOWN
    if "$ref" in rule:
        return problems(value, SCHEMA["$defs"][rule["$ref"].removeprefix("#/$defs/")], at)
    if "anyOf" in rule:
        problems_of_choices = [problems(value, one, at) for one in rule["anyOf"]]
        return [] if not all(problems_of_choices) else problems_of_choices[0]
    kind = rule.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{at}: {value!r} is no {kind}"]
    wrong = [f"{at}: {value!r}"] if "enum" in rule and value not in rule["enum"] else []
    wrong += [f"{at}: {value!r}"] if "pattern" in rule and not re.search(rule["pattern"], value) else []
    wrong += [f"{at}: {value!r}"] if value is not None and "minimum" in rule and value < rule["minimum"] else []
    if isinstance(value, dict):
        wrong += [f"{at}: lacks {name}" for name in rule.get("required", []) if name not in value]
        for name, inner in value.items():
            wrong += problems(inner, _rule_of(name, rule), f"{at}.{name}")
    if isinstance(value, list):
        wrong += [text for i, inner in enumerate(value) for text in problems(inner, rule.get("items", {}), f"{at}.{i}")]
    return wrong


def _rule_of(name: str, rule: dict[str, Any]) -> dict[str, Any]:
    if name in rule.get("properties", {}):
        return dict(rule["properties"][name])
    for pattern, inner in rule.get("patternProperties", {}).items():
        if re.search(pattern, name):
            return dict(inner)
    more = rule.get("additionalProperties", True)
    if more is False:
        return {"enum": []}
    return {} if more is True else dict(more)


@pytest.mark.parametrize("name", shipped())
def test_shipped_studies_pass_and_name_the_schema(name: str) -> None:
    text = shipped()[name].read_text()
    assert problems(tomllib.loads(text), SCHEMA) == []
    directive, _, path = text.splitlines()[0].partition(" ")
    assert directive == "#:schema"
    assert json.loads((shipped_folder() / path).read_text()) == SCHEMA


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('title = "', 'tilte = "x"\ntitle = "'),
        ("[matrix]", "[matrix]\nempty = 3"),
        ('kind = "language"', 'kind = "languish"'),
        ("repeats = 1", "repeats = 0"),
        ("repeats = 1", "job = { time = 90 }"),
        ('question = "', '#"'),
    ],
)
def test_what_the_loader_refuses_the_schema_refuses(old: str, new: str) -> None:
    text = shipped()["quick"].read_text()
    assert old in text
    assert problems(tomllib.loads(text.replace(old, new, 1)), SCHEMA)


def test_keys_are_explained() -> None:
    for name in ("Measure", "ConditionalValues"):
        for key in ("matrix", "choose", "order", "concurrent", "where", "time_limit"):
            property_schema = SCHEMA["$defs"][name]["properties"].get(key)
            assert property_schema is None or property_schema.get("description"), (name, key)


def test_the_copy_for_the_web_is_the_same() -> None:
    copy = Path(__file__).parents[2] / "docs" / "study.schema.json"
    assert json.loads(copy.read_text()) == SCHEMA
