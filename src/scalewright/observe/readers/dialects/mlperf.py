"""MLPerf training logs: `:::MLLOG` and a JSON object. Some lack `time_ms`; steps stand in the metadata or are counted
in samples. Some programs count samples and call them `step`: that shows when an event of the same count says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from scalewright import units
from scalewright.observe.evidence.facts import Happening
from scalewright.observe.readers.dialects.values import Name, Report, number
from scalewright.observe.readers.reader import Item, LineReader, Stated
from scalewright.observe.readers.source import Line

NAMES = {
    "train_loss": Name("loss"), "loss": Name("loss"), "reduced_train_loss": Name("loss"), "lr": Name("learning_rate"),
    "train_step_time": Name("time_s"), "policy_training_time": Name("part:training"), "step_time": Name("time_s"),
    "exposed_generation_time": Name("part:generation"), "generation_time": Name("part:generation"),
    "weight_sync_time": Name("part:weight_sync"), "valid_tokens_per_sec_per_gpu": Name("tokens_per_s", 1.0, True),
    "tokens_per_sec_per_gpu": Name("tokens_per_s", 1.0, True), "reward": Name("reward"),
    "throughput": Name("samples_per_s"),
    "grad_norm": Name("grad_norm"), "max_memory_usage": Name("memory_bytes", float(units.GIB)),
}  # fmt: skip
SETTINGS = {
    "global_batch_size": "gbs", "max_sequence_length": "seq",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "submission_benchmark": "mlperf_benchmark", "submission_platform": "mlperf_platform", "micro_batch_size": "mbs",
    "tensor_parallelism": "tp", "pipeline_parallelism": "pp", "context_parallelism": "cp",
    "number_of_ranks": "num_ranks",
}  # fmt: skip
STATS = ("tracked_stats", "train_loss", "train_step_time", "throughput")


class MlperfReader(LineReader):
    """Statistics of steps, evaluations, settings, begin and end."""

    kind = "mlperf log"
    hints = (":::MLLOG",)
    takes_long_lines = True

    def __init__(self) -> None:
        self._num_samples: float | None = None
        self._num_counted = 0
        self._samples_counts: set[int] = set()
        self._held: list[tuple[int, bool, Report, Line, float | None]] = []
        """Reports of steps: number, whether it is surely a step, values, line, time."""
        self._paused = False
        """Whether an evaluation stood between this report and the one before it."""

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        try:
            entry = json.loads(text[text.index(":::MLLOG") + 8 :].strip())
        except ValueError:
            return
        if not isinstance(entry, dict):
            return
        metadata = entry.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        time_ms = number(entry.get("time_ms"))
        at_s = time_ms * units.MILLI if time_ms is not None else line.at_s
        samples = number(metadata.get("samples_count"))
        if samples is not None:
            self._samples_counts.add(int(samples))
        key, value = str(entry.get("key", "")), entry.get("value")
        if key in SETTINGS and isinstance(value, int | float | str):
            if key == "global_batch_size":
                self._num_samples = number(value)
            yield Stated(SETTINGS[key], str(value), line.spot)
        elif key in STATS:
            self._stats(line, key, value, metadata, at_s)
            line.is_taken = True
        elif key in ("eval_accuracy", "eval_loss", "run_start", "run_stop"):
            self._paused = True
            yield self._event(line, key, value, metadata, at_s)

    def _stats(self, line: Line, key: str, value: Any, metadata: dict[str, Any], at_s: float | None) -> None:
        report = Report()
        report.put_all(value if isinstance(value, dict) else {key: value}, NAMES)
        if "lr" in metadata:
            report.put_all({"lr": metadata["lr"]}, NAMES)
        rate = report.fields.pop("samples_per_s", None)
        if rate is not None:
            report.values["samples_per_s"] = rate
        if report:
            step, is_sure = self._step(metadata)
            if self._paused:
                report.values["after_pause"] = 1.0
            if (samples := number(metadata.get("samples_count"))) is not None:
                report.values["samples_count"] = samples
            self._paused = False
            self._held.append((step, is_sure, report, line, at_s))

    def _step(self, metadata: dict[str, Any]) -> tuple[int, bool]:
        """Of the metadata; from samples and the batch where it is not there; counted where both are missing. And
        whether it is surely a step."""
        samples = number(metadata.get("samples_count"))
        for name in ("step", "step_num", "iteration", "global_step"):
            step = number(metadata.get(name))
            if step is not None:
                return int(step), samples is not None
        if samples is not None and self._num_samples:
            return int(samples / self._num_samples), True
        self._num_counted += 1
        return self._num_counted, True

    def end(self) -> Iterator[Item]:
        batch = self._num_samples
        are_samples = batch is not None and batch > 1 and any(
            not is_sure and step in self._samples_counts for step, is_sure, *_ in self._held
        )  # fmt: skip
        last: int | None = None
        before: tuple[float | None, float | None] = (None, None)
        for counted, is_sure, report, line, at_s in self._held:
            step = int(counted / batch) if are_samples and batch and not is_sure else counted
            rate = report.values.get("samples_per_s")
            if batch:
                report.fields["num_samples"] = batch
                if rate and "time_s" not in report.fields:
                    report.fields["time_s"] = batch / rate
            num_steps = step - last if last is not None and step > last else 1
            samples = report.values.get("samples_count")
            if last is not None and step > last:
                self._since(report, num_steps, before, (at_s, samples))
            before, last = (at_s, samples), step
            yield report.fact(step, line.spot, "mlperf", rank=line.rank, at_s=at_s, num_steps=num_steps)

    def _since(
        self, report: Report, num_steps: int, before: tuple[float | None, float | None],
        now: tuple[float | None, float | None],
    ) -> None:  # fmt: skip
        """Time and samples of a step from the line before, where nothing but steps lies between."""
        if "time_s" not in report.fields and before[0] is not None and now[0] is not None:
            elapsed_s = now[0] - before[0]
            if elapsed_s > 0 and "after_pause" not in report.values:
                report.fields["time_s"] = elapsed_s / num_steps
        if "num_samples" not in report.fields and before[1] is not None and now[1] is not None and now[1] > before[1]:
            report.fields["num_samples"] = (now[1] - before[1]) / num_steps

    def _event(self, line: Line, key: str, value: Any, metadata: dict[str, Any], at_s: float | None) -> Item:
        measured = number(value)
        step = number(metadata.get("step"))
        status = str(metadata.get("status", ""))
        return Happening(
            kind="started" if key == "run_start" else "finished" if key == "run_stop" else "validation", spot=line.spot,
            message=f"{key} {status}".strip(), at_s=at_s, rank=line.rank, step=int(step) if step is not None else None,
            values={} if measured is None else {key: measured},
        )  # fmt: skip
