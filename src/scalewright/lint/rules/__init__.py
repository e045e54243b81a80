"""The rules: every module here holds some; `all_rules` is all of them by id."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from scalewright.lint.rule import LintRule


@cache
def all_rules() -> dict[str, LintRule]:
    """Rules by id, in the order of their ids."""
    found: dict[str, LintRule] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, LintRule) and found.setdefault(value.id, value) is not value:
                raise AssertionError(f"two rules are called {value.id}")
    return dict(sorted(found.items()))
