"""Options that several commands of the cluster share."""

from __future__ import annotations

from typing import Annotated

import typer

Qos = Annotated[str, typer.Option(help="Default: the site's.")]
Constraint = Annotated[str, typer.Option(help="Node features, such as 'a100|h100&nvlink'.")]
Force = Annotated[bool, typer.Option("--force", help="Submit even if over the limit.")]
