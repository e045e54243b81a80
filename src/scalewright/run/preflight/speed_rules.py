"""Rules on speed before step 1: nodes and devices against each other, the warm-up against its predicted time."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.records.types import Finding
from scalewright.run.preflight import rules
from scalewright.run.preflight.rules import CPU_SLOW_RATIO, EXPECTED_RATIO, PreflightEvidence, finding
from scalewright.run.preflight.slow_nodes import outliers, slow_nodes
from scalewright.units import SECONDS
from scalewright.units import format as shown


def pair_times_s(evidence: PreflightEvidence) -> dict[tuple[str, str], float]:
    """All-reduce time of each pair of nodes, of its slowest rank."""
    times_s: dict[tuple[str, str], float] = {}
    for timing in evidence.timings:
        host = evidence.host_of(timing.rank)
        for other, time_s in timing.pairs_s.items():
            pair = (min(host, other), max(host, other))
            times_s[pair] = max(times_s.get(pair, 0.0), time_s)
    return times_s


def node_times_s(evidence: PreflightEvidence) -> dict[str, float]:
    times_s: dict[str, float] = {}
    for timing in evidence.timings:
        if timing.node_s is not None:
            host = evidence.host_of(timing.rank)
            times_s[host] = max(times_s.get(host, 0.0), timing.node_s)
    return times_s


def slow_ratio(evidence: PreflightEvidence) -> float:
    on_devices = any(r.gpu is not None for r in evidence.ranks)
    return evidence.request.slow_ratio if on_devices else max(evidence.request.slow_ratio, CPU_SLOW_RATIO)


def nodes_against_each_other(evidence: PreflightEvidence) -> Iterator[Finding]:
    ratio = slow_ratio(evidence)
    pairs = pair_times_s(evidence)
    for host, times in slow_nodes(pairs, factor=ratio).items():
        yield finding(
            "node-slow", f"{host} needs {times:.1f} times as long as the others for an all-reduce with its neighbours",
            nodes=[host], ratio=times, next_step="leave the node out and report it to the operators",
        )  # fmt: skip
    for host, times in outliers(node_times_s(evidence), factor=ratio).items():
        yield finding(
            "node-slow", f"{host} needs {times:.1f} times as long as the others for an all-reduce inside the node",
            nodes=[host], ratio=times, next_step="a link inside the node is down or slow: leave the node out",
        )  # fmt: skip
    if len(pairs) == 1 and evidence.request.pair_s is not None:
        ((pair, time_s),) = pairs.items()
        if time_s > EXPECTED_RATIO * evidence.request.pair_s:
            yield finding(
                "collective-slow", f"{pair[0]} and {pair[1]} need {shown(time_s, SECONDS)} for an all-reduce, "
                f"predicted: {shown(evidence.request.pair_s, SECONDS)}; with two nodes the slow one is unknown",
                nodes=[],
                next_step="try again with one spare node",
            )  # fmt: skip


def devices_against_each_other(evidence: PreflightEvidence) -> Iterator[Finding]:
    times = {str(t.rank): t.product_s for t in evidence.timings if t.product_s is not None}
    for rank, ratio in outliers(times, factor=slow_ratio(evidence)).items():
        host = evidence.host_of(int(rank))
        yield finding(
            "device-slow", f"rank {rank} on {host} needs {ratio:.1f} times as long as the others for one product",
            nodes=[host], rank=int(rank), ratio=ratio,
            next_step="look for throttling (nvidia-smi -q -d PERFORMANCE) and for other jobs on the node",
        )  # fmt: skip


def warm_up_against_prediction(evidence: PreflightEvidence) -> Iterator[Finding]:
    """The warm-up is not much slower than the cost model predicts for the system."""
    for what, expected_s, measured in (
        ("inside a node", evidence.request.node_s, [t.node_s for t in evidence.timings]),
        ("over all ranks", evidence.request.world_s, [t.world_s for t in evidence.timings]),
    ):
        times_s = [time_s for time_s in measured if time_s is not None]
        if expected_s and times_s and max(times_s) > EXPECTED_RATIO * expected_s:
            yield finding(
                "collective-slow", f"the warm-up all-reduce {what} took {shown(max(times_s), SECONDS)}, predicted: "
                f"{shown(expected_s, SECONDS)}", nodes=[], measured_s=max(times_s), expected_s=expected_s,
                next_step="look at the route above; run again when the fabric is quiet",
            )  # fmt: skip


def sums(evidence: PreflightEvidence) -> Iterator[Finding]:
    wrong = [t.rank for t in evidence.timings if not t.is_sum_right]
    if wrong:
        hosts = [evidence.host_of(rank) for rank in wrong]
        yield finding("sum-wrong", f"ranks {', '.join(map(str, wrong[:8]))} got a wrong sum", nodes=hosts, ranks=wrong,
                      next_step="leave the node out and report it to the operators")  # fmt: skip


CHECKS = (
    rules.missing_ranks, rules.device_map, rules.cpu_map, rules.transport_taken, rules.links, rules.ports,
    rules.same_everywhere, rules.room, rules.clocks, nodes_against_each_other, devices_against_each_other,
    warm_up_against_prediction, sums,
)  # fmt: skip


def judge(evidence: PreflightEvidence) -> list[Finding]:
    """All findings, errors first."""
    findings = [one for check in CHECKS for one in check(evidence)]
    order = ("error", "warning", "info")
    return sorted(findings, key=lambda f: order.index(f.severity))
