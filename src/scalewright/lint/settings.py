"""What a project wants of the linter: the file `scalewright-lint.toml`, and flags that win over it."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from pydantic import Field

from scalewright.catalog.facts import Strict
from scalewright.errors import UnknownNameError
from scalewright.lint.rule import LintRule
from scalewright.records.loader import load_toml
from scalewright.records.types import Severity

KIND = "lint"
FILE_NAME = "scalewright-lint.toml"
FailOn = Literal["info", "warning", "error", "never"]
RANKS: dict[str, int] = {"info": 0, "warning": 1, "error": 2, "never": 3}


class LintSettings(Strict):
    """The configuration of a project, resolved."""

    schema_: str = Field(default="scalewright.lint/1", alias="schema")
    select: tuple[str, ...] = ()
    """Only these rules; empty: all."""
    ignore: tuple[str, ...] = ()
    severity: dict[str, Severity] = Field(default_factory=dict)
    """Another severity for a rule."""
    per_file_ignores: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Rules that do not hold for files that match a pattern, such as "tests/*.sh"."""
    fail_on: FailOn = "warning"
    site: str = ""
    """Profile of the cluster that the scripts are for."""
    slurm: str = ""
    """Its version of Slurm, such as "23.11"; default: the profile's."""

    def check_names(self, known: dict[str, LintRule]) -> None:
        """Raise if a rule is named that nobody knows."""
        named = {*self.select, *self.ignore, *self.severity}
        for ids in self.per_file_ignores.values():
            named |= set(ids)
        for name in sorted(named - set(known)):
            raise UnknownNameError("rule", name, known, hint="see: scalewright lint --list")

    def chosen(self, known: Iterable[str], path: str) -> frozenset[str]:
        """The rules that are asked of a file."""
        found = set(self.select or known) - set(self.ignore)
        for pattern, ids in self.per_file_ignores.items():
            if fnmatch(path, pattern) or fnmatch(path, f"*/{pattern}"):
                found -= set(ids)
        return frozenset(found)


def load_settings(path: Path) -> LintSettings:
    return load_toml(path, LintSettings, kind=KIND)


def find_settings(folder: Path) -> LintSettings:
    """The settings in `folder` or the nearest folder above it; the defaults where nobody wrote any."""
    for place in (folder, *folder.parents):
        if (place / FILE_NAME).is_file():
            return load_settings(place / FILE_NAME)
    return LintSettings()
