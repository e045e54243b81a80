"""The JSON schema of study files, which editors complete and check by."""

from __future__ import annotations

from typing import Any

from scalewright.study.file import StudyFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """As files are written: the key is `schema`, and a source may be named by its key under `sources`."""
    found = StudyFile.model_json_schema(by_alias=True)
    found["$schema"] = DIALECT
    found["title"] = "A Scalewright study"
    for name, definition in found["$defs"].items():
        if name != "StudyFile" and "source" in definition.get("properties", {}):
            definition["properties"]["source"] = {
                "anyOf": [{"type": "string", "description": "A key under `sources`."}, {"$ref": "#/$defs/Source"}]
            }
    return found
