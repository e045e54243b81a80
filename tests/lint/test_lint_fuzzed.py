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
from scalewright.lint.engine import Linter
from scalewright.lint.job_facts import _needed_words
from scalewright.lint.rule import Context
from scalewright.lint.script import parse_script
from scalewright.lint.settings import LintSettings

HANG_CPU_S = 20.0
"""Far above the time of any script, so that a busy machine does not fail the test."""


def test_a_few_hundred_fuzzed_scripts() -> None:
    chance = random.Random(1)
    for number in range(400):
        before = time.process_time()
        with contextlib.suppress(ConfigError):
            check(fuzzed_script(chance), fix=number % 20 == 0)
        assert time.process_time() - before < HANG_CPU_S


def test_the_edits_of_broken_text_lie_in_order() -> None:
    step = 'srun "${head[@]}" bash -c "$(declare -f ray_node); ray_node \\_node \\\nhead=$!\n'
    text = f"#!/bin/bash\n#SBATCH -N2\n{step}fortries = 0; tries < 2 * 600; tries++)); do"
    script = parse_script(text)
    findings = Linter(settings=LintSettings(), context=Context()).lint(script)
    edits = [edit for finding in findings if finding.fix is not None for edit in finding.fix.edits]
    assert all(0 <= edit.start <= edit.end <= len(text) for edit in edits)


def test_words_that_a_match_needs_are_taken_from_the_pattern() -> None:
    assert _needed_words(r"resum|--load\b|auto[-_]?load|\bPET_NNODES") == ("resum", "--load", "auto", "pet_nnodes")
    assert _needed_words(r"colou?rs|xabcd") == ("colo", "xabcd")
    assert _needed_words(r"\b(?:a|b)cde(?:f(?:g))?") == ()
    assert _needed_words(r"\bml\s+x|LMOD") == ()


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
