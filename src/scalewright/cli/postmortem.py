"""`scalewright postmortem RUN|JOBID|FOLDER`: the story of an end, its cause and what to do, as Markdown and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import report_written

Target = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="A run directory, a folder of logs, files of one run, or a Slurm job id."),
]
OutPage = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write a file: .html for a page, .md for Markdown. Default: print Markdown."
    ),
]


def run(targets: Target, out: OutPage = None) -> None:
    """Write the post-mortem of a run. Exit 1: what was read does not say why it ended."""
    from scalewright.errors import ConfigError
    from scalewright.observe.postmortem import build_postmortem
    from scalewright.records.documents import write_text
    from scalewright.records.terminal_text import printable
    from scalewright.records.types import ExitCode
    from scalewright.report.explain.build import context_of, evidence_of
    from scalewright.report.postmortem.markdown import postmortem_markdown
    from scalewright.report.postmortem.page import write_postmortem_page

    if "" in targets:
        raise ConfigError("one of the paths is empty: name a run directory, a log or a folder (. is this folder)")
    if out is not None and out.suffix not in (".html", ".md"):
        raise ConfigError(f"--out {out}: end it with .html for a page, or with .md for Markdown")
    evidence, name = evidence_of([Path(target) for target in targets])
    postmortem = build_postmortem(evidence, name=name, context=context_of(evidence))
    if out is None:
        typer.echo(printable(postmortem_markdown(postmortem)), nl=False)
    elif out.suffix == ".html":
        write_postmortem_page(out, postmortem, evidence)
    else:
        write_text(out, postmortem_markdown(postmortem))
    if out is not None:
        report_written(out)
    raise typer.Exit(ExitCode.YES if postmortem.is_answered else ExitCode.NO)
