"""Hugging Face Trainer and TRL: dicts of values, printed between the redraws of a progress bar.

Traps: the step is not in the dict, only in the bar; version 5 quotes its numbers; a bar is drawn at most every 0.1 s,
so
that the one before the dict may be late, while the one after it is exact; bars of an evaluation look the same; the
bar's seconds per step are smoothed, so that the time comes from its elapsed time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from scalewright.observe.evidence.facts import Happening
from scalewright.observe.readers.dialects.values import Name, Report, duration_s, number, record_in, whole_number
from scalewright.observe.readers.reader import Item, LineReader, Stated
from scalewright.observe.readers.source import Line

_BAR = re.compile(
    r"\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+)\s*"
    r"\[(?P<elapsed>[\d:]+)<(?P<left>[\d:?]+)(?:,\s*(?P<rate>[\d.]+)(?P<unit>s/it|it/s))?"
)
_MARKS = (
    "'loss':", '"loss":', "'train_runtime':", "'eval_loss':", "'step_time':", "'grad_norm':", "'eval_runtime':",
    "'objective/kl':",
)  # fmt: skip
NAMES = {
    "loss": Name("loss"), "train_loss": Name("loss"), "grad_norm": Name("grad_norm"),
    "learning_rate": Name("learning_rate"),
    "lr": Name("learning_rate"), "step_time": Name("time_s"), "reward": Name("reward"), "rewards/mean": Name("reward"),
    "completions/mean_length": Name("response_len"), "completion_length": Name("response_len"),
    "memory(GiB)": Name("memory_bytes", 2.0**30), "loss/policy_avg": Name("loss"),
    "objective/rlhf_reward": Name("reward"), "tokens_per_second_per_gpu": Name("tokens_per_s", 1.0, True),
}  # fmt: skip
_STATED = {
    "Total train batch size": "gbs", "Instantaneous batch size per device": "mbs", "Total optimization steps": "steps",
    "Gradient Accumulation steps": "gradient_accumulation_steps",
}  # fmt: skip
_STATEMENT = re.compile(r"^\s*([A-Z][A-Za-z ]+?)(?: \([^)]*\))?\s*=\s*([\d,]+)\s*$")
_NO_LABELS = (b"]:", b">:", b"train:", b"training:", b"steps:", b"epoch:", b"progress:")
SLOWEST_REDRAW_S = 0.1
"""tqdm draws at most this often."""
LEAST_ELAPSED_S = 10
"""A bar counts whole seconds: less than this gives a time of steps that is more than 10 % wrong."""


@dataclass(slots=True)
class _Bar:
    step: int
    total: int
    elapsed_s: float | None
    step_s: float | None


@dataclass(slots=True)
class _Held:
    """A dict that waits for the bar after it."""

    report: Report
    line: Line
    before: _Bar | None
    step: int | None
    last_step: int | None


class HuggingfaceReader(LineReader):
    """Dicts of the Trainer, of TRL, of ms-swift and others that build on them."""

    kind = "hugging face log"
    hints = (*_MARKS, "s/it", "it/s", "Total train batch size", "Instantaneous batch size", "Total optimization steps")

    def __init__(self) -> None:
        self._bar_line: Line | None = None
        self._held: _Held | None = None
        self._total: int | None = None
        self._last: tuple[int, float | None] | None = None
        self._tokens: float | None = None
        self._num_counted = 0

    def take(self, line: Line) -> Iterator[Item]:
        data = line.data
        start = data.find(b"{")
        is_record = start >= 0 and any(mark.encode() in data for mark in _MARKS)
        if not is_record:
            if b"s/it" in data or b"it/s" in data:
                yield from self._draw(line)
            else:
                yield from self._statement(line)
            return
        if b"%|" in data[:start]:
            yield from self._draw(line)
        yield from self._record(line)

    def _draw(self, line: Line) -> Iterator[Item]:
        """A drawing of a bar: looked at only where a dict stands before or after it."""
        if _is_labelled(line.data):
            return
        self._bar_line = line
        if self._held is not None:
            bar = _bar_in(line)
            if bar is not None and (self._total is None or bar.total == self._total):
                yield from self._release(bar)

    def _record(self, line: Line) -> Iterator[Item]:
        yield from self._release(None)
        text = line.text
        pairs = record_in(text, text.find("{"))
        before = _bar_in(self._bar_line) if self._bar_line is not None else None
        if "train_runtime" in pairs:
            yield self._summary(line, pairs)
            return
        if any(key.startswith("eval_") for key in pairs) and "loss" not in pairs:
            yield self._evaluation(line, pairs, before)
            return
        report = Report()
        report.put_all(pairs, NAMES)
        if not report.fields:
            return
        step, last_step = _step_in(pairs)
        if before is not None and step is None:
            if self._total is None:
                self._total = before.total
            elif before.total != self._total:
                # The bar of an evaluation, or of another run that begins.
                if self._last is not None and before.step > self._last[0] and before.total > self._last[0]:
                    self._total = before.total
                else:
                    before = None
        line.is_taken = True
        self._held = _Held(report, line, before, step, last_step)
        if step is not None:
            yield from self._release(None)

    def _release(self, after: _Bar | None) -> Iterator[Item]:
        held, self._held = self._held, None
        if held is None:
            return
        bar = _exact(held.before, after)
        step = held.step if held.step is not None else bar.step if bar else None
        report, line = held.report, held.line
        if step is None:
            self._num_counted += 1
            step = self._num_counted
            yield Stated(
                "", f"{line.source.name}: reports of Hugging Face's Trainer without a step number are counted from 1.",
                line.spot, "notes",
            )  # fmt: skip
        num_steps = step - self._last[0] if self._last and step > self._last[0] else 1
        if bar is not None and self._last is not None and step > self._last[0]:
            self._time(report, bar, step)
        if bar is not None and bar.step_s is not None:
            report.values.setdefault("smoothed_step_s", bar.step_s)
        self._count_tokens(report)
        self._last = (step, bar.elapsed_s if bar else None)
        last_step = held.last_step or (bar.total if bar else None)
        yield report.fact(
            step, line.spot, _dialect(report), rank=line.rank, at_s=line.at_s, num_steps=num_steps, last_step=last_step
        )

    def _time(self, report: Report, bar: _Bar, step: int) -> None:
        assert self._last is not None
        began_s = self._last[1]
        if "time_s" not in report.fields and bar.elapsed_s is not None and began_s is not None:
            elapsed_s = bar.elapsed_s - began_s
            if elapsed_s >= LEAST_ELAPSED_S:
                report.fields["time_s"] = elapsed_s / (step - self._last[0])

    def _count_tokens(self, report: Report) -> None:
        """`num_tokens` and `num_input_tokens_seen` count since the start."""
        for key in ("num_tokens", "num_input_tokens_seen"):
            total = report.values.get(key)
            if total is not None:
                if self._tokens is None and key == "num_tokens" and self._last is None:
                    report.fields["num_tokens"] = total
                elif self._tokens is not None and self._last is not None and total > self._tokens:
                    report.fields["num_tokens"] = total - self._tokens
                self._tokens = total

    def _evaluation(self, line: Line, pairs: dict[str, str], before: _Bar | None) -> Item:
        values = {key: value for key, text in pairs.items() if (value := number(text)) is not None}
        step = self._last[0] if self._last else None
        if before is not None and before.total == self._total:
            step = before.step
        return Happening(
            kind="validation", spot=line.spot, message="evaluation", at_s=line.at_s, rank=line.rank, step=step,
            values=values,
        )  # fmt: skip

    def _summary(self, line: Line, pairs: dict[str, str]) -> Item:
        values = {key: value for key, text in pairs.items() if (value := number(text)) is not None}
        return Happening(
            kind="finished", spot=line.spot, message="training finished", at_s=line.at_s, rank=line.rank,
            step=self._total or (self._last[0] if self._last else None), values=values,
        )  # fmt: skip

    def _statement(self, line: Line) -> Iterator[Item]:
        match = _STATEMENT.match(line.message)
        if match and match[1] in _STATED:
            yield Stated(_STATED[match[1]], match[2].replace(",", ""), line.spot)

    def end(self) -> Iterator[Item]:
        yield from self._release(None)


def _exact(before: _Bar | None, after: _Bar | None) -> _Bar | None:
    """The bar that shows the step of a dict between them. Steps slower than a redraw are drawn before it; faster ones
    may not be, and the redraw that follows the dict shows them."""
    if before is None or after is None:
        return before or after
    is_fast = before.step_s is not None and before.step_s < SLOWEST_REDRAW_S
    return after if is_fast and after.total == before.total else before


def _is_labelled(data: bytes) -> bool:
    """Bars of other loops have a label, such as `Map:`; a launcher's prefix is none."""
    label = data[: max(0, data.rfind(b"%|"))].rstrip(b"0123456789 ")
    return label.endswith(b":") and not label.lower().endswith(_NO_LABELS)


def _bar_in(line: Line) -> _Bar | None:
    """The last bar in a line."""
    raw = line.raw
    place = raw.rfind("%|")
    match = _BAR.match(raw, place + 1) if place >= 0 else None
    if match is None:
        return None
    rate = float(match["rate"]) if match["rate"] else None
    step_s = None if not rate else rate if match["unit"] == "s/it" else 1.0 / rate
    return _Bar(int(match["step"]), int(match["total"]), duration_s(match["elapsed"]), step_s)


def _step_in(pairs: dict[str, str]) -> tuple[int | None, int | None]:
    """Where a dict does say its step: `step`, `global_step/max_steps: '5/100'`, `current_steps`."""
    both = pairs.get("global_step/max_steps", "").strip("'\"").partition("/")
    if both[1] and both[0].isdigit() and both[2].isdigit():
        return int(both[0]), int(both[2])
    for key in ("step", "global_step", "current_steps"):
        step = whole_number(pairs.get(key, ""))
        if step is not None:
            return step, whole_number(pairs.get("total_steps", ""))
    return None, None


def _dialect(report: Report) -> str:
    is_trl = any(key.startswith(("completions/", "rewards/", "objective/", "sampling/")) for key in report.values)
    return "trl" if is_trl or "response_len" in report.fields else "huggingface"
