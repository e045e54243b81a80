"""The documentation is current, complete and builds; the commands it shows work."""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Cli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- console(?P<options>[^>]*)-->\n)?```console\n(?P<body>.*?)```", re.S)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CITED = re.compile(r"\b[a-z]+(?:19|20)\d\d\b")


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


def shown_commands() -> list[tuple[str, int]]:
    """Every `$ scalewright ...` of a console block, with the exit code the page states (default 0)."""
    found: dict[str, int] = {}
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            options = dict(part.split("=", 1) for part in (block["options"] or "").split())
            text = block["body"].replace("\\\n", " ")
            for line in text.splitlines():
                if line.startswith("$ scalewright"):
                    found[" ".join(shlex.split(line)[2:])] = int(options.get("exit", "0"))
    return list(found.items())


@pytest.fixture(scope="module")
def answer(shared_cli: Cli) -> Callable[..., subprocess.CompletedProcess[str]]:
    """What a command says where the pages are written; each is run once."""

    @functools.cache
    def run(*args: str, columns: int = GENERATOR.OUTPUT_COLUMNS) -> subprocess.CompletedProcess[str]:
        return shared_cli(*args, cwd=ROOT, env={"COLUMNS": str(columns)})

    return run


def test_generated_parts_are_current(answer, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def run_cli(*args: str, columns: int = GENERATOR.OUTPUT_COLUMNS) -> tuple[int, str]:
        done = answer(*args, columns=columns)
        return done.returncode, GENERATOR.tidied(done.stdout + done.stderr)

    monkeypatch.setattr(GENERATOR, "run_cli", run_cli)
    monkeypatch.setattr(sys, "argv", ["generate_docs.py", "--check"])
    assert GENERATOR.main() == 0, capsys.readouterr().out


def test_check_names_a_stale_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "models").mkdir()
    page = tmp_path / "page.md"
    page.write_text("old\n", encoding="utf-8")
    monkeypatch.setattr(GENERATOR, "ROOT", tmp_path)
    monkeypatch.setattr(GENERATOR, "DOCS", tmp_path)
    monkeypatch.setattr(GENERATOR, "expected", lambda: {page: "new\n"})
    monkeypatch.setattr(GENERATOR, "orphans", lambda: [])
    monkeypatch.setattr(sys, "argv", ["generate_docs.py", "--check"])
    assert GENERATOR.main() == 1
    assert "stale: page.md" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == "old\n", "--check writes nothing"
    monkeypatch.setattr(sys, "argv", ["generate_docs.py"])
    assert GENERATOR.main() == 0
    assert page.read_text(encoding="utf-8") == "new\n"


@pytest.mark.parametrize(("command", "code"), shown_commands())
def test_shown_commands_exit_as_shown(answer, command: str, code: int) -> None:
    done = answer(*shlex.split(command))
    assert done.returncode == code, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_readme_shows_every_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = {block.split()[0] for block, _ in shown_commands()}
    shown |= set(re.findall(r"^scalewright ([a-z-]+)", readme, re.M))  # in `sh` blocks: what changes the machine
    for name in GENERATOR.command_names():
        assert name in shown
        assert f"**{name}**" in readme
        assert f"## scalewright {name}\n" in (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")


def test_what_the_readme_reads_it_has_made_before() -> None:
    """Followed line by line, no command asks for a plan or a run that nothing made."""
    made: set[str] = set()
    for line in re.findall(r"^scalewright .*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M):
        words = shlex.split(line)
        if words[1] in ("advise", "report", "plan-show", "explain"):
            assert words[2] in made, line
        made |= {words[at + 1] for at, word in enumerate(words) if word in ("--out", "--run-dir")}
    assert "plan.json" in made


def test_readme_sections_are_in_order() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    wanted = ["Two commands", "Install", "The commands", "Files", "Accuracy", "Exit codes", "What this is not"]
    titles = re.findall(r"^## (.*)$", readme, re.M)
    assert titles == [*wanted, "How to cite", "Licence"]
    for extra in re.findall(r"^(\w+) = \[", _table("project.optional-dependencies"), re.M):
        assert f"| `{extra}` |" in readme
    for folder in sorted((ROOT / "src" / "scalewright").glob("*/__init__.py")):
        assert f"`src/scalewright/{folder.parent.name}/`" in readme


def _table(name: str) -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return text.split(f"[{name}]", 1)[1].split("\n[", 1)[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for link in LINK.finditer(text):
        target, _, anchor = link["target"].partition("#")
        if "://" in target:
            continue
        file = (page.parent / target) if target else page
        assert file.exists(), f"{page.relative_to(ROOT)} links to {target}"
        if anchor:
            linked = file.read_text(encoding="utf-8")
            slugs = {
                re.sub(r"[^\w]+", "-", title.lower()).strip("-") for title in re.findall(r"^#+ (.*)$", linked, re.M)
            }
            assert f'id="{anchor}"' in linked or anchor in slugs, link["target"]


def test_every_cited_source_is_in_the_bibliography() -> None:
    known = importlib.import_module("bibliography").bibliography()  # lies beside the generator
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip().startswith("Source "):
                missing = set(CITED.findall(line)) - set(known)
                assert not missing, f"{path.name}: {missing} is not in docs/references.bib"
    for key, fields in known.items():
        assert {"author", "title", "year"} <= set(fields), key
        assert key.endswith(fields["year"]), key


def test_the_project_speaks_of_itself_alone() -> None:
    for page in [*PAGES, ROOT / "mkdocs.yml", *sorted(DOCS.rglob("*.toml")), *sorted(DOCS.rglob("*.bib"))]:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:work|root|home)/", text), f"{page.name} names a folder of one machine"
