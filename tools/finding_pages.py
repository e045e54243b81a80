"""Documentation pages of the rules of `explain`: one per rule, one per theme, and the table of the themes."""

from __future__ import annotations

from pathlib import Path

from scalewright.observe.findings.catalogue import every_rule
from scalewright.observe.findings.rule import FindingRule

ROLES = {
    "ended": "ended a run", "slowed": "makes a run slower", "wasted": "wastes what was reserved",
    "suspect": "makes its numbers doubtful",
}  # fmt: skip
RULE_PAGE = """{header}
# {id}

**{severity}**: {title}. Such a cause {role}.

{why}

## What helps

{advice}

{consequence}Source: {source}

More rules of this theme: [{theme}](index.md). [All themes]({up}explain.md#rules). In the terminal:
`scalewright explain --rule {id}`
"""
THEME_PAGE = """{header}
# Findings: {theme}

{table}

[All themes]({up}explain.md#rules). To print a page in the terminal: `scalewright explain --rule RULE`.
"""


def finding_pages(docs: Path, header: str) -> dict[Path, str]:
    """Text of every page under `docs/findings`, by path."""
    folder = docs / "findings"
    pages = {folder / rule.theme / f"{rule.id}.md": _rule_page(rule, header) for rule in every_rule()}
    return pages | {folder / theme / "index.md": _theme_page(theme, header) for theme in themes()}


def themes() -> list[str]:
    return list(dict.fromkeys(rule.theme for rule in every_rule()))


def _rule_page(rule: FindingRule, header: str) -> str:
    causes = ", ".join(rule.because_of)
    consequence = f"It is shown as a consequence, if one of these fires: {_text(causes)}.\n\n" if causes else ""
    return RULE_PAGE.format(
        header=header, id=rule.id, severity=rule.severity, title=_text(rule.title), role=ROLES[rule.role],
        why=_text(rule.why), advice=_text(rule.advice), source=_text(rule.source), theme=_title(rule.theme),
        consequence=consequence, up=_up(rule.theme),
    )  # fmt: skip


def _theme_page(theme: str, header: str) -> str:
    rows = [f"| [{r.id}]({r.id}.md) | {r.severity} | {_text(r.title)} |" for r in every_rule() if r.theme == theme]
    table = "\n".join(["| rule | severity | what it finds |", "|---|---|---|", *rows])
    return THEME_PAGE.format(header=header, theme=_title(theme), table=table, up=_up(theme))


def theme_table() -> str:
    """Every theme with its rules, linked to their pages."""
    rows = []
    for theme in themes():
        rules = ", ".join(f"[{r.id}](findings/{theme}/{r.id}.md)" for r in every_rule() if r.theme == theme)
        rows.append(f"| [{_title(theme)}](findings/{theme}/index.md) | {rules} |")
    count = f"{len(every_rule())} rules in {len(themes())} themes:"
    return "\n".join([count, "", "| theme | rules |", "|---|---|", *rows]) + "\n"


def _up(theme: str) -> str:
    return "../" * (theme.count("/") + 2)


def _title(theme: str) -> str:
    return theme.replace("/", ": ").replace("_", " ")


def _text(text: str) -> str:
    """Plain text as Markdown; code in backquotes stays."""
    for mark in "\\*_{}[]<>|#":
        text = text.replace(mark, f"\\{mark}")
    return "".join(piece if at % 2 == 0 else f"`{_plain(piece)}`" for at, piece in enumerate(text.split("`")))


def _plain(piece: str) -> str:
    for mark in "\\*_{}[]<>|#":
        piece = piece.replace(f"\\{mark}", mark)
    return piece
