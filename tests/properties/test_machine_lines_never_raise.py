"""Lines of machines that are cut, mixed or made up never raise, whatever reader they look like."""

from __future__ import annotations

import math
import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.observe import test_jobs_and_devices, test_machine_lines, test_tracebacks

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.hang import stalls
from scalewright.observe.readers.line_pass import LinePass
from scalewright.observe.readers.machines import machine_line_readers
from scalewright.observe.readers.source import Source

MEMBERS = [
    value for module in (test_jobs_and_devices, test_machine_lines, test_tracebacks) for value in vars(module).values()
]
CONSTANTS = [value for member in MEMBERS if hasattr(member, "__code__") for value in member.__code__.co_consts]
TEXTS = [value for value in (*MEMBERS, *CONSTANTS) if isinstance(value, str) and len(value) > 60]
"""Every example of these tests."""
HINTS = [hint for reader in machine_line_readers() for hint in reader.hints]


def read_lines(text: str) -> Evidence:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_text(text, encoding="utf-8", errors="replace")
        into = Evidence()
        lines = LinePass(machine_line_readers())
        lines.read(Source(path, "log"), into)
        lines.end(into)
    stalls(into)
    return into


def has_finite_times(evidence: Evidence) -> bool:
    return all(one.at_s is None or math.isfinite(one.at_s) for one in evidence.happenings)


def test_there_are_examples() -> None:
    assert len(TEXTS) > 10


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_broken_examples(seed: int) -> None:
    draw = random.Random(seed)
    lines = [line for text in draw.sample(TEXTS, 3) for line in text.splitlines()]
    for _ in range(draw.randrange(1, 30)):
        place = draw.randrange(len(lines))
        line = lines[place]
        cut = draw.randrange(len(line) + 1)
        change = draw.random()
        if change < 0.3:
            lines[place] = line[:cut]
        elif change < 0.6:
            lines[place] = (
                line[:cut] + draw.choice(["9" * 400, "-", "[", "|", "\x00", "٣", "e99999", "nan", ":"]) + line[cut:]
            )
        elif change < 0.8:
            lines.insert(place, lines[draw.randrange(len(lines))])
        else:
            del lines[place]
            lines = lines or [""]
    assert has_finite_times(read_lines("\n".join(lines)))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(HINTS), st.text(max_size=60)), max_size=12))
def test_hints_with_anything_behind_them(parts: list[tuple[str, str]]) -> None:
    assert has_finite_times(read_lines("\n".join(f"{hint}{text}\n{text}{hint}" for hint, text in parts)))
