"""The documentation is current, complete and builds; the commands it shows work."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import yaml

import scalewright
from scalewright.catalog.library import Catalog, packaged_data

if TYPE_CHECKING:
    from tests.conftest import RememberedCli

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted(DOCS.rglob("*.md")),
]
COMMANDS = DOCS / "commands.md"
README_LINES = 130
BLOCK = re.compile(r"(?:<!-- console(?P<options>[^>]*)-->\n)?```console\n(?P<body>.*?)```", re.S)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
NAMED_FILE = re.compile(r"(?<![\w./:-])(?:[a-z_]+/)+(?:[\w.*-]+\.(?:py|toml|md|js|sbatch|bib))?(?![\w/-])")
CITED = re.compile(r"\b[a-z]+(?:19|20)\d\d\b")


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "tools" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()
CLAIMS = importlib.import_module("claims")  # lies beside the generator


def shown_commands() -> list[tuple[str, int]]:
    """Every `$ scalewright ...` of a console block, with the exit code the page states (default 0)."""
    exit_codes: dict[str, int] = {}
    for page in PAGES:
        for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
            options = dict(part.split("=", 1) for part in (block["options"] or "").split())
            text = block["body"].replace("\\\n", " ")
            for line in text.splitlines():
                if line.startswith("$ scalewright"):
                    exit_codes[" ".join(shlex.split(line)[2:])] = int(options.get("exit", "0"))
    return list(exit_codes.items())


def test_generated_parts_are_current(
    remembered_cli: RememberedCli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_cli(*args: str, columns: int = GENERATOR.OUTPUT_COLUMNS) -> tuple[int, str]:
        done = remembered_cli(*args, columns=columns)
        return done.returncode, GENERATOR.tidied(done.stdout + done.stderr)

    monkeypatch.setattr(GENERATOR, "run_cli", run_cli)
    monkeypatch.setattr(sys, "argv", ["generate_docs.py", "--check"])
    assert GENERATOR.main() == 0, capsys.readouterr().out


WITHOUT_FIGURES_OF_TODAY = {DOCS / "LOG.md", DOCS / "notebook.md", *GENERATOR.page_makers()}
"""Dated experiments, which are not edited afterwards, and pages that are generated whole."""


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in WITHOUT_FIGURES_OF_TODAY], ids=lambda page: str(page.relative_to(ROOT))
)
def test_figures_of_accuracy_and_counts_are_generated(page: Path) -> None:
    """Write `<!-- claim:NAME -->...<!-- /claim -->` about such a figure; tools/claims.py has the names."""
    assert CLAIMS.unmarked(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "It has 135 rules.", "fourteen sites", "37 constants against 836 rows", "112 published steps",
        "The balanced error is 10.8 % and the median 6.7 %.", "It is off by 5 %.", "1,000 predictions a second",
    ],
)  # fmt: skip
def test_an_unmarked_figure_is_detected(sentence: str) -> None:
    assert CLAIMS.unmarked(f"Text before.\n\n{sentence} Text after.")
    assert not CLAIMS.unmarked(f"<!-- fixed:an example -->{sentence}<!-- /fixed -->")
    assert not CLAIMS.unmarked(f"```text\n{sentence}\n```")


def test_a_claim_that_drifted_is_corrected_and_an_unknown_one_refused() -> None:
    page = "It has <!-- claim:lint_rules -->1<!-- /claim --> rules."
    corrected = CLAIMS.fill_claims(page)
    assert corrected == f"It has <!-- claim:lint_rules -->{CLAIMS.CLAIMS['lint_rules']()}<!-- /claim --> rules."
    assert corrected != page
    with pytest.raises(SystemExit, match="no claim is called lint_rule;"):
        CLAIMS.fill_claims("<!-- claim:lint_rule -->1<!-- /claim -->")


def test_the_stored_fit_is_that_of_the_shipped_constants() -> None:
    """left_out.txt lists the constants and stack factors that the fit wrote; the catalogue has them to four digits."""
    text = (ROOT / "benchmarks" / "results" / "left_out.txt").read_text(encoding="utf-8")
    catalog = Catalog((packaged_data(),))
    num_fitted = int(text.partition(" parameters")[0].rpartition(" ")[2])
    fitted = re.findall(r"^  ([\w.-]+) +[\d.e+-]+ +([\d.e+-]+) +[\d.]+(?:  assumed.*)?$", text, re.M)
    assert len(fitted) == num_fitted
    for name, value in fitted:
        stack, _, factor = name.rpartition(".")
        shipped = getattr(catalog.stack(stack) if stack else catalog.constants(), factor)
        assert shipped.value == pytest.approx(float(value), rel=1e-3), name


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
def test_shown_commands_exit_as_shown(remembered_cli: RememberedCli, command: str, code: int) -> None:
    done = remembered_cli(*shlex.split(command))
    assert done.returncode == code, done.stderr
    assert done.stdout
    assert all(line.startswith("note: ") for line in done.stderr.splitlines()), done.stderr


def test_the_commands_page_shows_every_command() -> None:
    page = COMMANDS.read_text(encoding="utf-8")
    shown = {block.split()[0] for block, _ in shown_commands()}
    shown |= set(re.findall(r"^scalewright ([a-z-]+)", page, re.M))  # in `sh` blocks: what changes the machine
    for name in GENERATOR.command_names():
        assert name in shown
        assert f"**{name}**" in page
        assert f"## scalewright {name}\n" in (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")


def test_what_the_commands_page_reads_it_has_made_before() -> None:
    """Followed line by line, no command needs a plan or a run that no earlier line made."""
    made: set[str] = set()
    for line in re.findall(r"^scalewright .*$", COMMANDS.read_text(encoding="utf-8"), re.M):
        words = shlex.split(line)
        if words[1] in ("advise", "report", "plan-show", "explain"):
            assert words[2] in made, line
        made |= {words[at + 1] for at, word in enumerate(words) if word in ("--out", "--run-dir")}
    assert "plan.json" in made


def test_readme_is_short_and_its_sections_are_in_order() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= README_LINES
    titles = re.findall(r"^## (.*)$", readme, re.M)
    assert titles == [
        "Two commands",
        "Three things to try",
        "From Python",
        "Install",
        "Accuracy",
        "What this is not",
        "More",
    ]
    assert readme.count("<!-- console") == 3
    for target in ("docs/index.md", "docs/architecture.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        assert f"]({target})" in readme


def test_names_of_the_python_interface_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md"):
        for name in re.findall(r"\bsw\.(\w+)", page.read_text(encoding="utf-8")):
            assert hasattr(scalewright, name), name


def test_every_extra_is_on_the_installing_page() -> None:
    page = (DOCS / "install.md").read_text(encoding="utf-8")
    for extra in re.findall(r"^(\w+) = \[", _table("project.optional-dependencies"), re.M):
        assert f"| `{extra}` |" in page


def test_every_page_is_in_the_navigation() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["validation"]["nav"] == {"omitted_files": "warn", "not_found": "warn"}
    named = re.findall(r"[\w/]+\.md", str(settings["nav"]))
    # Of the lint rules only the page of each category is in the navigation; it links to the rules. The pages of
    # findings are linked from the page that explains them.
    pages = [page for page in DOCS.rglob("*.md") if page.parent.parent.name != "lint" or page.name == "index.md"]
    pages = [page for page in pages if page.relative_to(DOCS).parts[0] != "findings"]
    assert sorted(named) == sorted(str(page.relative_to(DOCS)) for page in pages)


@pytest.mark.parametrize(
    "page", [DOCS / "architecture.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("images/*.svg"))]
)
def test_files_that_a_page_or_picture_names_exist(page: Path) -> None:
    named = {
        name for name in NAMED_FILE.findall(page.read_text(encoding="utf-8")) if not re.search(r"NAME|DIR|\*", name)
    }
    assert named or page.name == "rooms.svg"
    folders = (ROOT, ROOT / "src" / "scalewright", page.parent)
    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in folders)] == []


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
