"""Settings of the linter: the file `scalewright-lint.toml` of a project, and flags that override it."""

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
    """The settings of a project: which rules to check, their severities, and the cluster."""

    schema_: str = Field(default="scalewright.lint/1", alias="schema")
    select: tuple[str, ...] = ()
    """Only these rules; empty: all."""
    ignore: tuple[str, ...] = ()
    severity: dict[str, Severity] = Field(default_factory=dict)
    """Another severity for a rule."""
    per_file_ignores: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Rules to skip in files that match a pattern, such as "tests/*.sh"."""
    fail_on: FailOn = "warning"
    site: str = ""
    """Profile of the cluster that the scripts are for."""
    slurm: str = ""
    """Slurm version of the cluster, such as "23.11"; default: the version in the profile."""

    def check_names(self, rules: dict[str, LintRule]) -> None:
        """Raise UnknownNameError if the settings name a rule that does not exist."""
        named = {*self.select, *self.ignore, *self.severity}
        for ids in self.per_file_ignores.values():
            named |= set(ids)
        for name in sorted(named - set(rules)):
            raise UnknownNameError("rule", name, rules, hint="see: scalewright lint --list")

    def selected_rules(self, rule_ids: Iterable[str], path: str) -> frozenset[str]:
        """Ids of the rules to check in a file."""
        selected = set(self.select or rule_ids) - set(self.ignore)
        for pattern, ids in self.per_file_ignores.items():
            if fnmatch(path, pattern) or fnmatch(path, f"*/{pattern}"):
                selected -= set(ids)
        return frozenset(selected)


def load_settings(path: Path) -> LintSettings:
    return load_toml(path, LintSettings, kind=KIND)


def find_settings(folder: Path) -> LintSettings:
    """The settings file in `folder` or the nearest folder above it; without one, the defaults."""
    for parent in (folder, *folder.parents):
        if (parent / FILE_NAME).is_file():
            return load_settings(parent / FILE_NAME)
    return LintSettings()
