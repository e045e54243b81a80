"""The JSON schema of study files, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from scalewright.study.file import StudyFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema of the file as written: the key is `schema`, and a source may be a key under `sources`."""
    schema = StudyFile.model_json_schema(by_alias=True)
    schema["$schema"] = DIALECT
    schema["title"] = "A Scalewright study"
    for name, definition in schema["$defs"].items():
        if name != "StudyFile" and "source" in definition.get("properties", {}):
            definition["properties"]["source"] = {
                "anyOf": [{"type": "string", "description": "A key under `sources`."}, {"$ref": "#/$defs/Source"}]
            }
    return schema
