"""What each step of a task did: documents and bytes in and out, seconds, reasons, and a few examples of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

EXAMPLE_CHARACTERS = 400
KEPT = "kept"


@dataclass(slots=True)
class StepTally:
    """One step of one task, or of a whole run."""

    docs_in: int = 0
    docs_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    cpu_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Tally:
    """The steps of a task in their order."""

    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples
        self.steps: dict[str, StepTally] = {}

    def step(self, name: str) -> StepTally:
        return self.steps.setdefault(name, StepTally())

    @contextmanager
    def timed(self, name: str) -> Iterator[StepTally]:
        """Adds the processor time of this process to a step."""
        step = self.step(name)
        began_s = time.process_time()
        try:
            yield step
        finally:
            step.cpu_s += time.process_time() - began_s

    def example(self, name: str, reason: str, *, text: str, origin: str, url: str, why: str) -> None:
        """Keep a document as an example of a reason. Which ones are kept depends on where they were read only."""
        examples = self.step(name).examples.setdefault(reason, [])
        rank = crc32(origin.encode("utf-8", errors="replace"))
        if self.num_examples == 0 or (len(examples) == self.num_examples and rank >= examples[-1]["rank"]):
            return
        examples.append(
            {"rank": rank, "origin": origin, "url": url, "why": why, "text": text[:EXAMPLE_CHARACTERS]}
        )  # fmt: skip
        examples.sort(key=lambda one: (one["rank"], one["origin"]))
        del examples[self.num_examples :]

    def drop(self, name: str, reason: str, *, text: str, origin: str, url: str, why: str) -> None:
        self.step(name).reasons[reason] += 1
        self.example(name, reason, text=text, origin=origin, url=url, why=why)

    def to_json(self) -> dict[str, Any]:
        return {name: as_json(step) for name, step in self.steps.items()}


def as_json(step: StepTally) -> dict[str, Any]:
    return {
        "docs_in": step.docs_in, "docs_out": step.docs_out, "bytes_in": step.bytes_in, "bytes_out": step.bytes_out,
        "cpu_s": round(step.cpu_s, 6), "reasons": dict(step.reasons), "examples": step.examples,
    }  # fmt: skip


def merged(tallies: list[dict[str, Any]], num_examples: int) -> dict[str, dict[str, Any]]:
    """The steps of many tasks as one, in the order in which they were first seen."""
    steps: dict[str, StepTally] = {}
    for tally in tallies:
        for name, values in tally.items():
            step = steps.setdefault(name, StepTally())
            for key in ("docs_in", "docs_out", "bytes_in", "bytes_out", "cpu_s"):
                setattr(step, key, getattr(step, key) + values[key])
            step.reasons.update(values["reasons"])
            for reason, examples in values["examples"].items():
                both = sorted([*step.examples.get(reason, []), *examples], key=lambda one: (one["rank"], one["origin"]))
                step.examples[reason] = both[:num_examples]
    return {name: as_json(step) for name, step in steps.items()}
