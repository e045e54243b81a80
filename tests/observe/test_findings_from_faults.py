"""What the fault laboratory taught the rules: refusals, damaged data, rounding, rewards, busy hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Spot, StepFact
from scalewright.observe.findings.host import least_core_wait_frac
from scalewright.observe.findings.order import explain
from scalewright.observe.readers.reading import read_evidence


def rules_of(path: Path, text: str) -> list[str]:
    (path / "console.log").write_text(text)
    return [one.rule.id for one in explain(read_evidence([path]))]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("error: layout 'dp=2,mbz=4' has unknown part 'mbz': did you mean mbs?", "wrong-configuration-key"),
        ("train.py: error: unrecognized arguments: --leraning-rate", "wrong-configuration-key"),
        ("error: --data '/data/tokens.npy': no such file: give a .npy file", "missing-file"),
        ("error: /data/a.npy: is not a whole .npy file of tokens (mmap length is greater than file size)",
         "unreadable-data"),
        ("error: rank 1: /data/7.jpg (sample 7): cannot be read: Input/output error; check it", "unreadable-data"),
    ],
)  # fmt: skip
def test_the_last_sentence_of_a_command_names_the_cause(tmp_path: Path, text: str, rule: str) -> None:
    assert rules_of(tmp_path, f"starting\n{text}\n")[:1] == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "error: the weather was bad",
        "validation error: 0.03",
        "step 3: mean squared error: 0.2, no such luck",
        "read 3 files whole",
    ],
)
def test_other_sentences_with_error_name_none(tmp_path: Path, text: str) -> None:
    assert rules_of(tmp_path, f"{text}\n") == []


def steps(losses: list[float], **values: list[float]) -> list[StepFact]:
    return [
        StepFact(
            step=number, spot=Spot(file="log", line=number + 1), dialect="x", rank=0, loss=loss, time_s=0.1,
            reward=values["reward"][number] if "reward" in values else None,
            values={"correct_frac": values["right"][number]} if "right" in values else {},
        )
        for number, loss in enumerate(losses)
    ]  # fmt: skip


def test_a_loss_that_changes_by_rounding_alone_is_frozen() -> None:
    rounded = [4.7615885734558105, 4.761589050292969] * 20
    assert "loss-frozen" in [one.rule.id for one in explain(Evidence(steps=steps(rounded)))]
    slow = [4.76 - 1e-5 * number for number in range(40)]
    assert "loss-frozen" not in [one.rule.id for one in explain(Evidence(steps=steps(slow)))]


def test_a_reward_that_grows_without_more_right_answers_is_suspect() -> None:
    rising = [0.02 + 0.02 * number for number in range(40)]

    def rules(right: list[float]) -> list[str]:
        return [one.rule.id for one in explain(Evidence(steps=steps([1.0 - 0.01 * n for n in range(40)], reward=rising,
                                                                    right=right)))]  # fmt: skip

    assert "reward-hacking" in rules([0.03] * 40)
    assert "reward-hacking" not in rules([0.03 + 0.02 * number for number in range(40)])


def with_waits(*waits_s: float) -> Evidence:
    return Evidence(
        steps=[
            StepFact(
                step=step, spot=Spot(file="log", line=step + 1), dialect="x", rank=rank, time_s=0.1,
                parts_s={"core_wait": wait_s},
            )
            for step in range(40) for rank, wait_s in enumerate(waits_s)
        ]
    )  # fmt: skip


def test_a_host_is_busy_where_every_rank_waits_for_cores() -> None:
    assert least_core_wait_frac(with_waits(0.04, 0.05)) == pytest.approx(0.4)
    assert least_core_wait_frac(with_waits(0.0, 0.05)) == pytest.approx(0.0)
    assert least_core_wait_frac(Evidence()) is None
