"""Formulas as people read them: equation, source, assumptions and check, taken from the docstrings themselves."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass

SECTIONS = ("Equation", "Source", "Assumes", "Checked", "Valid")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)})\s+(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One documented formula."""

    key: str
    summary: str
    sections: dict[str, str]


def formula(key: str) -> Formula:
    """The formula behind a breakdown's key, `module.function` inside the cost models."""
    module_name, _, function_name = key.rpartition(".")
    module = importlib.import_module(f"scalewright.costs.{module_name}")
    return parse_docstring(key, inspect.getdoc(getattr(module, function_name)) or "")


def parse_docstring(key: str, text: str) -> Formula:
    lines = text.splitlines()
    summary = lines[0] if lines else ""
    sections: dict[str, str] = {}
    current = ""
    for line in lines[1:]:
        match = _SECTION.match(line)
        if match:
            current = match.group(1)
            sections[current] = match.group(2).strip()
        elif current and line.strip():
            sections[current] += "\n" + line.strip()
    return Formula(key=key, summary=summary, sections=sections)
