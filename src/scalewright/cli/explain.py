"""`scalewright explain PATH...`: why a run is slow, why it ended, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scalewright.cli.options import AsJson, OutFile, print_json, report_written

if TYPE_CHECKING:
    from scalewright.report.explain.document import Explanation

Targets = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH...",
        show_default=False,
        help="Run directories, logs, traces, folders of them, or a Slurm job id. Two runs are compared.",
    ),
]
RuleName = Annotated[str, typer.Option("--rule", metavar="RULE", help="Describe one rule.")]
ListRules = Annotated[bool, typer.Option("--list", help="List all rules.")]
Watch = Annotated[bool, typer.Option("--watch", help="Explain a live run again and again; print what is new.")]
PageFile = Annotated[
    Path | None, typer.Option("--page", metavar="FILE", help="Write a page: findings with plots: .html.")
]
ShowAll = Annotated[bool, typer.Option("--all", help="Show all notes too.")]


def run(
    targets: Targets = None,
    as_json: AsJson = False,
    out: OutFile = None,
    page: PageFile = None,
    watch: Watch = False,
    show_all: ShowAll = False,
    rule: RuleName = "",
    list_rules: ListRules = False,
) -> None:
    """Say why a run is slow or ended, with evidence and what a change gains. Exit 1: warnings or errors."""
    from scalewright.errors import ConfigError
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.explain.terminal import print_explanation

    if rule or list_rules:
        _print_rules(rule)
        return
    if not targets:
        raise ConfigError("nothing to explain: name a run directory, a log, a trace, a folder of them, or a job id")
    if "" in targets:
        raise ConfigError("one of the paths is empty: name a run directory, a log or a folder (. is this folder)")
    if page is not None and page.suffix.lower() != ".html":
        raise ConfigError(f"--page {str(page)!r} names no page: end it in .html")
    if watch and as_json:
        raise ConfigError("--watch prints findings as they appear, and --json one document: choose one of them")
    if not watch and page is None and _print_compared(targets, as_json=as_json, out=out):
        return
    explanation = _watched(targets) if watch else _explanation(targets)
    if page is not None:
        from scalewright.report.explain.page import write_explanation_page

        write_explanation_page(page, explanation)
        report_written(page)
    if not print_json(explanation.document(), out=out, as_json=as_json):
        print_explanation(answer_console(), explanation, shows_all=show_all)
    raise typer.Exit(ExitCode.NO if explanation.is_alarming else ExitCode.YES)


def _print_compared(targets: list[str], *, as_json: bool, out: Path | None) -> bool:
    """Two targets that are a run each are compared; whether they were."""
    from scalewright.records.types import ExitCode
    from scalewright.report.console import answer_console
    from scalewright.report.explain.comparison import (
        compared,
        comparison_document,
        is_worse,
        print_comparison,
        two_runs,
    )

    paths = [Path(target) for target in targets]
    runs = two_runs(paths)
    if runs is None:
        return False
    comparison = compared(paths, *runs)
    if not print_json(comparison_document(comparison), out=out, as_json=as_json):
        print_comparison(answer_console(), comparison)
    raise typer.Exit(ExitCode.NO if is_worse(comparison) else ExitCode.YES)


def _explanation(targets: list[str]) -> Explanation:
    from scalewright.report.explain.build import explained_paths

    return explained_paths([Path(target) for target in targets])


def _watched(targets: list[str]) -> Explanation:
    from scalewright.report.console import answer_console
    from scalewright.report.explain.watch import watch

    return watch(answer_console(), [Path(target) for target in targets])


def _print_rules(name: str) -> None:
    from scalewright.errors import ConfigError
    from scalewright.observe.findings.catalogue import every_rule
    from scalewright.report.console import answer_console
    from scalewright.report.explain.terminal import print_rule, print_rules

    rules = {rule.id: rule for rule in every_rule()}
    if not name:
        print_rules(answer_console(), list(rules.values()))
    elif name in rules:
        print_rule(answer_console(), rules[name])
    else:
        raise ConfigError(f"--rule {name!r}: there is no such rule; `scalewright explain --list` shows them all")
