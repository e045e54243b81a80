"""Evidence: everything that was read about one run, and what was not understood."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from scalewright.observe.evidence.facts import (
    Collective,
    DeviceSample,
    Happening,
    JobFact,
    RankTime,
    Spot,
    StepFact,
    TransportFact,
)  # fmt: skip
from scalewright.observe.evidence.flight import FlightDump

Fact = StepFact | Happening | DeviceSample | JobFact | Collective | TransportFact | RankTime | FlightDump


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFact:
    """A file that was read: what it is, and how much of it was understood."""

    file: str
    kind: str
    """The reader that took it, such as `megatron log`; `unknown` if none did."""
    num_lines: int = 0
    num_facts: int = 0
    problem: str = ""
    """Why a part of it could not be read: truncated, not JSON, more than the limit, ..."""


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Facts of one run, in the order in which they were read. Readers add; everybody else only reads."""

    sources: list[SourceFact] = field(default_factory=list)
    steps: list[StepFact] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    device_samples: list[DeviceSample] = field(default_factory=list)
    jobs: list[JobFact] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    transports: list[TransportFact] = field(default_factory=list)
    rank_times: list[RankTime] = field(default_factory=list)
    flight_dumps: list[FlightDump] = field(default_factory=list)
    settings: dict[str, tuple[str, Spot]] = field(default_factory=dict)
    """What the run was told or said of itself, by our own names (SETTINGS) where there is one."""
    environment: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    prediction: dict[str, object] | None = None
    """The prediction document of a run directory of ours."""
    run_dir: str = ""
    """Where it is one of ours."""
    notes: list[str] = field(default_factory=list)

    def add(self, facts: Iterable[Fact]) -> int:
        """Put facts where they belong; how many there were."""
        rooms: dict[type, list[Any]] = {
            StepFact: self.steps, Happening: self.happenings, DeviceSample: self.device_samples, JobFact: self.jobs,
            Collective: self.collectives, TransportFact: self.transports, RankTime: self.rank_times,
            FlightDump: self.flight_dumps,
        }  # fmt: skip
        num = 0
        for fact in facts:
            rooms[type(fact)].append(fact)
            num += 1
        return num

    def of_kind(self, *kinds: str) -> list[Happening]:
        return [one for one in self.happenings if one.kind in kinds and not one.is_benign]


SETTINGS = (
    "model", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "seq", "num_ranks", "num_nodes",
    "gpus_per_node", "accelerator", "system", "tp", "pp", "cp", "ep", "dp", "zero", "mbs", "gbs", "precision",
    "recompute", "offload", "compile", "overlap", "num_workers", "num_threads", "checkpoint_every", "checkpoint_dir",
    "kind", "engine",
)  # fmt: skip
"""Names of settings that findings look at."""
