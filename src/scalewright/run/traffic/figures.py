"""From answers to the figures that people quote: one row for each load.

time_s counts from the start of the load to its last token, added up over the attempts of a run. ttft_* counts from the
moment at which a request was due (in a closed load with a limit: when it got a place), queued_ttft_* from the moment at
which it stood in the queue, itl_* are times between tokens of one answer over all answers, and
tokens_per_s_each is what one reader sees: tokens after the first over their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.records.answers import AnswerLine
from scalewright.run.traffic.load import LoadResult

QUANTILES = {"median": 0.5, "p95": 0.95, "p99": 0.99}


def load_row(
    answers: Sequence[AnswerLine], result: LoadResult | None, *, words: str, rate: float | None
) -> dict[str, Any]:
    """The figures of one load. `result` is of the last attempt; None where it was stopped or failed."""
    time_s = load_time_s(answers)
    num_tokens = sum(answer.num_tokens for answer in answers)
    num_prompt = sum({(a.request): a.num_prompt for a in answers}.values())
    each = [
        (answer.num_tokens - 1) / sum(answer.gaps_s) for answer in answers if answer.num_tokens > 1 and answer.gaps_s
    ]
    alive_s = sum(answer.end_s - answer.first_s for answer in answers)
    row: dict[str, Any] = {
        "load": words,
        "requests_per_s": rate,
        "num_answers": len(answers),
        "num_prompt_tokens": num_prompt,
        "num_tokens": num_tokens,
        "time_s": time_s,
        "tokens_per_s": num_tokens / time_s,
        "tokens_per_s_each": float(np.median(each)) if each else None,
        "answers_per_s": len(answers) / time_s,
        "mean_running": alive_s / time_s,
        "mean_context": _mean_context(answers),
        **_quantiles("ttft", [answer.ttft_s for answer in answers]),
        **_quantiles("queued_ttft", [answer.queued_ttft_s for answer in answers]),
        **_quantiles("itl", [gap_s for answer in answers for gap_s in answer.token_gaps_s]),
        "late_s": max(answer.sent_s - answer.arrival_s for answer in answers),
        "num_attempts": len({answer.attempt for answer in answers}),
    }
    return row | ({} if result is None else _engine_figures(result, num_tokens))


def load_time_s(answers: Sequence[AnswerLine]) -> float:
    """From the start of the load to the last token, over all attempts."""
    ends_s: dict[int, float] = {}
    for answer in answers:
        ends_s[answer.attempt] = max(answer.end_s, ends_s.get(answer.attempt, 0.0))
    return sum(ends_s.values())


def _mean_context(answers: Sequence[AnswerLine]) -> float:
    """Tokens that a decoded token attends to, on average."""
    weights = [answer.num_tokens for answer in answers]
    contexts = [answer.num_prompt + answer.num_tokens / 2.0 for answer in answers]
    return float(np.average(contexts, weights=weights)) if sum(weights) else 0.0


def _quantiles(name: str, values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {f"{name}_{words}_s": None for words in QUANTILES}
    ordered: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    return {f"{name}_{words}_s": float(np.quantile(ordered, frac)) for words, frac in QUANTILES.items()}


def _engine_figures(result: LoadResult, num_tokens: int) -> dict[str, Any]:
    cache = result.cache_fracs
    rate = result.read_bytes / result.decode_s if result.read_bytes and result.decode_s else None
    prefill = result.prefill_tokens / result.prefill_s if result.prefill_s else None
    return {
        "busy_frac": result.busy_frac,
        "cache_mean_frac": float(np.mean(cache)) if cache else None,
        "cache_most_frac": max(cache) if cache else None,
        "num_preemptions": result.num_preemptions,
        "num_steps": result.num_steps,
        "decode_bytes_per_s": rate,
        "decode_bytes_per_token": result.read_bytes / result.num_decoded
        if result.read_bytes and result.num_decoded
        else None,
        "prefill_tokens_per_s": prefill,
        "energy_j": result.energy_j,
        "energy_of": result.energy_of,
        "energy_j_per_token": result.energy_j / num_tokens if result.energy_j and num_tokens else None,
        "rank_gap_frac": result.rank_gap_frac,
        "rank_busy_s": list(result.rank_busy_s),
    }
