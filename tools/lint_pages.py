"""Pages of the documentation that are made from the lint rules: one per rule, and the table of all of them."""

from __future__ import annotations

from pathlib import Path

from scalewright.lint.engine import known_rules
from scalewright.lint.rule import LintRule

RULE_PAGE = """{header}
# {id}

**{severity}**: {title}

{why}

Holds for {holds}. Source: {source}

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

For a project, in `scalewright-lint.toml`: `ignore = ["{id}"]`. [All rules](../lint.md#rules)
"""


def rule_pages(docs: Path, header: str) -> dict[Path, str]:
    return {docs / "lint" / f"{rule.id}.md": _page(rule, header) for rule in known_rules().values()}


def _page(rule: LintRule, header: str) -> str:
    versions = f"Slurm {rule.slurm}" if rule.slurm else "all versions of Slurm"
    sites = ", ".join(rule.sites) if rule.sites else "all sites"
    return RULE_PAGE.format(
        header=header,
        id=rule.id,
        severity=rule.severity,
        title=_text(rule.title),
        why=_text(rule.why),
        source=_text(rule.source),
        holds=f"{versions.replace('<', '&lt;').replace('>', '&gt;')} and {sites}",
        before=_seen(rule.before),
        after=_seen(rule.after),
    )


def _seen(script: str) -> str:
    """An example as a page shows it: the end of a line that DOS writes would not be seen."""
    return script.rstrip("\n").replace("\r", "^M")


def rule_table() -> str:
    """Every rule with its severity, linked to its page."""
    rows = [f"| [{r.id}](lint/{r.id}.md) | {r.severity} | {_text(r.title)} |" for r in known_rules().values()]
    return "\n".join(["| rule | severity | what it finds |", "|---|---|---|", *rows]) + "\n"


def _text(text: str) -> str:
    """Plain text as Markdown: nothing in it is markup."""
    for mark in "\\`*_{}[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return text
