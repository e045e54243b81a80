"""Fuzzed scripts: no crash, no hang, and fixes that never make a script worse."""

from __future__ import annotations

import time

import pytest
from fuzzed import HANG_CPU_S, check_many, linted
from hypothesis import given, settings
from hypothesis import strategies as st


def test_a_few_hundred_fuzzed_scripts() -> None:
    check_many(seed=1, count=400)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    given_text = "#!/bin/bash\n#SBATCH " + text
    script = linted(given_text)
    assert script is None or script.text == given_text


PIECES = (
    "(", "$(", "((a))", "{", "[[ ", "'", '"', "`", "${", "if ", "x ", "A=1 ", "<<E\n", "-N", 'A="$A$A"\n', "f(){",
    "case x in a) ", "{{ ", "{% if ", "\\\n", "#SBATCH -N2 ",
)  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_many_of_one_piece_do_not_hang(piece: str) -> None:
    before = time.process_time()
    linted("#!/bin/bash\n#SBATCH -N2\n" + piece * (6000 // len(piece)) + "\n")
    assert time.process_time() - before < HANG_CPU_S
