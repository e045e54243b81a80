"""Flight recorders of made-up runs, in the form that PyTorch 2.9 writes for NCCL."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_NS = 1_760_000_000_000_000_000


class Recorder:
    """The recorder of one rank; groups by their name, with their members."""

    def __init__(self, rank: int, groups: Mapping[str, Sequence[int]]) -> None:
        self.rank = rank
        self.groups = {name: list(ranks) for name, ranks in groups.items() if rank in ranks}
        self.entries: list[dict[str, Any]] = []
        self.next: dict[str, int] = {}
        self.done: dict[str, int] = {}

    def add(
        self, group: str, name: str = "all_reduce", *, state: str = "completed", size: int = 1024, **other: Any
    ) -> None:
        """A collective, or `send 0->1` and `recv 0<-1` with the numbers of members."""
        is_pair = "->" in name or "<-" in name
        number = self.next.get(group, 0) + (0 if is_pair else 1)
        self.next[group] = number
        if state == "completed" and not is_pair:
            self.done[group] = number
        at_ns = START_NS + len(self.entries) * 1_000_000
        self.entries.append({
            "record_id": len(self.entries), "pg_id": sorted(self.groups, key=int).index(group),
            "process_group": (group, f"GROUP_{group}" if group != "0" else "default_pg"),
            "collective_seq_id": number, "p2p_seq_id": len(self.entries) if is_pair else 0,
            "op_id": number, "profiling_name": f"nccl:{name}", "time_created_ns": at_ns,
            "input_sizes": [[size]], "input_dtypes": ["Float"], "output_sizes": [[size]], "output_dtypes": ["Float"],
            "state": state, "time_discovered_started_ns": None,
            "time_discovered_completed_ns": at_ns + 500_000 if state == "completed" else None,
            "retired": state == "completed", "timeout_ms": 600_000, "is_p2p": is_pair,
        } | other)  # fmt: skip

    def document(self) -> dict[str, Any]:
        return {
            "version": "2.9",
            "pg_config": {
                name: {"name": name, "desc": f"GROUP_{name}" if name != "0" else "default_pg", "ranks": str(ranks)}
                for name, ranks in self.groups.items()
            },
            "nccl_version": "2.27.3",
            "pg_status": {
                str(index): {
                    "last_enqueued_collective": self.next.get(name, -1), "last_started_collective": -1,
                    "last_completed_collective": self.done.get(name, -1),
                }
                for index, name in enumerate(sorted(self.groups, key=int))
            },
            "entries": self.entries,
        }  # fmt: skip

    def write(self, folder: Path) -> None:
        (folder / f"nccl_trace_rank_{self.rank}").write_bytes(pickle.dumps(self.document(), protocol=2))


def recorders(num: int, groups: Mapping[str, Sequence[int]] | None = None) -> list[Recorder]:
    """One for every rank, with a default group."""
    return [Recorder(rank, {"0": range(num), **(groups or {})}) for rank in range(num)]
