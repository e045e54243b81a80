"""Iterations of a rollout pool before a run: lengths from a distribution, decode times from the cost of iterations.

The pool is the one that trains (workload/reasoning/rollout_pool.py). Only the engines are simulated: all open rollouts
get one token an iteration of the engine, so a jump leads from the end of one answer to that of the next.

    pool = SimulatedPool(settings=settings, answers=answers, prompt_len=512)
    simulated = simulate(pool, seed=0)                        # iterations of the steady state, without a clock
    seconds = rollout_time(serving, simulated, num_copies=4)  # of one iteration, by part
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from scalewright.costs.breakdown import Breakdown, seconds_term
from scalewright.costs.generation import Phases, Serving, phases_time
from scalewright.workload.lengths import LengthDistribution
from scalewright.workload.reasoning.rollout_pool import IterationResult, OpenRollout, PoolSettings, RolloutPool

Floats = NDArray[np.float64]
Running = tuple[int, int, float, str]
"""A rollout that is being written: where it ends and began, in iterations of the engine, its context then, its id."""
NUM_CELLS = 96
"""Cells of an iteration in which running sequences and context are averaged."""
NUM_MEASURED = 4
"""Iterations of the steady state that a simulation counts."""
NUM_WAITING = 2
"""Iterations that wait for all, which do not depend on each other."""
MOST_OPEN = 256
"""Open rollouts under a budget that are simulated: of more, a part stands for all, since none waits for another."""
NUM_LENGTHS = 4096
"""Lengths that are drawn at a time."""
SEEDS = (0, 1, 2, 3, 4)
"""Draws of lengths that a gain is the middle of."""


COUNTS = ("num_read", "num_decoded", "num_trained", "num_wasted", "num_answers")
"""Figures of a simulated rollout that add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPool:
    """A pool and what its engines write."""

    settings: PoolSettings
    answers: LengthDistribution
    prompt_len: int
    staleness: int | None = None
    """Versions that the oldest token of a trained answer may be behind; None: no bound."""
    lag: int = 0
    """Versions that the trainer is ahead of the weights that write."""

    @property
    def waits_for_all(self) -> SimulatedPool:
        """The same answers without a budget."""
        return replace(self, settings=replace(self.settings, token_budget=0))

    @property
    def num_parts(self) -> int:
        """Equal pools that this one is made of, where it is too large to simulate as one."""
        return max(self.settings.max_open // MOST_OPEN, 1) if self.settings.token_budget else 1

    @property
    def part(self) -> SimulatedPool:
        own, num = self.settings, self.num_parts
        changed = {name: max(getattr(own, name) // num, 1) for name in ("token_budget", "max_open", "num_prompts")}
        return self if num == 1 else replace(self, settings=replace(own, **changed))

    @property
    def num_warm_up(self) -> int:
        """Iterations until the ages of open rollouts have settled."""
        budget = self.settings.token_budget
        if not budget:
            return 0
        longest = min(self.answers.longest, self.answers.quantile(0.9999))
        return min(self.settings.retention, math.ceil(longest * self.settings.max_open / budget)) + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRollout:
    """Means of one iteration in the steady state."""

    plan: Phases
    """Iterations of the engine, over all copies."""
    num_read: float
    """Tokens of prompts, and of prefixes that are read again."""
    num_read_each: float
    """Length of a sequence that is read, long ones weighing more."""
    num_decoded: float
    num_trained: float
    """Tokens that are trained on."""
    num_wasted: float
    """Tokens of answers that were given up, that were too old, or that had no other answer in their group."""
    num_answers: float
    """Answers that are trained on."""
    carried_by_cuts: dict[int, float]
    """Rollouts that go on, by how often they were cut."""
    tokens_by_age: dict[int, float]
    """Trained tokens by how many versions they are behind the trainer."""

    def times(self, num: int) -> SimulatedRollout:
        """So many equal pools side by side."""
        return replace(
            self, plan=replace(self.plan, num_running=num * self.plan.num_running),
            carried_by_cuts={cuts: num * count for cuts, count in self.carried_by_cuts.items()},
            tokens_by_age={age: num * count for age, count in self.tokens_by_age.items()},
            **{name: num * getattr(self, name) for name in COUNTS},
        )  # fmt: skip

    @property
    def wasted_frac(self) -> float:
        """Share of the decoded tokens that nothing is trained on.

        Equation  wasted / decoded
        Source    the counts of RolloutPool
        Assumes   a steady state: wasted tokens may have been decoded in an earlier iteration
        Checked   tests/costs/test_rollout_simulation.py: falls with retention
        """
        return self.num_wasted / max(self.num_decoded, 1.0)

    @property
    def mean_staleness(self) -> float:
        """Versions that a trained token is behind, on average.

        Equation  sum over ages of a W_a / sum of W_a,  W_a trained tokens of age a
        Source    a weighted mean
        Assumes   every trained token weighs the same
        Checked   tests/costs/test_rollout_simulation.py: none where all are waited for
        """
        total = sum(self.tokens_by_age.values())
        return sum(age * num for age, num in self.tokens_by_age.items()) / max(total, 1.0)

    @property
    def max_staleness(self) -> int:
        return max(self.tokens_by_age, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGain:
    """What a token budget gives over waiting for all, at equal trained tokens, over several draws of lengths."""

    ratio: float
    low: float
    high: float
    """Smallest and largest of the draws."""
    num_seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetComparison:
    """An iteration under a token budget beside one that waits for all."""

    simulated: SimulatedRollout
    """Under the budget."""
    time: Breakdown
    """Of the rollout under the budget."""
    all_done_s: float
    """Of a rollout that waits for all."""
    gain: BudgetGain


@dataclass(slots=True, kw_only=True)
class _Spans:
    """When each rollout of an iteration was written, in iterations of the engine, and what it had read before."""

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    contexts: list[float] = field(default_factory=list)
    read_again: list[float] = field(default_factory=list)
    """Prompt and prefix of every rollout that goes on."""
    num_fresh: int = 0

    def add(self, start: float, end: float, context: float) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.contexts.append(context)


class _Lengths:
    """Whole lengths of answers, each by its place among all: two pools with one seed get the same answers."""

    def __init__(self, answers: LengthDistribution, *, seed: int, num_answers: int) -> None:
        self._answers, self._rng, self._group = answers, np.random.default_rng(seed), num_answers
        self._drawn: list[int] = []

    def left(self, rollout: OpenRollout) -> int:
        """Tokens that it has still to write."""
        place = rollout.prompt_place * self._group + rollout.index
        while place >= len(self._drawn):
            self._drawn += self._answers.sample(self._rng, NUM_LENGTHS).tolist()
        return self._drawn[place] - rollout.num_tokens


@lru_cache(maxsize=256)
def simulate(pool: SimulatedPool, *, seed: int = 0, num_measured: int = NUM_MEASURED) -> SimulatedRollout:
    """Iterations of the pool in its steady state, counted in iterations of the engine.

    Equation  k_end = k_begin + l of each answer; an iteration ends at the first k with sum over rollouts of
              min(k - k_begin, l) >= Phi
    Source    ling2025 (Ring-1T, arXiv:2510.18855), C3PO++: the steps are those of RolloutPool
    Assumes   every open rollout gets a token in each iteration of the engine; lengths are independent, also inside a
              group; a free place is filled at once
    Checked   tests/costs/test_rollout_simulation.py: a pool that is stepped token by token
    """
    if pool.num_parts > 1:
        return simulate(pool.part, seed=seed, num_measured=num_measured).times(pool.num_parts)
    if not pool.settings.token_budget:
        return _all_done(pool, seed=seed, num_measured=num_measured)
    rollouts = RolloutPool(pool.settings)
    lengths = _Lengths(pool.answers, seed=seed, num_answers=pool.settings.num_answers)
    rows: list[tuple[_Spans, IterationResult]] = []
    carried: Counter[int] = Counter()
    for version in range(pool.num_warm_up + num_measured):
        row = _iteration(rollouts, lengths, version=version, prompt_len=pool.prompt_len)
        if version >= pool.num_warm_up:
            rows.append(row)
            carried.update(one.num_cuts for one in rollouts.open if one.num_cuts)
    return _mean_rollout(pool, rows, carried)


def _all_done(pool: SimulatedPool, *, seed: int, num_measured: int) -> SimulatedRollout:
    """Iterations without a budget: whoever ends makes room for the next, and all are trained on."""
    own, rng = pool.settings, np.random.default_rng(seed)
    num = own.num_prompts * own.num_answers
    lengths = pool.answers.sample(rng, NUM_LENGTHS * -(-num * num_measured // NUM_LENGTHS))
    draws = []
    for written in np.split(lengths[: num * num_measured], num_measured):
        free = [0] * min(own.max_open, num)
        starts = [heapq.heapreplace(free, free[0] + length) for length in written.tolist()]
        spans = _Spans(
            starts=starts, ends=(np.array(starts) + written).tolist(), contexts=[float(pool.prompt_len)] * num,
            num_fresh=num,
        )  # fmt: skip
        tokens, each = _read(spans, pool)
        total = float(written.sum())
        draws.append(
            SimulatedRollout(
                plan=_phases(spans), num_read=tokens, num_read_each=each, num_decoded=total, num_trained=total,
                num_wasted=0.0, num_answers=float(num), carried_by_cuts={}, tokens_by_age={pool.lag: total},
            )
        )  # fmt: skip
    return _mean_of(draws)


def _iteration(
    rollouts: RolloutPool, lengths: _Lengths, *, version: int, prompt_len: int
) -> tuple[_Spans, IterationResult]:
    spans, budget = _Spans(), rollouts.settings.token_budget
    rollouts.begin(version)
    running: list[Running] = []
    for rollout in rollouts.open:
        _start(running, spans, rollout, lengths, step=0, prompt_len=prompt_len)
    step = num_written = stop = 0
    while running:
        end, start, context, name = running[0]
        if budget:
            stop = step + -(-(budget - num_written) // len(running))
            if end > stop:
                break
        num_written += len(running) * (end - step)
        step = end
        heapq.heappop(running)
        spans.add(start, end, context)
        rollouts.counted(name, end - start, version)
        for rollout in rollouts.finished(name, "length"):
            _start(running, spans, rollout, lengths, step=step, prompt_len=prompt_len)
    for _, start, context, name in running:  # cut
        spans.add(start, stop, context)
        rollouts.counted(name, stop - start, version)
    return spans, rollouts.end()


def _start(
    running: list[Running], spans: _Spans, rollout: OpenRollout, lengths: _Lengths, *, step: int, prompt_len: int
) -> None:
    before = rollout.num_tokens
    if before:
        spans.read_again.append(prompt_len + before)
    else:
        spans.num_fresh += 1
    heapq.heappush(running, (step + lengths.left(rollout), step, float(prompt_len + before), rollout.id))


def _mean_rollout(
    pool: SimulatedPool, rows: Sequence[tuple[_Spans, IterationResult]], carried: Counter[int]
) -> SimulatedRollout:
    num = float(len(rows))
    plans = [_phases(spans) for spans, _ in rows]
    read = [_read(spans, pool) for spans, _ in rows]
    ages: Counter[int] = Counter()
    num_answers = num_old = 0
    for _, result in rows:
        for answer in (one.rollout for group in result.trained for one in group.answers):
            by_age = {result.version - version + pool.lag: count for version, count in answer.version_runs}
            if pool.staleness is not None and max(by_age, default=0) > pool.staleness:
                num_old += answer.num_tokens
                continue
            num_answers += 1
            ages.update(by_age)
    return SimulatedRollout(
        plan=Phases(
            num_steps=np.concatenate([plan.num_steps for plan in plans]) / num,
            num_running=np.concatenate([plan.num_running for plan in plans]),
            num_context=np.concatenate([plan.num_context for plan in plans]),
        ),
        num_read=fmean(tokens for tokens, _ in read),
        num_read_each=fmean(length for _, length in read),
        num_decoded=fmean(result.num_tokens for _, result in rows),
        num_trained=sum(ages.values()) / num,
        num_wasted=(sum(result.num_wasted for _, result in rows) + num_old) / num,
        num_answers=num_answers / num,
        carried_by_cuts={cuts: count / num for cuts, count in sorted(carried.items())},
        tokens_by_age={age: count / num for age, count in sorted(ages.items())},
    )


def _phases(spans: _Spans) -> Phases:
    """Running sequences and their context in cells of an iteration, narrow where many answers end."""
    starts, ends, contexts = (np.array(column) for column in (spans.starts, spans.ends, spans.contexts))
    grid = np.linspace(0.0, 1.0, NUM_CELLS)
    edges = np.unique(np.concatenate([[0.0], np.quantile(ends, grid), grid * ends.max()]))
    # Until k a rollout wrote w = min(k, end) - start tokens and attended to c w + w^2 / 2. That is what it would have
    # by k if it never ended, with its true figures in place of those once it has ended.
    begun, over = _sums(edges, starts, starts, contexts), _sums(edges, ends, starts, contexts)
    lengths = ends - starts
    kept = _sum_up_to(edges, ends, lengths), _sum_up_to(edges, ends, lengths * (contexts + lengths / 2.0))
    tokens = np.diff(begun[0] - over[0] + kept[0])
    attended = np.diff(begun[1] - over[1] + kept[1])
    widths = np.diff(edges)
    return Phases(num_steps=widths, num_running=tokens / widths, num_context=attended / np.maximum(tokens, 1e-9))


def _sum_up_to(edges: Floats, places: Floats, values: Floats) -> Floats:
    """Sum of the values whose place is below each edge."""
    order = np.argsort(places)
    total = np.concatenate([[0.0], np.cumsum(values[order])])
    return np.asarray(total[np.searchsorted(places[order], edges)])


def _sums(edges: Floats, places: Floats, starts: Floats, contexts: Floats) -> tuple[Floats, Floats]:
    """Sums of k - s and of c (k - s) + (k - s)^2 / 2 over the rollouts whose place is below each edge k."""
    num, first, square, held, held_first = (
        _sum_up_to(edges, places, values)
        for values in (np.ones_like(starts), starts, starts**2, contexts, contexts * starts)
    )
    return num * edges - first, held * edges - held_first + (num * edges**2 - 2.0 * edges * first + square) / 2.0


def _read(spans: _Spans, pool: SimulatedPool) -> tuple[float, float]:
    """Tokens that are read, a prompt once for its answers, and the length of a sequence, long ones weighing more."""
    num_prompts, prompt = spans.num_fresh / pool.settings.num_answers, float(pool.prompt_len)
    again = np.array(spans.read_again)
    tokens = num_prompts * prompt + float(again.sum())
    squares = num_prompts * prompt**2 + float((again**2).sum())
    return tokens, squares / max(tokens, 1.0)


def rollout_time(serving: Serving, simulated: SimulatedRollout, *, num_copies: float, step_s: float = 0.0) -> Breakdown:
    """Seconds of the rollout of one iteration.

    Equation  sum over cells of k iteration(n / c, context), prompts and prefixes read beside them;  c copies;  k s more
              for what the framework adds to each iteration
    Source    yu2022 (Orca), section 3.1: iteration-level scheduling; the cells are those of `simulate`
    Assumes   copies take rollouts as they have room, so that each has its share; one sequence is left until the end;
              the cache of a cut rollout is thrown away with the old weights, and its prefix is read again
    Checked   tests/costs/test_rollout_simulation.py; benchmarks/c3po_predicted.py: measured iterations
    """
    plan = replace(simulated.plan, num_running=np.maximum(simulated.plan.num_running / num_copies, 1.0))
    time = phases_time(
        serving, plan, num_prompt_tokens=simulated.num_read / num_copies, num_each=simulated.num_read_each
    )
    framework = seconds_term(
        "framework", plan.num_all_steps * step_s, "stage.framework_step_s", num_steps=plan.num_all_steps
    )
    return replace(time, name="rollout", parts=(*time.parts, framework), formula="rollout_simulation.rollout_time")


def compared_with_all(
    serving: Serving, pool: SimulatedPool, *, num_copies: float, step_s: float = 0.0, seeds: Sequence[int] = SEEDS
) -> BudgetComparison:
    """The rollout of an iteration under the budget, and one that waits for all.

    Equation  gain = (T / W) / (T_Phi / W_Phi),  W the trained tokens of an iteration
    Source    ling2025 (Ring-1T, arXiv:2510.18855): C3PO++ is about 2.5 times as fast on rollout
    Assumes   tokens of answers that were given up are worth nothing; the gain is the middle of the draws, whose range
              holds the true median in 94 % of cases with five draws
    Checked   tests/costs/test_rollout_simulation.py: none where all answers are equal, more with a longer tail
    """

    def time_of(one: SimulatedRollout) -> Breakdown:
        return rollout_time(serving, one, num_copies=num_copies, step_s=step_s)

    budget = [simulate(pool, seed=seed) for seed in seeds]
    waits = [simulate(pool.waits_for_all, seed=seed, num_measured=NUM_WAITING) for seed in seeds]
    ratios = [
        float(time_of(one).total) / one.num_trained * other.num_trained / float(time_of(other).total)
        for one, other in zip(waits, budget, strict=True)
    ]
    mean = _mean_of(budget)
    return BudgetComparison(
        simulated=mean,
        time=time_of(mean),
        all_done_s=fmean(float(time_of(one).total) for one in waits),
        gain=BudgetGain(ratio=median(ratios), low=min(ratios), high=max(ratios), num_seeds=len(ratios)),
    )


def _mean_of(draws: Sequence[SimulatedRollout]) -> SimulatedRollout:
    num = len(draws)
    plan = Phases(
        num_steps=np.concatenate([one.plan.num_steps for one in draws]) / num,
        num_running=np.concatenate([one.plan.num_running for one in draws]),
        num_context=np.concatenate([one.plan.num_context for one in draws]),
    )
    return SimulatedRollout(
        plan=plan, num_read_each=fmean(one.num_read_each for one in draws),
        carried_by_cuts=_mean_counts([one.carried_by_cuts for one in draws]),
        tokens_by_age=_mean_counts([one.tokens_by_age for one in draws]),
        **{name: fmean(getattr(one, name) for one in draws) for name in COUNTS},
    )  # fmt: skip


def _mean_counts(draws: Sequence[dict[int, float]]) -> dict[int, float]:
    keys = sorted({key for one in draws for key in one})
    return {key: fmean(one.get(key, 0.0) for one in draws) for key in keys}
