"""How many sequences run, for how many iterations and with how much context: continuous batching over lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scalewright.costs.breakdown import Breakdown
from scalewright.costs.generation.iteration import iteration
from scalewright.costs.generation.serving import Serving
from scalewright.workload.lengths import LengthDistribution

Floats = NDArray[np.float64]
NUM_CELLS = 64
"""Cells in which the falling number of running sequences is averaged."""
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
        """Prompt tokens that are read in all."""
        return self.num_requests * (self.prompts.mean / self.num_per_prompt + self.num_read_again)


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


def phases(load: Load, *, num_prefill_tokens: float, size_error_frac: float = 0.0) -> Phases:
    """Decode iterations until the last answer ends.

    Equation  all at once (B <= c):  n(t) = B S(t) run in iteration t, E[max of B] iterations
              in turns:  c run for (B L - c A) / c iterations, then they drain: n(t) = c R(t), R(t) = int_t S / L
              in waves:  equal answers that start together end together: c run for floor(B/c) L, then the rest for L
    Source    yu2022 (Orca), section 3.1: iteration-level scheduling; renewal theory for A = E[L^2]/2L and R
    Assumes   a finished answer is replaced at once; waves and turns mix by how far prompts delay the starts and how
              much lengths differ
    Checked   tests/costs/test_schedule.py: an event simulation of the same queue, 11 cases within 6 %
    """
    most = min(load.num_at_once, load.num_requests)
    if most >= load.num_requests:
        return _draining(load.num_requests, load, _cells(load.answers), mixed_frac=0.0)
    spread = starts_spread_frac(
        load, num_at_once=most, num_prefill_tokens=num_prefill_tokens, size_error_frac=size_error_frac
    )
    groups = []
    if spread < 1.0:
        groups.append((1.0 - spread, _waves(load, most)))
    if spread > 0.0:
        groups.append((spread, _turns(load, most)))
    return Phases(
        num_steps=np.concatenate([share * group.num_steps for share, group in groups]),
        num_running=np.concatenate([group.num_running for _, group in groups]),
        num_context=np.concatenate([group.num_context for _, group in groups]),
    )


def starts_spread_frac(load: Load, *, num_at_once: float, num_prefill_tokens: float, size_error_frac: float) -> float:
    """How far apart answers of one wave end, over the length of an answer; 1 where there are no waves left.

    Equation  min(1, c P / (T L) + 2 sqrt(B/c) v + u B/c),  v standard deviation over mean of the answers, u the error
              of the memory model
    Source    each turn adds the variance of one answer; prompts of a wave start P / T iterations apart
    Assumes   starts spread evenly; whole waves mean nothing where c is not known as well
    Checked   tests/costs/test_schedule.py: an event simulation of the same queue
    """
    answers = load.answers
    delay = num_at_once * load.prompts.mean / load.num_per_prompt / num_prefill_tokens / answers.mean
    variance = max(2.0 * answers.mean_age / answers.mean - 1.0, 0.0)
    turns = load.num_requests / num_at_once
    return min(1.0, delay + 2.0 * math.sqrt(variance * turns) + size_error_frac * turns)


def _waves(load: Load, most: float) -> Phases:
    """Whole waves, then what is left over."""
    whole = math.floor(load.num_requests / most + 1e-9)
    rest = load.num_requests - whole * most
    groups = [(whole, most), (1, rest)] if rest > 1e-6 else [(whole, most)]
    steps = np.array([turns * load.answers.mean for turns, _ in groups])
    context = np.full(len(groups), load.prompts.mean + load.answers.mean_age)
    return Phases(num_steps=steps, num_running=np.array([running for _, running in groups]), num_context=context)


def _turns(load: Load, most: float) -> Phases:
    """A full batch until nobody waits, then its answers end one after the other.

    After many turns the batch is a mix of old and new answers; in the first, all are equally young.
    """
    length, mixed = load.answers.mean, 1.0 - most / load.num_requests
    age = mixed * load.answers.mean_age
    left = min(most * ((1.0 - mixed) * length + age), load.num_requests * length)
    full = (load.num_requests * length - left) / most
    drain = _draining(most, load, _cells(load.answers), mixed_frac=mixed)
    least = load.answers.expected_max(load.num_requests) - full  # the longest answer of all has to be written whole
    steps = drain.num_steps * max(least / drain.num_all_steps, 1.0)
    scale = left / float(np.sum(steps * drain.num_running))
    return Phases(
        num_steps=np.concatenate([[full], steps]),
        num_running=np.concatenate([[most], drain.num_running * scale]),
        num_context=np.concatenate([[load.prompts.mean + load.answers.mean_age], drain.num_context]),
    )


def _cells(lengths: LengthDistribution) -> Floats:
    """Edges between 0 and the longest answer, narrow where answers end."""
    if lengths.is_fixed:
        return np.linspace(0.0, lengths.mean, 9)
    fracs = np.concatenate([np.linspace(0.0, 0.9, NUM_CELLS // 2), 1.0 - np.geomspace(0.09, 1e-6, NUM_CELLS // 2)])
    edges = np.unique(np.concatenate([[0.0], lengths.quantiles(fracs)]))
    return edges if math.isinf(lengths.longest) else np.unique(np.append(edges, lengths.longest))


def _draining(num: float, load: Load, edges: Floats, *, mixed_frac: float) -> Phases:
    """Sequences that end one after the other: all young, or a share of them on their way."""
    lengths, middle, widths = load.answers, (edges[1:] + edges[:-1]) / 2.0, np.diff(edges)
    young = lengths.survivals(middle)
    beyond = np.cumsum((young * widths)[::-1])[::-1]
    old = (beyond - young * widths / 2.0) / beyond[0]
    alive = (1.0 - mixed_frac) * young + mixed_frac * old
    any_alive = 1.0 - (1.0 - alive) ** num
    running = num * alive / np.maximum(any_alive, 1e-12)
    age = (1.0 - mixed_frac) * middle + mixed_frac * (lengths.mean_age + middle / 2.0)
    return Phases(num_steps=widths * any_alive, num_running=running, num_context=load.prompts.mean + age)


def load_time(serving: Serving, load: Load) -> tuple[Breakdown, Phases]:
    """Seconds until the last of a set of requests is answered, by part, and the decode iterations behind them.

    Equation  M iteration(n, c, P / M) + (N - M) iteration(n, c, 0),  M = min(P / T, N) of N iterations read P prompt
              tokens, T at once
    Source    agrawal2024 (Sarathi-Serve, arXiv:2403.02310), section 4: prompts ride along with decodes
    Assumes   prompts are read while others decode; iterations of both kinds have the same running sequences
    Checked   tests/golden/test_generation_table.py: published tokens/s
    """
    budget = serving.num_prefill_tokens * serving.pp
    error = serving.machine.constants.memory_error.value
    plan = phases(load, num_prefill_tokens=budget, size_error_frac=error)
    return phases_time(serving, plan, num_prompt_tokens=load.num_prompt_tokens, num_each=load.prompts.mean), plan


def phases_time(serving: Serving, plan: Phases, *, num_prompt_tokens: float, num_each: float) -> Breakdown:
    """Seconds of decode iterations that read so many prompt tokens on their way, `num_each` of a prompt, by part."""
    num_reading = min(math.ceil(num_prompt_tokens / (serving.num_prefill_tokens * serving.pp)), plan.num_all_steps)
    share = num_reading / plan.num_all_steps
    reading = iteration(
        serving, num_sequences=plan.num_running, num_context=plan.num_context,
        num_prompt_tokens=num_prompt_tokens / max(num_reading, 1e-9), prompt_len=num_each,
    )  # fmt: skip
    decoding = iteration(serving, num_sequences=plan.num_running, num_context=plan.num_context)
    return _breakdown(reading, share * plan.num_steps, decoding, (1.0 - share) * plan.num_steps)


def median_wait_s(serving: Serving, plan: Phases) -> float:
    """The median time between two tokens of an answer.

    Equation  the iteration below which half of all tokens are written; n(t) tokens in iteration t
    Source    as `bench generate` and public load generators count: every token weighs the same
    Assumes   iterations that read prompts are few beside those that only decode
    Checked   tests/costs/test_schedule.py: one size of batch gives its step; a tail of few answers does not count
    """
    times = np.asarray(iteration(serving, num_sequences=plan.num_running, num_context=plan.num_context).total)
    order = np.argsort(times)
    tokens = np.cumsum((plan.num_steps * plan.num_running)[order])
    return float(times[order][np.searchsorted(tokens, tokens[-1] / 2.0)])


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

    Equation  M iteration(n, c, P / M) + (N - M) iteration(n, c, 0),  M = min(B ceil(P / (B T)), N), N = B L / n
    Source    agrawal2024 (Sarathi-Serve, arXiv:2403.02310), section 4: prompts ride along with decodes
    Assumes   prompts arrive one by one, so that each is read in an iteration of its own until all iterations read
    Checked   tests/costs/test_schedule.py: the offered rate is carried below saturation
    """
    num_steps = load.num_requests * load.answers.mean / max(num_running, 1e-9)
    running, context = np.array([num_running]), np.array([load.prompts.mean + load.answers.mean_age])
    plan = Phases(num_steps=np.array([num_steps]), num_running=running, num_context=context)
    per_request = math.ceil(load.num_prompt_tokens / load.num_requests / serving.num_prefill_tokens)
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
