"""Reinforcement learning in blocks of lines: NeMo-RL and AReaL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scalewright import units
from scalewright.observe.readers.dialects.values import NUMBER, Name, Report, number
from scalewright.observe.readers.reader import Item, LineReader
from scalewright.observe.readers.source import Line

_NEMO_RL_STEP = re.compile(r"={3,}\s*Step (\d+)(?:/(\d+))?\s*={3,}")
_BULLET = re.compile(rf"[•\-*]\s*([A-Za-z][^:]*?):\s*({NUMBER}|nan|inf|-inf)\s*([A-Za-z%]*)")
_PER_RANK = re.compile(rf"\(({NUMBER}) TFLOPS per rank\)")
NEMO_RL_NAMES = {
    "Total step time": Name("time_s"), "Loss": Name("loss"), "Avg Reward": Name("reward"), "Reward": Name("reward"),
    "Avg Filtered Reward": Name("reward"), "Mean Generation Length": Name("response_len"),
    "Grad Norm": Name("grad_norm"),
    "E2E (Tokens/sec/gpu)": Name("tokens_per_s", 1.0, True),
    "Training Model Floating Point Utilization": Name("mfu_frac", 0.01),
    "exposed_generation": Name("part:generation"), "generation": Name("part:generation"),
    "policy_training": Name("part:training"), "policy_and_reference_logprobs": Name("part:log_probs"),
    "weight_sync": Name("part:weight_sync"), "reward_calculation": Name("part:reward"),
    "checkpointing": Name("part:checkpoint"),
    "prepare_for_generation/total": Name("part:weight_sync"), "validation": Name("part:validation"),
    "data_processing": Name("part:data"), "total_validation_time": Name("part:validation"),
}  # fmt: skip
_INSIDE = ("policy_logprobs", "reference_logprobs")


class NemoRlReader(LineReader):
    """`===== Step 1/100 =====`, then results, timing and rates as bullets. Blocks without a step line are counted."""

    kind = "nemo-rl log"
    hints = ("= Step ", "Training Results:", "Total step time:", "• ", "/sec/gpu)", "/sec):", "s per sample")

    def __init__(self) -> None:
        self._report: Report | None = None
        self._line: Line | None = None
        self._step = 0
        self._last_step: int | None = None
        self._has_number = False
        self._is_results = False

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        head = _NEMO_RL_STEP.search(text)
        if head:
            yield from self.end()
            self._step, self._has_number = int(head[1]), True
            self._last_step = int(head[2]) if head[2] else None
        elif "Training Results:" in text:
            if self._is_results:
                yield from self.end()
            if not self._has_number:
                self._step += 1
            self._report, self._line, self._is_results = Report(), line, True
        elif "Validation" in text:
            self._is_results = False
        elif self._report is not None and self._is_results:
            line.is_taken = True
            self._put(text)

    def _put(self, text: str) -> None:
        assert self._report is not None
        match = _BULLET.search(text)
        if match is None or (value := number(match[2])) is None:
            return
        key, unit = match[1].strip(), match[3]
        name = NEMO_RL_NAMES.get(key)
        if name is None and unit == "s" and "/" not in key and key not in _INSIDE:
            name = Name(f"part:{key}")
        if key == "Training FLOPS" and (per_rank := _PER_RANK.search(text)):
            self._report.fields["flop_per_s"] = float(per_rank[1].replace(",", "")) * units.TERA
            return
        self._report.put(name, key, value)

    def end(self) -> Iterator[Item]:
        report, line = self._report, self._line
        self._report, self._line, self._is_results = None, None, False
        if report is not None and line is not None and report.fields:
            lengths, rate = report.values.get("Mean Total Tokens per Sample"), report.values.get("E2E (Samples/sec)")
            time_s = report.fields.get("time_s")
            if lengths is not None and rate is not None and time_s:
                report.fields["num_samples"] = float(round(rate * time_s))
            if "E2E (Tokens/sec)" in report.values and time_s:
                report.fields["num_tokens"] = report.values["E2E (Tokens/sec)"] * time_s
            yield report.fact(self._step, line.spot, "nemo-rl", at_s=line.at_s, last_step=self._last_step)


_AREAL_STEP = re.compile(r"Epoch (\d+)/(\d+) Step (\d+)/(\d+) Train step (\d+)/(\d+) done")
_CELL = re.compile(rf"[│|]\s*([A-Za-z_][\w/@. -]*?)\s*[│|]\s*({NUMBER}|nan|inf|-inf)\s*(?=[│|])")
AREAL_NAMES = {
    "timeperf/rollout": Name("part:generation"), "timeperf/train_step": Name("part:training"),
    "timeperf/update_weights": Name("part:weight_sync"), "timeperf/recompute_logp": Name("part:log_probs"),
    "timeperf/ref_logp": Name("part:log_probs"), "timeperf/compute_advantage": Name("part:advantage"),
    "timeperf/save": Name("part:checkpoint"), "timeperf/eval": Name("part:validation"), "timeperf/e2e": Name("time_s"),
    "timeperf/checkpoint_for_recover": Name("part:checkpoint"), "timeperf/step": Name("time_s"),
    "ppo_actor/update/actor_loss/avg": Name("loss"), "ppo_actor/actor_loss/avg": Name("loss"),
    "sft/loss/avg": Name("loss"),
    "ppo_actor/update/grad_norm": Name("grad_norm"), "grpo_actor/update/grad_norm": Name("grad_norm"),
    "grpo_actor/update/actor_loss/avg": Name("loss"), "ppo_actor/update/lr": Name("learning_rate"),
    "grpo_actor/update/lr": Name("learning_rate"), "ppo_actor/task_reward/avg": Name("reward"),
    "grpo_actor/task_reward/avg": Name("reward"), "rollout/reward": Name("reward"),
    "ppo_actor/seq_len/avg": Name("sequence_len"), "ppo_actor/n_tokens": Name("num_tokens"),
    "n_tokens": Name("num_tokens"),
}  # fmt: skip


class ArealReader(LineReader):
    """AReaL: `Train step 1/4675 done`, then a table of two or more columns of names and values."""

    kind = "areal log"
    hints = ("Train step ", "timeperf/", "│ ", "Stats (")

    def __init__(self) -> None:
        self._report: Report | None = None
        self._line: Line | None = None
        self._step = 0
        self._last_step: int | None = None

    def take(self, line: Line) -> Iterator[Item]:
        text = line.text
        head = _AREAL_STEP.search(text)
        if head:
            yield from self.end()
            self._report, self._line = Report(), line
            self._step, self._last_step = int(head[5]), int(head[6])
        elif self._report is not None or "timeperf/" in text:
            if self._report is None:  # a table whose head is cut away: counted
                self._report, self._line, self._step = Report(), line, self._step + 1
            line.is_taken = True
            for key, text_value in _CELL.findall(text):
                value = number(text_value)
                if value is not None:
                    name = AREAL_NAMES.get(key)
                    if name is None and key.startswith("timeperf/") and key.count("/") == 1:
                        name = Name(f"part:{key[9:]}")
                    self._report.put(name, key, value)

    def end(self) -> Iterator[Item]:
        report, line = self._report, self._line
        self._report = self._line = None
        if report and line is not None:
            length = report.fields.pop("sequence_len", None)
            if length is not None:
                report.values["ppo_actor/seq_len/avg"] = length
            if "time_s" not in report.fields and report.parts:
                # AReaL times parts one after another in one process: their sum is the step.
                report.fields["time_s"] = sum(report.parts.values())
                report.values["step_time_is_a_sum"] = 1.0
            yield report.fact(self._step, line.spot, "areal", at_s=line.at_s, last_step=self._last_step)
