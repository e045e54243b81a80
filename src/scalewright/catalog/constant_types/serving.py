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
    engine_step_time: Seconds
    """Host work of a serving engine per iteration that the device waits for: scheduling, sampling, bookkeeping."""
    serving_memory_share: Fraction
    """Share of a device's memory a serving engine fills."""
    generation_interval_low: Fraction
    """Lower end of the 90 % interval of generation, as measured over predicted time."""
    generation_interval_high: Fraction
    first_token_interval_low: Fraction
    """Lower end of the 90 % interval of the first token."""
    first_token_interval_high: Fraction
    generation_seen_accelerators: tuple[Id, ...]
    """Devices of the published rates behind those intervals; elsewhere they are wider."""
    generation_seen_precisions: tuple[str, ...]
    prefill_tokens: Count
    """Prompt tokens a serving engine works on at once."""
