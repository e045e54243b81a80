"""Lines with which PBS, LSF, Flux and Kubernetes say why a job ended."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from scalewright.observe.evidence.facts import Happening, HappeningKind
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_WORDS: tuple[tuple[str, HappeningKind], ...] = (
    (r"PBS: job killed: walltime .* exceeded limit", "time_limit"),
    (r"PBS: job killed: (?:mem|vmem|pmem|cput)\b.* exceeded limit", "cgroup_kill"),
    (r"PBS: job killed: node \d+ .*(?:dead|down)|PBS: .*node (?:failure|requeue)", "node_failed"),
    (r"TERM_RUNLIMIT|TERM_CPULIMIT|TERM_DEADLINE", "time_limit"),
    (r"TERM_MEMLIMIT|TERM_SWAP", "cgroup_kill"),
    (r"TERM_PREEMPT|TERM_REQUEUE", "preempted"),
    (r"TERM_OWNER|TERM_ADMIN|TERM_FORCE_OWNER", "cancelled"),
    (r"TERM_ZOMBIE|TERM_RMS", "node_failed"),
    (r"flux-job: .*exception: type=timeout|job\.exception type=timeout", "time_limit"),
    (r"flux-job: .*exception: type=cancel|job\.exception type=cancel", "cancelled"),
    (r"Reason:\s+OOMKilled", "cgroup_kill"),
    (r"Reason:\s+(?:Evicted|Preempting)|Pod was (?:evicted|preempted)", "preempted"),
    (r"Reason:\s+DeadlineExceeded", "time_limit"),
    (r"Reason:\s+(?:NodeLost|NodeShutdown)", "node_failed"),
)
_KINDS = [(re.compile(pattern), kind) for pattern, kind in _WORDS]


class OtherSchedulerReader(LineReader):
    """One happening for each kind of end: schedulers repeat themselves."""

    kind: ClassVar[str] = "scheduler lines"
    hints: ClassVar[tuple[str, ...]] = ("PBS: ", "TERM_", "flux-job", "job.exception", "Reason: ", "Pod was ")

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def take(self, line: Line) -> Iterable[Item]:
        text = line.text.strip()
        kind = next((kind for pattern, kind in _KINDS if pattern.search(text)), None)
        if kind is None or kind in self._seen:
            return ()
        self._seen.add(kind)
        return (Happening(kind=kind, spot=line.spot, message=text[:400], at_s=line.at_s),)
