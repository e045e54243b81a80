"""What is slow before step 1: nodes against each other, devices against each other, the warm-up against its price."""

from __future__ import annotations

from collections.abc import Iterator

from scalewright.records.types import Finding
from scalewright.run.preflight import rules
from scalewright.run.preflight.rules import CPU_SLOW_RATIO, EXPECTED_RATIO, Inspected, finding
from scalewright.run.preflight.slow_nodes import outliers, slow_nodes
from scalewright.units import SECONDS
from scalewright.units import format as shown


def pair_times_s(seen: Inspected) -> dict[tuple[str, str], float]:
    """All-reduce of each pair of nodes: the slowest rank's word counts."""
    found: dict[tuple[str, str], float] = {}
    for timing in seen.timings:
        here = seen.host_of(timing.rank)
        for there, time_s in timing.pairs_s.items():
            pair = (min(here, there), max(here, there))
            found[pair] = max(found.get(pair, 0.0), time_s)
    return found


def node_times_s(seen: Inspected) -> dict[str, float]:
    found: dict[str, float] = {}
    for timing in seen.timings:
        if timing.node_s is not None:
            host = seen.host_of(timing.rank)
            found[host] = max(found.get(host, 0.0), timing.node_s)
    return found


def slow_ratio(seen: Inspected) -> float:
    on_devices = any(r.gpu is not None for r in seen.ranks)
    return seen.request.slow_ratio if on_devices else max(seen.request.slow_ratio, CPU_SLOW_RATIO)


def nodes_against_each_other(seen: Inspected) -> Iterator[Finding]:
    ratio = slow_ratio(seen)
    pairs = pair_times_s(seen)
    for host, times in slow_nodes(pairs, factor=ratio).items():
        yield finding(
            "node-slow", f"{host} needs {times:.1f} times as long as the others for an all-reduce with its neighbours",
            nodes=[host], ratio=times, next_step="leave the node out and tell the operators",
        )  # fmt: skip
    for host, times in outliers(node_times_s(seen), factor=ratio).items():
        yield finding(
            "node-slow", f"{host} needs {times:.1f} times as long as the others for an all-reduce inside the node",
            nodes=[host], ratio=times, next_step="a link inside the node is down or slow: leave the node out",
        )  # fmt: skip
    if len(pairs) == 1 and seen.request.pair_s is not None:
        ((pair, time_s),) = pairs.items()
        if time_s > EXPECTED_RATIO * seen.request.pair_s:
            yield finding(
                "collective-slow", f"{pair[0]} and {pair[1]} need {shown(time_s, SECONDS)} for an all-reduce of "
                f"{shown(seen.request.pair_s, SECONDS)}; two nodes cannot tell which of them it is", nodes=[],
                next_step="try again with one spare node",
            )  # fmt: skip


def devices_against_each_other(seen: Inspected) -> Iterator[Finding]:
    times = {str(t.rank): t.product_s for t in seen.timings if t.product_s is not None}
    for rank, ratio in outliers(times, factor=slow_ratio(seen)).items():
        host = seen.host_of(int(rank))
        yield finding(
            "device-slow", f"rank {rank} on {host} needs {ratio:.1f} times as long as the others for one product",
            nodes=[host], rank=int(rank), ratio=ratio,
            next_step="look for throttling (nvidia-smi -q -d PERFORMANCE) and for other jobs on the node",
        )  # fmt: skip


def against_the_price(seen: Inspected) -> Iterator[Finding]:
    """The warm-up against what the cost model expects of the system."""
    for what, expected_s, measured in (
        ("inside a node", seen.request.node_s, [t.node_s for t in seen.timings]),
        ("over all ranks", seen.request.world_s, [t.world_s for t in seen.timings]),
    ):
        known = [time_s for time_s in measured if time_s is not None]
        if expected_s and known and max(known) > EXPECTED_RATIO * expected_s:
            yield finding(
                "collective-slow", f"the warm-up all-reduce {what} took {shown(max(known), SECONDS)}, expected were "
                f"{shown(expected_s, SECONDS)}", nodes=[], measured_s=max(known), expected_s=expected_s,
                next_step="look at the transport above; run again when the fabric is quiet",
            )  # fmt: skip


def sums(seen: Inspected) -> Iterator[Finding]:
    wrong = [t.rank for t in seen.timings if not t.is_sum_right]
    if wrong:
        hosts = [seen.host_of(rank) for rank in wrong]
        yield finding("sum-wrong", f"ranks {', '.join(map(str, wrong[:8]))} got a wrong sum", nodes=hosts, ranks=wrong,
                      next_step="leave the node out and tell the operators")  # fmt: skip


CHECKS = (
    rules.who_is_missing, rules.device_map, rules.cpu_map, rules.transport_taken, rules.links, rules.ports,
    rules.same_everywhere, rules.room, rules.clocks, nodes_against_each_other, devices_against_each_other,
    against_the_price, sums,
)  # fmt: skip


def judge(seen: Inspected) -> list[Finding]:
    """Every finding, errors first."""
    found = [one for check in CHECKS for one in check(seen)]
    order = ("error", "warning", "info")
    return sorted(found, key=lambda f: order.index(f.severity))
