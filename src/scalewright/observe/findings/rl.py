"""Reinforcement learning: generation, long answers, ranks that wait, the KV cache, staleness, mismatch, reward."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from scalewright.observe.evidence.evidence import Evidence
from scalewright.observe.evidence.facts import StepFact
from scalewright.observe.evidence.series import setting_number, setting_spots, step_series
from scalewright.observe.findings.rule import FindingContext, Gain, Seen, finding_rule
from scalewright.observe.findings.words import percent, seconds

GENERATION_FRAC = 0.7
"""Share of a step in generation from which it is a warning; 50 to 70 % is usual for reasoning models."""
NOTED_FRAC = 0.5
TAIL_FACTOR = 4.0
"""Longest over mean answer from which the longest ones decide the time."""
IDLE_FRAC = 0.4
GAP_FRAC = 0.2
CACHE_FULL_FRAC = 0.95
PREEMPTED_FRAC = 0.1
MISMATCH_KL = 0.01
MASKED_FRAC = 0.05
LEAST_ESS_FRAC = 0.8
MEANS = ("response_length/mean", "completions/mean_length", "length_mean", "completions/mean_terminated_length")
LONGEST = ("response_length/max", "completions/max_length", "length_max")
KLS = ("kl_engines", "mismatch_kl", "Mismatch KL", "sampling/sampling_logp_difference/mean",
       "rollout_corr/kl", "training/rollout_probs_diff_mean")  # fmt: skip


def rl_steps(evidence: Evidence) -> Sequence[StepFact]:
    """Steps of the first rank that have a generation part."""
    series = step_series(evidence)
    steps = series.steady.get(series.ranks[0], ()) if series.ranks else ()
    return [one for one in steps if one.parts_s.get("generation") and one.time_s]


@finding_rule(
    id="generation-bound",
    severity="warning",
    role="slowed",
    title="Generation takes most of a step",
    why="Answers are written token by token, which reads all weights for each token. The trainer waits meanwhile.",
    advice="Larger batches in the engine, quantised weights for generation, a token budget with partial rollouts, or "
    "engines on devices of their own, one step ahead. `scalewright predict --rl ...` compares the modes.",
    source="Facts of RL steps of NeMo-RL and verl; verl issues 658 and 4348",
    because_of=("kv-thrashing", "long-tail"),
)
def generation_bound(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    steps = rl_steps(evidence)
    if len(steps) < 3:
        return
    shares = [one.parts_s["generation"] / (one.time_s or 1.0) for one in steps]
    share = min(statistics.median(shares), 1.0)
    if share < NOTED_FRAC:
        return
    one = steps[len(steps) // 2]
    yield Seen(
        message=f"generation takes {percent(share)} of a step ({seconds(one.parts_s['generation'])} of "
        f"{seconds(one.time_s or 0.0)})",
        spots=(one.spot,), certainty="certain", score=share - NOTED_FRAC, numbers={"generation_frac": share},
        severity=None if share >= GENERATION_FRAC else "info",
        next_step="raise the engine's batch, set a token budget, or give generation devices of its own",
        gain=Gain(
            step_time_frac=min(share, 1.0 - share),
            how="at most: the shorter of generation and training hidden behind the longer, one step ahead",
        ),
    )  # fmt: skip


@finding_rule(
    id="long-tail",
    severity="warning",
    role="slowed",
    title="A few long answers keep everybody waiting",
    why="An iteration ends with its last answer. While the longest ones are written, most of the engine's places are "
    "empty.",
    advice="A token budget with partial rollouts (`scalewright reason grpo --token-budget`), more prompts than needed "
    "with the first answers taken, or a limit of the length.",
    source="verl issues 658 and 4348, OpenRLHF PR 1190: ranks from 73 to 167 s",
)
def long_tail(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    running, most = setting_number(evidence, "answers.mean_running"), setting_number(evidence, "answers.num_at_once")
    longest, mean = setting_number(evidence, "answers.longest"), setting_number(evidence, "answers.mean")
    if longest and mean and running and most and longest >= TAIL_FACTOR * mean:
        idle = 1.0 - running / most
        if idle >= IDLE_FRAC:
            yield Seen(
                message=f"the longest answer has {longest:.0f} tokens, the mean {mean:.0f}: {percent(idle)} of the "
                f"engine's "
                "places are empty while the last ones are written",
                spots=setting_spots(evidence, "answers.longest", "answers.mean_running"), certainty="certain",
                score=idle,
                next_step="use a token budget with partial rollouts, or limit the length",
                numbers={"longest": longest, "mean": mean},
                gain=Gain(step_time_frac=idle, how="at most: all places of the engine busy to the end"),
            )  # fmt: skip
        return
    steps = rl_steps(evidence)
    tails = [(_value(one, LONGEST), _value(one, MEANS), one) for one in steps]
    known = [(high / low, one) for high, low, one in tails if high and low]
    if len(known) < 3 or statistics.median(ratio for ratio, _ in known) < TAIL_FACTOR:
        return
    ratio, one = sorted(known, key=lambda pair: pair[0])[len(known) // 2]
    share = one.parts_s["generation"] / (one.time_s or 1.0)
    yield Seen(
        message=f"the longest answer of a step is {ratio:.1f} times as long as the mean, and generation takes "
        f"{percent(share)} of the step",
        spots=(one.spot,), certainty="likely", score=share * (1.0 - TAIL_FACTOR / ratio / 2.0),
        severity=None if share >= NOTED_FRAC else "info",
        next_step="use a token budget with partial rollouts, or limit the length",
        gain=Gain(
            step_time_frac=share * (1.0 - 2.0 / ratio), how="at most: an iteration ends after twice the mean answer"
        ),
    )  # fmt: skip


def _value(one: StepFact, names: Sequence[str]) -> float | None:
    return next((one.values[name] for name in names if name in one.values), None)


@finding_rule(
    id="rank-gap",
    severity="warning",
    role="slowed",
    title="Ranks of a stage have unequal work",
    why="Ranks get different numbers of tokens to generate or to train on. The fast ones wait in every step.",
    advice="Balance sequences by tokens, not by number; share one queue of prompts between engines.",
    source="verl issue 658: ranks from 73 s to 167 s",
    because_of=("long-tail", "straggler-rank", "busy-machine"),
)
def rank_gap(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    for name in ("stage.rank_gap_frac", "answers.rank_gap_frac"):
        gap = setting_number(evidence, name)
        if gap is not None and gap >= GAP_FRAC:
            yield Seen(
                message=f"the slowest rank works {percent(gap)} longer than the fastest", certainty="certain",
                score=gap / 2,
                spots=setting_spots(evidence, name), next_step="balance the sequences of ranks by their tokens",
                numbers={"gap_frac": gap},
                gain=Gain(step_time_frac=gap / 2, how="measured: all ranks as long as the mean of both"),
            )  # fmt: skip
            return


@finding_rule(
    id="kv-thrashing",
    severity="warning",
    role="slowed",
    title="The KV cache is full, and answers are begun again",
    why="An engine without a free page stops an answer, drops its keys and values, and computes them again later.",
    advice="Give the engine more memory (gpu_memory_utilization), fewer answers at once, an 8-bit cache, or more "
    "devices.",
    source="vLLM documentation, optimization: preemption",
)
def kv_thrashing(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    preempted, answers = (setting_number(evidence, f"answers.{name}") for name in ("num_preemptions", "num_answers"))
    if preempted and answers and preempted / answers >= PREEMPTED_FRAC:
        yield Seen(
            message=f"{preempted:.0f} of {answers:.0f} answers were stopped and begun again for want of cache",
            spots=setting_spots(evidence, "answers.num_preemptions"), certainty="certain", score=0.3,
            next_step="give the cache more memory, or run fewer answers at once",
            numbers={"num_preemptions": preempted},
        )  # fmt: skip
        return
    full = [one for one in evidence.steps if _is_full(one)]
    if len(full) >= 3:
        yield Seen(
            message=f"the KV cache is {percent(CACHE_FULL_FRAC)} full or more in {len(full)} reports while requests "
            f"wait",
            spots=tuple(one.spot for one in full[:3]), certainty="likely", score=0.2,
            next_step="raise gpu_memory_utilization or lower max_num_seqs",
        )  # fmt: skip


def _is_full(one: StepFact) -> bool:
    used = next((one.values[key] for key in one.values if "cache usage" in key.lower() or key == "kv_cache_frac"), None)
    waiting = next((one.values[key] for key in one.values if key.lower().startswith(("waiting", "#queue"))), 0.0)
    limit = CACHE_FULL_FRAC if used is not None and used <= 1.0 else 100.0 * CACHE_FULL_FRAC
    return used is not None and used >= limit and waiting > 0


@finding_rule(
    id="stale-rollouts",
    severity="warning",
    role="suspect",
    title="Answers are older than the bound of staleness",
    why="Answers that older weights wrote pull the policy back. Beyond a few versions, training becomes unstable.",
    advice="Lower the number of rollouts in flight, drop answers beyond the bound, or correct by importance weights.",
    source="Fu et al. 2025, AReaL (arXiv:2505.24298); Wu et al. 2025, C3PO++ in Ring-1T (arXiv:2510.18855)",
)
def stale_rollouts(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    bound = setting_number(evidence, "hybrid/staleness")
    old = [one for one in evidence.steps if bound and one.values.get("hybrid/staleness_max", 0.0) > bound]
    if old and bound:
        most = max(one.values["hybrid/staleness_max"] for one in old)
        yield Seen(
            message=f"answers of {len(old)} steps are up to {most:.0f} versions old, the bound is {bound:.0f}",
            spots=tuple(one.spot for one in old[:3]), certainty="certain", score=0.3, numbers={"most": most},
            next_step="drop answers beyond the bound, or lower the rollouts in flight",
        )  # fmt: skip


@finding_rule(
    id="engine-mismatch",
    severity="warning",
    role="suspect",
    title="Engine and trainer disagree about the probabilities of tokens",
    why="The engine that writes answers and the trainer compute the same model with different kernels and "
    "precisions. Where they disagree, the gradient is of another policy, and training may collapse.",
    advice="Compute both in the same precision, use a correction (truncated importance sampling, IcePop), and check "
    "that weights arrive: the version of the engine, and a checksum.",
    source="Yao et al. 2025, on off-policy rollouts in RL frameworks; IcePop (Ring-1T, arXiv:2510.18855)",
)
def engine_mismatch(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    steps = [one for one in step_series(evidence).by_rank.get(0, ()) if one.values]
    kls = [(value, one) for one in steps if (value := _value(one, KLS)) is not None]
    masked = [(one.values["masked_frac"], one) for one in steps if "masked_frac" in one.values]
    sizes = [(one.values["effective_sample_frac"], one) for one in steps if "effective_sample_frac" in one.values]
    words, one = [], None
    if len(kls) >= 3 and statistics.median(value for value, _ in kls) >= MISMATCH_KL:
        words.append(f"a KL divergence of {statistics.median(value for value, _ in kls):.3g}")
        one = kls[len(kls) // 2][1]
    if len(masked) >= 3 and statistics.median(value for value, _ in masked) >= MASKED_FRAC:
        words.append(f"{percent(statistics.median(value for value, _ in masked))} of the tokens masked")
        one = one or masked[len(masked) // 2][1]
    if len(sizes) >= 3 and statistics.median(value for value, _ in sizes) < LEAST_ESS_FRAC:
        words.append(f"an effective sample of {percent(statistics.median(value for value, _ in sizes))}")
        one = one or sizes[len(sizes) // 2][1]
    if words and one is not None:
        yield Seen(
            message=f"engine and trainer disagree: {', '.join(words)}", spots=(one.spot,), certainty="likely",
            score=0.4,
            next_step="use the same precision in both, check the weight sync, and correct the rest (IcePop)",
        )  # fmt: skip


MUCH_MORE = 1.5
"""A reward that grows by this factor without one more right answer pays for something else."""


@finding_rule(
    id="reward-hacking",
    severity="warning",
    role="suspect",
    title="The reward grows and the answers get worse",
    why="A policy learns what the reward measures. If the reward grows while held-out accuracy falls, or while answers "
    "collapse to a few tokens, it learned to please the measure.",
    advice="Read answers of late steps (rollouts.jsonl), add checks to the reward, and stop at the best held-out "
    "score.",
    source="Gao et al. 2022, Scaling Laws for Reward Model Overoptimization (arXiv:2210.10760)",
)
def reward_hacking(evidence: Evidence, context: FindingContext) -> Iterator[Seen]:
    del context
    steps = [one for one in step_series(evidence).by_rank.get(0, ()) if one.reward is not None]
    if len(steps) < 20:
        return
    rewards = [one.reward or 0.0 for one in steps]
    early, late = _ends(rewards)
    if late - early < 0.1 * max(abs(early), abs(late), 1e-9):
        return
    for name, drop in (("accuracy_frac", 0.05), ("correct_frac", 0.1)):
        known = [one for one in steps if name in one.values]
        if len(known) >= 3:
            first, last = known[0].values[name], known[-1].values[name]
            best = max(one.values[name] for one in known)
            if last <= min(first, best) - drop:
                yield _hacking(f"{name} falls from {first:.3g} to {last:.3g}", early, late, (known[0], known[-1]))
                return
    right = [one.values["correct_frac"] for one in steps if "correct_frac" in one.values]
    if len(right) == len(steps) and late >= MUCH_MORE * max(early, 0.0) and late > 0.0:
        first, last = _ends(right)
        if last <= first:
            words = f"no more answers are right ({percent(first)} at first, {percent(last)} at last)"
            yield _hacking(words, early, late, (steps[0], steps[-1]))
            return
    lengths = [one.response_len for one in steps if one.response_len]
    if len(lengths) >= 20:
        first_len, last_len = _ends(lengths)
        if last_len < 0.2 * first_len:
            words = f"answers shrink from {first_len:.0f} to {last_len:.0f} tokens"
            yield _hacking(words, early, late, (steps[0], steps[-1]))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    fifth = max(len(values) // 5, 1)
    return statistics.fmean(values[:fifth]), statistics.fmean(values[-fifth:])


def _hacking(words: str, early: float, late: float, steps: Sequence[StepFact]) -> Seen:
    return Seen(
        message=f"the reward rises from {early:.3g} to {late:.3g} while {words}",
        spots=tuple(one.spot for one in steps),
        certainty="possible", score=0.3, next_step="read answers of late steps, and compare with an earlier checkpoint",
    )  # fmt: skip
