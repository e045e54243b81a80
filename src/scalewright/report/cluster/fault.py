"""Tables of the fault laboratory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from scalewright import units
from scalewright.lab.faults.fault import Fault
from scalewright.lab.faults.laboratory import FaultRun


def fault_rows(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    return [
        {
            "kind": fault.kind, "title": fault.title, "effect": fault.effect, "rules": list(fault.rules),
            "how": fault.how, "variations": [one.words for one in fault.variations], "slow": fault.is_slow,
            "replayed": fault.is_replayed,
        }
        for fault in faults
    ]  # fmt: skip


def print_faults(console: Console, faults: Sequence[Fault]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("kind", "effect", "variations", "the truth"):
        table.add_column(name, overflow="fold")
    for fault in faults:
        marks = " (slow)" * fault.is_slow + " (replayed)" * fault.is_replayed
        table.add_row(fault.kind + marks, fault.effect, str(len(fault.variations)), " or ".join(fault.rules))
    console.print(table)


def print_fault_run(console: Console, run: FaultRun, findings: Sequence[dict[str, Any]]) -> None:
    replayed = " (a part of the evidence is replayed)" if run.fault.is_replayed else ""
    console.print(f"truth     {' or '.join(run.rules)}{replayed}")
    if not findings:
        console.print("explain   says nothing")
    for number, finding in enumerate(findings, 1):
        console.print(f"{'explain' if number == 1 else '':9} {number}. {finding['rule']}: {finding['message']}")
    if run.gain_frac is not None and run.time_s is not None and run.reference_s is not None:
        times = f"{units.format(run.time_s, units.SECONDS)} a step with it, "
        times += f"{units.format(run.reference_s, units.SECONDS)} without"
        expected = next((one["expected_gain_frac"] for one in findings if one["rule"] in run.rules), None)
        expectation = "explain expects no number" if expected is None else f"explain expects {expected:.0%}"
        console.print(f"gain      {run.gain_frac:.0%} measured ({times}); {expectation}")
    console.print(f"evidence  {run.evidence}", soft_wrap=True)
