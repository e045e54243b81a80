"""Everything that the report of a run with rollouts shows: lanes of time, iterations, weight syncs, restarts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from scalewright.records.hybrid import AllDoneGain, HybridSettings, HybridStep, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSegment:
    """What a lane does for a while; segments of a lane do not overlap."""

    kind: SpanKind
    start_s: float
    end_s: float
    step: int = -1
    version: int = -1
    num_tokens: int = 0
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneShown:
    """One rank of a role."""

    role: str
    rank: int
    seconds_by_kind: dict[SpanKind, float]
    """Of the whole run, waiting included: the sum is the time in which the rank was there."""
    waits_s: dict[str, float]
    """Waiting by what it waits for; "" where nothing says so."""
    segments: tuple[LaneSegment, ...] = ()
    """Of the window."""
    shares: tuple[dict[SpanKind, float], ...] = ()
    """Of the whole run, in the slices of `slice_edges`: share of each kind. The rest to 1 is time without the rank."""

    @property
    def title(self) -> str:
        return f"{self.role} {self.rank}"

    @property
    def present_s(self) -> float:
        return sum(self.seconds_by_kind.values())

    @property
    def idle_frac(self) -> float:
        return self.seconds_by_kind.get("idle", 0.0) / self.present_s if self.present_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleUse:
    """Where the time of all ranks of a role went."""

    role: str
    num_ranks: int
    present_s: float
    """Over all ranks."""
    seconds_by_kind: dict[SpanKind, float]
    waits_s: dict[str, float]

    @property
    def idle_frac(self) -> float:
        return self.seconds_by_kind.get("idle", 0.0) / self.present_s if self.present_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """A part of the run that is shown in detail."""

    start_s: float
    end_s: float
    first_step: int = -1
    last_step: int = -1
    """-1: the timeline names no steps."""
    step_starts: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartShown:
    """A rank that was started again."""

    at_s: float
    of: str
    took_s: float | None
    """Until it was there again; None: not known."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncUse:
    """All weight syncs of one way."""

    way: str
    count: int
    bytes: float
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridShown:
    """A run, ready to be drawn. Times are seconds since it began, without pauses in which no rank ran."""

    settings: HybridSettings
    total_s: float
    lanes: tuple[LaneShown, ...] = ()
    num_left_out: int = 0
    """Ranks without a lane, because there are too many."""
    roles: tuple[RoleUse, ...] = ()
    window: TimeWindow | None = None
    slice_edges: tuple[float, ...] = ()
    """Seconds at which the slices of the whole run begin and end."""
    pauses: tuple[tuple[float, float], ...] = ()
    """Where no rank ran: when, and for how many seconds, which the axis leaves out."""
    restarts: tuple[RestartShown, ...] = ()
    iterations: tuple[HybridStep, ...] = ()
    syncs: tuple[SyncUse, ...] = ()
    gains: tuple[AllDoneGain, ...] = ()
    findings: tuple[str, ...] = ()
    sandbox_outcomes: dict[str, int] = field(default_factory=dict)
    num_by_staleness: dict[int, int] = field(default_factory=dict)
    """Trained rollouts by versions between their oldest token and the weights that they trained."""

    @property
    def num_decoded_tokens(self) -> int:
        return sum(one.num_decoded_tokens for one in self.iterations)

    @property
    def num_trained_tokens(self) -> int:
        return sum(one.num_trained_tokens for one in self.iterations)

    @property
    def num_wasted_tokens(self) -> int:
        return sum(one.num_wasted_tokens for one in self.iterations)

    def document(self) -> dict[str, Any]:
        """All but what only a picture needs."""
        body = asdict(self)
        del body["slice_edges"]
        for lane in body["lanes"]:
            del lane["segments"], lane["shares"]
        for row, use in zip(body["roles"], self.roles, strict=True):
            row["idle_frac"] = use.idle_frac
        for row, sync in zip(body["syncs"], self.syncs, strict=True):
            row["bytes_per_s"] = sync.bytes_per_s
        for name in ("num_decoded_tokens", "num_trained_tokens", "num_wasted_tokens"):
            body[name] = getattr(self, name)
        return body
