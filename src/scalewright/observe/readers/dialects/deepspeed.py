"""DeepSpeed's own lines, and those of DeepSpeed-Chat. The engine prints no loss; `GB` are GiB."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright import units
from scalewright.observe.readers.dialects.values import NUMBER, SIZES, Clock, Name, Report, number, number_and_unit
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_STEP = re.compile(r"\bstep=(\d{1,15}), skipped=(\d{1,15}), lr=\[([^\]]*)\]")
_TIMER = re.compile(
    r"(?:epoch=(\d{1,15})/micro_step=(\d{1,15})/global_step=(\d{1,15})"
    r"|(\d{1,15})/(\d{1,15})), (?:RunningAvg)?SamplesPerSec=(.*)"
)
_PIPELINE = re.compile(
    rf"steps: (\d{{1,15}}) loss: ({NUMBER}|nan|inf) iter time \(s\): ({NUMBER}) samples/sec: ({NUMBER})"
)
_CHAT_STEP = re.compile(
    r"epoch:?\s*(\d{1,15})\s*\|\s*step:?\s*(\d{1,15})\s*\|.*?act(?:or)?[ _]loss:\s*([-\w.+]+)", re.IGNORECASE
)
_CHAT_PARTS = re.compile(rf"(End-to-End|Generation|Training)\s*=> Latency: ({NUMBER})s(?:.*?Batch Size: (\d{{1,15}}))?")
_CHAT_PART_NAMES = {"End-to-End": "time_s", "Generation": "part:generation", "Training": "part:training"}
_CHAT_PAIR = re.compile(rf"\|?\s*([A-Za-z][\w .]*?)\s*=\s*({NUMBER})s?\s*(?:\(\s*{NUMBER}%\s*\))?")
_REWARD = re.compile(rf"[Aa]verage reward(?: score)?:\s*({NUMBER})")
CHAT_NAMES = {
    "E2E latency": Name("time_s"), "Generate time": Name("part:generation"), "Training time": Name("part:training"),
    "Gather latency": Name("part:gather"), "CurSamplesPerSec": Name("samples_per_s"),
}  # fmt: skip


class DeepspeedReader(LineReader):
    """The engine's report of steps, its throughput timer, its breakdown, and the report of RLHF."""

    kind = "deepspeed log"
    hints = (
        ", skipped=",
        "SamplesPerSec=",
        "iter time (s)",
        "E2E latency=",
        "verage reward",
        "Actor Loss",
        "act_loss",
        "=> Latency:",
    )

    def __init__(self) -> None:
        self._clock = Clock()
        self._step: int | None = None
        self._num_chat = 0
        self._latest_rank: int | None = None

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        if "E2E latency=" in text:
            yield self._chat(line, text)
        elif match := _TIMER.search(text):
            yield self._timer(line, match)
        elif match := _STEP.search(text):
            yield from self._optimizer_step(line, match)
        elif match := _PIPELINE.search(text):
            report = Report()
            report.fields = {"loss": number(match[2]), "time_s": float(match[3])}
            report.values["samples_per_s"] = float(match[4])
            report.fields["num_samples"] = float(round(float(match[4]) * float(match[3])))
            yield report.fact(int(match[1]), line.spot, "deepspeed", rank=self._rank(line), at_s=line.at_s)
        elif match := _CHAT_STEP.search(text):
            self._step = int(match[2])
            report = Report()
            report.fields["loss"] = number(match[3])
            yield report.fact(self._step, line.spot, "deepspeed-chat", rank=line.rank, at_s=line.at_s)
        elif self._step is not None and (match := _CHAT_PARTS.search(text)):
            report = Report()
            report.put(Name(_CHAT_PART_NAMES[match[1]]), "", float(match[2]))
            yield report.fact(self._step, line.spot, "deepspeed-chat", rank=line.rank)
        elif self._step is not None and (match := _REWARD.search(text)):
            report = Report()
            report.fields["reward"] = float(match[1])
            yield report.fact(self._step, line.spot, "deepspeed-chat", rank=line.rank)

    def _rank(self, line: Line) -> int | None:
        """Of the line, or of the last `[Rank N]` above it: the throughput timer does not print its own."""
        if line.rank is not None:
            self._latest_rank = line.rank
        return self._latest_rank

    def _optimizer_step(self, line: Line, match: re.Match[str]) -> Iterator[Item]:
        report = Report()
        report.values["skipped"] = float(match[2])
        rate = number(match[3].split(",")[0])
        if rate is not None:
            report.fields["learning_rate"] = rate
        time_s, num_steps = self._clock.since(self._rank(line), int(match[1]), line.at_s)
        if int(match[1]) == 0:
            return  # printed when the engine is made: nothing was trained yet
        yield report.fact(
            int(match[1]),
            line.spot,
            "deepspeed",
            rank=self._rank(line),
            at_s=line.at_s,
            time_s=time_s,
            num_steps=num_steps,
        )

    def _timer(self, line: Line, match: re.Match[str]) -> Item:
        report = Report()
        report.values["mean_samples_per_s"] = float(number(match[6].split(",")[0]) or 0.0)
        for piece in match[6].split(",")[1:]:
            key, _, text = piece.strip().partition("=")
            value, unit = number_and_unit(text)
            if value is None:
                continue
            if key == "MaxMemAllocated":
                report.fields["memory_bytes"] = value * SIZES.get(unit, float(units.GIB))
            elif key == "CurrSamplesPerSec":
                report.values["samples_per_s"] = value
            else:
                report.values[key] = value * SIZES.get(unit, 1.0)
        # The newest form counts steps, the oldest `epoch/step`.
        step = int(match[3] or match[5])
        return report.fact(step, line.spot, "deepspeed", rank=self._rank(line), at_s=None)

    def _chat(self, line: Line, text: str) -> Item:
        report = Report()
        for key, value in _CHAT_PAIR.findall(text[text.index("E2E latency") - 1 :]):
            report.put(CHAT_NAMES.get(key.strip()), key.strip(), float(value.replace(",", "")))
        samples = report.fields.pop("samples_per_s", None)
        if samples is not None:
            report.values["samples_per_s"] = samples
            report.fields["num_samples"] = float(round(samples * report.fields.get("time_s", 0.0))) or None
        if self._step is None:
            # Without a line that says the step, reports are counted.
            self._num_chat += 1
        step = self._num_chat if self._step is None else self._step
        return report.fact(step, line.spot, "deepspeed-chat", rank=line.rank, at_s=line.at_s)
