"""Ends by the network, and ends of which only consequences were written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening
from scalewright.observe.findings.ends.ending import ending_by, names_words, number, quoted, ranks_words, seen_end
from scalewright.observe.findings.rule import FindingContext, Seen, finding_rule
from scalewright.observe.timeline import Moment, build_timeline

RETRIES = (12.0, 13.0)
"""Status of a completion: the peer does not answer."""


@finding_rule(
    id="network-error",
    severity="error",
    role="ended",
    title="The network reported an error",
    why="An operation of RDMA or libfabric ended with an error. Retries that are exceeded (status 12) mean that the "
    "peer or the path to it does not answer: a wrong GID index or subnet on RoCE, a port or cable that fails, or a "
    "peer that died without a word. A protection error (status 4) points at memory registration and GPUDirect.",
    advice="If it comes at the start, test the pair of nodes with ib_write_bw and set NCCL_IB_HCA and "
    "NCCL_IB_GID_INDEX. If it comes after hours, look at the peer first, then at the port counters (ibdiagnet, "
    "perfquery) and leave the node out.",
    source="NVIDIA, NCCL: troubleshooting, networking issues; libibverbs, enum ibv_wc_status",
)
def network_error(evidence: Evidence, _: FindingContext) -> Iterator[Seen]:
    for ending in ending_by(evidence, "network-error"):
        first = ending.first
        status, meaning = number(first, "status"), str(first.values.get("meaning", ""))
        peers = sorted({
            str(one.happening.values["peer"]) for one in ending.timeline.initiating if "peer" in one.happening.values
        })  # fmt: skip
        label = f"status {status:.0f}{f' ({meaning})' if meaning else ''}" if status is not None else quoted(first)
        to_peer = f" to {names_words(peers)}" if peers else ""
        seen = seen_end(
            ending, f"{ending.who} had an error of the network{to_peer}{ending.when}: {label}.",
            _network_advice(status, is_start=not evidence.steps, peers=peers),
            numbers={"status": status} if status is not None else {},
        )  # fmt: skip
        yield replace(seen, certainty="likely")


def _network_advice(status: float | None, *, is_start: bool, peers: list[str]) -> str:
    if status in RETRIES and is_start:
        return (
            "test the two nodes with ib_write_bw; on RoCE set NCCL_IB_GID_INDEX, and choose the ports with NCCL_IB_HCA"
        )
    if status in RETRIES:
        return (
            f"look for the end of {names_words(peers) or 'the peer'} first (log, dmesg); if it lives, check its port "
            "and leave the node out (--exclude)"
        )
    return "check ports and cables of both nodes (ibstat, ibdiagnet), and try once with NCCL_NET_GDR_LEVEL=LOC"


_WHERE = (
    (re.compile(r"Actor|ray", re.IGNORECASE),
     "the log of the process that died (/tmp/ray/session_latest/logs), and `dmesg` of its node"),
    (re.compile(r"unhandled cuda error", re.IGNORECASE),
     "the log of a run with NCCL_DEBUG=WARN, which names the CUDA call that failed, and `dmesg` of the node"),
    (re.compile(r"NCCL error|unhandled system error|ncclSystemError|ncclInternal"),
     "the log of a run with NCCL_DEBUG=WARN: NCCL then says which call failed"),
)  # fmt: skip


@finding_rule(
    id="cause-not-shown",
    severity="warning",
    role="ended",
    title="Only consequences of the end were read",
    why="Ranks report that they lost a peer, or that a library gave up. What the peer met is not in these files.",
    advice="Add the logs of all ranks and nodes, the kernel's messages (dmesg) and the account of the job (sacct).",
    source="PyTorch, torchelastic: root cause is the first observed failure",
)
def cause_not_shown(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    timeline = build_timeline(evidence)
    echoes = [one for one in timeline.moments if one.meaning.part == "echo" and _is_loud(one)]
    if timeline.cause or not echoes or not context.ended or _went_well(evidence, echoes):
        return
    first = echoes[0].happening
    ranks = tuple(sorted({one.happening.rank for one in echoes if one.happening.rank is not None}))
    subject = ranks_words(ranks) or "a process"
    yield Seen(
        message=f"{subject[0].upper()}{subject[1:]} ended because of another one: {quoted(first)}. What began it is "
        "not in what was read",
        spots=tuple(one.happening.spot for one in echoes[:3]),
        next_step=f"add {_wanted(first)}",
        certainty="possible", score=1.0, ranks=ranks,
    )  # fmt: skip


def _is_loud(moment: Moment) -> bool:
    if "Abort COMPLETE" in moment.happening.message:
        return False  # also written when a healthy run leaves
    return moment.happening.kind in ("traceback", "exited", "collective_abort", "connection_lost", "killed")


def _wanted(first: Happening) -> str:
    words = next((words for pattern, words in _WHERE if pattern.search(first.message)), "")
    return words or "the logs of all ranks and nodes, `dmesg` and `sacct -P -j JOBID -o ALL`"


def _went_well(evidence: Evidence, echoes: list[Moment]) -> bool:
    """Whether the run finished or came to its last step, or the same log goes on with steps."""
    if any(one.kind == "finished" for one in evidence.happenings):
        return True
    if evidence.jobs and all(job.state == "COMPLETED" for job in evidence.jobs if job.state):
        return True
    if any(one.last_step is not None and one.step >= one.last_step for one in evidence.steps):
        return True
    last = {one.happening.spot.file: one.happening.spot.line for one in echoes}
    return any(last.get(step.spot.file, step.spot.line) < step.spot.line for step in evidence.steps)
