"""A load: the requests that are put to an engine or a server together, and what was measured beside its answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scalewright.workload.request_plan import PlannedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """Requests of one load that have no answer yet."""

    number: int
    words: str
    """As tables name it: closed, or its rate."""
    requests: tuple[PlannedRequest, ...]
    num_done: int
    """Requests that an earlier attempt answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What was measured over one load beside the times of its tokens; None or empty where it is not known."""

    time_s: float
    busy_frac: float | None = None
    """Share of the time in which the device computes."""
    cache_fracs: tuple[float, ...] = ()
    """Share of the cache in use, over the load."""
    num_preemptions: int | None = None
    num_steps: int | None = None
    """Iterations of the engine."""
    read_bytes: float | None = None
    """Weights and cache that decode steps read, on one rank, each counted once a step."""
    decode_s: float | None = None
    """Time of those steps."""
    num_decoded: int = 0
    """Tokens that they wrote."""
    prefill_tokens: int = 0
    prefill_s: float | None = None
    """Time of steps that read prompts."""
    energy_j: float | None = None
    energy_of: str = ""
    """What the counter covers: whole nodes, GPUs or CPUs."""
    rank_busy_s: tuple[float, ...] = ()
    """Time that each rank worked, in the order of ranks."""

    def with_energy(self, energy: tuple[float, str] | None) -> LoadResult:
        return self if energy is None else replace(self, energy_j=energy[0], energy_of=energy[1])

    @property
    def rank_gap_frac(self) -> float | None:
        """By how much the rank that worked least stays below the one that worked most."""
        if len(self.rank_busy_s) < 2 or not max(self.rank_busy_s):
            return None
        return 1.0 - min(self.rank_busy_s) / max(self.rank_busy_s)
