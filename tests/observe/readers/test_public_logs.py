"""Excerpts of public logs, with the values that stand in them: see tests/golden/logs/README.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.observe.readers.log_cases import assert_step

from scalewright.observe.evidence.series import step_series
from scalewright.observe.readers.reading import read_evidence

LOGS = Path(__file__).parents[2] / "golden" / "logs"
GIB = 2.0**30


def test_every_excerpt_has_a_source() -> None:
    table = (LOGS / "README.md").read_text()
    for path in LOGS.glob("*.log"):
        assert f"`{path.name}`" in table


def test_primus() -> None:
    first, second = read_evidence([LOGS / "primus_llama_1b.log"]).steps
    assert_step(
        first, step=4, rank=7, last_step=8, time_s=0.517, flop_per_s=574.3e12, tokens_per_s=63381.0, is_per_device=True,
        loss=11.58133, num_samples=32.0, memory_bytes=95.57 * GIB, memory_free_bytes=193.27 * GIB, grad_norm=4.728,
    )  # fmt: skip
    assert_step(second, step=5, time_s=0.5084, loss=11.44362)


def test_maxtext() -> None:
    steps = read_evidence([LOGS / "maxtext_deepseek2_16b.log"]).steps
    assert [fact.step for fact in steps] == [0, 1, 2, 3, 9]
    # The page says: 4 devices, one sequence of 2048 tokens on each, 31.86 TFLOP for a step of a device.
    for fact in steps[1:]:
        assert fact.time_s is not None
        assert fact.num_tokens == 4 * 2048
        assert fact.tokens_per_s == pytest.approx(2048 / fact.time_s, rel=2e-3)
        assert fact.flop_per_s == pytest.approx(31.86e12 / fact.time_s, rel=2e-3)


def test_deepspeed_of_ours_has_as_many_steps_as_were_made() -> None:
    """The engine reports a step 0 when it is made, and each step three times: itself, its timer, our program."""
    series = step_series(read_evidence([LOGS / "deepspeed_zero2_own.log"]))
    assert series.numbers == list(range(1, 9))
    steps = series.by_rank[0]
    assert [fact.time_s for fact in steps[2:5]] == [0.169759, 0.18948, 0.191633]
    assert (steps[0].loss, steps[-1].loss) == (6.253532, 5.870831)
    assert series.median_s == 0.192282  # of the last five times


def test_deepspeed_chat_and_its_two_engines() -> None:
    facts = read_evidence([LOGS / "deepspeed_chat_opt_1.3b.log"]).steps
    chat = [fact for fact in facts if fact.dialect == "deepspeed-chat"]
    assert_step(chat[0], step=128, time_s=3.71, loss=0.0877685546875, reward=2.09375, num_samples=64.0)
    assert_step(chat[1], step=129, time_s=3.73, reward=2.09765625)
    assert chat[1].parts_s["generation"] == 2.42
    actor, critic = (fact for fact in facts if fact.dialect == "deepspeed")
    assert_step(actor, step=130, memory_bytes=20.55 * GIB, learning_rate=9.561649264296291e-6)
    assert_step(critic, step=130, learning_rate=4.9459450111686005e-6)
