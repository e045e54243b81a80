"""Which paths through the package were really run, and which only exist as text: data, shown by `doctor`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scalewright.catalog.facts import Strict
from scalewright.catalog.library import packaged_data
from scalewright.records.loader import load_toml


class VerifiedPath(Strict):
    """One path and what is known of it."""

    name: str
    state: Literal["run", "golden", "never"]
    """run: executed for real in the tests; golden: its text is compared with a stored one; never: not run."""
    evidence: str


class VerifiedFile(Strict):
    schema_: str = Field(alias="schema")
    paths: tuple[VerifiedPath, ...]


def verified_paths() -> tuple[VerifiedPath, ...]:
    return load_toml(packaged_data() / "verified.toml", VerifiedFile, kind="verified").paths


def untested_paths() -> list[tuple[str, str]]:
    return [(p.name, p.evidence) for p in verified_paths() if p.state == "never"]
