"""Generation: prompts read at once, answers written token by token, and the cache between them.

`serving` is one copy of a model and its engine's rates, `iteration` the time of one iteration, `schedule` how many
sequences run in it, `cache_room` the memory, `bounds` the interval, `decode_points` the points of a roofline.
"""

from __future__ import annotations

from scalewright.costs.generation.bounds import generation_interval_s, least_time_s, unseen_engine, unseen_generation
from scalewright.costs.generation.cache_room import (
    cache_room_bytes,
    held_len,
    num_read_again,
    num_sequences_that_fit,
    serving_memory,
    weight_memory_bytes,
)
from scalewright.costs.generation.decode_points import decode_operations
from scalewright.costs.generation.iteration import (
    activation_time_s,
    cache_bytes_per_token,
    cached_attention_time_s,
    decode_step,
    expert_exchange_time_s,
    expert_product_time_s,
    head_time_s,
    iteration,
    num_experts_touched,
    pipeline_send_time_s,
    prefill,
    product_time_s,
    prompt_attention_time_s,
    repeated_read_time_s,
    roofline_time_s,
    scaled,
    tensor_sum_time_s,
    weight_product_time_s,
)
from scalewright.costs.generation.schedule import (
    Arrivals,
    Load,
    Phases,
    load_time,
    median_wait_s,
    num_iterations,
    num_least_iterations,
    num_median_running,
    phases,
    phases_time,
    steady_state,
    steady_time,
    timed,
)
from scalewright.costs.generation.serving import CACHE_BYTES, STORED_BYTES, Serving, cached_bytes, stored_bytes

__all__ = [
    "CACHE_BYTES",
    "STORED_BYTES",
    "Arrivals",
    "Load",
    "Phases",
    "Serving",
    "activation_time_s",
    "cache_bytes_per_token",
    "cache_room_bytes",
    "cached_attention_time_s",
    "cached_bytes",
    "decode_operations",
    "decode_step",
    "expert_exchange_time_s",
    "expert_product_time_s",
    "generation_interval_s",
    "head_time_s",
    "held_len",
    "iteration",
    "least_time_s",
    "load_time",
    "median_wait_s",
    "num_experts_touched",
    "num_iterations",
    "num_least_iterations",
    "num_median_running",
    "num_read_again",
    "num_sequences_that_fit",
    "phases",
    "phases_time",
    "pipeline_send_time_s",
    "prefill",
    "product_time_s",
    "prompt_attention_time_s",
    "repeated_read_time_s",
    "roofline_time_s",
    "scaled",
    "serving_memory",
    "steady_state",
    "steady_time",
    "stored_bytes",
    "tensor_sum_time_s",
    "timed",
    "unseen_engine",
    "unseen_generation",
    "weight_memory_bytes",
    "weight_product_time_s",
]
