"""The check itself, as every rank runs it: gather, meet, measure, and let rank 0 judge.

Ranks meet at a key-value store of rank 0. What hangs here would hang the training too, so nothing waits without a
deadline: a thread of rank 0 collects and judges whatever has come by then, and a thread of each rank ends the process
once there is a verdict, or nobody left to give one.
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
from scalewright.run.preflight.facts import RankFacts, Timings, Transport
from scalewright.run.preflight.gather import gather
from scalewright.run.preflight.rules import Inspected, device_map
from scalewright.run.preflight.stages import ARRIVED, behind
from scalewright.run.preflight.verdict import Verdict, as_document, decide
from scalewright.run.watchdog import write_end
from scalewright.run.world import World

POLL_S = 0.1
LAST_WORDS_S = 5.0
"""How long rank 0 stays after its verdict, so that the others can read it."""


def run_preflight(directory: RunDirectory, world: World, request: PreflightRequest) -> int:
    """Check this job's nodes; every rank returns the same exit code."""
    started_s = time.monotonic()
    measure.listen_to_library(directory, world)
    place = measure.choose_place(request.device, world)
    alone = measure.time_device(place, world.rank)
    folders = [Path(folder) for folder in request.folders] if world.is_first_on_node else []
    facts = gather(world, os.environ, folders=folders, gpu=place.gpu, num_visible_gpus=place.num_visible)
    meeting = _Meeting(world, request)
    meeting.put("facts", facts.as_dict())
    judge = None
    if world.is_first:
        judge = threading.Thread(target=_judge, args=(directory, world, request, started_s), name="judge", daemon=True)
        judge.start()
    with _ending_on_verdict(world, request):
        go = meeting.wait("go", 2.0 * request.deadline_s)
        if go["measure"]:
            meeting.put("measured", _measured(directory, world, request, meeting, place, go["hosts"], alone))
        verdict = meeting.wait("verdict", 2.0 * request.deadline_s)
        meeting.put("read", {})
    if judge is not None:
        judge.join(LAST_WORDS_S + 1.0)
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # peers may have left
            dist.destroy_process_group()
    return int(verdict["code"])


def _measured(
    directory: RunDirectory,
    world: World,
    request: PreflightRequest,
    meeting: _Meeting,
    place: measure.Place,
    hosts: list[str],
    alone: Timings,
) -> dict[str, Any]:
    """Timings and the way taken, or where it failed: rank 0 judges either."""
    stages = [ARRIVED]

    def tell(stage: str) -> None:
        stages.append(stage)
        meeting.put("stage", {"stage": stage})

    try:
        measure.join(world, PrefixStore("group", meeting.store), place, timeout_s=request.deadline_s)
        timings = measure.time_collectives(world, hosts, place, alone, timeout_s=request.deadline_s, tell=tell)
        transport = measure.transport_taken(directory, world, place)
    except RuntimeError as error:  # of every backend: a peer that left, a refused connection, a timeout
        traceback.print_exc()
        return {"stage": stages[-1], "error": " ".join(str(error).split())[:300]}
    return {"timings": timings.as_dict(), "transport": transport.as_dict()}


class _Meeting:
    """A place for small documents by name and rank. Each thread needs its own: a waiting one blocks the connection."""

    def __init__(self, world: World, request: PreflightRequest, *, is_host: bool | None = None) -> None:
        self.world = world
        self.store: Store
        if is_host is None:  # torchrun keeps a store of its own at this port, on the first node
            is_host = world.is_first and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        if world.world_size == 1:
            self.store = _alone()
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
        """What each rank put under a name, as far as it came before the deadline."""
        found: dict[int, dict[str, Any]] = {}
        while True:
            for rank in range(self.world.world_size):
                if rank not in found and (body := self.look(f"{name}/{rank}")) is not None:
                    found[rank] = body
            if len(found) == self.world.world_size or time.monotonic() > deadline_s:
                return found
            time.sleep(POLL_S)


_LOCAL_STORES: list[Store] = []


def _alone() -> Store:
    """One store for all threads of a rank that is alone."""
    if not _LOCAL_STORES:
        _LOCAL_STORES.append(HashStore())
    return _LOCAL_STORES[0]


@dataclass(slots=True, kw_only=True)
class _Evidence:
    """What rank 0 has collected."""

    facts: dict[int, RankFacts] = field(default_factory=dict)
    timings: list[Timings] = field(default_factory=list)
    transports: list[Transport] = field(default_factory=list)
    missing: list[tuple[int, str, str]] = field(default_factory=list)


def _judge(directory: RunDirectory, world: World, request: PreflightRequest, started_s: float) -> None:
    """Rank 0: collect, decide, write, tell. Ends the process itself where the main thread is stuck."""
    meeting = _Meeting(world, request, is_host=False)
    hosts = expected_hosts(world, os.environ)
    evidence = _collected(meeting, world, request, hosts, time.monotonic() + request.deadline_s)
    seen = Inspected(
        request=request,
        hosts=tuple(dict.fromkeys(hosts)),
        ranks=tuple(evidence.facts[rank] for rank in sorted(evidence.facts)),
        timings=tuple(evidence.timings),
        transports=tuple(evidence.transports),
        missing=tuple(evidence.missing),
    )
    verdict = decide(seen)
    libraries = {t.library for t in seen.transports}
    untested = [n for n, _ in untested_paths() if any(f"pre-flight over {lib}" in n.lower() for lib in libraries)]
    body = as_document(verdict, seen, elapsed_s=time.monotonic() - started_s, untested=untested)
    try:
        _write(directory, verdict, body, attempt=world.attempt)
        if verdict.code != ExitCode.YES:
            write_end(directory, world, code=verdict.code, reason=f"pre-flight: {verdict.reason}")
    finally:
        meeting.put_for_all("verdict", {"code": int(verdict.code)})
    deadline_s = time.monotonic() + LAST_WORDS_S
    meeting.collect("read", deadline_s)


def _collected(
    meeting: _Meeting, world: World, request: PreflightRequest, hosts: list[str], deadline_s: float
) -> _Evidence:
    found = _Evidence()
    for rank, body in meeting.collect("facts", deadline_s).items():
        found.facts[rank] = RankFacts.from_dict(body)
        hosts[rank] = found.facts[rank].host
    found.missing = [(rank, hosts[rank], "") for rank in range(world.world_size) if rank not in found.facts]
    first = Inspected(request=request, hosts=tuple(hosts), ranks=tuple(found.facts.values()))
    is_sound = not found.missing and not any(f.severity == "error" for f in device_map(first))
    meeting.put_for_all("go", {"measure": is_sound, "hosts": hosts})
    if not is_sound:
        return found
    measured = meeting.collect("measured", time.monotonic() + request.deadline_s)
    stages: dict[int, str] = {}
    for rank in range(world.world_size):
        told = measured.get(rank)
        if told is None:
            stages[rank] = str((meeting.look(f"stage/{rank}") or {"stage": ARRIVED})["stage"])
        elif "error" in told:
            stages[rank] = f"{told['stage']} ({told['error']})"
        else:
            found.timings.append(Timings(**told["timings"]))
            found.transports.append(Transport.from_dict(told["transport"]))
    if stages:
        found.missing = [(rank, hosts[rank], stage) for rank, stage in behind(stages).items()]
    return found


def expected_hosts(world: World, env: Mapping[str, str]) -> list[str]:
    """The host of each rank as the scheduler lays them out, by blocks; ranks that arrive tell better."""
    listed = expand_nodes(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or world.host)
    per_node = -(-world.world_size // max(len(listed), 1))
    return [listed[min(rank // per_node, len(listed) - 1)] for rank in range(world.world_size)]


def _write(directory: RunDirectory, verdict: Verdict, body: dict[str, Any], *, attempt: int) -> None:
    write_document(directory.preflight_result, body)
    before: list[str] = []
    if attempt and directory.preflight_exclude.exists():  # what was wrong before the requeue stays out
        before = directory.preflight_exclude.read_text().strip().split(",")
    directory.preflight_exclude.unlink(missing_ok=True)
    excluded = list(dict.fromkeys(filter(None, [*before, *verdict.drop])))
    if excluded:
        write_text(directory.preflight_exclude, ",".join(excluded) + "\n")
    write_text(directory.preflight_nodes, ",".join(verdict.keep) + "\n")


@contextlib.contextmanager
def _ending_on_verdict(world: World, request: PreflightRequest) -> Iterator[None]:
    """End this process when a verdict is there that the main thread is too stuck to read, or when none comes."""
    done = threading.Event()

    def watch() -> None:
        code = _awaited_code(world, request, done)
        if not done.wait(LAST_WORDS_S):
            os._exit(code)

    threading.Thread(target=watch, name="verdict", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _awaited_code(world: World, request: PreflightRequest, done: threading.Event) -> int:
    """The verdict's code; requeue where none came in time, or rank 0 has gone with it."""
    until_s = time.monotonic() + 2.0 * request.deadline_s
    try:
        meeting = _Meeting(world, request, is_host=False)
        while time.monotonic() < until_s and not done.wait(POLL_S):
            if (found := meeting.look("verdict")) is not None:
                return int(found["code"])
    except RuntimeError:  # of every failed connection
        done.wait(max(until_s - time.monotonic(), 0.0))
    return int(ExitCode.REQUEUE)
