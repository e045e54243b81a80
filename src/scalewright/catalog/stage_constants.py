"""Constants of generation, energy and host memory; part of `Constants`."""

from __future__ import annotations

from scalewright.catalog.facts import Bytes, BytesPerS, Count, Fraction, Seconds, Strict


class StageConstants(Strict):
    """What serving, power and host-memory models need that belongs to no single device."""

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
    prefill_tokens: Count
    """Prompt tokens a serving engine works on at once."""
    idle_power_share: Fraction
    """Board power of a device that waits, over its rating."""
    dynamic_power_share: Fraction
    """Board power added when products run at the device's best rate, over the rating; above 1 where that throttles."""
    memory_power_share: Fraction
    """Board power added when memory runs at the datasheet's bandwidth, over the rating."""
    node_power_share: Fraction
    """Power of hosts, NICs and fans over the rating of the node's devices."""
    process_host_memory: Bytes
    """Host memory of one training process: interpreter, libraries, communication buffers."""
    loader_worker_memory: Bytes
    """Host memory of one data-loader worker."""
