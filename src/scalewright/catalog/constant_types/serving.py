"""Constants of generation; part of `Constants`."""

from __future__ import annotations

from scalewright.catalog.facts import BytesPerS, Count, Fraction, Id, Seconds, Strict


class ServingConstants(Strict):
    """A serving engine's times and memory, and the intervals of generation."""

    decode_layer_time: Seconds
    """What one layer of a decode step takes beyond its memory traffic: starts and ends of its kernels, in a graph."""
    direct_reduce_offset: Seconds
    """Time of the smallest all-reduce by direct reads and writes between the devices of a node."""
    direct_reduce_bandwidth: BytesPerS
    """Rate of such an all-reduce below a few MiB, in the counting of a ring."""
    host_sum_share: Fraction
    """Rate of sums between devices that only the host joins, over that of their links."""
    engine_step_time: Seconds
    """Host work of a serving engine per iteration that the device waits for: scheduling, sampling, bookkeeping."""
    sequence_step_time: Seconds
    """Host work for each running sequence of an iteration."""
    prompt_layer_time: Seconds
    """What one layer of an iteration that reads prompts takes beyond traffic and arithmetic: launches, no graph."""
    serving_matmul_share: Fraction
    """Rate of a serving engine's large 16-bit products over the rate that a device sustains."""
    narrow_serving_share: Fraction
    """The same for products in 8 bit and fewer, with the casts of their inputs."""
    serving_expert_share: Fraction
    """Rate of routed experts' products over that of dense ones."""
    serving_blend: Count
    """Exponent with which arithmetic and traffic of a product join at the corner of the roofline."""
    serving_passes: Count
    """Times a layer's activations cross memory outside products and attention, at the width of the model and of the
    feed-forward."""
    cache_bandwidth_share: Fraction
    """Rate at which attention reads the cache, over the reachable memory bandwidth."""
    serving_memory_share: Fraction
    """Share of a device's memory a serving engine fills."""
    generation_interval_low: Fraction
    """Lower end of the 90 % interval of generation, as measured over predicted time."""
    generation_interval_high: Fraction
    first_token_interval_low: Fraction
    """Lower end of the 90 % interval of the first token."""
    first_token_interval_high: Fraction
    generation_seen_accelerators: tuple[Id, ...]
    """Devices of at least ten published rates behind those intervals; elsewhere they are wider."""
    generation_seen_engines: tuple[Id, ...]
    """Likewise, engines."""
    generation_engine_power: Count
    """Power of the interval's ends for other engines."""
    generation_seen_precisions: tuple[str, ...]
    prefill_tokens: Count
    """Prompt tokens a serving engine works on at once."""
