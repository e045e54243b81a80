"""What an iteration of a rollout pool came to, as its line of the record."""

from __future__ import annotations

from collections import Counter

from scalewright.records.hybrid import HybridStep
from scalewright.workload.reasoning.rollout_pool import IterationResult, RolloutPool


def iteration_of(
    pool: RolloutPool, result: IterationResult, *, step: int, trained_version: int | None = None
) -> HybridStep:
    """Counts of the iteration that `pool.end()` has just ended; the caller adds seconds and sandbox outcomes.

    `trained_version`: of the weights that the answers train, where training is behind; otherwise the iteration's own.
    """
    weights = result.version if trained_version is None else trained_version
    carried_ids = set(result.carried)
    carried = [one for one in pool.open if one.id in carried_ids]
    trained = [answer.rollout for group in result.trained for answer in group.answers]
    return HybridStep(
        step=step,
        version=result.version,
        num_finished=len(trained),
        carried_by_cuts=dict(sorted(Counter(one.num_cuts for one in carried).items())),
        carried_by_version=dict(sorted(Counter(_oldest(one.oldest_version, weights) for one in carried).items())),
        num_purged=len(result.purged),
        num_trained_by_staleness=dict(
            sorted(Counter(weights - _oldest(one.oldest_version, weights) for one in trained).items())
        ),
        num_decoded_tokens=result.num_tokens,
        num_trained_tokens=result.num_trained,
        num_wasted_tokens=result.num_wasted,
    )


def _oldest(version: int | None, weights: int) -> int:
    """A rollout without tokens is as new as the weights."""
    return weights if version is None else version
