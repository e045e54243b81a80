"""`scalewright doctor`: what this machine has and allows."""

from __future__ import annotations

import typer

from scalewright.cli.options import AsJson


def run(as_json: AsJson = False) -> None:
    """Say what is installed, visible, permitted and untested here."""
    from scalewright.here.inventory import as_document, inspect_machine
    from scalewright.records.documents import to_json
    from scalewright.report.cluster.doctor import print_checks
    from scalewright.report.console import answer_console

    checks = inspect_machine()
    if as_json:
        typer.echo(to_json(as_document(checks)), nl=False)
    else:
        print_checks(answer_console(), checks)
