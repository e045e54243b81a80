"""`scalewright lint`: find what wastes GPU-hours or loses work in job scripts, and fix it."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scalewright.cli.options import AsJson, CatalogFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from scalewright.lint.engine import Linter, LintFinding
    from scalewright.lint.script import Script
    from scalewright.records.types import Severity

_OBJECTS_PER_COLLECTION = 200_000
"""New objects after which Python looks for garbage: those of about twenty scripts."""
Scripts = Annotated[
    list[str] | None,
    typer.Argument(metavar="SCRIPT...", help="Job scripts, or - for standard input.", show_default=False),
]
SiteName = Annotated[str, typer.Option(help="Profile of the cluster that the scripts run on.")]
SlurmVersion = Annotated[
    str, typer.Option("--slurm", metavar="VERSION", help="Slurm version of the cluster, such as 23.11.")
]
SbatchLine = Annotated[
    str, typer.Option("--sbatch", metavar="OPTIONS", help="Options that you will give to sbatch; they override.")
]
ModelName = Annotated[str, typer.Option("--model", help="Model that the scripts train; needs --site.")]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", help="Plan written by `plan --out FILE`, instead of --model.")
]
PilotRun = Annotated[
    Path | None, typer.Option("--pilot", metavar="RUN", help="Directory of an earlier run, to check --time against.")
]
FixIt = Annotated[bool, typer.Option("--fix", help="Apply safe fixes to the scripts.")]
ShowDiff = Annotated[bool, typer.Option("--diff", help="Show what --fix would change; write nothing.")]
Unsafe = Annotated[bool, typer.Option("--unsafe-fixes", help="Also apply fixes that may change what the job does.")]
Format = Annotated[Literal["text", "json", "sarif", "github"], typer.Option("--format", help="Output format.")]
ExplainRule = Annotated[str, typer.Option("--explain", metavar="RULE", help="Describe one rule.")]
ListRules = Annotated[bool, typer.Option("--list", help="List all rules.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings file; default: scalewright-lint.toml in this or a parent folder."
    ),
]
FailOn = Annotated[
    Literal["info", "warning", "error", "never"] | None,
    typer.Option("--fail-on", help="Lowest severity for exit code 1; default: warning.", show_default=False),
]
MinSeverity = Annotated[
    Literal["info", "warning", "error"] | None,
    typer.Option(
        "--min-severity",
        help="Lowest severity to show. Default: warning as text, with infos as one line; info in other formats.",
        show_default=False,
    ),
]
ShowAll = Annotated[bool, typer.Option("--all", help="Show infos in full too, like --min-severity info.")]
Select = Annotated[str, typer.Option("--select", metavar="RULES", help="Check only these rules, comma-separated.")]
Ignore = Annotated[str, typer.Option("--ignore", metavar="RULES", help="Skip these rules, comma-separated.")]


def run(
    scripts: Scripts = None,
    site: SiteName = "",
    slurm: SlurmVersion = "",
    sbatch: SbatchLine = "",
    model: ModelName = "",
    plan: PlanFile = None,
    pilot: PilotRun = None,
    fix: FixIt = False,
    diff: ShowDiff = False,
    unsafe_fixes: Unsafe = False,
    output: Format = "text",
    as_json: AsJson = False,
    explain: ExplainRule = "",
    list_rules: ListRules = False,
    config: ConfigFile = None,
    fail_on: FailOn = None,
    min_severity: MinSeverity = None,
    show_all: ShowAll = False,
    select: Select = "",
    ignore: Ignore = "",
    catalog: CatalogFolder = None,
) -> None:
    """Find what wastes GPU-hours or loses work in job scripts, and fix it. Exit 1: findings; 2: unreadable file."""
    from scalewright.errors import ConfigError
    from scalewright.lint.context import lint_context, needs_of
    from scalewright.lint.engine import Linter, resolve_settings
    from scalewright.lint.header.overrides import all_overrides

    output_format = "json" if as_json else output
    if explain or list_rules:
        _print_rules(explain, output_format)
        return
    if not scripts:
        raise ConfigError("no script given: name one or more, write - for standard input, or see --list")
    if show_all and min_severity not in (None, "info"):
        raise ConfigError(f"--all shows every finding, and --min-severity {min_severity} does not: give one of them")
    if unsafe_fixes and not (fix or diff):
        raise ConfigError("--unsafe-fixes needs --fix or --diff: add one of them")
    settings = resolve_settings(
        config, site=site, slurm=slurm, fail_on=fail_on, select=_rule_names(select), ignore=_rule_names(ignore)
    )
    context = lint_context(settings, pilot, catalog)
    linter = Linter(settings=settings, context=context, needs_of=needs_of(context, model, plan, catalog))
    shown_from: Severity = min_severity or "info"
    is_folded = min_severity is None and not (show_all or select or fail_on == "info") and output_format == "text"
    call = _LintCall(
        linter=linter,
        overrides=all_overrides(os.environ, sbatch),
        unsafe=unsafe_fixes,
        shown_from=shown_from,
        is_folded=is_folded,
    )
    gc.freeze()  # what is loaded stays; looking through it for every few scripts takes a fifth of the time
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    for name in dict.fromkeys(scripts):
        call.check_file(name, is_fixed=fix or diff, is_written=fix and not diff)
    call.print_and_exit(output_format, is_diff=diff)


@dataclass(slots=True)
class _LintCall:
    """The files of one call, and the findings, fixes and errors of each."""

    linter: Linter
    overrides: dict[str, str | None]
    unsafe: bool
    shown_from: Severity = "info"
    """Findings below this severity are not printed."""
    is_folded: bool = False
    """Infos are one line instead of a paragraph each."""
    findings: list[LintFinding] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    diffs: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def check_file(self, name: str, *, is_fixed: bool, is_written: bool) -> None:
        """Lint one file; fix it in memory if `is_fixed`, and on disk if `is_written`."""
        from scalewright.errors import ConfigError
        from scalewright.lint.file_kind import script_note
        from scalewright.lint.script import interpreter
        from scalewright.lint.script_file import read_script, read_source, read_standard_input

        where = "standard input" if name == "-" else name
        folder = Path.cwd() if name == "-" else Path(os.path.realpath(name)).parent

        def read(text: str) -> Script:
            return read_script(text, where, self.overrides, folder)

        try:
            if name == "-" and is_written:
                raise ConfigError("--fix cannot write to standard input: use --diff, or name a file")
            script = read(read_standard_input() if name == "-" else read_source(Path(name)))
        except ConfigError as error:
            self.unreadable[where] = str(error)
            return
        note = script_note(script.text, interpreter(script.lines[0]))
        if note:
            self.notes[where] = note
        if is_fixed:
            self._fix(script, read, Path(name) if is_written else None)
        else:
            self.texts[where] = script.text
            self.findings += self.linter.lint(script)

    def _fix(self, script: Script, read: Callable[[str], Script], path: Path | None) -> None:
        from scalewright.errors import ScalewrightError
        from scalewright.lint.fixes import fix_script, unified_diff, write_script

        fixed_script = fix_script(script, self.linter, read, unsafe=self.unsafe)
        self.diffs.append(unified_diff(script.path, script.text, fixed_script.text))
        if path is not None and fixed_script.text != script.text:
            try:
                write_script(path, fixed_script.text)
            except ScalewrightError as error:
                self.unreadable[script.path] = str(error)
                return
        self.texts[script.path] = fixed_script.text
        self.findings += fixed_script.open_findings
        if fixed_script.applied:
            self.fixed[script.path] = len(fixed_script.applied)

    def print_and_exit(self, output_format: str, *, is_diff: bool) -> None:
        from scalewright.lint.formats import is_failing
        from scalewright.records.types import ExitCode

        if is_diff and output_format == "text":
            typer.echo("".join(self.diffs), nl=False)
            self._print_unreadable()
        else:
            self._print(output_format)
        if self.unreadable:
            raise typer.Exit(ExitCode.BAD_INPUT)
        failing = is_failing(self.findings, self.linter.settings.fail_on) or (is_diff and any(self.diffs))
        raise typer.Exit(ExitCode.NO if failing else ExitCode.YES)

    def _print_unreadable(self) -> None:
        for message in self.unreadable.values():
            typer.echo(f"error: {message}", err=True)
        for file, note in self.notes.items():
            typer.echo(f"note: {file}: {note}", err=True)

    def _shown(self) -> list[LintFinding]:
        from scalewright.lint.settings import RANKS

        lowest = "warning" if self.is_folded else self.shown_from
        return [finding for finding in self.findings if RANKS[finding.severity] >= RANKS[lowest]]

    def _print(self, output_format: str) -> None:
        from scalewright.lint.engine import known_rules
        from scalewright.lint.formats import github_lines, lint_document, sarif_document
        from scalewright.records.documents import to_json
        from scalewright.report.cluster.lint import print_findings, print_infos, print_summary, summary_line
        from scalewright.report.console import answer_console

        self._print_unreadable()
        findings = self._shown()
        if output_format == "json":
            body = lint_document(
                findings,
                notes=self.notes,
                texts=self.texts,
                unreadable=self.unreadable,
                fixed=self.fixed,
                fail_on=self.linter.settings.fail_on,
            )
            typer.echo(to_json(body), nl=False)
        elif output_format == "sarif":
            typer.echo(to_json(sarif_document(findings, known_rules(), self.texts, self.unreadable)), nl=False)
        elif output_format == "github":
            for line in github_lines(findings, self.unreadable):
                typer.echo(line)
        else:
            console = answer_console()
            print_findings(console, findings, known_rules(), self.texts)
            if self.is_folded:
                print_infos(console, self.findings)
            counts = (len(self.texts) + len(self.unreadable), len(self.unreadable), sum(self.fixed.values()))
            print_summary(console, summary_line(self.findings if self.is_folded else findings, *counts))


def _rule_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _print_rules(name: str, output_format: str) -> None:
    """Print one rule, or all rules if `name` is empty."""
    from scalewright.errors import UnknownNameError
    from scalewright.lint.engine import known_rules
    from scalewright.lint.formats import rules_document
    from scalewright.records.documents import to_json
    from scalewright.report.cluster.lint import print_rule, print_rules
    from scalewright.report.console import answer_console

    rules = known_rules()
    if name and name not in rules:
        raise UnknownNameError("rule", name, rules, hint="see: scalewright lint --list")
    if output_format == "json":
        typer.echo(to_json(rules_document([rules[name]] if name else list(rules.values()))), nl=False)
    elif name:
        print_rule(answer_console(), rules[name])
    else:
        print_rules(answer_console(), list(rules.values()))
