"""What a soak of the readers has found so far: a line for each share that is done, and a summary of all of them."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fuzzed_inputs import FuzzCounts, summary

SUMMARY_EVERY_S = 10.0


@dataclass(slots=True)
class FuzzResults:
    """The results in a folder. A line is written when its share ends, so that a run that is cut off keeps it."""

    folder: Path
    first_seed: int
    processes: int
    totals: dict[str, FuzzCounts]
    commit: str
    earlier_wall_s: float = 0.0
    """Time of the runs before this one in the same folder."""
    finished: set[tuple[str, int]] = field(default_factory=set)
    """Kind and seed of each share that is done."""
    commits: Counter[str] = field(default_factory=Counter)
    """Inputs that were read with the code of each commit."""
    began_s: float = field(default_factory=time.monotonic)
    _written_s: float = field(default_factory=time.monotonic)

    @classmethod
    def open(cls, folder: Path, *, kinds: list[str], seed: int | None, processes: int) -> FuzzResults:
        """Those that the folder has; a folder that is not there is made."""
        (folder / "failures").mkdir(parents=True, exist_ok=True)
        before: dict[str, Any] = {}
        if (folder / "summary.json").is_file():
            before = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        if seed is None:
            seed = int(before.get("seed", time.time()))
        results = cls(
            folder=folder, first_seed=seed, processes=processes, commit=_commit(),
            totals={kind: FuzzCounts() for kind in kinds}, earlier_wall_s=float(before.get("wall_s", 0.0)),
        )  # fmt: skip
        if results.lines.is_file():
            for line in results.lines.read_text(encoding="utf-8").splitlines():
                doc = json.loads(line)
                results._count(doc["kind"], doc["seed"], _counts(doc), doc["commit"])
        results.write_summary()
        return results

    @property
    def lines(self) -> Path:
        return self.folder / "shares.jsonl"

    @property
    def summary(self) -> Path:
        return self.folder / "summary.json"

    @property
    def failures(self) -> Path:
        """Inputs that failed, each in a folder."""
        return self.folder / "failures"

    @property
    def wall_s(self) -> float:
        return self.earlier_wall_s + time.monotonic() - self.began_s

    @property
    def every(self) -> FuzzCounts:
        whole = FuzzCounts()
        for counts in self.totals.values():
            whole.add(counts)
        return whole

    def add(self, kind: str, seed: int, counts: FuzzCounts) -> None:
        line = json.dumps({"kind": kind, "seed": seed, "commit": self.commit, **_document(counts)})
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        self._count(kind, seed, counts, self.commit)
        if time.monotonic() > self._written_s + SUMMARY_EVERY_S:
            self.write_summary()

    def write_summary(self) -> None:
        every = self.every
        figures = {
            "schema": "scalewright.fuzz_soak/v1", "seed": self.first_seed, "processes": self.processes,
            "wall_s": round(self.wall_s, 1), "python": platform.python_version(), "machine": platform.processor(),
            "commits": dict(self.commits), "all": summary(every),
            "kinds": {kind: summary(counts) for kind, counts in self.totals.items()}, "failures": every.failures,
        }  # fmt: skip
        new = self.summary.with_suffix(".new")
        new.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        new.replace(self.summary)
        self._written_s = time.monotonic()

    def _count(self, kind: str, seed: int, counts: FuzzCounts, commit: str) -> None:
        self.finished.add((kind, seed))
        self.commits[commit] += counts.num_cases
        self.totals.setdefault(kind, FuzzCounts()).add(counts)


def _document(counts: FuzzCounts) -> dict[str, Any]:
    return {entry.name: getattr(counts, entry.name) for entry in fields(counts)}


def _counts(doc: dict[str, Any]) -> FuzzCounts:
    values = {entry.name: doc[entry.name] for entry in fields(FuzzCounts)}
    values["codes"] = Counter({int(code): number for code, number in values["codes"].items()})
    values["problems"] = Counter(values["problems"])
    return FuzzCounts(**values)


def _commit() -> str:
    """The commit of the code that is read, with a mark if files were changed since."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
