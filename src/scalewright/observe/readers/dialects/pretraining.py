"""torchtitan, NeMo on Lightning, MaxText, llm-foundry on Composer: one report in one line, or in lines of one block."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright import units
from scalewright.observe.readers.dialects.values import NUMBER, Clock, Name, Report, number
from scalewright.observe.readers.reader import Item, LineReader, Stated
from scalewright.observe.readers.source import Line

_TITAN_STEP = re.compile(r"\bstep:\s*(\d+)\s+(.*)")
_TITAN_PAIR = re.compile(rf"([A-Za-z_][\w/.]*):\s*({NUMBER}|nan|inf|-inf|N/A)\s*(GiB|%)?(?:\(({NUMBER})%\))?")
TITAN_NAMES = {
    "loss": Name("loss"), "global_avg_loss": Name("loss"), "grad_norm": Name("grad_norm"),
    "tps": Name("tokens_per_s", 1.0, True),
    "tflops": Name("flop_per_s", units.TERA), "mfu": Name("mfu_frac", 0.01), "lr": Name("learning_rate"),
    "memory": Name("memory_reserved_bytes", float(units.GIB)),
}  # fmt: skip
_TITAN_START = re.compile(
    r"local batch size (\d+).*?global batch size (\d+).*?sequence length (\d+).*?total steps (\d+)"
)
_TITAN_DEVICE = re.compile(r"(?:CUDA|GPU|XPU|HIP) capacity: (.+?) with ([\d.]+)GiB memory")


class TorchtitanReader(LineReader):
    """torchtitan prints rates for a device and no time: the time is that between the lines. `memory` is what the
    allocator reserved at most."""

    kind = "torchtitan log"
    hints = ("tps: ", "GiB(", "sequence length ", "GiB memory")

    def __init__(self) -> None:
        self._clock = Clock()

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        step = _TITAN_STEP.search(text)
        if step and "tps:" in text:
            yield self._report(line, int(step[1]), step[2])
        elif "capacity: " in text and (device := _TITAN_DEVICE.search(text)):
            yield Stated("accelerator", device[1].strip(), line.spot)
        elif "global batch size" in text and (start := _TITAN_START.search(text)):
            for name, value in zip(("mbs", "gbs", "seq", "steps"), start.groups(), strict=True):
                yield Stated(name, value, line.spot)

    def _report(self, line: Line, step: int, text: str) -> Item:
        report = Report()
        for key, value, _, percent in _TITAN_PAIR.findall(text):
            parsed = number(value)
            if parsed is not None:
                report.put(TITAN_NAMES.get(key), key, parsed)
            if key == "memory" and percent and float(percent) > 0:
                share = float(percent) / 100
                peak_bytes = report.fields["memory_reserved_bytes"]
                report.fields["memory_free_bytes"] = peak_bytes / share - peak_bytes
        time_s, num_steps = self._clock.since(line.rank, step, line.at_s)
        return report.fact(
            step, line.spot, "torchtitan", rank=line.rank, at_s=line.at_s, time_s=time_s, num_steps=num_steps
        )


_NEMO_STEP = re.compile(r"Training epoch (\d+), iteration (\d+)/(\d+)|Epoch (\d+):.*?(\d+)/(\d+) \[")
_NEMO_PAIR = re.compile(rf"([A-Za-z_][\w ()/.-]*?)\s*[:=]\s*({NUMBER}|nan|inf|-inf)(?=\s*(?:[|,\]]|$))")
NEMO_NAMES = {
    "reduced_train_loss": Name("loss"), "loss": Name("loss"), "train_loss": Name("loss"),
    "lr": Name("learning_rate"), "grad_norm": Name("grad_norm"),
    "train_step_timing in s": Name("time_s"), "TFLOPS_per_GPU": Name("flop_per_s", units.TERA),
    "global_batch_size": Name("num_samples"), "tokens_per_sec_per_gpu": Name("tokens_per_s", 1.0, True),
    "max_memory_reserved": Name("memory_reserved_bytes"), "max_memory_allocated": Name("memory_bytes"),
    "peak_memory_usage": Name("memory_bytes"), "train_backward_timing in s": Name("part:backward"),
}  # fmt: skip


class NemoReader(LineReader):
    """NeMo on Lightning; also the progress bar of NeMo 1, whose values stand after `=`."""

    kind = "nemo log"
    hints = ("train_step_timing in s", "reduced_train_loss")

    def __init__(self) -> None:
        self._last: dict[int | None, int] = {}

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        head = _NEMO_STEP.search(text)
        if head is None:
            return
        report = Report()
        for key, value in _NEMO_PAIR.findall(text[head.end() :]):
            parsed = number(value)
            if parsed is not None:
                report.put(NEMO_NAMES.get(key.strip()), key.strip(), parsed)
        if not report.fields:
            return
        step = int(report.values.get("global_step", float(head[2] or head[5])))
        last = self._last.get(line.rank, step)
        self._last[line.rank] = step
        yield report.fact(
            step, line.spot, "nemo", rank=line.rank, at_s=line.at_s, last_step=int(head[3] or head[6]),
            num_steps=max(1, step - last),
        )  # fmt: skip


_MAXTEXT_STEP = re.compile(r"completed step: (\d+), (.*)")
_MAXTEXT_PAIR = re.compile(rf"([A-Za-z_][\w/ ().-]*?):\s*({NUMBER}|nan|inf|-inf)(?=,|\s|$)")
MAXTEXT_NAMES = {
    "seconds": Name("time_s"), "TFLOP/s/device": Name("flop_per_s", units.TERA), "loss": Name("loss"),
    "Tokens/s/device": Name("tokens_per_s", 1.0, True), "grad_norm": Name("grad_norm"),
    "total_weights": Name("num_tokens"),
    "learning_rate": Name("learning_rate"), "lm_loss": Name("loss"), "main_model_loss": Name("loss"),
    "TFLOP/s": Name("flop_per_s", units.TERA),
}  # fmt: skip


class MaxtextReader(LineReader):
    """MaxText. `total_weights` are the tokens that the loss counts: those of the whole step."""

    kind = "maxtext log"
    hints = ("completed step: ",)

    def take(self, line: Line) -> Iterator[Item]:
        match = _MAXTEXT_STEP.search(line.text)
        if match is None or "seconds" not in match[2]:
            return
        report = Report()
        for key, value in _MAXTEXT_PAIR.findall(match[2]):
            parsed = number(value)
            if parsed is not None:
                report.put(MAXTEXT_NAMES.get(key.strip(" ,")), key.strip(" ,"), parsed)
        yield report.fact(int(match[1]), line.spot, "maxtext", rank=line.rank, at_s=line.at_s)


_BATCH = re.compile(r"\[(?:epoch=(\d+)(?:/\d+)?\]\[)?batch=(\d+)(?:/(\d+))?\]:?\s*(.*)")
_COMPOSER_PAIR = re.compile(rf"^\s*(?:Train\s+)?([A-Za-z][\w/.-]*?):\s*({NUMBER}|nan|inf|-inf)\s*$")
COMPOSER_NAMES = {
    "loss/train/total": Name("loss"), "throughput/device/tokens_per_sec": Name("tokens_per_s", 1.0, True),
    "memory/peak_reserved_mem": Name("memory_reserved_bytes", units.GIGA),
    "memory/peak_allocated_mem": Name("memory_bytes", units.GIGA), "throughput/device/mfu": Name("mfu_frac"),
    "throughput/device/flops_per_sec": Name("flop_per_s"),
}  # fmt: skip
"""Composer divides by 1e9."""


class ComposerReader(LineReader):
    """llm-foundry on Composer: `[batch=20/3200]:`, then a line for each value. Times are hours since the start, and
    throughput is a mean of the last 100 batches: the time of a batch follows from two reports of `time/train`."""

    kind = "llm-foundry log"
    hints = (
        "[batch=",
        "[epoch=",
        "Train loss/",
        "Train throughput/",
        "Train memory/",
        "Train time/",
        "Train metrics/",
        "Train lr-",
    )

    def __init__(self) -> None:
        self._report = Report()
        self._head: tuple[int, int | None, Line] | None = None
        self._last: tuple[int, float] | None = None
        self._last_tokens: tuple[int, float] | None = None

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        head = _BATCH.search(text)
        if head:
            yield from self.end()
            self._head = (int(head[2]), int(head[3]) if head[3] else None, line)
            text = head[4]
        if self._head is not None:
            line.is_taken = True
            for piece in re.split(r"\s{2,}|\t", text):
                pair = _COMPOSER_PAIR.match(piece)
                if pair and (value := number(pair[2])) is not None:
                    name = COMPOSER_NAMES.get(pair[1])
                    if pair[1].startswith("lr-"):
                        name = Name("learning_rate")
                    self._report.put(name, pair[1], value)

    def end(self) -> Iterator[Item]:
        report, head = self._report, self._head
        self._report, self._head = Report(), None
        if head is None or not report:
            return
        step, last_step, line = head
        if "tokens_per_s" not in report.fields and "throughput/tokens_per_sec" in report.values:
            report.put(Name("tokens_per_s"), "", report.values["throughput/tokens_per_sec"])
        self._since(report, step)
        num_steps = report.fields.pop("num_steps", 1)
        yield report.fact(
            step, line.spot, "llm-foundry", rank=line.rank, at_s=line.at_s, last_step=last_step, num_steps=num_steps
        )

    def _since(self, report: Report, step: int) -> None:
        """Time and tokens of a batch, from what the run has counted since its start."""
        hours = report.values.get("time/train")
        tokens = report.values.get("time/token")
        if hours is not None:
            if self._last is not None and step > self._last[0] and hours > self._last[1]:
                report.fields["num_steps"] = step - self._last[0]
                time_s = (hours - self._last[1]) * units.HOUR_S / (step - self._last[0])
                # Hours have four decimals: 0.36 s. A shorter time than ten of these is not known.
                if (hours - self._last[1]) * units.HOUR_S > 3.6:
                    report.fields["time_s"] = time_s
            self._last = (step, hours)
        if tokens is not None:
            if self._last_tokens is not None and step > self._last_tokens[0]:
                report.fields["num_tokens"] = (tokens - self._last_tokens[1]) / (step - self._last_tokens[0])
            elif step == 1:
                report.fields["num_tokens"] = tokens
            self._last_tokens = (step, tokens)
        if "time_s" not in report.fields and (rate := report.values.get("throughput/batches_per_sec")):
            report.values["mean_step_s"] = 1.0 / rate
