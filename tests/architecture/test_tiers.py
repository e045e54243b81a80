"""Every test belongs to a tier that finds it."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
MARKED = re.compile(r"pytest\.mark\.(\w+)")


def run_tiers() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    return import_module("run_tiers")


def test_every_tier_runs_once() -> None:
    tools = run_tiers()
    assert sorted(tier for group in tools.GROUPS for tier in group) == sorted(tools.TIERS)


def test_marks_are_used_where_their_tier_looks() -> None:
    tools = run_tiers()
    parts = [part for name, tier in tools.PARTS.items() for part in tier if name not in tools.ONLY_NAMED]
    folders = {part.mark: part.folders for part in parts}
    seen = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for mark in set(MARKED.findall(path.read_text(encoding="utf-8"))) & set(folders):
            seen.add(mark)
            assert any(path.is_relative_to(ROOT / folder) for folder in folders[mark]), f"{path}: {mark}"
        if "alone" in MARKED.findall(path.read_text(encoding="utf-8")):
            assert any(path.is_relative_to(ROOT / folder) for folder in folders["ranks"]), f"{path}: only ranks have it"
    assert seen == {"ranks", "kills", "slurm", "netns", "browser", "engines"}
