"""Names say what they hold, no two classes share a name, and no folder has too many files."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "scalewright"
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILES_PER_FOLDER = 25
EMPTY_NAMES = {
    "found", "told", "asked", "wanted", "settled", "settle", "tell", "tells", "few", "back", "ways", "foretold", "said",
    "strange", "Wanted", "Told", "Found", "Asked", "_Asked", "_Told",
}  # fmt: skip
"""Names that hide what they hold: name the thing that was found or asked for instead."""
EMPTY_PREFIXES = ("settle_", "tell_", "told_")


def names_given(text: str) -> Iterator[str]:
    """Names that a module gives: variables, arguments, functions and classes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def empty_names(text: str) -> set[str]:
    return {name for name in names_given(text) if name in EMPTY_NAMES or name.startswith(EMPTY_PREFIXES)}


@pytest.mark.parametrize("text", ["found = 1", "def settle(x): ...", "def f(wanted): ...", "told_s: float = 1.0"])
def test_an_empty_name_is_seen(text: str) -> None:
    assert empty_names(text)


def test_names_say_what_they_hold() -> None:
    empty = {path.relative_to(SOURCE).as_posix(): empty_names(path.read_text()) for path in FILES}
    assert not {name: names for name, names in empty.items() if names}


def test_no_two_classes_share_a_name() -> None:
    trees = (ast.parse(path.read_text()) for path in FILES)
    classes = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    assert not {name for name, count in classes.items() if count > 1}


def test_no_folder_has_too_many_files() -> None:
    sizes = Counter(path.parent.relative_to(SOURCE).as_posix() for path in FILES if path.name != "__init__.py")
    assert not {folder: size for folder, size in sizes.items() if size > MAX_FILES_PER_FOLDER}
