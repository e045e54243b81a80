"""From findings to what happens next: go on, go on without some nodes, ask for others, or ask differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scalewright.records.documents import document
from scalewright.records.preflight import RESULT_KIND
from scalewright.records.types import ExitCode, Finding
from scalewright.run.preflight.rules import OF_THE_REQUEST, Inspected
from scalewright.run.preflight.speed_rules import judge, node_times_s, pair_times_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the check came to."""

    code: ExitCode
    reason: str
    """One sentence."""
    keep: tuple[str, ...]
    """Nodes to run on, in the order of their ranks."""
    drop: tuple[str, ...]
    """Nodes with a fault."""
    spare: tuple[str, ...]
    """Healthy nodes that are not needed."""
    findings: tuple[Finding, ...]


def decide(seen: Inspected) -> Verdict:
    findings = tuple(judge(seen))
    errors = [f for f in findings if f.severity == "error"]
    hosts = tuple(dict.fromkeys(seen.hosts))
    wanted = max(len(hosts) - seen.request.num_spares, 1)
    everywhere = _asked_wrongly(errors, hosts)
    bad = tuple(host for host in hosts if any(host in f.evidence["nodes"] for f in errors))
    good = tuple(host for host in hosts if host not in bad)
    keep, spare = good[:wanted], good[wanted:]
    if everywhere:
        return Verdict(
            code=ExitCode.NO, reason=f"all nodes alike: {everywhere[0].message}; {everywhere[0].next_step}", keep=(),
            drop=(), spare=(), findings=findings,
        )  # fmt: skip
    nobody = [f for f in errors if not f.evidence["nodes"]]
    if nobody:
        return Verdict(
            code=ExitCode.REQUEUE, reason=nobody[0].message, keep=(), drop=bad, spare=good, findings=findings
        )  # fmt: skip
    if len(good) >= wanted:
        left_out = f" without {', '.join(bad)}" if bad else ""
        return Verdict(
            code=ExitCode.YES, reason=f"{len(keep)} of {len(hosts)} nodes are ready{left_out}", keep=keep, drop=bad,
            spare=spare, findings=findings,
        )  # fmt: skip
    first = errors[0].message
    return Verdict(
        code=ExitCode.REQUEUE, reason=f"{len(good)} of {wanted} nodes that are needed are healthy: {first}", keep=(),
        drop=bad, spare=good, findings=findings,
    )  # fmt: skip


def _asked_wrongly(errors: Sequence[Finding], hosts: Sequence[str]) -> list[Finding]:
    """Errors of the request that every node has: elsewhere they would be there again."""
    found = []
    for rule in OF_THE_REQUEST:
        same = [f for f in errors if f.rule == rule]
        if same and {node for f in same for node in f.evidence["nodes"]} >= set(hosts):
            found.append(same[0])
    return found


def as_document(verdict: Verdict, seen: Inspected, *, elapsed_s: float, untested: Sequence[str]) -> dict[str, Any]:
    worlds = [t.world_s for t in seen.timings if t.world_s is not None]
    return document(
        RESULT_KIND,
        {
            "code": int(verdict.code),
            "reason": verdict.reason,
            "keep": list(verdict.keep),
            "drop": list(verdict.drop),
            "spare": list(verdict.spare),
            "num_ranks": len(seen.ranks) + len({rank for rank, *_ in seen.missing} - {r.rank for r in seen.ranks}),
            "num_nodes": len(set(seen.hosts)),
            "elapsed_s": elapsed_s,
            "findings": [asdict(f) for f in verdict.findings],
            "request": asdict(seen.request),
            "warm_up": {
                "world_s": max(worlds) if worlds else None,
                "expected_world_s": seen.request.world_s,
                "node_s": node_times_s(seen),
                "expected_node_s": seen.request.node_s,
                "pairs": [{"nodes": list(pair), "time_s": t} for pair, t in sorted(pair_times_s(seen).items())],
                "expected_pair_s": seen.request.pair_s,
            },
            "transports": [t.as_dict() for t in seen.transports],
            "ranks": [r.as_dict() for r in seen.ranks],
            "timings": [t.as_dict() for t in seen.timings],
            "untested": list(untested),
        },
    )
