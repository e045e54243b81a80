"""Memory of a device that generates: weights, cache, and how many sequences have room."""

from __future__ import annotations

import math

from scalewright.costs import memory, room
from scalewright.costs.breakdown import Breakdown, bytes_term
from scalewright.costs.generation.iteration import cache_bytes_per_token
from scalewright.costs.generation.serving import Serving
from scalewright.costs.shards import shards_on
from scalewright.workload.lengths import LengthDistribution


def weight_memory_bytes(serving: Serving) -> float:
    """Weights on the fullest device.

    Equation  (N - tables) w + tables w_t, both of one device
    Source    shards.shards_on for the parameters of a device
    Assumes   embedding and head stay in 16 bit where the other weights are narrower
    Checked   tests/costs/test_generation.py: 70B in 8 bit is half of 16 bit, less the tables
    """
    shape, setting = serving.shape, serving.setting(num_sequences=1, seq=1)
    ranks = (0, serving.pp - 1) if serving.pp > 1 else (0,)
    tables = float(shape.vocab * shape.hidden) / serving.tp * (1.0 if serving.pp > 1 or shape.tied_embeddings else 2.0)
    return max(
        (float(shards_on(setting, rank).num_params) - tables) * serving.weight_bytes + tables * serving.table_bytes
        for rank in ranks
    )


def serving_memory(serving: Serving, *, num_sequences: float, total_len: float) -> Breakdown:
    """Bytes on one device while `num_sequences` sequences of `total_len` tokens are alive.

    Equation  weights + b s C / p + one layer's activations of a prefill chunk + 4 b V / t + reserve
    Source    kwon2023 (PagedAttention, arXiv:2309.06180), section 3
    Assumes   tables and head split by tensor parallelism; scores of sampled tokens only
    Checked   tests/costs/test_generation.py: 70B needs 8 A100 of 40 GB, 671B needs 32 of 80 GB
    """
    shape, tp = serving.shape, serving.tp
    cached = cache_bytes_per_token(shape=shape, tp=tp, width_bytes=serving.cache_bytes) / serving.pp
    width = serving.recipe.activation_bytes
    working = memory.activation_bytes_per_layer(
        shape=shape, num_tokens=serving.num_prefill_tokens, tp=tp, sequence_parallel=False, recompute="none",
        dropout=False, kept=memory.even_bytes(width),
    )  # fmt: skip
    num_groups = float(tp > 1) + float(serving.pp > 1)
    outside = room.device_bytes(machine=serving.machine, reserved_bytes=0.0, num_communicators=num_groups)
    return Breakdown(
        name="serving",
        unit="bytes",
        formula="generation.serving_memory",
        parts=(
            bytes_term("weights", weight_memory_bytes(serving), "generation.weight_memory_bytes",
                       bytes_per_param=serving.weight_bytes),
            bytes_term("kv_cache", num_sequences * total_len * cached, "generation.cache_bytes_per_token",
                       num_sequences=num_sequences, bytes_per_token=cached),
            bytes_term("activations", float(working), "memory.activation_bytes_per_layer"),
            bytes_term("scores", 4.0 * num_sequences * shape.vocab / tp, "generation.serving_memory"),
            bytes_term("reserve", float(outside), "room.device_bytes"),
        ),
    )  # fmt: skip


def cache_room_bytes(serving: Serving, *, taken_bytes: float = 0.0) -> float:
    """Memory of one device that is left for the cache; below zero where the weights do not fit.

    Equation  u M - taken - fixed, or u (M - taken - fixed) for engines that share what is free
    Source    the engine's entry, with its source
    Assumes   nothing else runs on the device
    Checked   tests/costs/test_generation.py: one more sequence does not fit
    """
    fixed = float(serving_memory(serving, num_sequences=0, total_len=0).total)
    engine, total = serving.engine, serving.machine.memory_bytes - taken_bytes
    if engine is None:
        return serving.machine.memory_bytes * serving.machine.constants.serving_memory_share.value - taken_bytes - fixed
    if engine.shares_free_memory:
        return (total - fixed) * engine.memory_share.value
    return serving.machine.memory_bytes * engine.memory_share.value - taken_bytes - fixed


def num_sequences_that_fit(serving: Serving, *, total_len: float, taken_bytes: float = 0.0) -> float:
    """Sequences of `total_len` tokens that a copy of the model has room for; below 1 where not even one has.

    Equation  room / (s C / p + 4 V / t)
    Source    kwon2023 (PagedAttention, arXiv:2309.06180), section 3
    Assumes   `total_len` is the mean of the sequences that run, so that a fraction is room for a shorter one
    Checked   tests/costs/test_generation.py: one more does not fit
    """
    none = float(serving_memory(serving, num_sequences=0, total_len=total_len).total)
    one = float(serving_memory(serving, num_sequences=1, total_len=total_len).total)
    return max(cache_room_bytes(serving, taken_bytes=taken_bytes) / (one - none), 0.0)


def held_len(serving: Serving, *, prompts: LengthDistribution, answers: LengthDistribution, per_prompt: float) -> float:
    """Tokens of cache that a running sequence holds while it decides how many others run.

    Equation  P/g + L_max where room is kept for whole answers, else P/g + A, A what a running answer has written
    Source    yu2022 (Orca), section 4.2, for reservation; kwon2023, section 4.5, for preemption
    Assumes   answers to one prompt share its cache; engines that reserve know the longest answer
    Checked   tests/costs/test_generation.py: never more sequences with a longer tail
    """
    prompt = prompts.mean / per_prompt
    if serving.engine is None or serving.engine.reserves_answers:
        longest = answers.longest if math.isfinite(answers.longest) else answers.quantile(0.999)
        return prompt + longest
    return prompt + answers.mean_age


def num_read_again(
    serving: Serving, *, num_at_once: float, answers: LengthDistribution, full_frac: float = 1.0
) -> float:  # fmt: skip
    """Tokens that an answer's cache is computed again for, on average, after it was put aside.

    Equation  sigma / (sqrt(2 pi) sqrt(n)) min(f, 1)^8,  sigma the spread of a running sequence's context, f the
              sequences that would run over the room for them; 0 with reservation
    Source    the mean excess of a sum of n contexts over its own mean, shared by the n
    Assumes   contexts are independent; each excess is put aside and read again once; hardly any below nine tenths of
              the room
    Checked   tests/costs/test_schedule.py: small for many sequences, none with reservation
    """
    if serving.engine is None or serving.engine.reserves_answers:
        return 0.0
    spread = answers.mean_age / math.sqrt(3.0)
    often = min(full_frac, 1.0) ** 8.0  # so that nothing jumps where room begins to suffice
    return float(often) * spread / math.sqrt(2.0 * math.pi * max(num_at_once, 1.0))
