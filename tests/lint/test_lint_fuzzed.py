"""Fuzzed scripts: no crash, no hang, and fixes that never make a script worse."""

from __future__ import annotations

import contextlib
import random
import time

import pytest
from fuzzed import check, fuzzed_script, linted
from hypothesis import given, settings
from hypothesis import strategies as st

from scalewright.errors import ConfigError

HANG_CPU_S = 20.0
"""Far above the time of any script, so that a busy machine does not fail the test."""


def test_a_few_hundred_fuzzed_scripts() -> None:
    chance = random.Random(1)
    for number in range(400):
        before = time.process_time()
        with contextlib.suppress(ConfigError):
            check(fuzzed_script(chance), fix=number % 20 == 0)
        assert time.process_time() - before < HANG_CPU_S


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    given_text = "#!/bin/bash\n#SBATCH " + text
    with contextlib.suppress(ConfigError):
        assert linted(given_text.encode()).text == given_text


PIECES = (
    "(", "$(", "((a))", "{", "[[ ", "'", '"', "`", "${", "if ", "x ", "A=1 ", "<<E\n", "-N", 'A="$A$A"\n', "f(){",
    "case x in a) ", "{{ ", "{% if ", "\\\n", "#SBATCH -N2 ",
)  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_many_of_one_piece_do_not_hang(piece: str) -> None:
    before = time.process_time()
    with contextlib.suppress(ConfigError):
        linted(f"#!/bin/bash\n#SBATCH -N2\n{piece * (6000 // len(piece))}\n".encode())
    assert time.process_time() - before < HANG_CPU_S
