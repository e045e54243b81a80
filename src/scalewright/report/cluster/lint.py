"""Findings for people: the place, the line with a mark under it, the reason, what to type, and the rule's page."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from scalewright.lint.engine import LintFinding
from scalewright.lint.rule import LintRule
from scalewright.report.console import plain_table

_STYLES = {"info": "cyan", "warning": "yellow", "error": "red"}
_TAB = 4


def print_findings(
    console: Console, findings: Sequence[LintFinding], rules: Mapping[str, LintRule], texts: Mapping[str, str]
) -> None:
    """All findings. The reason and the page of a rule are printed with its first finding only."""
    explained: set[str] = set()
    shown = ("", 0, 0)
    for finding in findings:
        style = _STYLES[finding.severity]
        _print_heading(console, finding, style)
        if (finding.file, finding.line, finding.column) != shown:
            _print_source(console, finding, texts.get(finding.file, ""), style)
        shown = (finding.file, finding.line, finding.column)
        rule = rules[finding.rule]
        if rule.id not in explained:
            _print_note(console, "why", rule.why)
        _print_note(console, "fix", finding.next_step + _fix_flags(finding))
        if rule.id not in explained:
            _print_note(console, "see", f"{rule.page} (scalewright lint --explain {rule.id})")
        explained.add(rule.id)
        _write(console, "")


def _print_heading(console: Console, finding: LintFinding, style: str) -> None:
    """Place, severity, message and rule, wrapped at blanks to the width of the terminal."""
    heading = Text(f"{finding.file}:{finding.line}:{finding.column}", style="bold")
    heading.append_text(Text.assemble((": ", ""), (finding.severity, style), (": ", "")))
    indent = " " * 4
    width, used = max(console.width, 40), heading.cell_len
    words = [(word, "") for word in _visible(" ".join(finding.message.split())).split()]
    for index, (word, look) in enumerate([*words, (f"[{finding.rule}]", "dim")]):
        lead = " " if index else ""
        if used + len(lead) + cell_len(word) > width and (index or len(indent) + cell_len(word) <= width):
            heading.rstrip()
            lead, used = f"\n{indent}", 0
        heading.append(lead + word, style=look)
        used += cell_len(lead.lstrip("\n")) + cell_len(word)
    if not console.is_terminal:
        _write(console, heading.plain)
        return
    heading.no_wrap = True
    console.print(heading, soft_wrap=True)


def _write(console: Console, line: str) -> None:
    """A line without styles; much faster than console.print, which counts for thousands of findings."""
    console.file.write(f"{line}\n")


def _fix_flags(finding: LintFinding) -> str:
    """The flags that apply the fix, in brackets; empty: there is no fix."""
    if finding.fix is None:
        return ""
    return " (--fix does it)" if finding.fix.is_safe else " (--fix --unsafe-fixes does it)"


def _print_source(console: Console, finding: LintFinding, text: str, style: str) -> None:
    """The line, cut to the terminal's width around the mark, and the mark."""
    lines = text.split("\n")
    if not 0 < finding.line <= len(lines):
        return
    line = lines[finding.line - 1].rstrip("\r")
    first = finding.column - 1
    last = finding.end_column - 1 if finding.end_column > finding.column else len(line)
    room = max(console.width - 9, 20)
    cut = max(0, min(first - room // 2, len(line) - room)) if len(line) > room else 0
    shown = _visible(line[cut : cut + room])
    lead = len(_visible(line[cut:first]))
    marks = max(1, min(len(_visible(line[first:last])), len(shown) - lead))
    gutter = f"{finding.line:>5} | "
    _write(console, gutter + shown)
    if not console.is_terminal:
        _write(console, " " * 5 + " | " + " " * lead + "^" * marks)
        return
    mark = " " * 5 + " | " + " " * lead + f"[{style}]" + "^" * marks + "[/]"
    console.print(mark, soft_wrap=True, overflow="ignore", no_wrap=True)


def _visible(text: str) -> str:
    """Tabs as blanks and control characters as dots: a script must not control the terminal."""
    return "".join(c if c.isprintable() else "." for c in text.replace("\t", " " * _TAB))


def _print_note(console: Console, word: str, text: str) -> None:
    width = max(console.width - 12, 30)
    lines = textwrap.wrap(_visible(" ".join(text.split())), width, break_on_hyphens=False, break_long_words=False)
    for index, line in enumerate(lines):
        lead = f"{word}: " if index == 0 else " " * (len(word) + 2)
        _write(console, " " * 6 + lead + line)


def print_infos(console: Console, findings: Sequence[LintFinding]) -> None:
    """All infos as one paragraph: the rules, with how often each was found."""
    counts = Counter(finding.rule for finding in findings if finding.severity == "info")
    if not counts:
        return
    rules = ", ".join(f"{rule} {count}" if count > 1 else rule for rule, count in counts.most_common())
    num = counts.total()
    print_summary(console, f"{num} info{'s' * (num > 1)} (--all shows {'them' if num > 1 else 'it'}): {rules}")
    console.print()


def summary_line(findings: Sequence[LintFinding], num_files: int, num_unreadable: int, num_fixed: int) -> str:
    counts = [
        f"{n} {word}{'s' if n != 1 and word != 'info' else ''}"
        for word in ("error", "warning", "info")
        if (n := sum(finding.severity == word for finding in findings))
    ]
    num_read = num_files - num_unreadable
    files = f"{num_read} file{'s' if num_read != 1 else ''}"
    text = f"{', '.join(counts)} in {files}" if counts else f"no findings in {files}"
    if num_fixed:
        text += f"; {num_fixed} fixed"
    safe = sum(finding.fix is not None and finding.fix.is_safe for finding in findings)
    unsafe = sum(finding.fix is not None and not finding.fix.is_safe for finding in findings)
    if safe:
        text += f"; --fix can fix {safe}"
    if unsafe:
        text += f"; --fix --unsafe-fixes can fix {unsafe}{' more' if safe else ''}"
    if num_unreadable:
        text += f"; {num_unreadable} not readable"
    return text


def print_summary(console: Console, text: str) -> None:
    for line in textwrap.wrap(text, max(console.width, 40), break_on_hyphens=False):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_rules(console: Console, rules: Sequence[LintRule]) -> None:
    table = plain_table("rule", "severity", "what it finds")
    for rule in rules:
        scope = f" ({_scope(rule)})" if _scope(rule) else ""
        table.add_row(rule.id, rule.severity, escape(rule.title + scope))
    console.print(table)
    console.print(f"\n{len(rules)} rules. To read about one: scalewright lint --explain RULE")


def _scope(rule: LintRule) -> str:
    """Slurm versions and sites that a rule is limited to; empty: it applies everywhere."""
    parts = [f"Slurm {rule.slurm}" if rule.slurm else "", "on " + ", ".join(rule.sites) if rule.sites else ""]
    return "; ".join(part for part in parts if part)


def print_rule(console: Console, rule: LintRule) -> None:
    console.print(f"[bold]{escape(rule.id)}[/] ({rule.severity}): {escape(rule.title)}", soft_wrap=True)
    console.print()
    for paragraph in rule.why.split("\n\n"):
        console.print(escape(" ".join(paragraph.split())))
    console.print()
    console.print(escape(f"Applies to: {_scope(rule) or 'all Slurm versions, all sites'}"))
    console.print(escape(f"Source: {rule.source}"))
    for word, text in (("Before", rule.before), ("After", rule.after)):
        console.print(f"\n[bold]{word}[/]")
        for line in text.rstrip("\n").split("\n"):
            console.print(f"    {_visible(line)}", markup=False, soft_wrap=True)
    console.print(escape(f"\nSwitch it off for one line: # scalewright: ignore={rule.id} REASON"))
