"""Megatron-LM and its forks: BLOOM's and DeepSpeed's Megatron, Primus, Megatron-Bridge, NeoX, nanotron.

Traps: time per iteration is in ms, in older forks in s, and the unit stands in the name; Primus prints pairs of a
current value and an average; the time is the mean since the last report; loss is missing in a report of NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright import units
from scalewright.observe.evidence.facts import Happening
from scalewright.observe.readers.dialects.values import COUNTS, RATES, SIZES, TIMES, Name, Report, number_and_unit
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_STEP = re.compile(r"\biteration:?\s*(\d+)\s*/\s*(\d+|inf(?:inity)?\b)")
_BARE_PAIR = re.compile(r"^\s*([A-Za-z][A-Za-z _]*?)\s+([-+]?\d[\d.eE+-]*|nan|inf)\s*$")
"""`lm loss 9.9E+00`: releases of 2020 had no colon."""
_UNIT = re.compile(r"^(.*?)\s*\(([^()]*)\)$")
_MEMORY = re.compile(r"\(?after (\d+) iterations?\)? memory \((\w+)\) \|(.*)")
_BRIDGE = re.compile(r"GPU utilization:\s*([\d.]+)\s*MODEL_TFLOP/s/GPU")
_VALIDATION = re.compile(r"validation loss at (?:iteration|the end of training)\s*(\d+)?.*?\|(.*)")
_CHECKPOINT = re.compile(
    r"(successfully (?:saved|loaded) checkpoint|saved checkpoint).*?(?:at iteration|iteration)\s+\[?\s*(\d+)"
)
NAMES = {
    "elapsed time per iteration": Name("time_s"), "elapsed_time_per_iteration_ms": Name("time_s", units.MILLI),
    "throughput per gpu": Name("flop_per_s", units.TERA), "throughput": Name("flop_per_s", units.TERA),
    "tflops": Name("flop_per_s", units.TERA), "model_tflops_per_gpu": Name("flop_per_s", units.TERA),
    "approx flops per gpu": Name("flop_per_s"), "tflops per gpu": Name("flop_per_s", units.TERA),
    "tokens per gpu": Name("tokens_per_s", 1.0, True), "tokens/sec/gpu": Name("tokens_per_s", 1.0, True),
    "tokens per gpu per second": Name("tokens_per_s", 1.0, True), "tokens/s/gpu": Name("tokens_per_s", 1.0, True),
    "tokens_per_sec_per_gpu": Name("tokens_per_s", 1.0, True), "tokens per second": Name("tokens_per_s"),
    "tokens/sec": Name("tokens_per_s"), "learning rate": Name("learning_rate"), "lr": Name("learning_rate"),
    "global batch size": Name("num_samples"), "gloabl batch size": Name("num_samples"),
    "global_batch_size": Name("num_samples"), "grad norm": Name("grad_norm"), "grad_norm": Name("grad_norm"),
    "lm loss": Name("loss"), "lm_loss": Name("loss"), "loss": Name("loss"), "reduced_train_loss": Name("loss"),
    "rocm max mem usage/usage_ratio": Name("memory_bytes"),
}  # fmt: skip
_OTHER_LOSSES = ("mtp", "balanc", "aux", "z_loss", "z loss", "moe", "valid", "scale", "sop", "ppl")
_TIMERS = {
    "forward-compute": "forward", "backward-compute": "backward", "batch-generator": "data", "optimizer": "optimizer",
    "save-checkpoint": "checkpoint", "evaluate": "validation", "eval-time": "validation",
}  # fmt: skip


class MegatronReader(LineReader):
    """Reports of iterations, memory, timers, validations and checkpoints."""

    kind = "megatron log"
    hints = (
        "time per iteration", "time_per_iteration", "consumed samples", "max reserved", "max allocated",
        "MODEL_TFLOP/s/GPU", "validation loss at", "checkpoint at iteration", "checkpoint from", "time (ms) |",
        "min, max", "max time across", "....:",
    )  # fmt: skip

    def __init__(self) -> None:
        self._last: dict[int | None, int] = {}
        self._bridge_flop_per_s: float | None = None
        self._keys: dict[str, tuple[str, Name | None, str, float]] = {}
        self._latest: tuple[int | None, int] | None = None
        """Rank and step of the report above the line."""

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        step = _STEP.search(text)
        if step and "|" in text:
            yield from self._iteration(line, text, step)
        elif "memory (" in text and (memory := _MEMORY.search(text)):
            yield from self._memory(line, memory)
        elif "MODEL_TFLOP/s/GPU" in text and (bridge := _BRIDGE.search(text)):
            self._bridge_flop_per_s = float(bridge[1]) * units.TERA
        elif "validation loss at" in text:
            yield from self._validation(line, text)
        elif "checkpoint" in text:
            yield from self._checkpoint(line, text)
        elif "time (ms) |" in text:
            yield from self._old_timers(line, text)
        elif "....:" in text:
            yield from self._timer(line, text)

    def _iteration(self, line: Line, text: str, step: re.Match[str]) -> Iterator[Item]:
        number = int(step[1])
        report = Report()
        for piece in text[step.end() :].split("|"):
            key, colon, value = piece.partition(":")
            if colon:
                self._put(report, key, value)
            elif bare := _BARE_PAIR.match(piece):
                self._put(report, bare[1], bare[2])
        if "loss" not in report.fields:
            self._first_loss(report)
        self._memory_of_device(report)
        if "flop_per_s" not in report.fields and self._bridge_flop_per_s is not None:
            report.fields["flop_per_s"] = self._bridge_flop_per_s
        self._bridge_flop_per_s = None
        self._tokens(report)
        last = self._last.get(line.rank)
        self._last[line.rank] = number
        self._latest = (line.rank, number)
        num_steps = number - last if last is not None and number > last else 1
        yield report.fact(
            number,
            line.spot,
            "megatron",
            rank=line.rank,
            at_s=line.at_s,
            num_steps=num_steps,
            last_step=int(step[2]) if step[2].isdigit() else None,
        )

    def _put(self, report: Report, key: str, text: str) -> None:
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = _meaning(key)
        label, name, unit, factor = known
        try:
            report.put(name, label, float(text) * factor)
            return
        except ValueError:
            pass
        # Pairs are current/average: the current one is the step's.
        current, slash, rest = text.partition("/")
        value, suffix = number_and_unit(current)
        if value is None:
            return
        if label.endswith("usage_ratio") or (
            suffix and "/" not in suffix and slash and not label.startswith("elapsed")
        ):
            self._put_sizes(report, label, name, text)
            return
        report.put(name, label, value * _factor(unit or suffix, name, label))
        if slash and (average := number_and_unit(rest)[0]) is not None:
            report.values[f"{label} (average)"] = average * _factor(unit, name, label)

    def _put_sizes(self, report: Report, label: str, name: Name | None, text: str) -> None:
        """`usage/free/total/usage_ratio: 248.58GB/39.40GB/287.98GB/86.32%`."""
        words = label.rsplit(" ", 1)
        parts = words[-1].split("/")
        for part, piece in zip(parts, text.split("/"), strict=False):
            value, unit = number_and_unit(piece)
            if value is not None:
                size = value * (0.01 if unit == "%" else SIZES.get(unit, 1.0))
                report.put(name if part == "usage" else None, f"{words[0]} {part}", size)

    def _memory_of_device(self, report: Report) -> None:
        for maker in ("hip", "cuda", "gpu"):
            free = report.values.get(f"{maker} mem free")
            if free is not None:
                report.fields["memory_free_bytes"] = free
                report.fields.setdefault("memory_bytes", report.values.get(f"{maker} mem usage"))

    def _first_loss(self, report: Report) -> None:
        for key, value in report.values.items():
            if key.endswith("loss") and not any(word in key for word in _OTHER_LOSSES):
                report.fields["loss"] = value
                return

    def _tokens(self, report: Report) -> None:
        samples = report.fields.get("num_samples")
        length = report.values.get("actual seqlen")
        if samples is not None and length is not None:
            report.fields["num_tokens"] = samples * length

    def _memory(self, line: Line, memory: re.Match[str]) -> Iterator[Item]:
        factor = SIZES.get(memory[2], float(units.MIB))
        report = Report()
        sizes = {}
        for piece in memory[3].split("|"):
            key, _, text = piece.partition(":")
            value = number_and_unit(text)[0]
            if value is not None:
                sizes[key.strip()] = value * factor
                report.values[f"memory {key.strip()} of rank {line.rank}"] = value * factor
        report.fields["memory_bytes"] = sizes.get("max allocated")
        report.fields["memory_reserved_bytes"] = sizes.get("max reserved")
        rank = self._latest[0] if self._latest is not None else None
        yield report.fact(int(memory[1]), line.spot, "megatron", rank=rank)

    def _validation(self, line: Line, text: str) -> Iterator[Item]:
        match = _VALIDATION.search(text)
        if match:
            values = {}
            for piece in match[2].split("|"):
                key, _, value = piece.partition(":")
                parsed = number_and_unit(value)[0]
                if parsed is not None:
                    values[key.strip()] = parsed
            step = int(match[1]) if match[1] else self._last.get(line.rank)
            yield Happening(
                kind="validation", spot=line.spot, message=text.strip(), at_s=line.at_s, rank=line.rank, step=step,
                values=values,
            )  # fmt: skip

    def _checkpoint(self, line: Line, text: str) -> Iterator[Item]:
        match = _CHECKPOINT.search(text)
        if match:
            kind = "checkpoint_loaded" if "loaded" in match[1] else "checkpoint_saved"
            yield Happening(
                kind="checkpoint_loaded" if kind == "checkpoint_loaded" else "checkpoint_saved", spot=line.spot,
                message=line.message, at_s=line.at_s, rank=line.rank, step=int(match[2]),
            )  # fmt: skip

    def _timer(self, line: Line, text: str) -> Iterator[Item]:
        """`    forward-backward ....: (4301.50, 4302.41)`: the slowest rank's, of the last reported iteration."""
        name, _, value = text.partition(":")
        times = [number_and_unit(piece)[0] for piece in value.strip().strip("()").split(",")]
        slowest = max((one for one in times if one is not None), default=None)
        if slowest is not None:
            yield from self._part(line, name.strip(" ."), slowest)

    def _old_timers(self, line: Line, text: str) -> Iterator[Item]:
        for piece in text.partition("time (ms) |")[2].split("|"):
            name, _, value = piece.partition(":")
            time_ms = number_and_unit(value)[0]
            if time_ms is not None:
                yield from self._part(line, name.strip(), time_ms)

    def _part(self, line: Line, name: str, time_ms: float) -> Iterator[Item]:
        if self._latest is not None:
            report = Report()
            report.parts[_TIMERS.get(name, name)] = time_ms * units.MILLI
            yield report.fact(self._latest[1], line.spot, "megatron", rank=self._latest[0])


def _meaning(key: str) -> tuple[str, Name | None, str, float]:
    """A name without its unit, what it means, the unit, and its factor."""
    label = " ".join(key.split())
    match = _UNIT.match(label)
    label, unit = (match[1], match[2]) if match else (label, "")
    low = label.lower()
    if low.startswith("rank-"):
        low = low.split(" ", 1)[-1]
    name = NAMES.get(low)
    label = low if name else label
    return label, name, unit, _factor(unit, name, label)


def _factor(unit: str, name: Name | None, label: str) -> float:
    """From the unit that stands in the name or after the value to SI."""
    if name is None:
        return COUNTS.get(unit, 1.0)
    if name.field == "time_s":
        return 1.0 if label.endswith("_ms") and unit == "ms" else TIMES.get(unit, COUNTS.get(unit, 1.0))
    if name.field == "flop_per_s" and name.scale == 1.0:
        return RATES.get(unit, 1.0)
    return COUNTS.get(unit, 1.0) if name.field in ("tokens_per_s", "num_samples") else 1.0
