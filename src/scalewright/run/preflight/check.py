"""The pre-flight check as every rank runs it: gather facts, exchange them, measure, and let rank 0 decide.

Ranks exchange documents through a key-value store of rank 0. A rank that hangs here would hang in training too, so
every wait has a deadline: a thread of rank 0 collects what has arrived by then and decides, and a thread of each rank
ends the process when the verdict is there, or when rank 0 is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from scalewright.catalog.verified import untested_paths
from scalewright.records.documents import write_document, write_text
from scalewright.records.node_list import expand_nodes
from scalewright.records.preflight import PreflightRequest
from scalewright.records.run_directory import RunDirectory
from scalewright.records.types import ExitCode
from scalewright.run.preflight import measure
from scalewright.run.preflight.facts import RankFacts, RankTransport, Timings
from scalewright.run.preflight.gather import gather
from scalewright.run.preflight.phases import ARRIVED, earliest
from scalewright.run.preflight.rules import PreflightEvidence, device_map
from scalewright.run.preflight.verdict import Verdict, as_document, decide
from scalewright.run.watchdog import write_end
from scalewright.run.world import World

POLL_S = 0.1
LINGER_S = 5.0
"""How long rank 0 stays after its verdict, so that the other ranks can read it."""


def run_preflight(directory: RunDirectory, world: World, request: PreflightRequest) -> int:
    """Check the nodes of this job. Every rank returns the same exit code."""
    started_s = time.monotonic()
    measure.log_library(directory, world)
    location = measure.rank_location(request.device, world)
    alone = measure.time_device(location, world.rank)
    folders = [Path(folder) for folder in request.folders] if world.is_first_on_node else []
    facts = gather(world, os.environ, folders=folders, gpu=location.gpu, num_visible_gpus=location.num_visible)
    meeting = _Meeting(world, request)
    meeting.put("facts", facts.as_dict())
    judge = None
    if world.is_first:
        judge = threading.Thread(target=_judge, args=(directory, world, request, started_s), name="judge", daemon=True)
        judge.start()
    with _ending_on_verdict(world, request):
        go = meeting.wait("go", 2.0 * request.deadline_s)
        if go["measure"]:
            meeting.put("measured", _measured(directory, world, request, meeting, location, go["hosts"], alone))
        verdict = meeting.wait("verdict", 2.0 * request.deadline_s)
        meeting.put("read", {})
    if judge is not None:
        judge.join(LINGER_S + 1.0)
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # peers may have left
            dist.destroy_process_group()
    return int(verdict["code"])


def _measured(
    directory: RunDirectory,
    world: World,
    request: PreflightRequest,
    meeting: _Meeting,
    location: measure.RankLocation,
    hosts: list[str],
    alone: Timings,
) -> dict[str, Any]:
    """Timings and transport, or the phase and error of a failure, for rank 0."""
    phases = [ARRIVED]

    def report_phase(phase: str) -> None:
        phases.append(phase)
        meeting.put("phase", {"phase": phase})

    try:
        measure.join(world, PrefixStore("group", meeting.store), location, timeout_s=request.deadline_s)
        timings = measure.time_collectives(
            world, hosts, location, alone, timeout_s=request.deadline_s, report_phase=report_phase
        )
        transport = measure.transport_used(directory, world, location)
    except RuntimeError as error:  # of every backend: a peer that left, a refused connection, a timeout
        traceback.print_exc()
        return {"phase": phases[-1], "error": " ".join(str(error).split())[:300]}
    return {"timings": timings.as_dict(), "transport": transport.as_dict()}


class _Meeting:
    """Small documents by name and rank in a shared store. Each thread needs its own: waiting blocks the connection."""

    def __init__(self, world: World, request: PreflightRequest, *, is_host: bool | None = None) -> None:
        self.world = world
        self.store: Store
        if is_host is None:  # torchrun keeps a store of its own at this port, on the first node
            is_host = world.is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if world.world_size == 1:
            self.store = _local_store()
        else:
            self.store = TCPStore(
                world.master_addr, world.master_port, is_master=is_host,
                wait_for_workers=False, timeout=timedelta(seconds=request.deadline_s),
            )  # fmt: skip

    def put(self, name: str, body: dict[str, Any]) -> None:
        self.store.set(f"{name}/{self.world.rank}", json.dumps(body))

    def put_for_all(self, name: str, body: dict[str, Any]) -> None:
        self.store.set(name, json.dumps(body))

    def wait(self, name: str, timeout_s: float) -> dict[str, Any]:
        self.store.wait([name], timedelta(seconds=timeout_s))
        return dict(json.loads(self.store.get(name)))

    def look(self, name: str) -> dict[str, Any] | None:
        return dict(json.loads(self.store.get(name))) if self.store.check([name]) else None

    def collect(self, name: str, deadline_s: float) -> dict[int, dict[str, Any]]:
        """The document of each rank under a name, as far as they arrive before the deadline."""
        body_of_rank: dict[int, dict[str, Any]] = {}
        while True:
            for rank in range(self.world.world_size):
                if rank not in body_of_rank and (body := self.look(f"{name}/{rank}")) is not None:
                    body_of_rank[rank] = body
            if len(body_of_rank) == self.world.world_size or time.monotonic() > deadline_s:
                return body_of_rank
            time.sleep(POLL_S)


_LOCAL_STORES: list[Store] = []


def _local_store() -> Store:
    """One store for all threads of a single rank."""
    if not _LOCAL_STORES:
        _LOCAL_STORES.append(HashStore())
    return _LOCAL_STORES[0]


@dataclass(slots=True, kw_only=True)
class _Collected:
    """What rank 0 has received."""

    facts: dict[int, RankFacts] = field(default_factory=dict)
    timings: list[Timings] = field(default_factory=list)
    transports: list[RankTransport] = field(default_factory=list)
    missing: list[tuple[int, str, str]] = field(default_factory=list)


def _judge(directory: RunDirectory, world: World, request: PreflightRequest, started_s: float) -> None:
    """Rank 0: collect, decide, write the result and publish the verdict, even if the main thread is stuck."""
    meeting = _Meeting(world, request, is_host=False)
    hosts = expected_hosts(world, os.environ)
    collected = _collect(meeting, world, request, hosts, time.monotonic() + request.deadline_s)
    evidence = PreflightEvidence(
        request=request,
        hosts=tuple(dict.fromkeys(hosts)),
        ranks=tuple(collected.facts[rank] for rank in sorted(collected.facts)),
        timings=tuple(collected.timings),
        transports=tuple(collected.transports),
        missing=tuple(collected.missing),
    )
    verdict = decide(evidence)
    libraries = {t.library for t in evidence.transports}
    untested = [n for n, _ in untested_paths() if any(f"pre-flight over {lib}" in n.lower() for lib in libraries)]
    body = as_document(verdict, evidence, elapsed_s=time.monotonic() - started_s, untested=untested)
    try:
        _write(directory, verdict, body, attempt=world.attempt)
        if verdict.code != ExitCode.YES:
            write_end(directory, world, code=verdict.code, reason=f"pre-flight: {verdict.reason}")
    finally:
        meeting.put_for_all("verdict", {"code": int(verdict.code)})
    deadline_s = time.monotonic() + LINGER_S
    meeting.collect("read", deadline_s)


def _collect(
    meeting: _Meeting, world: World, request: PreflightRequest, hosts: list[str], deadline_s: float
) -> _Collected:
    collected = _Collected()
    for rank, body in meeting.collect("facts", deadline_s).items():
        collected.facts[rank] = RankFacts.from_dict(body)
        hosts[rank] = collected.facts[rank].host
    collected.missing = [(rank, hosts[rank], "") for rank in range(world.world_size) if rank not in collected.facts]
    first = PreflightEvidence(request=request, hosts=tuple(hosts), ranks=tuple(collected.facts.values()))
    is_sound = not collected.missing and not any(f.severity == "error" for f in device_map(first))
    meeting.put_for_all("go", {"measure": is_sound, "hosts": hosts})
    if not is_sound:
        return collected
    measured = meeting.collect("measured", time.monotonic() + request.deadline_s)
    phase_of_rank: dict[int, str] = {}
    for rank in range(world.world_size):
        reply = measured.get(rank)
        if reply is None:
            phase_of_rank[rank] = str((meeting.look(f"phase/{rank}") or {"phase": ARRIVED})["phase"])
        elif "error" in reply:
            phase_of_rank[rank] = f"{reply['phase']} ({reply['error']})"
        else:
            collected.timings.append(Timings(**reply["timings"]))
            collected.transports.append(RankTransport.from_dict(reply["transport"]))
    if phase_of_rank:
        collected.missing = [(rank, hosts[rank], phase) for rank, phase in earliest(phase_of_rank).items()]
    return collected


def expected_hosts(world: World, env: Mapping[str, str]) -> list[str]:
    """The host of each rank if the scheduler places ranks in blocks. Ranks that arrive report their real host."""
    listed = expand_nodes(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or world.host)
    per_node = -(-world.world_size // max(len(listed), 1))
    return [listed[min(rank // per_node, len(listed) - 1)] for rank in range(world.world_size)]


def _write(directory: RunDirectory, verdict: Verdict, body: dict[str, Any], *, attempt: int) -> None:
    write_document(directory.preflight_result, body)
    before: list[str] = []
    if attempt and directory.preflight_exclude.exists():  # nodes that were excluded before the requeue stay excluded
        before = directory.preflight_exclude.read_text().strip().split(",")
    directory.preflight_exclude.unlink(missing_ok=True)
    excluded = list(dict.fromkeys(filter(None, [*before, *verdict.drop])))
    if excluded:
        write_text(directory.preflight_exclude, ",".join(excluded) + "\n")
    write_text(directory.preflight_nodes, ",".join(verdict.keep) + "\n")


@contextlib.contextmanager
def _ending_on_verdict(world: World, request: PreflightRequest) -> Iterator[None]:
    """End this process if the main thread is too stuck to read the verdict, or if no verdict comes.

    The thread must have ended before the interpreter exits. Otherwise an exit during its call of the store aborts the
    process (SIGABRT).
    """
    done = threading.Event()

    def watch() -> None:
        code = _awaited_code(world, request, done)
        if not done.wait(LINGER_S):
            os._exit(code)

    watcher = threading.Thread(target=watch, name="verdict", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(LINGER_S)


def _awaited_code(world: World, request: PreflightRequest, done: threading.Event) -> int:
    """The exit code of the verdict; requeue if none comes in time, or if rank 0 is gone."""
    until_s = time.monotonic() + 2.0 * request.deadline_s
    try:
        meeting = _Meeting(world, request, is_host=False)
        while time.monotonic() < until_s and not done.wait(POLL_S):
            if (verdict := meeting.look("verdict")) is not None:
                return int(verdict["code"])
    except RuntimeError:  # of every failed connection
        done.wait(max(until_s - time.monotonic(), 0.0))
    return int(ExitCode.REQUEUE)
