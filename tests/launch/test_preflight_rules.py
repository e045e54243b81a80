"""Pre-flight rules: a healthy job has no finding, and each planted fault is found and pinned on its node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from preflight_cases import GEN5, NDR, dgx_rank, healthy, lumi_rank

from scalewright.records.preflight import PreflightRequest
from scalewright.records.types import ExitCode
from scalewright.run.preflight.facts import Disk, Nic, RankFacts, RankGpu, Timings
from scalewright.run.preflight.rules import RULES, PreflightEvidence
from scalewright.run.preflight.speed_rules import judge
from scalewright.run.preflight.verdict import decide

Change = Callable[[RankFacts], RankFacts]


def with_ranks(seen: PreflightEvidence, host: str, change: Change) -> PreflightEvidence:
    return replace(seen, ranks=tuple(change(r) if r.host == host else r for r in seen.ranks))


def with_timings(seen: PreflightEvidence, change: Callable[[Timings, str], Timings]) -> PreflightEvidence:
    return replace(seen, timings=tuple(change(t, seen.host_of(t.rank)) for t in seen.timings))


def nodes_at_fault(seen: PreflightEvidence) -> dict[str, set[str]]:
    """Nodes at fault by rule."""
    named: dict[str, set[str]] = {}
    for one in judge(seen):
        named.setdefault(one.rule, set()).update(one.evidence["nodes"])
    return named


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5])
def test_nothing_is_found_where_nothing_is_wrong(num_nodes: int) -> None:
    seen = healthy(num_nodes)
    assert judge(seen) == []
    verdict = decide(seen)
    assert verdict.code == ExitCode.YES
    assert verdict.keep == seen.hosts
    assert verdict.drop == ()


def test_lumi_binding_of_the_documentation_has_no_finding() -> None:
    seen = PreflightEvidence(
        request=PreflightRequest(), hosts=("nid005001",), ranks=tuple(lumi_rank(rank) for rank in range(8))
    )
    assert judge(seen) == []


def test_lumi_without_masks_sits_on_the_wrong_cores() -> None:
    """In order of their numbers cores 1 to 7 are on NUMA node 0, where die 0 is not."""
    ranks = tuple(lumi_rank(r, cpus=tuple(range(8 * r + 1, 8 * r + 8))) for r in range(8))
    seen = PreflightEvidence(request=PreflightRequest(), hosts=("nid005001",), ranks=ranks)
    (one,) = judge(seen)
    assert one.rule == "cpus-far"
    assert one.evidence["ranks"] == [0, 1, 4, 5, 6, 7]
    assert "--cpu-bind" in one.next_step


def test_two_ranks_on_one_gpu() -> None:
    seen = healthy(2)
    shared = dgx_rank(8, host="n2").gpu
    seen = replace(seen, ranks=tuple(replace(r, gpu=shared) if r.rank == 9 else r for r in seen.ranks))
    (one,) = judge(seen)
    assert (one.rule, one.evidence["nodes"], one.evidence["ranks"]) == ("device-shared", ["n2"], [8, 9])


def test_every_node_maps_wrongly_is_the_request_and_not_the_nodes() -> None:
    """All ranks on device 0, everywhere: other nodes would not help, so it is no requeue."""
    seen = healthy(3)
    ranks = tuple(
        replace(r, gpu=RankGpu(uuid=f"GPU-{r.host}-0", bus="0000:00:00.0", name="NVIDIA H100 80GB HBM3"))
        for r in seen.ranks
    )
    verdict = decide(replace(seen, ranks=ranks))
    assert verdict.code == ExitCode.NO
    assert "local rank" in verdict.reason


FAULTS: dict[str, tuple[str, Change]] = {
    "narrow GPU link": ("pcie-narrow", lambda r: replace(r, gpu=replace(r.gpu, link=replace(GEN5, num_lanes=8)))),
    "slow GPU link": ("pcie-slow", lambda r: replace(r, gpu=replace(r.gpu, link=replace(GEN5, transfers_per_s=16e9)))),
    "NIC at half width": (
        "nic-slow",
        lambda r: replace(
            r, nics=(replace(r.nics[0], bytes_per_s=NDR / 2, rate_text="200 Gb/sec (2X NDR)"), *r.nics[1:])
        ),
    ),
    "NIC down": ("nic-down", lambda r: replace(r, nics=(replace(r.nics[0], is_up=False), *r.nics[1:]))),
    "another driver": ("versions-differ", lambda r: replace(r, driver="535.161.08")),
    "another image": ("versions-differ", lambda r: replace(r, image="/images/old.sqsh")),
    "another torch": ("versions-differ", lambda r: replace(r, software={**r.software, "torch": "2.12.0"})),
    "another GPU": ("device-other", lambda r: replace(r, gpu=replace(r.gpu, name="NVIDIA A100-SXM4-80GB"))),
    "no GPU": ("device-missing", lambda r: replace(r, gpu=None, device="cpu")),
    "full scratch": (
        "folder-full",
        lambda r: replace(r, disks=(Disk(path="/s", free_bytes=1e8, num_free_inodes=1e6),)),
    ),
    "no inodes": ("folder-full", lambda r: replace(r, disks=(Disk(path="/s", free_bytes=1e12, num_free_inodes=12.0),))),
    "read-only scratch": (
        "folder-full",
        lambda r: replace(
            r, disks=(Disk(path="/s", free_bytes=None, num_free_inodes=None, problem="Read-only file system"),)
        ),
    ),
    "shared cores": ("cpus-shared", lambda r: replace(r, cpus=tuple(range(14)))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_node_is_found_and_pinned_on_it(fault: str) -> None:
    rule, change = FAULTS[fault]
    seen = with_ranks(healthy(3), "n2", change)
    assert nodes_at_fault(seen)[rule] == {"n2"}
    assert {node for nodes in nodes_at_fault(seen).values() for node in nodes} == {"n2"}


def test_a_port_below_nominal_is_found_even_where_all_are_alike() -> None:
    seen = healthy(2, request=PreflightRequest(nic_bytes_per_s=NDR))
    half = tuple(replace(n, bytes_per_s=NDR / 2) for n in seen.ranks[0].nics)
    seen = replace(seen, ranks=tuple(replace(r, nics=half) for r in seen.ranks))
    assert nodes_at_fault(seen)["nic-slow"] == {"n1", "n2"}
    assert decide(seen).code == ExitCode.REQUEUE


def test_a_missing_port_is_counted() -> None:
    seen = with_ranks(
        healthy(2, request=PreflightRequest(num_nics=8)), "n1", lambda r: replace(r, nics=r.nics[:7])
    )  # fmt: skip
    assert nodes_at_fault(seen)["nic-down"] == {"n1"}


def test_ip_over_infiniband_is_no_port_of_its_own() -> None:
    """The kernel gives ib0 no speed of its own that means anything."""
    ib0 = Nic(name="ib0", kind="infiniband", is_up=True, bytes_per_s=1e9, numa=0)
    seen = healthy(2, request=PreflightRequest(nic_bytes_per_s=NDR, num_nics=8))
    seen = replace(seen, ranks=tuple(replace(r, nics=(*r.nics, ib0)) for r in seen.ranks))
    assert judge(seen) == []


def test_a_slow_copy_is_measured_against_the_link() -> None:
    seen = with_timings(healthy(2), lambda t, host: replace(t, copy_bytes_per_s=12e9) if host == "n2" else t)
    assert nodes_at_fault(seen) == {"copy-slow": {"n2"}}


@pytest.mark.parametrize("num_nodes", [3, 4, 5])
def test_the_node_that_is_slow_with_both_neighbours_is_named_and_not_they(num_nodes: int) -> None:
    def slow(timing: Timings, host: str) -> Timings:
        pairs = {o: 1e-2 if "n2" in (host, o) else t for o, t in timing.pairs_s.items()}
        return replace(timing, pairs_s=pairs)

    assert nodes_at_fault(with_timings(healthy(num_nodes), slow)) == {"node-slow": {"n2"}}


def test_two_nodes_cannot_tell_which_is_slow() -> None:
    seen = healthy(2, request=PreflightRequest(pair_s=1e-4))
    assert nodes_at_fault(seen) == {"collective-slow": set()}
    assert decide(seen).code == ExitCode.YES


def test_a_slow_device_and_a_slow_link_inside_a_node() -> None:
    seen = with_timings(healthy(3), lambda t, host: replace(t, product_s=4e-3) if t.rank == 9 else t)
    (one,) = judge(seen)
    assert (one.rule, one.evidence["rank"]) == ("device-slow", 9)
    seen = with_timings(healthy(3), lambda t, host: replace(t, node_s=3e-3) if host == "n3" else t)
    assert nodes_at_fault(seen) == {"node-slow": {"n3"}}


def test_the_warm_up_is_held_against_its_price() -> None:
    assert nodes_at_fault(healthy(3, request=PreflightRequest(world_s=3e-3))) == {}
    assert nodes_at_fault(healthy(3, request=PreflightRequest(world_s=1e-3))) == {"collective-slow": set()}


def test_a_wrong_sum_and_a_clock() -> None:
    seen = with_timings(healthy(3), lambda t, host: replace(t, is_sum_right=host != "n3"))
    assert nodes_at_fault(seen) == {"sum-wrong": {"n3"}}
    seen = with_timings(healthy(3), lambda t, host: replace(t, clock_s=1005.0) if host == "n3" else t)
    assert nodes_at_fault(seen) == {"clock-off": {"n3"}}


@pytest.mark.parametrize(
    ("transport", "routes", "rule"),
    [
        ("", ("P2P/CUMEM", "NET/Socket/0"), "transport-other"),
        ("rdma", ("P2P/CUMEM", "NET/Socket/0"), "transport-other"),
        ("rdma", ("P2P/CUMEM", "NET/IB/0"), "transport-host"),
        ("rdma-host", ("P2P/CUMEM", "NET/IB/0"), None),
        ("rdma", ("P2P/IPC", "NET/IBext_v8/2/GDRDMA"), None),
        ("ofi-plugin", ("P2P/IPC", "NET/AWS Libfabric/0/GDRDMA"), None),
        ("ofi-plugin", ("P2P/IPC", "NET/Socket/1"), "transport-other"),
        ("tcp", ("P2P/IPC", "NET/Socket/1"), None),
        ("", ("SHM/direct/direct", "NET/IB/0/GDRDMA"), "transport-host"),
    ],
)
def test_the_way_taken_against_the_way_wanted(transport: str, routes: tuple[str, ...], rule: str | None) -> None:
    seen = healthy(2, request=PreflightRequest(transport=transport))
    seen = replace(seen, transports=tuple(replace(t, routes=routes) for t in seen.transports))
    assert set(nodes_at_fault(seen)) == ({rule} if rule else set())
    assert decide(seen).code == (ExitCode.NO if rule == "transport-other" else ExitCode.YES)


def test_ranks_that_never_came_and_ranks_that_hang() -> None:
    gone = healthy(3)
    gone = replace(
        gone, ranks=gone.ranks[:16], timings=(), transports=(), missing=tuple((r, "n3", "") for r in range(16, 24))
    )
    assert nodes_at_fault(gone) == {"rank-missing": {"n3"}}
    hung = replace(healthy(3), timings=(), missing=((8, "n2", "all-reduce of two nodes, round 1"),))
    assert nodes_at_fault(hung) == {"collective-hung": {"n2"}}
    assert decide(hung).code == ExitCode.REQUEUE


def test_spares_take_the_place_of_bad_nodes() -> None:
    change = FAULTS["NIC at half width"][1]
    seen = with_ranks(healthy(4, request=PreflightRequest(num_spares=1)), "n2", change)
    verdict = decide(seen)
    assert (verdict.code, verdict.keep, verdict.drop) == (ExitCode.YES, ("n1", "n3", "n4"), ("n2",))
    both = with_ranks(seen, "n3", change)
    verdict = decide(both)
    assert (verdict.code, verdict.keep, verdict.drop) == (ExitCode.REQUEUE, (), ("n2", "n3"))


def test_a_healthy_spare_is_not_used() -> None:
    verdict = decide(healthy(4, request=PreflightRequest(num_spares=1)))
    assert (verdict.keep, verdict.spare) == (("n1", "n2", "n3"), ("n4",))


def test_every_rule_says_why() -> None:
    assert all(rule.why and rule.title for rule in RULES)
    assert len({rule.id for rule in RULES}) == len(RULES)
