"""What a prediction of generation is worth: its interval, what lies outside the published rates, and the bound."""

from __future__ import annotations

from scalewright.costs.generation.serving import Serving


def generation_interval_s(
    *, time_s: float, serving: Serving, is_first_token: bool = False, least_s: float = 0.0
) -> tuple[float, float]:
    """The 90 % interval of a predicted time of generation.

    Equation  [q05, q95] x t, each to the power e (1 + w u) for u things that few published rates share; e = 1 for
              engines of many published rates; ends of their own for a first token; never below the bound `least_s`
    Source    published rates, each source predicted by constants fitted to the others (benchmarks/fit_generation.py)
    Assumes   tomorrow's run is of a source like those; a run counts with the fourth root of its source's, inverted
    Checked   tests/golden/test_generation_table.py: coverage of each source by the others' quantiles
    """
    c = serving.machine.constants
    power = 1.0 + c.unseen_widening.value * len(unseen_generation(serving))
    if unseen_engine(serving) is not None:
        power = power * c.generation_engine_power.value
    low, high = c.generation_interval_low.value, c.generation_interval_high.value
    if is_first_token:
        low, high = c.first_token_interval_low.value, c.first_token_interval_high.value
    return min(max(time_s * low**power, least_s), time_s), time_s * high**power


def unseen_engine(serving: Serving) -> str | None:
    """Why little is known of the engine; None: much is, or it was measured here."""
    if serving.machine.generation is not None:
        return None
    if serving.engine is None:
        return "no serving engine is named"
    if serving.engine.id in serving.machine.constants.generation_seen_engines:
        return None
    return f"few or no published generation rates are of {serving.engine.id}"


def unseen_generation(serving: Serving) -> list[str]:
    """What about a request few or none of the published rates of generation share, the engine aside."""
    c, accelerator = serving.machine.constants, serving.machine.accelerator.id
    reasons: list[str] = []
    weights = serving.weights or serving.recipe.name
    if serving.machine.generation is not None:
        return reasons
    if accelerator not in c.generation_seen_accelerators:
        reasons.append(f"few or no published generation rates used {accelerator}")
    if weights not in c.generation_seen_precisions:
        reasons.append(f"no published generation rate is in {weights}")
    if serving.tp > serving.machine.gpus_per_node:
        reasons.append("no published generation rate splits a model over nodes")
    if serving.pp > 1:
        reasons.append("no published generation rate has a pipeline")
    if serving.ep > 1:
        reasons.append("no published generation rate spreads experts")
    return reasons


def least_time_s(
    *, serving: Serving, num_active_params: float, num_tokens: float, num_steps: float, num_copies: float
) -> float:
    """What no engine can beat: the arithmetic at peak, or the weights read once per step at the datasheet's rate.

    Equation  max(2 N T / (c t p F), n N w / (t p B))
    Source    pope2022 (Efficiently Scaling Transformer Inference, arXiv:2211.05102), section 2
    Assumes   peak rates, no attention, no cache, no communication; active parameters of a mixture only; as many steps
              as equal answers need
    Checked   tests/planner/test_stages.py: never above the prediction
    """
    machine, t = serving.machine, serving.tp * serving.pp
    arithmetic = 2.0 * num_active_params * num_tokens / (num_copies * t * machine.peak_flop_per_s(serving.products))
    speed = machine.accelerator.memory_bandwidth.value
    return max(arithmetic, num_steps * num_active_params * serving.weight_bytes / (t * speed))
