"""A save of a reasoning stage is reported by the save and by the part of the next step: it counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.observe.findings.checkpoints import save_cost
from scalewright.observe.readers.reading import read_evidence
from scalewright.records import metric_names as names
from scalewright.records.documents import document
from scalewright.records.events import EventLine, EventWriter
from scalewright.records.run_directory import RunDirectory

NUM_STEPS, STEP_S, SAVE_S = 30, 0.1, 0.15


def test_a_run_waits_for_its_saves_no_longer_than_it_lasts(tmp_path: Path) -> None:
    config = document("reason-run", {"stage": "grpo", "checkpoint_every": 1, "checkpoint_async": False})
    directory = RunDirectory.create_or_resume(tmp_path / "run", config)
    line, writer = EventLine(job="j", rank=0, host="n"), EventWriter(directory.rank_events(0))
    for step in range(NUM_STEPS):
        values = {
            names.STEP_TIME: STEP_S,
            names.STAGE_PARTS["training"]: STEP_S,
            names.CHECKPOINT_BLOCK: SAVE_S,
            **({names.STAGE_PARTS["checkpoint"]: SAVE_S} if step else {}),
        }
        time_s = 1.8e9 + step * (STEP_S + SAVE_S)
        writer.append(
            "".join(
                line.format(time_s=time_s, step=step, name=name, value=value, unit=names.UNITS[name])
                for name, value in values.items()
            )
        )
    cost = save_cost(read_evidence([directory.path]))
    assert cost is not None
    assert cost.blocked_s == pytest.approx(SAVE_S * len(cost.saves))
    assert cost.share_frac == pytest.approx(SAVE_S / (STEP_S + SAVE_S), rel=0.1)
