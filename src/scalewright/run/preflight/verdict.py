"""Turn findings into a verdict: run, run without some nodes, requeue for other nodes, or refuse the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scalewright.records.documents import document
from scalewright.records.preflight import RESULT_KIND
from scalewright.records.types import ExitCode, Finding
from scalewright.run.preflight.rules import REQUEST_RULES, PreflightEvidence
from scalewright.run.preflight.speed_rules import judge, node_times_s, pair_times_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of the check."""

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


def decide(evidence: PreflightEvidence) -> Verdict:
    findings = tuple(judge(evidence))
    errors = [f for f in findings if f.severity == "error"]
    hosts = tuple(dict.fromkeys(evidence.hosts))
    num_needed = max(len(hosts) - evidence.request.num_spares, 1)
    everywhere = _request_errors(errors, hosts)
    bad = tuple(host for host in hosts if any(host in f.evidence["nodes"] for f in errors))
    good = tuple(host for host in hosts if host not in bad)
    keep, spare = good[:num_needed], good[num_needed:]
    if everywhere:
        return Verdict(
            code=ExitCode.NO, reason=f"every node: {everywhere[0].message}; {everywhere[0].next_step}", keep=(),
            drop=(), spare=(), findings=findings,
        )  # fmt: skip
    of_no_node = [f for f in errors if not f.evidence["nodes"]]
    if of_no_node:
        return Verdict(
            code=ExitCode.REQUEUE, reason=of_no_node[0].message, keep=(), drop=bad, spare=good, findings=findings
        )  # fmt: skip
    if len(good) >= num_needed:
        left_out = f" without {', '.join(bad)}" if bad else ""
        return Verdict(
            code=ExitCode.YES, reason=f"{len(keep)} of {len(hosts)} nodes are ready{left_out}", keep=keep, drop=bad,
            spare=spare, findings=findings,
        )  # fmt: skip
    first = errors[0].message
    return Verdict(
        code=ExitCode.REQUEUE, reason=f"{len(good)} nodes are healthy and {num_needed} are needed: {first}", keep=(),
        drop=bad, spare=good, findings=findings,
    )  # fmt: skip


def _request_errors(errors: Sequence[Finding], hosts: Sequence[str]) -> list[Finding]:
    """Errors of the request that every node has. Other nodes would have them too."""
    request_errors = []
    for rule in REQUEST_RULES:
        same = [f for f in errors if f.rule == rule]
        if same and {node for f in same for node in f.evidence["nodes"]} >= set(hosts):
            request_errors.append(same[0])
    return request_errors


def as_document(
    verdict: Verdict, evidence: PreflightEvidence, *, elapsed_s: float, untested: Sequence[str]
) -> dict[str, Any]:
    worlds = [t.world_s for t in evidence.timings if t.world_s is not None]
    return document(
        RESULT_KIND,
        {
            "code": int(verdict.code),
            "reason": verdict.reason,
            "keep": list(verdict.keep),
            "drop": list(verdict.drop),
            "spare": list(verdict.spare),
            "num_ranks": len(evidence.ranks)
            + len({rank for rank, *_ in evidence.missing} - {r.rank for r in evidence.ranks}),
            "num_nodes": len(set(evidence.hosts)),
            "elapsed_s": elapsed_s,
            "findings": [asdict(f) for f in verdict.findings],
            "request": asdict(evidence.request),
            "warm_up": {
                "world_s": max(worlds) if worlds else None,
                "expected_world_s": evidence.request.world_s,
                "node_s": node_times_s(evidence),
                "expected_node_s": evidence.request.node_s,
                "pairs": [{"nodes": list(pair), "time_s": t} for pair, t in sorted(pair_times_s(evidence).items())],
                "expected_pair_s": evidence.request.pair_s,
            },
            "transports": [t.as_dict() for t in evidence.transports],
            "ranks": [r.as_dict() for r in evidence.ranks],
            "timings": [t.as_dict() for t in evidence.timings],
            "untested": list(untested),
        },
    )
