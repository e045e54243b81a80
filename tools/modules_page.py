"""The page that names every module of the package once, with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from markdown_table import cell, table

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "scalewright"
SENTENCE = re.compile(r"(?<=[a-z0-9)`%\"'])\.(?=\s)")
INTRO = """Every module of the package, with the first sentence of its docstring. The rooms are in the order of the
layers: a room imports only rooms below it. [Architecture](../architecture.md) explains the rooms.
"""


def rooms() -> list[str]:
    """The folders of the package from top to bottom: the layers that import-linter checks."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    names = [name.strip(" ()") for layer in layers for name in layer.split("|")]
    return [name for name in names if (PACKAGE / name).is_dir()]


def first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not docstring:
        raise SystemExit(f"{path.relative_to(ROOT)} has no docstring: say in one line what it holds")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return SENTENCE.split(paragraph)[0].rstrip(".:")


def modules_of(folder: Path) -> list[tuple[str, str]]:
    """Module names relative to the package, packages first, each with its sentence."""
    paths = sorted(folder.rglob("*.py"), key=lambda path: (path.parent, path.name != "__init__.py", path.name))
    rows = []
    for path in paths:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if path.parent == folder and path.name == "__init__.py":
            continue
        name = ".".join(parts[:-1]) + "/" if path.name == "__init__.py" else ".".join(parts)
        rows.append((f"`{name}`", cell(first_sentence(path))))
    return rows


def modules_page(header: str) -> str:
    parts = [header, "# Modules\n", INTRO]
    top = [
        (f"`{name}`", cell(first_sentence(PACKAGE / f"{name}.py")))
        for name in ("__init__", "__main__", "units", "errors")
    ]
    for room in rooms():
        about = first_sentence(PACKAGE / room / "__init__.py")
        parts += [f"## {room}\n", f"{about}.\n", table(("module", "what it holds"), modules_of(PACKAGE / room), left=2)]
    parts += ["## The package itself\n", table(("module", "what it holds"), top, left=2)]
    return "\n".join(parts)
