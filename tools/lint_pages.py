"""Documentation pages of the lint rules: one per rule, one per category, and the table of the categories."""

from __future__ import annotations

from pathlib import Path

from scalewright.lint.engine import known_rules
from scalewright.lint.rule import LintRule
from scalewright.lint.rules import CATEGORIES

RULE_PAGE = """{header}
# {id}

**{severity}**: {title}

{why}

Applies to {scope}. Source: {source}

## Before

```bash
{before}
```

## After

```bash
{after}
```

## Switching it off

For one line, or above the first command for the whole script, with a reason:

```bash
# scalewright: ignore={id} REASON
```

For a project, in `scalewright-lint.toml`: `ignore = ["{id}"]`.

More rules of this category: [{category}](index.md). [All categories](../../lint.md#rules)
"""

CATEGORY_PAGE = """{header}
# Lint rules: {category}

{covers}.

{table}

[All categories](../../lint.md#rules). To print a page in the terminal: `scalewright lint --explain RULE`.
"""


def rule_pages(docs: Path, header: str) -> dict[Path, str]:
    """Text of every page under `docs/lint`, by path."""
    folder = docs / "lint"
    pages = {folder / rule.category / f"{rule.id}.md": _rule_page(rule, header) for rule in known_rules().values()}
    return pages | {folder / name / "index.md": _category_page(name, header) for name in CATEGORIES}


def _rule_page(rule: LintRule, header: str) -> str:
    versions = f"Slurm {rule.slurm}" if rule.slurm else "all Slurm versions"
    sites = ", ".join(rule.sites) if rule.sites else "all sites"
    return RULE_PAGE.format(
        header=header,
        id=rule.id,
        category=_title(rule.category),
        severity=rule.severity,
        title=_text(rule.title),
        why=_text(rule.why),
        source=_text(rule.source),
        scope=f"{versions.replace('<', '&lt;').replace('>', '&gt;')} and {sites}",
        before=_script(rule.before),
        after=_script(rule.after),
    )


def _category_page(category: str, header: str) -> str:
    rows = [f"| [{r.id}]({r.id}.md) | {r.severity} | {_text(r.title)} |" for r in _rules_of(category)]
    return CATEGORY_PAGE.format(
        header=header,
        category=_title(category),
        covers=_text(CATEGORIES[category]),
        table="\n".join(["| rule | severity | what it finds |", "|---|---|---|", *rows]),
    )


def category_table() -> str:
    """Every category with the number of its rules, linked to its page."""
    rows = [
        f"| [{_title(name)}](lint/{name}/index.md) | {len(_rules_of(name))} | {_text(covers)} |"
        for name, covers in CATEGORIES.items()
    ]
    count = f"{len(known_rules())} rules in {len(CATEGORIES)} categories:"
    return "\n".join([count, "", "| category | rules | what they check |", "|---|---:|---|", *rows]) + "\n"


def _rules_of(category: str) -> list[LintRule]:
    return [rule for rule in known_rules().values() if rule.category == category]


def _title(category: str) -> str:
    return category.replace("_", " ")


def _script(text: str) -> str:
    """An example as a page shows it, with a visible mark for the carriage returns of DOS line ends."""
    return text.rstrip("\n").replace("\r", "^M")


def _text(text: str) -> str:
    """Plain text as Markdown: nothing in it is markup."""
    for mark in "\\`*_{}[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return text
