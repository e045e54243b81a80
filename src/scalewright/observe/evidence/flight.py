"""What a rank's flight recorder held: its process groups, and its collectives with their state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from scalewright.observe.evidence.facts import Spot

EntryState = Literal["scheduled", "started", "completed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightGroup:
    """A process group that a rank belongs to."""

    name: str
    """PyTorch's name, which is the same on all its members."""
    description: str = ""
    """Such as `TENSOR_MODEL_PARALLEL_GROUP`."""
    ranks: tuple[int, ...] = ()
    """Its members by their number in the job; empty if the dump does not say them."""

    @property
    def title(self) -> str:
        return f"{self.description} ({self.name})" if self.description not in ("", "undefined") else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightEntry:
    """One operation that a rank gave to its communication library."""

    record: int
    """Number in the order in which the rank issued them, over all groups."""
    group: str
    name: str
    """all_reduce, _all_gather_base, send, ...; without the library's name."""
    state: EntryState
    sequence: int | None = None
    """Number within the group; the same on all members. None for send and recv."""
    source: int | None = None
    """Of send and recv: the member of the group that sends."""
    target: int | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    created_at_s: float | None = None
    completed_at_s: float | None = None
    limit_s: float | None = None
    called_from: str = ""
    """The user's own line of code nearest to the call: `train.py:120 forward`."""

    @property
    def is_pair(self) -> bool:
        """Between two members only."""
        return self.sequence is None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightDump:
    """One rank's recorder. Entries are in the order of `record`."""

    spot: Spot
    rank: int | None
    """None: neither the content nor the file's name says it."""
    version: str = ""
    library_version: str = ""
    groups: Mapping[str, FlightGroup] = field(default_factory=dict)
    entries: tuple[FlightEntry, ...] = ()
    last_enqueued: Mapping[str, int] = field(default_factory=dict)
    """By group, where the recorder's status says it; of collectives only."""
    last_completed: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    """Why it, or a part of it, could not be read."""
