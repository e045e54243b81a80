"""An RL step under a token budget: its iteration in the steady state, beside waiting for all answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scalewright.costs import generation
from scalewright.costs.breakdown import Breakdown
from scalewright.costs.rollout_simulation import BudgetGain, SimulatedPool, SimulatedRollout, compared_with_all
from scalewright.errors import ConfigError
from scalewright.planner.answer import Answer
from scalewright.planner.stages.rl_times import answers_of
from scalewright.workload.reasoning.rollout_pool import PoolSettings
from scalewright.workload.rl import RlStep

NOTICEABLE_BIAS_FRAC = 0.02
"""Of the mean length, from which on lost answers are worth a word."""
SEEDS = (0, 1, 2)
"""Draws of lengths behind a prediction."""

MOST_TIMES = 8
"""Of a step's answers: in a larger iteration almost none is cut, so that only the prompts count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFigures:
    """Of one iteration under a token budget."""

    time: Breakdown
    """The rollout of one iteration."""
    simulated: SimulatedRollout
    gain: BudgetGain
    """On the rollout, against waiting for all, at equal trained tokens."""
    trained_frac: float
    """Trained tokens of an iteration over those of a step that waits for all."""
    decoded_frac: float
    """Decoded tokens over those of a step that waits for all."""
    mean_len: float
    """Tokens of an answer on average, those that are lost included."""

    @property
    def trained_len(self) -> float:
        """Tokens of a trained answer on average."""
        return self.simulated.num_trained / self.simulated.num_answers

    @property
    def bias_frac(self) -> float:
        """How much longer the trained answers are than all answers; below 0, since the long ones are lost."""
        return self.trained_len / self.mean_len - 1.0

    @property
    def bias_words(self) -> str:
        """One sentence about the answers that the budget loses; empty where it loses hardly any length."""
        if self.bias_frac > -NOTICEABLE_BIAS_FRAC:
            return ""
        return (
            f"biased to short answers: trained ones have {self.trained_len:,.0f} tokens on average instead of "
            f"{self.mean_len:,.0f} ({self.bias_frac:+.0%}), because the budget loses the longest; raise retention"
        )

    def as_dict(self) -> dict[str, Any]:
        one = self.simulated
        return {
            "rollout_gain": self.gain.ratio,
            "rollout_gain_interval": [self.gain.low, self.gain.high],
            "num_seeds": self.gain.num_seeds,
            "num_decoded_tokens": one.num_decoded,
            "num_trained_tokens": one.num_trained,
            "num_wasted_tokens": one.num_wasted,
            "num_read_tokens": one.num_read,
            "carried_by_cuts": {str(cuts): num for cuts, num in one.carried_by_cuts.items()},
            "trained_tokens_by_age": {str(age): num for age, num in one.tokens_by_age.items()},
            "mean_staleness": one.mean_staleness,
            "mean_answer_tokens": self.mean_len,
            "mean_trained_answer_tokens": self.trained_len,
            "length_bias_frac": self.bias_frac,
        }


def pool_of(rl: RlStep, rollout: Answer) -> SimulatedPool:
    """The pool of the step: as many open rollouts as a step has answers, or as the engines hold."""
    layout, figures = rollout.question.layout, rollout.generation
    most = max(MOST_TIMES * rl.num_sequences * rl.response_len, 2 * rl.longest_sequence)
    if rl.token_budget > most:
        raise ConfigError(
            f"rl has budget={rl.token_budget}, more than {MOST_TIMES} times the {rl.num_sequences * rl.response_len:,} "
            f"tokens of a step's answers: give at most budget={most}, or more prompts"
        )
    max_open = min(rl.num_sequences, figures.num_alive * int(layout.dp))
    settings = PoolSettings(
        token_budget=rl.token_budget, retention=rl.retention, num_prompts=rl.num_prompts,
        num_answers=rl.num_responses, max_open=max_open,
    )  # fmt: skip
    constants = rollout.question.machine.constants
    return SimulatedPool(
        settings=settings, answers=answers_of(constants, rl), prompt_len=rl.prompt_len, staleness=rl.staleness,
        lag=rl.lag,
    )  # fmt: skip


def budget_figures(rl: RlStep, rollout: Answer, *, all_done: Breakdown, step_s: float) -> BudgetFigures:
    """The rollout under the budget. `all_done` is the rollout that waits for all, as generation is predicted.

    The simulation gives the ratio of both: a step that waits for all is predicted in one way only.
    """
    pool = pool_of(rl, rollout)
    compared = compared_with_all(
        rollout.generation.serving, pool, num_copies=float(rollout.question.layout.dp), step_s=step_s, seeds=SEEDS
    )
    if compared.simulated.num_answers <= 0.0:
        raise ConfigError(
            f"rl has budget={rl.token_budget} and staleness={rl.staleness}, and no answer is trained on: all are cut, "
            "and older than the bound when they end; raise staleness or budget"
        )
    total = rl.num_sequences * pool.answers.mean
    return BudgetFigures(
        time=generation.scaled(compared.time, float(all_done.total) / compared.all_done_s),
        simulated=compared.simulated,
        gain=compared.gain,
        trained_frac=compared.simulated.num_trained / total,
        decoded_frac=compared.simulated.num_decoded / total,
        mean_len=pool.answers.mean,
    )
