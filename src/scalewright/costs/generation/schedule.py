"""How many sequences run, for how many iterations and with how much context: continuous batching over lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scalewright.costs.breakdown import Breakdown
from scalewright.costs.generation.iteration import decode_step, iteration
from scalewright.costs.generation.serving import Serving
from scalewright.workload.lengths import LengthDistribution

Floats = NDArray[np.float64]
WAVES_FRAC = 0.5
"""How far equal answers end in waves: 0 if they start evenly; with 1, half a turn would take as long as a whole one."""
NUM_ROUNDS = 60
"""Rounds of a bisection that has converged by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one copy of a model has to answer."""

    num_requests: float
    """Answers in all."""
    prompts: LengthDistribution
    answers: LengthDistribution
    num_at_once: float
    """Sequences that may run at once: memory, the engine's limit, or what clients keep open."""
    num_per_prompt: float = 1.0
    """Answers to each prompt, which is read once for all of them."""
    num_read_again: float = 0.0
    """Tokens of an answer's context that are read again after it was put aside."""

    @property
    def num_prompt_tokens(self) -> float:
        """Prompt tokens that are read in all: at least one prompt."""
        num_prompts = max(self.num_requests / self.num_per_prompt, 1.0)
        return num_prompts * self.prompts.mean + self.num_requests * self.num_read_again


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Decode iterations in groups of equal load."""

    num_steps: Floats
    num_running: Floats
    num_context: Floats

    @property
    def num_all_steps(self) -> float:
        return float(np.sum(self.num_steps))

    @property
    def num_mean_running(self) -> float:
        return float(np.sum(self.num_steps * self.num_running)) / self.num_all_steps

    @property
    def num_mean_context(self) -> float:
        """Of a running sequence, every token weighing the same."""
        weights = self.num_steps * self.num_running
        return float(np.sum(weights * self.num_context) / np.sum(weights))


def num_iterations(load: Load) -> float:
    """Decode iterations until the last answer ends, on average over the order of the answers.

    Equation  N = max(E[max of s_i + L_i], (r - 1) L + E[max of c], L (r + |r - [r]| / 2)),  s_i = max(i/c - 1, 0) L
              the start of answer i of B, r = B/c turns, [r] the nearest whole number
    Source    yu2022 (Orca), section 3.1: iteration-level scheduling; in it a place gets free every L iterations
    Assumes   lengths are independent; answers start as evenly as places get free on average, or, where they differ
              little, the last turn starts together; equal answers keep half of what a last turn loses that is not full
    Checked   tests/costs/test_schedule.py: an event simulation of the same queue; never more with more room, never
              fewer with a longer tail
    """
    most, length = min(load.num_at_once, load.num_requests), load.answers.mean
    means, ends = load.answers.cells
    turns = load.num_requests / most
    apart = abs(turns - round(turns))
    equal = length * (turns + WAVES_FRAC * apart)
    last = (turns - 1.0) * length  # start of the last answer
    # P(all ended v after it) = exp(-c H(v + last) - c/L int_v^{v + last} H),  H = -ln P(L <= u), even between lengths
    hazard = -np.log(ends)
    beyond = np.append(np.cumsum((hazard[:-1] * np.diff(means))[::-1])[::-1], 0.0)
    edges = np.unique(np.concatenate([means, means - last]))
    edges = edges[(edges >= means[0]) & (edges <= means[-1])]
    widths, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2.0
    first = most * hazard[np.searchsorted(means, middle + last, side="right") - 1]
    others = most / length * (np.interp(edges, means, beyond) - np.interp(edges + last, means, beyond))
    falls = others[:-1] - others[1:]
    ended = np.exp(-first - others[1:]) * np.where(falls > 0.0, -np.expm1(-falls) / np.maximum(falls, 1e-300), 1.0)
    evenly = float(means[0]) + float(np.sum(widths * (1.0 - ended)))
    together = float(means[0]) + float(np.sum(np.diff(means) * (1.0 - np.exp(-most * hazard[:-1]))))
    return max(equal, last + evenly, last + together)


def num_least_iterations(load: Load) -> float:
    """Decode iterations that no order of the answers can do without.

    Equation  max(B/c, 1) L
    Source    a token of each running sequence in an iteration
    Assumes   answers of the mean length: their longest is longer
    Checked   tests/costs/test_schedule.py: never above the iterations that are predicted
    """
    return max(load.num_requests / load.num_at_once, 1.0) * load.answers.mean


def phases(load: Load) -> Phases:
    """Decode iterations until the last answer ends, all with the sequences that run on average.

    Equation  N iterations of B L / N sequences with P + E[L^2] / 2 E[L] tokens of context
    Source    an iteration's time is nearly linear in its sequences, so that their spread over iterations hardly counts
    Assumes   what that leaves out is small: a full batch's arithmetic beside the few sequences of the end
    Checked   tests/costs/test_schedule.py: tokens are conserved; tests/golden/test_generation_table.py
    """
    steps = num_iterations(load)
    running, context = load.num_requests * load.answers.mean / steps, load.prompts.mean + load.answers.mean_age
    return Phases(num_steps=np.array([steps]), num_running=np.array([running]), num_context=np.array([context]))


def num_median_running(load: Load) -> float:
    """Sequences that run beside a token, for half of all tokens at least so many.

    Equation  c until nobody waits, then c alive(k),  alive = (c/B) S + (1 - c/B) int_k S / L
    Source    renewal theory: after many turns a batch is a mix of old and new answers
    Assumes   in the first turn all are equally young; between, both mix by the share of the first
    Checked   tests/costs/test_schedule.py: all of equal answers; more than the mean where few are long
    """
    most, answers = min(load.num_at_once, load.num_requests), load.answers
    means, ends = answers.cells
    edges = np.concatenate([[0.0], means])
    young = np.append(1.0, 1.0 - ends)
    left = np.append(np.cumsum((young[:-1] * np.diff(edges))[::-1])[::-1], 0.0)
    share = most / load.num_requests
    alive = share * young + (1.0 - share) * left / left[0]
    written = np.append(0.0, np.cumsum(np.diff(edges) * (alive[1:] + alive[:-1]) / 2.0))
    before = max(answers.mean / share - float(written[-1]), 0.0)  # tokens of one place while others wait
    middle_token = (before + float(written[-1])) / 2.0 - before
    return most * float(np.interp(middle_token, written, alive)) if middle_token > 0.0 else most


def load_time(serving: Serving, load: Load) -> tuple[Breakdown, Phases]:
    """Seconds until the last of a set of requests is answered, by part, and the decode iterations behind them.

    Equation  M iteration(n, c, P / M) + (N - M) iteration(n, c, 0),  M = min(max(P / T, B/c, 1), N) of N iterations
              read P tokens, T at once
    Source    agrawal2024 (Sarathi-Serve, arXiv:2403.02310), section 4: prompts ride along with decodes
    Assumes   prompts are read while others decode; iterations of both kinds have the same running sequences
    Checked   tests/golden/test_generation_table.py: published tokens/s
    """
    plan = phases(load)
    return timed(serving, load, plan), plan


def timed(serving: Serving, load: Load, plan: Phases) -> Breakdown:
    """Seconds of a load's iterations, by part."""
    tokens, turns = load.num_prompt_tokens, max(load.num_requests / load.num_at_once, 1.0)
    return phases_time(serving, plan, num_prompt_tokens=tokens, num_each=load.prompts.mean, num_least=turns)


def phases_time(
    serving: Serving, plan: Phases, *, num_prompt_tokens: float, num_each: float, num_least: float = 1.0
) -> Breakdown:
    """Seconds of decode iterations that read so many prompt tokens on their way, `num_each` of a prompt, in at least
    `num_least` of them, by part."""
    most, p = serving.num_prefill_tokens, serving.pp
    num_reading = min(max(num_prompt_tokens / (most * p), num_least), plan.num_all_steps)
    share = num_reading / plan.num_all_steps
    one_piece = p * min(num_each, most, num_prompt_tokens)  # a piece of one prompt is in one place of a pipeline
    reading = iteration(
        serving, num_sequences=plan.num_running, num_context=plan.num_context,
        num_prompt_tokens=max(num_prompt_tokens / max(num_reading, 1e-9), one_piece), prompt_len=num_each,
    )  # fmt: skip
    decoding = iteration(serving, num_sequences=plan.num_running, num_context=plan.num_context)
    return _breakdown(reading, share * plan.num_steps, decoding, (1.0 - share) * plan.num_steps)


def median_wait_s(serving: Serving, load: Load) -> float:
    """The median time between two tokens of an answer.

    Equation  the iteration beside which half of all tokens are written
    Source    as `bench generate` and public load generators count: every token weighs the same
    Assumes   iterations that read prompts are few beside those that only decode
    Checked   tests/costs/test_schedule.py: one size of batch gives its step; a tail of few answers does not count
    """
    context = load.prompts.mean + load.answers.mean_age
    return float(decode_step(serving, num_sequences=num_median_running(load), num_context=context).total)


def _breakdown(reading: Breakdown, num_reading: Floats, decoding: Breakdown, num_decoding: Floats) -> Breakdown:
    first = weighted(reading, num_reading)
    prefill = replace(
        first,
        name="prefill",
        parts=tuple(replace(p, name=f"prompt_{p.name.removeprefix('prompt_')}") for p in first.parts),
    )
    decode = replace(weighted(decoding, num_decoding), name="decode")
    return Breakdown(name="generation", unit="s", parts=(prefill, decode), formula="generation.load_time")


def weighted(term: Breakdown, num_times: Floats) -> Breakdown:
    """The sum of a breakdown's columns, each so many times."""
    value = None if term.value is None else float(np.sum(np.asarray(term.value) * num_times))
    return replace(term, value=value, inputs={}, parts=tuple(weighted(part, num_times) for part in term.parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A copy under requests that keep arriving."""

    num_running: float
    iteration_s: float
    """On average over iterations with and without prompts."""
    waiting_s: float
    """Until the first iteration that reads a prompt; infinite where requests arrive faster than they are answered."""
    load_frac: float
    """Arrivals over what the copy can answer."""


def steady_time(serving: Serving, load: Load, num_running: float) -> tuple[Breakdown, Phases]:
    """Seconds that a copy works for its requests while so many run at once, and its iterations.

    Equation  M iteration(n, c, P / M) + (N - M) iteration(n, c, 0),  M = min(B max(P / (B T), 1), N), N = B L / n
    Source    agrawal2024 (Sarathi-Serve, arXiv:2403.02310), section 4: prompts ride along with decodes
    Assumes   prompts arrive one by one, so that each is read in an iteration of its own until all iterations read
    Checked   tests/costs/test_schedule.py: the offered rate is carried below saturation
    """
    num_steps = load.num_requests * load.answers.mean / max(num_running, 1e-9)
    running, context = np.array([num_running]), np.array([load.prompts.mean + load.answers.mean_age])
    plan = Phases(num_steps=np.array([num_steps]), num_running=running, num_context=context)
    per_request = max(load.num_prompt_tokens / load.num_requests / serving.num_prefill_tokens, 1.0)
    num_reading = min(load.num_requests * per_request, num_steps)
    reading = iteration(
        serving, num_sequences=running, num_context=context, num_prompt_tokens=load.num_prompt_tokens / num_reading,
        prompt_len=load.prompts.mean,
    )  # fmt: skip
    decoding = iteration(serving, num_sequences=running, num_context=context)
    return _breakdown(reading, np.array([num_reading]), decoding, np.array([num_steps - num_reading])), plan


def steady_state(serving: Serving, load: Load, *, num_requests_per_s: float) -> Arrivals:
    """Sequences that run at once when requests keep arriving.

    Equation  n = r L t(n),  t the mean iteration, by bisection
    Source    little1961 (A Proof for the Queuing Formula L = lambda W)
    Assumes   arrivals without bursts; a request waits half an iteration, and as a queue of one server where the load
              is high
    Checked   tests/costs/test_schedule.py: the offered rate is carried below saturation
    """

    def iteration_s(running: float) -> float:
        time, plan = steady_time(serving, load, running)
        return float(time.total) / plan.num_all_steps

    most, length = load.num_at_once, load.answers.mean
    used = num_requests_per_s * length * iteration_s(most) / most
    if used >= 1.0:
        return Arrivals(num_running=most, iteration_s=iteration_s(most), waiting_s=math.inf, load_frac=used)
    low, high = 0.0, most
    for _ in range(NUM_ROUNDS):
        running = (low + high) / 2.0
        low, high = (running, high) if num_requests_per_s * length * iteration_s(running) > running else (low, running)
    each_s = iteration_s(high)
    per_request = load.num_prompt_tokens / load.num_requests / serving.num_prefill_tokens
    waiting = each_s * (0.5 + used / (1.0 - used) * per_request)
    return Arrivals(num_running=high, iteration_s=each_s, waiting_s=waiting, load_frac=used)
