"""Rules of doubtful numbers and of reinforcement learning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.observe.evidence_maker import fired, loud, made, spot

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening


def reported(**fields: float | bool) -> Evidence:
    evidence = made(settings={"num_ranks": 2, "peak_flop_per_s": 1e15})
    evidence.steps = [replace(one, **fields) for one in evidence.steps]  # type: ignore[arg-type]
    return evidence


def test_more_than_the_peak_is_impossible() -> None:
    assert fired(reported(mfu_frac=1.2))["impossible-flop"].severity == "error"
    assert fired(reported(flop_per_s=2e15))["impossible-flop"].severity == "error"
    assert "impossible-flop" not in fired(reported(mfu_frac=0.55, flop_per_s=0.55e15))


def test_flop_are_recomputed_from_the_shape() -> None:
    settings = {"layers": 24, "hidden": 2048, "vocab": 50304, "seq": 2048, "num_ranks": 1, "kind": "language"}
    per_token = 24 * (24 * 2048**2 + 12 * 2048 * 8192 + 12 * 2048 * 2048) + 6 * 2048 * 50304
    evidence = made(num_ranks=1, settings=settings, num_tokens=1000.0)
    right = [replace(one, flop_per_s=1000.0 * per_token) for one in evidence.steps]
    evidence.steps = right
    assert "flop-mismatch" not in fired(evidence)
    evidence.steps = [replace(one, flop_per_s=(one.flop_per_s or 0.0) * 6.6) for one in right]
    assert fired(evidence)["flop-mismatch"].seen.numbers["ratio"] == pytest.approx(6.6)


def test_throughput_divided_by_the_trainers_devices_only() -> None:
    evidence = made(settings={"num_ranks": 16}, num_tokens=8000.0)
    evidence.steps = [replace(one, tokens_per_s=1000.0, is_per_device=True) for one in evidence.steps]
    finding = fired(evidence)["wrong-device-count"]
    assert finding.seen.numbers["divided_by"] == 8
    evidence.steps = [replace(one, tokens_per_s=500.0) for one in evidence.steps]
    assert "wrong-device-count" not in fired(evidence)


def test_steps_that_end_later_than_they_say() -> None:
    evidence = made()
    evidence.steps = [replace(one, time_s=0.1) for one in evidence.steps]
    assert "clock-disagrees" in loud(evidence)
    assert "clock-disagrees" not in fired(made())


def test_tokens_that_were_not_trained_on() -> None:
    evidence = made()
    values: dict[str, float | str] = {"event": "token_check", "value": 0.0}
    evidence.happenings.append(Happening(kind="warning", spot=spot(), message="8 reported, 4 executed", values=values))
    assert fired(evidence)["tokens-not-executed"].severity == "error"


def rl(generation_s: float, **values: float) -> Evidence:
    parts = {"generation": generation_s, "training": 1.0 - generation_s}
    return made(num_ranks=1, parts=lambda step, rank: parts, values=values)


def test_generation_and_long_answers() -> None:
    assert fired(rl(0.8))["generation-bound"].severity == "warning"
    gain = fired(rl(0.8))["generation-bound"].seen.gain
    assert gain is not None
    assert gain.step_time_frac == pytest.approx(0.2)  # what training takes can be hidden behind generation, not more
    assert fired(rl(0.55))["generation-bound"].severity == "info"
    assert "generation-bound" not in fired(rl(0.4))
    tail = fired(rl(0.8, **{"response_length/max": 8000.0, "response_length/mean": 800.0}))
    assert tail["long-tail"].severity == "warning"
    assert tail["generation-bound"].because_of == "long-tail"
    even = fired(rl(0.8, **{"response_length/max": 1500.0, "response_length/mean": 800.0}))
    assert "long-tail" not in even


def test_ranks_with_unequal_work() -> None:
    evidence = rl(0.4)
    evidence.settings["stage.rank_gap_frac"] = ("0.4", spot())
    assert "rank-gap" in loud(evidence)
    evidence.settings["stage.rank_gap_frac"] = ("0.03", spot())
    assert "rank-gap" not in fired(evidence)


def test_answers_that_were_begun_again() -> None:
    evidence = made()
    evidence.settings |= {"answers.num_preemptions": ("40", spot()), "answers.num_answers": ("100", spot())}
    assert "kv-thrashing" in loud(evidence)
    evidence.settings["answers.num_preemptions"] = ("0", spot())
    assert "kv-thrashing" not in fired(evidence)
    full = made(values={"GPU KV cache usage": 99.0, "Waiting": 12.0})
    assert "kv-thrashing" in loud(full)
    assert "kv-thrashing" not in fired(made(values={"GPU KV cache usage": 60.0, "Waiting": 12.0}))


def test_staleness_beyond_the_bound() -> None:
    evidence = made(values={"hybrid/staleness_max": 3.0}, settings={"hybrid/staleness": 1})
    assert fired(evidence)["stale-rollouts"].seen.numbers["most"] == 3.0
    assert "stale-rollouts" not in fired(made(values={"hybrid/staleness_max": 1.0}, settings={"hybrid/staleness": 1}))


def test_engine_and_trainer_disagree() -> None:
    assert "engine-mismatch" in loud(rl(0.4, kl_engines=0.05))
    assert "engine-mismatch" not in fired(rl(0.4, kl_engines=1e-4, masked_frac=0.001, effective_sample_frac=0.99))


def test_a_reward_that_grows_while_accuracy_falls() -> None:
    evidence = made(num_ranks=1, num_steps=60, reward=lambda step: 0.2 + 0.01 * step)
    evidence.steps = [
        replace(one, values={"accuracy_frac": 0.5 - 0.005 * one.step} if one.step % 20 == 0 else {})
        for one in evidence.steps
    ]
    assert fired(evidence)["reward-hacking"].seen.certainty == "possible"
    evidence.steps = [
        replace(one, values={"accuracy_frac": 0.3 + 0.005 * one.step} if one.step % 20 == 0 else {})
        for one in evidence.steps
    ]
    assert "reward-hacking" not in fired(evidence)
