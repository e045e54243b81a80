"""`scalewright plan-show`: a stored plan, printed as it was when it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import AsJson


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `plan --out FILE` wrote.", show_default=False)],
    all_reasons: Annotated[bool, typer.Option("--all", help="Every reason and rejection, not the closest.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a stored plan. Exit 1: it says that nothing fits."""
    from scalewright.errors import DocumentError
    from scalewright.records.documents import read_document, to_json
    from scalewright.records.types import ExitCode
    from scalewright.report.console import print_whole
    from scalewright.report.planner.plan import print_plan

    plan = read_document(file, "plan")
    if as_json:
        typer.echo(to_json(plan), nl=False)
    else:
        try:
            print_whole(lambda console: print_plan(console, plan, explain=all_reasons))
        except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
            raise DocumentError(f"{file}: is not a whole plan ({error!r}); make it again with plan --out") from error
    raise typer.Exit(ExitCode.YES if plan.get("fits") else ExitCode.NO)
