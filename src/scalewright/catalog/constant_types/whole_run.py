"""Constants of energy, host memory, storage and failures; part of `Constants`."""

from __future__ import annotations

from scalewright.catalog.facts import Bytes, BytesPerS, Count, Fraction, Hertz, Seconds, Strict, UsdPerEur


class WholeRunConstants(Strict):
    """What power, host-memory, storage and whole-run models need that belongs to no single device."""

    idle_power_share: Fraction
    """Board power of a device that waits, over its rating."""
    dynamic_power_share: Fraction
    """Board power added when products run at the device's best rate, over the rating; above 1 if it throttles."""
    memory_power_share: Fraction
    """Board power added when memory runs at the datasheet's bandwidth, over the rating."""
    node_power_share: Fraction
    """Power of hosts, NICs and fans over the rating of the node's devices."""
    process_host_memory: Bytes
    """Host memory of one training process: interpreter, libraries, communication buffers."""
    loader_worker_memory: Bytes
    """Host memory of one data-loader worker."""
    host_link_share: Fraction
    """Share of the link to the host that copies of state reach."""
    host_memory_share: Fraction
    """Share of a processor's memory bandwidth that an optimizer on the host reaches."""
    token_bytes: Bytes
    """A token of text on disk."""
    token_loader_time: Seconds
    """One loader worker's time to read, pack and hand over one token of text that is already tokenised."""
    image_loader_time: Seconds
    """One loader worker's time to decode and augment one image of ImageNet's mean size."""
    image_bytes: Bytes
    """An image on disk."""
    shared_storage_share: Fraction
    """Share of a shared file system's published rate that one job can count on."""
    shared_file_rate: Hertz
    """Small files a second that one job opens and reads on a shared file system whose own rate is not known."""
    storage_client_bandwidth: BytesPerS
    """Rate at which one node reads or writes a shared file system."""
    device_mttf: Seconds
    """Mean time to failure of one device with its share of node, network and software."""
    restart_time: Seconds
    """From a failure to the first step again, without reading the checkpoint: detection, a spare node, start-up."""
    startup_time: Seconds
    """From the start of a job to its first step, without reading the checkpoint."""
    walltime_margin: Fraction
    """What a request for time or memory holds above the prediction."""
    fine_tuning_batch: Count
    """Samples per step of supervised fine-tuning, where none are given."""
    large_request: Seconds
    """Device time of a request above which a user is warned, where the site says nothing else."""
    exchange_rate: UsdPerEur
    """For prices whose file gives none."""
    max_writing_share: Fraction
    """Largest part of the time in which a checkpoint is written beside training."""
