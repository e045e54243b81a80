"""The status of practice clusters as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from scalewright.lab.status import LabStatus
from scalewright.report.console import plain_table
from scalewright.units import BYTES_PER_S, format


def print_status(console: Console, statuses: Sequence[LabStatus]) -> None:
    if not statuses:
        console.print("no practice cluster; start one with: scalewright lab up")
    for status in statuses:
        _print_one(console, status)


def _print_one(console: Console, status: LabStatus) -> None:
    state = "ready" if status.is_ready else "not ready"
    console.print(f"[bold]{status.id}[/] {state}, ports {status.first_port}-{status.last_port}", soft_wrap=True)
    console.print(escape(f"SLURM_CONF={status.slurm_conf}"), soft_wrap=True)
    if status.network:
        rate = status.link_rate_bytes_per_s
        console.print(f"links {'unshaped' if rate is None else format(rate, BYTES_PER_S)} in {status.network}")
    table = plain_table("daemon", "pid", "node", "state", "address")
    nodes = {f"slurmd-{node.name}": node for node in status.nodes}
    for daemon in status.daemons:
        node = nodes.get(daemon.name)
        of_node = (node.name, node.state, f"{node.address}:{node.port}") if node else ("", "", "")
        table.add_row(daemon.name, "not running" if daemon.pid is None else str(daemon.pid), *of_node)
    console.print(table)
    console.print()
