"""Hugging Face's `trainer_state.json`: the reports of a whole run, with their steps."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from scalewright import units
from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import Happening, Spot
from scalewright.observe.readers.dialects.huggingface import NAMES
from scalewright.observe.readers.dialects.values import Report, number
from scalewright.observe.readers.source import Head, Source

MOST_BYTES = 256 * units.MIB


class TrainerStateReader:
    """Reads the `log_history` of a checkpoint's trainer state."""

    kind: ClassVar[str] = "hugging face trainer state"

    def sees(self, head: Head) -> float:
        start = head.raw.lstrip()
        if not start.startswith(b"{"):
            return 0.0
        names = (b'"log_history"', b'"global_step"', b'"best_metric"', b'"is_world_process_zero"')
        return min(1.0, 0.4 * sum(name in start for name in names))

    def read(self, source: Source, into: Evidence) -> None:
        data = b""
        for chunk in source.chunks():
            data += chunk
            if len(data) > MOST_BYTES:
                source.problem(f"more than {MOST_BYTES} bytes: not read")
                return
        try:
            state = json.loads(data)
        except (ValueError, RecursionError) as error:
            source.problem(f"no whole JSON: {error}")
            return
        history = state.get("log_history") if isinstance(state, dict) else None
        last_step = number(state.get("max_steps")) if isinstance(state, dict) else None
        for entry in history if isinstance(history, list) else ():
            if isinstance(entry, dict):
                _add(entry, source, into, int(last_step) if last_step else None)


def _add(entry: dict[str, Any], source: Source, into: Evidence, last_step: int | None) -> None:
    step = number(entry.get("step"))
    if step is None:
        return
    spot = Spot(file=source.name, text=json.dumps(entry)[:200])
    if "loss" in entry:
        report = Report()
        report.put_all({key: value for key, value in entry.items() if key != "step"}, NAMES)
        earlier = [fact.step for fact in into.steps[-1:] if fact.spot.file == source.name]
        num_steps = int(step) - earlier[0] if earlier and step > earlier[0] else 1
        into.steps.append(report.fact(int(step), spot, "huggingface", last_step=last_step, num_steps=num_steps))
    elif any(key.startswith(("eval_", "train_runtime")) for key in entry):
        values = {key: value for key, text in entry.items() if (value := number(text)) is not None}
        has_ended = "train_runtime" in entry
        into.happenings.append(Happening(
            kind="finished" if has_ended else "validation", spot=spot, step=int(step), values=values,
            message="training finished" if has_ended else "evaluation",
        ))  # fmt: skip
