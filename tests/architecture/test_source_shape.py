"""Files and functions stay readable, and nothing points back at the place they were written in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
TEXT_SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".json",
    ".jsonl",
    ".sh",
    ".yml",
    ".yaml",
    ".bib",
    ".css",
    ".html",
    ".txt",
    ".cfg",
    "",
}
FOLDERS = ("src", "tests", "docs", "tools", "studies", "benchmarks", "examples", ".github")
# Spelt in two halves, so that this file does not find itself.
WORKPLACE = re.compile(r"(?<![\w.-])/wo" + r"rk/|\.\./sha" + "red|(?<![\\w/])sha" + r"red/[A-Z]")
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def repository_texts() -> Iterator[Path]:
    yield from (p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT_SUFFIXES)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
                yield path


def hits(pattern: re.Pattern[str]) -> list[str]:
    matches = []
    for path in repository_texts():
        text = path.read_text(encoding="utf-8", errors="replace")
        matches += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if pattern.search(line)
        ]
    return matches


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src" / "scalewright")))
def test_file_and_its_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_nothing_names_a_path_of_the_workplace() -> None:
    assert hits(WORKPLACE) == []


def test_nothing_is_marked_unfinished() -> None:
    assert hits(UNFINISHED) == []


def test_the_search_reads_the_whole_repository() -> None:
    read = {path.relative_to(ROOT).parts[0] for path in repository_texts()}
    assert {"src", "tests", "tools", "README.md", "pyproject.toml", "Makefile"} <= read


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
