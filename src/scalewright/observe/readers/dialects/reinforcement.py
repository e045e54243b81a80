"""Reinforcement learning in one line or one dict for a step: verl, slime and miles, ROLL, prime-rl.

Traps: verl renamed its keys twice and reports validation under step 0; slime splits a report between processes, and
its step time leaves out sleep, wake-up and the update of weights; ROLL may report the time of the step before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from scalewright import units
from scalewright.observe.evidence.facts import Happening
from scalewright.observe.readers.dialects.values import NUMBER, Name, Report, duration_s, number, record_in
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_VERL_STEP = re.compile(r"(?:^|[\s)\]])step:\s*(\d+) - (.*)")
_GIB = float(units.GIB)
VERL_NAMES = {
    "actor/pg_loss": Name("loss"), "actor/loss": Name("loss"), "train/loss": Name("loss"),
    "actor/lr": Name("learning_rate"),
    "actor/grad_norm": Name("grad_norm"), "train/grad_norm": Name("grad_norm"), "train/lr": Name("learning_rate"),
    "perf/total_num_tokens": Name("num_tokens"), "perf/throughput": Name("tokens_per_s", 1.0, True),
    "Tokens/Sec/GPU": Name("tokens_per_s", 1.0, True), "perf/tokens_per_sec_per_gpu": Name("tokens_per_s", 1.0, True),
    "perf/mfu/actor": Name("mfu_frac"), "mfu/actor": Name("mfu_frac"), "train/mfu": Name("mfu_frac"),
    "perf/max_memory_allocated_gb": Name("memory_bytes", _GIB),
    "actor/perf/max_memory_allocated_gb": Name("memory_bytes", _GIB),
    "perf/max_memory_reserved_gb": Name("memory_reserved_bytes", _GIB),
    "actor/perf/max_memory_reserved_gb": Name("memory_reserved_bytes", _GIB),
    "critic/rewards/mean": Name("reward"), "critic/score/mean": Name("score"),
    "response_length/mean": Name("response_len"),
}  # fmt: skip
_VERL_PARTS = {
    "gen": "generation", "reward": "reward", "old_log_prob": "log_probs", "ref": "log_probs",
    "ref_log_prob": "log_probs",
    "values": "log_probs", "update_actor": "training", "update_critic": "training", "update_weights": "weight_sync",
    "sync_rollout_weights": "weight_sync", "testing": "validation", "save_checkpoint": "checkpoint",
    "reshard": "reshard",
}  # fmt: skip
_INSIDE = ("generate_sequences", "generation_timing", "agent_loop")
"""Times inside of another one: they are no parts of the sum."""


class VerlReader(LineReader):
    """verl and what builds on it: `step:1 - key:value - key:value`."""

    kind = "verl log"
    hints = (
        "timing_s/",
        "timing/",
        "global_seqlen/",
        "val-core/",
        "val/test_score",
        "actor/pg_loss",
        "train/loss:",
        "critic/score/",
    )

    def take(self, line: Line) -> Iterator[Item]:
        match = _VERL_STEP.search(line.text)
        if match is None:
            return
        pairs = dict(piece.rpartition(":")[::2] for piece in match[2].split(" - "))
        step = int(match[1])
        if all(key.startswith(("val", "timing_s/testing", "training/")) for key in pairs):
            values = {key: value for key, text in pairs.items() if (value := number(text)) is not None}
            yield Happening(
                kind="validation", spot=line.spot, message="validation", at_s=line.at_s, rank=line.rank, step=step,
                values=values
            )  # fmt: skip
            return
        report = Report()
        for key, text in pairs.items():
            value = number(text)
            if value is not None:
                _put_verl(report, key.strip(), value)
        score = report.fields.pop("score", None)
        if score is not None:
            report.values["critic/score/mean"] = score
            report.fields.setdefault("reward", score)
        if "time_s" not in report.fields and "training" in report.parts:
            # 2024's verl prints no total; its timers run one after another.
            report.fields["time_s"] = sum(report.parts.values()) - report.parts.get("validation", 0.0)
            report.values["step_time_is_a_sum"] = 1.0
        if "critic" not in match[2] and not report.parts and "loss" not in report.fields:
            return
        yield report.fact(step, line.spot, "verl", rank=line.rank, at_s=line.at_s)


def _put_verl(report: Report, key: str, value: float) -> None:
    group, _, timer = key.partition("/")
    if group in ("timing_s", "timing") and timer:
        if timer == "step":
            report.fields["time_s"] = value
        elif timer.startswith(_INSIDE) or "/" in timer:
            report.values[key] = value
        else:
            report.put(Name(f"part:{_VERL_PARTS.get(timer, timer)}"), key, value)
    elif key in ("perf/time_per_step", "perf/delta_time/step"):
        report.fields.setdefault("time_s", value)
    elif key == "train/lr(1e-3)":
        report.fields["learning_rate"] = value * units.MILLI
    elif key.startswith("perf/delta_time/"):
        report.values[key] = value
    else:
        report.put(VERL_NAMES.get(key), key, value)


_SLIME = re.compile(r"\b(perf|rollout|step|eval) (\d+): (?=\{)")
SLIME_NAMES = {
    "perf/step_time": Name("time_s"), "train/loss": Name("loss"), "train/grad_norm": Name("grad_norm"),
    "perf/rollout_time": Name("part:generation"), "perf/actor_train_time": Name("part:training"),
    "perf/critic_train_time": Name("part:training"), "perf/log_probs_time": Name("part:log_probs"),
    "perf/ref_log_probs_time": Name("part:log_probs"), "perf/update_weights_time": Name("part:weight_sync"),
    "perf/sleep_time": Name("part:release"), "perf/wake_up_time": Name("part:restore"),
    "perf/data_preprocess_time": Name("part:data"), "rollout/raw_reward": Name("reward"),
    "rollout/response_len/mean": Name("response_len"), "rollout/response_lengths": Name("response_len"),
    "perf/tokens_per_gpu_per_sec": Name("tokens_per_s", 1.0, True), "train/lr-pg_0": Name("learning_rate"),
    "perf/actor_train_tflops": Name("flop_per_s", units.TERA),
}  # fmt: skip


class SlimeReader(LineReader):
    """slime and miles: dicts of several processes for one rollout. Optimizer steps have their own count."""

    kind = "slime log"
    hints = ("perf ", "'rollout/", "'train/", "'eval/")

    def __init__(self) -> None:
        self._train: dict[int, tuple[Report, Line]] = {}
        self._rollouts = 0

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        match = _SLIME.search(text)
        if match is None:
            return
        pairs = record_in(text, match.end())
        number_of = int(match[2])
        if match[1] == "eval":
            values = {key: value for key, piece in pairs.items() if (value := number(piece)) is not None}
            yield Happening(
                kind="validation", spot=line.spot, message="evaluation", at_s=line.at_s, step=number_of, values=values
            )
            return
        report = Report()
        report.put_all(pairs, SLIME_NAMES)
        if match[1] == "step":
            line.is_taken = True
            if report:
                self._train[number_of] = (report, line)
            return
        self._rollouts = max(self._rollouts, number_of + 1)
        if report:
            yield report.fact(number_of, line.spot, "slime", at_s=line.at_s)

    def end(self) -> Iterator[Item]:
        # With several optimizer steps for a rollout their numbers are no rollouts.
        is_own_count = len(self._train) > 1.5 * max(1, self._rollouts)
        dialect = "slime optimizer" if is_own_count and self._rollouts else "slime"
        for step, (report, line) in self._train.items():
            yield report.fact(step, line.spot, dialect, at_s=line.at_s)


_ROLL_STEP = re.compile(r"pipeline step (\d+) (start|finished)")
ROLL_NAMES = {
    "time/step_total": Name("time_s"), "time/step_rollout": Name("part:generation"),
    "time/step_generate": Name("part:generation"),
    "time/step_ref_log_probs_values_reward": Name("part:log_probs"),
    "time/step_old_log_probs_values": Name("part:log_probs"),
    "time/ref_log_probs_values": Name("part:log_probs"), "time/old_log_probs": Name("part:log_probs"),
    "time/step_train": Name("part:training"), "time/step_model_update": Name("part:weight_sync"),
    "time/val_step": Name("part:validation"), "time/step_val": Name("part:validation"), "actor/loss": Name("loss"),
    "actor/pg_loss": Name("loss"), "actor_train/pg_loss": Name("loss"), "actor/lr": Name("learning_rate"),
    "actor_train/grad_norm": Name("grad_norm"), "actor/grad_norm": Name("grad_norm"),
    "critic/rewards/mean": Name("reward"),
    "critic/score/mean": Name("reward"), "tokens/response_length/mean": Name("response_len"),
    "system/tps": Name("tokens_per_s"),
}  # fmt: skip


class RollReader(LineReader):
    """ROLL: a JSON dict between `pipeline step N start` and `finished`."""

    kind = "roll log"
    hints = ("pipeline step ", "time/step_", '"system/tps"')

    def __init__(self) -> None:
        self._step: int | None = None
        self._is_late: bool | None = None

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        step = _ROLL_STEP.search(text)
        if step:
            self._step = int(step[1])
            return
        pairs = _json_or_record(text)
        if "time/step_total" not in pairs and "time/step_train" not in pairs and "system/step" not in pairs:
            return
        report = Report()
        report.put_all(pairs, ROLL_NAMES)
        own_step = report.values.get("system/step", report.values.get("global_step"))
        number_of = int(own_step) if own_step is not None else self._step
        if number_of is None:
            return
        time_s = report.fields.get("time_s")
        if self._is_late is None and time_s is not None:
            # A first step that took no time: the total is that of the step before.
            self._is_late = time_s == 0.0
        if self._is_late:
            report.fields.pop("time_s", None)
            if time_s:
                earlier = Report()
                earlier.fields["time_s"] = time_s
                yield earlier.fact(number_of - 1, line.spot, "roll")
        yield report.fact(number_of, line.spot, "roll", at_s=line.at_s)


def _json_or_record(text: str) -> Mapping[str, object]:
    start = text.find("{")
    if start < 0:
        return {}
    try:
        entry = json.loads(text[start:])
    except ValueError:
        return record_in(text, start)
    return entry if isinstance(entry, dict) else {}


_PRIME_STEP = re.compile(r"\bStep (\d+) \| (.*)")
_PRIME_PAIR = re.compile(rf"^([A-Z][A-Za-z. ]*?):?\s+({NUMBER}|nan|inf|-inf)(?:/({NUMBER}))?\s*(.*)$")
PRIME_NAMES = {
    "Loss": Name("loss"), "Grad. Norm": Name("grad_norm"), "LR": Name("learning_rate"),
    "Throughput": Name("tokens_per_s"),
    "MFU": Name("mfu_frac", 0.01), "Peak Mem.": Name("memory_reserved_bytes", _GIB), "Reward": Name("reward"),
    "Time": Name("time_s"), "Seq. Length": Name("response_len"),
}  # fmt: skip


class PrimeReader(LineReader):
    """prime-rl: trainer and orchestrator print a line for each step. Throughput is 0 in the first: not known yet."""

    kind = "prime-rl log"
    hints = ("| Loss ", "| Loss: ", "| Reward ", "| Reward: ")

    def take(self, line: Line) -> Iterator[Item]:
        match = _PRIME_STEP.search(line.text)
        if match is None:
            return
        report = Report()
        for piece in match[2].split(" | "):
            time_s = duration_s(piece.strip().removeprefix("Time:").removeprefix("Time"))
            if time_s is not None and "time_s" not in report.fields:
                report.fields["time_s"] = time_s
                continue
            pair = _PRIME_PAIR.match(piece.strip())
            if pair is None or (value := number(pair[2])) is None:
                continue
            report.put(PRIME_NAMES.get(pair[1]), pair[1], value)
            if pair[1] == "Peak Mem." and pair[3]:
                report.fields["memory_free_bytes"] = (float(pair[3]) - value) * _GIB
        if report.fields.get("tokens_per_s") == 0.0:
            del report.fields["tokens_per_s"]
        if "time_s" not in report.fields:
            return
        is_trainer = "loss" in report.fields
        yield report.fact(
            int(match[1]),
            line.spot,
            "prime-rl" if is_trainer else "prime-rl orchestrator",
            rank=line.rank,
            at_s=line.at_s,
        )
