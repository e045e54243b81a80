"""Reports of programs that no other reader knows: a step, and names with values beside it.

Only what is clear is read. A loss needs its name, a time its unit or a name that says it is the time of a step, a rate
its unit. The note of the source says what was understood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright import units
from scalewright.observe.evidence.facts import Happening
from scalewright.observe.readers.dialects.values import (
    NUMBER,
    SIZES,
    TIMES,
    Name,
    Report,
    number,
    record_in,
    whole_number,
)
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_STEP = re.compile(
    r"(?:^|[\s\[({|,])(?:global[_ ]?step|train(?:ing)?[_ ]?(?:step|iter)|step|iteration|iter|update|batch|it)s?\s*"
    r"(?:[:=#]\s*|\s+|\[\s*)(?P<step>\d[\d,]*)(?:\s*(?:/|of)\s*(?P<total>\d[\d,]*))?(?![\d.]*\s*(?:ms|s|sec)\b)",
    re.IGNORECASE,
)
_UPDATES = re.compile(r"\bnum_updates[=:]\s*(?P<step>\d[\d,]*)(?P<total>$^)?")
_EPOCH_STEP = re.compile(
    r"(?:Epoch(?P<kind>\(train\))?:?\s*\[(?P<epoch>\d+)(?:/\d+)?\]\s*\[\s*|Train: (?P<timm>\d+) \[\s*|"
    r"Epoch (?P<bar>\d+):.*?\|\s*)(?P<step>\d+)/(?P<total>\d+)"
)
_PAIR = re.compile(
    rf"(?P<key>[A-Za-z][\w/@.()%-]*(?:[ _][A-Za-z][\w/@.()%-]*){{0,3}}?)\s*(?:[:=]\s*|\s+)"
    rf"(?P<value>{NUMBER}|nan|inf|-inf)(?![\w/:-]*\d)\s*(?P<unit>ms|µs|us|sec|s/it|s|GiB|MiB|GB|MB|%|[TPG]FLOP/?[sS]|tok\w*/s\w*|it/s|min)?(?![A-Za-z])",
    re.IGNORECASE,
)
_AFTER = re.compile(
    rf"(?:^|[\s|,(])({NUMBER})\s*(ms|tok(?:en)?s?/s(?:ec)?|%\s*(?:bf16|fp16|fp8)?\s*MFU)(?![\w/])", re.IGNORECASE
)
_LOSS = {
    "loss", "train_loss", "training_loss", "lm_loss", "total_loss", "nll_loss", "ce_loss", "loss_train", "train_nll",
    "policy_loss", "crossentropyloss", "train_crossentropyloss", "cross_entropy_loss", "train_total_loss",
    "loss_train_total",
    "language_cross_entropy", "actor_loss", "grpo_loss_total_loss",
}  # fmt: skip
_TIME = {
    "iter_dt", "step_dt", "step_time", "iter_time", "iteration_time", "time_per_step", "time_per_iter",
    "time_per_iteration", "dt",
    "batch_time", "sec_per_step", "seconds_per_step", "time_step", "time_iter", "s_it", "step_duration", "time",
    "train_step_time", "update_time", "seconds", "step_seconds", "sec_it", "timing_train_total_step_time",
    "total_step_time", "updt_s", "iter_time_s", "step_time_s", "duration",
}  # fmt: skip
_TOTAL_TIME = {"train_time", "total_time", "elapsed_time", "wall_time", "train_wall"}
_VAGUE_TIME = {"time", "dt", "duration", "seconds"}
"""May be a total since the start or milliseconds: read only with a unit."""
_RATE = re.compile(
    r"^(?:tok(?:en)?s?_?(?:per_?)?(?:s|sec|second)|tps|wps|tgs|tokens?_throughput|tok_s|tokens_s|tok_sec)(?:_?(?:per_)?(?:gpu|device|rank))?$"
)
_PER_DEVICE = ("gpu", "device", "rank", "tgs")
_MEMORY = re.compile(
    r"^(?:peak_|max_|gpu_|cuda_|vram_)*(?:mem(?:ory)?|vram)(?:_(?:peak|max|allocated|reserved|used|usage|gpu|gb|gib|mb))*$"
)
_STEP_KEYS = (
    "step", "_step", "global_step", "train/global_step", "trainer/global_step", "iteration", "iter",
    "num_updates", "training/global_step", "steps", "train_step",
)  # fmt: skip
_NOT_TRAINING = re.compile(r"\b(?:val|valid|validation|eval|evaluation|test)(?:[_ /.-]|\b)", re.IGNORECASE)
_BLOCK_HEAD = re.compile(r"\[step=(\d+)(?:/(\d+))?[^\]]*\]")
_BLOCK_PAIR = re.compile(rf"^\s+([A-Za-z][\w/ ().@-]*?)\s*=\s*({NUMBER}|nan|inf|-inf)\s*$")


MOST_CHARACTERS = 8000
"""Of a line: what is longer is no report, and the expressions take time with the square of it."""


class GenericReader(LineReader):
    """Lines with a step and a loss, a time or a rate, that no other reader took."""

    kind = "log of an unknown program"
    hints = ("loss", "Loss", "tok/s", "tokens/s", "[step=")
    is_fallback = True

    def __init__(self) -> None:
        self._last: dict[tuple[int | None, str], int] = {}
        self._block: tuple[int, int | None, Line, Report] | None = None

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        if self._block is not None:
            if self._put_block(text):
                return
            yield from self.end()
        head = _BLOCK_HEAD.search(text) if "[step=" in text else None
        if head:
            self._block = (int(head[1]), int(head[2]) if head[2] else None, line, Report())
            self.is_open = True
            return
        yield from self._one_line(line, line.message)

    def _one_line(self, line: Line, text: str) -> Iterator[Item]:
        record = text.find("{")
        if record >= 0 and (pairs := record_in(text, record)):
            yield from self._record(line, pairs)
            return
        if len(text) > MOST_CHARACTERS:
            return
        step, last_step, rest = _step_in(text)
        if step is None:
            return
        report = Report()
        for match in _PAIR.finditer(rest):
            value = number(match["value"])
            if value is not None:
                put_generic(report, match["key"], value, match["unit"] or "", rest[match.end() : match.end() + 2])
        for value_text, unit in _AFTER.findall(rest):
            _put_after(report, float(value_text.replace(",", "")), unit.lower())
        yield from self._yield(line, report, step, last_step, text)

    def _record(self, line: Line, pairs: dict[str, str]) -> Iterator[Item]:
        step = next((step for key in _STEP_KEYS if (step := whole_number(pairs.get(key, ""))) is not None), None)
        if step is None:
            step = _step_in(line.message)[0]
        if step is None:
            return
        report = Report()
        for key, text in pairs.items():
            value = number(text)
            if value is not None and key not in _STEP_KEYS:
                put_generic(report, key, value, "", "")
        yield from self._yield(line, report, step, None, " ".join(pairs))

    def _yield(self, line: Line, report: Report, step: int, last_step: int | None, text: str) -> Iterator[Item]:
        known = {"loss", "time_s", "tokens_per_s"} & report.fields.keys()
        if not known:
            return
        if _NOT_TRAINING.search(text) and not report.fields.keys() & {"time_s", "tokens_per_s", "learning_rate"}:
            yield Happening(
                kind="validation", spot=line.spot, message=line.message, at_s=line.at_s, rank=line.rank, step=step,
                values={**report.values, **{key: value for key, value in report.fields.items() if key == "loss"}},
            )  # fmt: skip
            return
        last = self._last.get((line.rank, ""))
        self._last[line.rank, ""] = step
        num_steps = step - last if last is not None and step > last else 1
        yield report.fact(
            step, line.spot, "unknown", rank=line.rank, at_s=line.at_s, last_step=last_step, num_steps=num_steps
        )

    def _put_block(self, text: str) -> bool:
        """`    train/CrossEntropyLoss=2.3` below `[step=10/1000]`; False where the block ends."""
        assert self._block is not None
        pair = _BLOCK_PAIR.match(text)
        if pair is None:
            return False
        value = number(pair[2])
        if value is not None:
            unit = pair[1].rpartition("(")[2].rstrip(")") if "(" in pair[1] else ""
            put_generic(self._block[3], pair[1].partition(" (")[0], value, unit, "")
        return True

    def end(self) -> Iterator[Item]:
        block, self._block, self.is_open = self._block, None, False
        if block is not None and block[3]:
            yield from self._yield(block[2], block[3], block[0], block[1], "")


def _step_in(text: str) -> tuple[int | None, int | None, str]:
    """The step, the last step and the text without them."""
    epochs = _EPOCH_STEP.search(text)
    if epochs:
        total = int(epochs["total"])
        epoch = int(epochs["epoch"] or epochs["timm"] or epochs["bar"] or 0)
        first = 1 if epochs["kind"] else 0
        return max(0, epoch - first) * total + int(epochs["step"]), None, text[epochs.end() :]
    match = _UPDATES.search(text) or _STEP.search(text)
    if match is None:
        return None, None, text
    total_text = match["total"]
    rest = text[: match.start()] + " | " + text[match.end() :]
    step = int(match["step"].rstrip(",").replace(",", ""))
    return step, int(total_text.rstrip(",").replace(",", "")) if total_text else None, rest


def put_generic(report: Report, key: str, value: float, unit: str, after: str) -> None:
    """A value under what its name and unit clearly mean, else under its own name."""
    label = re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_")
    short = label.removeprefix("train_") if label not in _LOSS else label
    low = unit.lower()
    if label in _LOSS or short in _LOSS:
        name: Name | None = Name("loss")
    elif short in ("grad_norm", "gnorm", "norm", "grad", "grdn", "total_grad_norm", "optim_total_grad_norm"):
        name = Name("grad_norm")
    elif short in ("lr", "learning_rate", "optim_learning_rate_group0"):
        name = Name("learning_rate")
    elif label in _TOTAL_TIME:
        name = None
    elif short in _TIME or short.removesuffix("_ms") in _TIME:
        name = _time_name(short, low, after)
    elif _RATE.match(
        short.removeprefix("throughput_").removeprefix("device_").removeprefix("performance_")
    ) or low.startswith("tok"):
        name = Name("tokens_per_s", 1.0, any(word in label for word in _PER_DEVICE))
    elif short.endswith("mfu"):
        name = Name("mfu_frac", 0.01 if low == "%" or value > 1.5 else 1.0)
    elif _MEMORY.match(short.removeprefix("system_")) and (
        low.upper() in ("GIB", "MIB", "GB", "MB") or short.endswith(("_gib", "_gb", "_mb"))
    ):
        size = unit if unit else {"b": short[-2:].upper()}.get(short[-1], "B")
        name = Name("memory_bytes", SIZES.get(size.replace("gib", "GiB"), float(units.GIB)))
    elif low.endswith(("flop/s", "flops")):
        name = Name("flop_per_s", {"t": units.TERA, "g": units.GIGA, "p": units.TERA * units.KILO}.get(low[0], 1.0))
    elif short in ("reward", "mean_reward", "reward_mean", "rewards_mean"):
        name = Name("reward")
    else:
        name = None
    report.put(name, key, value)


def _time_name(short: str, unit: str, after: str) -> Name | None:
    if unit in TIMES or unit == "s/it":
        return Name("time_s", TIMES.get(unit, 1.0))
    if short.endswith("_ms"):
        return Name("time_s", units.MILLI)
    # `Time 0.4 ( 0.5)` is a current value and its mean.
    return Name("time_s") if short not in _VAGUE_TIME or "(" in after else None


def _put_after(report: Report, value: float, unit: str) -> None:
    """`123.4 ms | 45.1% bf16 MFU | 4123 tok/s`: the name follows."""
    if unit == "ms":
        report.fields.setdefault("time_s", value * units.MILLI)
    elif unit.startswith("tok"):
        if "tokens_per_s" not in report.fields:
            report.put(Name("tokens_per_s"), "", value)
    elif unit.startswith("%"):
        report.fields.setdefault("mfu_frac", value / 100)
