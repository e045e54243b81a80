"""Files of a run in which answers are written and trained on: who did what when, and what each iteration came to.

timeline/ROLE-RANK.jsonl  spans of one role's rank (hybrid-timeline/1); `read_timeline` merges all of them
hybrid.jsonl              settings, then one line a step, weight sync or comparison (hybrid/1); written by one process:
                          the controller, or rank 0 of a co-located stage

Both are append-only, and a kill costs at most the last second of a timeline. An attempt starts with a line that has
the schema. In a timeline this line also has the time of the attempt's zero on the controller's clock, so rows hold
seconds of a clock that never jumps. Spans of a killed attempt stay: that time was spent. A step that is done again
replaces the line of the killed attempt.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, get_args

from scalewright.errors import DocumentError
from scalewright.records.documents import check_schema, document, schema
from scalewright.records.events import LineWriter, json_lines
from scalewright.records.run_directory import RunDirectory

TIMELINE, HYBRID = "hybrid-timeline", "hybrid"
SpanKind = Literal[
    "data", "prefill", "decode", "reward", "log_probs", "train", "sync", "release", "restore", "evaluate", "checkpoint",
    "profile", "idle", "restart",
]  # fmt: skip
KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
Mode = Literal["co-located", "sync", "one-step-off", "async"]
FLUSH_S = 1.0
"""Spans are kept in memory for so long at most while others begin or end."""
_ROLE = re.compile(r"^[a-z][a-z_]*$")


@dataclass(slots=True, kw_only=True)
class RoleSpan:
    """What one rank of a role did for a while. A span may lie inside another one of the same rank."""

    role: str
    """trainer, engine, controller, sandbox, supervisor; a co-located stage has ranks of `trainer` only."""
    rank: int
    """Number of the engine or of the trainer's rank; 0 for roles of one process."""
    kind: SpanKind
    start_s: float
    """Since the run began."""
    end_s: float
    step: int = -1
    version: int = -1
    """Of the weights that were used; -1: none."""
    num_tokens: int = 0
    waits_for: str = ""
    """Of an idle span, what ends it: weights, rollouts, training, ranks, ..."""
    of: str = ""
    """Of a restart, the role and rank that is started again, such as engine-1."""
    detail: str = ""
    attempt: int = 0
    """Starts of this rank before; set by the reader."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s

    @property
    def lane(self) -> str:
        return f"{self.role}-{self.rank}"


class TimelineWriter:
    """Appends the spans of one role's rank to its own file. Threads may share it. A span costs about 15 us."""

    def __init__(
        self, directory: RunDirectory, role: str, rank: int, clock_offset_s: float = 0.0, *, flush_s: float = FLUSH_S
    ) -> None:
        """`clock_offset_s`: the controller's clock minus this node's."""
        assert _ROLE.match(role), role
        self._zero_s = self._flushed_s = time.perf_counter()
        zero_s = time.time() + clock_offset_s  # the same moment: opening the file takes a while
        self._flush_s = flush_s
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._file = LineWriter(directory.timeline_of(role, rank))
        head = {"role": role, "rank": rank, "zero_s": zero_s, "clock_offset_s": clock_offset_s}
        self._file.append(json.dumps(document(TIMELINE, head)) + "\n")
        self._role, self._rank = role, rank

    @contextlib.contextmanager
    def span(
        self, kind: SpanKind, *, step: int = -1, version: int = -1, num_tokens: int = 0, waits_for: str = "",
        of: str = "", detail: str = "",
    ) -> Iterator[RoleSpan]:  # fmt: skip
        """Time the body. The body may set what it learns on the way, such as `num_tokens`."""
        started_s = time.perf_counter()
        self._flush_if_due(started_s)
        span = RoleSpan(
            role=self._role, rank=self._rank, kind=kind, start_s=started_s, end_s=started_s, step=step,
            version=version, num_tokens=num_tokens, waits_for=waits_for, of=of, detail=detail,
        )  # fmt: skip
        try:
            yield span
        finally:
            span.end_s = time.perf_counter()
            self._write(span)

    def add(
        self, kind: SpanKind, started_s: float, ended_s: float, *, step: int = -1, version: int = -1,
        num_tokens: int = 0, waits_for: str = "", of: str = "", detail: str = "",
    ) -> None:  # fmt: skip
        """A span that was timed elsewhere, by `time.perf_counter()` of this process."""
        self._write(
            RoleSpan(
                role=self._role, rank=self._rank, kind=kind, start_s=started_s, end_s=ended_s, step=step,
                version=version, num_tokens=num_tokens, waits_for=waits_for, of=of, detail=detail,
            )
        )  # fmt: skip

    def _write(self, span: RoleSpan) -> None:
        assert span.kind in KINDS, span.kind
        start_s, end_s = span.start_s - self._zero_s, span.end_s - self._zero_s
        words = "".join(
            f',"{name}":{json.dumps(value)}'
            for name, value in (
                ("num_tokens", span.num_tokens), ("waits_for", span.waits_for), ("of", span.of),
                ("detail", span.detail),
            )
            if value
        )  # fmt: skip
        line = (
            f'{{"kind":"{span.kind}","start_s":{start_s:.6f},"end_s":{end_s:.6f},'
            f'"step":{span.step:d},"version":{span.version:d}{words}}}\n'
        )
        with self._lock:
            self._lines.append(line)
        self._flush_if_due(span.end_s)

    def _flush_if_due(self, now_s: float) -> None:
        if self._lines and now_s - self._flushed_s >= self._flush_s:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            self._flushed_s = time.perf_counter()
            if lines:
                self._file.append("".join(lines))

    def close(self) -> None:
        self.flush()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def read_timeline(directory: RunDirectory) -> list[RoleSpan]:
    """Spans of all roles on one clock, in the order of their starts; the first attempt of any role begins near 0."""
    attempts = [attempt for path in directory.timelines() for attempt in _attempts(path)]
    if not attempts:
        return []
    began_s = min(zero_s for zero_s, _ in attempts)
    spans = []
    for zero_s, rows in attempts:
        for span in rows:
            span.start_s += zero_s - began_s
            span.end_s += zero_s - began_s
            spans.append(span)
    return sorted(spans, key=lambda span: (span.start_s, -span.end_s))


def _attempts(path: Path) -> list[tuple[float, list[RoleSpan]]]:
    """Zero of each attempt in a file, and its spans in seconds since then."""
    attempts: list[tuple[float, list[RoleSpan]]] = []
    head: dict[str, Any] = {}
    for row in _rows(path, TIMELINE):
        try:
            if "schema" in row:
                head = {"role": str(row["role"]), "rank": int(row["rank"]), "attempt": len(attempts)}
                attempts.append((float(row["zero_s"]), []))
            elif row["kind"] not in KINDS:
                raise DocumentError(
                    f"{path}: has a span of kind {row['kind']!r}; this release knows {', '.join(KINDS)}: upgrade"
                )
            elif attempts:  # lines before the first head have no clock
                attempts[-1][1].append(RoleSpan(**head, **_known(RoleSpan, row)))
        except (KeyError, TypeError, ValueError) as error:
            raise DocumentError(
                f"{path}: a line is not of a timeline ({error}); it was not written by scalewright"
            ) from error
    return attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSettings:
    """How rollouts and training were arranged."""

    mode: Mode
    token_budget: int = 0
    """Tokens decoded in an iteration; 0: an iteration ends when all its answers ended."""
    retention: int = 0
    """A rollout that was cut so often is purged; 0: none is cut."""
    staleness: int = 0
    """Largest number of versions between the oldest token of a rollout and the weights that it trains."""
    engine_ranks: list[int] = field(default_factory=list)
    """Ranks of each engine; empty: the trainer's own ranks write the answers."""
    sync_way: str = ""
    sandbox: str = ""
    groups: str = ""
    old_tokens: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridStep:
    """One iteration: the answers that were written for it, and the update that they made."""

    step: int
    version: int
    """Of the weights at the start of the iteration."""
    num_finished: int = 0
    """Rollouts that this iteration gives to training."""
    carried_by_cuts: dict[int, int] = field(default_factory=dict)
    """Unfinished rollouts that go on in the next iteration, by how often they were cut."""
    carried_by_version: dict[int, int] = field(default_factory=dict)
    """The same rollouts by the version that wrote their first token."""
    num_purged: int = 0
    """Rollouts that reached the retention limit."""
    num_dropped: int = 0
    """Rollouts that were too stale to be trained on."""
    num_trained_by_staleness: dict[int, int] = field(default_factory=dict)
    """Trained rollouts, by versions between their oldest token and the weights that they trained."""
    num_decoded_tokens: int = 0
    num_trained_tokens: int = 0
    num_wasted_tokens: int = 0
    """Decoded, and never trained on: purged, too stale, of a group that was left out, or lost with an engine."""
    wall_s: float = 0.0
    rollout_s: float = 0.0
    train_s: float = 0.0
    sync_s: float = 0.0
    reward_s: float = 0.0
    sandbox_outcomes: dict[str, int] = field(default_factory=dict)
    """Rewards by how the sandbox ended: ok, time, memory, ..."""

    @property
    def num_carried(self) -> int:
        return sum(self.carried_by_cuts.values())

    @property
    def staleness_max(self) -> int:
        return max((behind for behind, num in self.num_trained_by_staleness.items() if num), default=0)

    @property
    def staleness_mean(self) -> float:
        counts = self.num_trained_by_staleness
        num = sum(counts.values())
        return sum(behind * count for behind, count in counts.items()) / num if num else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSync:
    """Weights of one version given to one engine."""

    version: int
    engine: int
    way: str
    """broadcast, peers, file, or copy between parts of one process."""
    bytes: float
    seconds: float
    checksum: str = ""

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllDoneGain:
    """Speed over waiting for all answers of an iteration, at equal trained tokens."""

    kind: Literal["measured", "simulated"]
    rollout_gain: float
    """Rollout time of all-done over that of this run."""
    step_gain: float
    """The same for whole iterations."""
    detail: str = ""
    """What it was compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridRecord:
    """All of hybrid.jsonl."""

    settings: HybridSettings
    steps: list[HybridStep]
    syncs: list[WeightSync]
    gains: list[AllDoneGain]
    num_attempts: int
    """Starts of the process that wrote it."""

    def document(self) -> dict[str, Any]:
        body = asdict(self)
        for row, step in zip(body["steps"], self.steps, strict=True):
            row.update(staleness_mean=step.staleness_mean, staleness_max=step.staleness_max)
        for row, sync in zip(body["syncs"], self.syncs, strict=True):
            row.update(bytes_per_s=sync.bytes_per_s)
        return document(HYBRID, body)


class HybridWriter:
    """Appends what each iteration came to. Every line is written at once; not for several processes."""

    def __init__(self, directory: RunDirectory, settings: HybridSettings) -> None:
        self._file = LineWriter(directory.hybrid)
        self._append({"schema": schema(HYBRID), **asdict(settings)})

    def step(self, step: HybridStep) -> None:
        self._append({"line": "step", **asdict(step)})

    def sync(self, sync: WeightSync) -> None:
        self._append({"line": "sync", **asdict(sync)})

    def gain(self, gain: AllDoneGain) -> None:
        self._append({"line": "gain", **asdict(gain)})

    def close(self) -> None:
        self._file.close()

    def _append(self, row: Mapping[str, Any]) -> None:
        self._file.append(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")


def read_hybrid(directory: RunDirectory) -> HybridRecord | None:
    """What the run has written so far; None where it wrote nothing."""
    path = directory.hybrid
    settings: HybridSettings | None = None
    steps: dict[int, HybridStep] = {}
    syncs: list[WeightSync] = []
    gains: list[AllDoneGain] = []
    num_attempts = 0
    for row in _rows(path, HYBRID):
        try:
            if "schema" in row:
                settings, num_attempts = HybridSettings(**_known(HybridSettings, row)), num_attempts + 1
            elif row["line"] == "step":
                step = HybridStep(**_known(HybridStep, row))
                steps[step.step] = step
            elif row["line"] == "sync":
                syncs.append(WeightSync(**_known(WeightSync, row)))
            elif row["line"] == "gain":
                gains.append(AllDoneGain(**_known(AllDoneGain, row)))
            else:
                raise DocumentError(
                    f"{path}: has a line of kind {row['line']!r}; this release knows step, sync, gain: upgrade"
                )
        except (KeyError, TypeError, ValueError) as error:
            raise DocumentError(f"{path}: a line is not whole ({error}); it was not written by scalewright") from error
    if settings is None:
        return None
    ordered = [steps[number] for number in sorted(steps)]
    return HybridRecord(settings=settings, steps=ordered, syncs=syncs, gains=gains, num_attempts=num_attempts)


Row = TypeVar("Row", RoleSpan, HybridSettings, HybridStep, WeightSync, AllDoneGain)


def _known(kind: type[Row], row: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that this release does not know are left out: a later release may add some. Counts get their keys back,
    which JSON makes text."""
    names = {f.name for f in fields(kind)}
    values = {key: value for key, value in row.items() if key in names}
    for name in ("carried_by_cuts", "carried_by_version", "num_trained_by_staleness"):
        if name in values:
            values[name] = {int(key): int(num) for key, num in values[name].items()}
    return values


def _rows(path: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The lines of a file; no file is no line."""
    for row in json_lines(path) if path.exists() else ():
        if "schema" in row:
            check_schema(row["schema"], kind, where=str(path))
        yield row
